"""Registers that are definitely assigned on every path, and memory that a program changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from stretto.device.expr import Buffer, Reg, limit_register
from stretto.device.flow import Facts, Loop
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, Run, Schedule
from stretto.device.regions import Region, statement_reads, written_buffers
from stretto.device.runs import called, reached
from stretto.device.tree import (
    Call,
    Check,
    For,
    If,
    Leaf,
    Let,
    Node,
    Tree,
    TreeFunction,
    assigns,
    calls,
    is_parallel,
    leaves,
    reads,
    rotation,
    swaps,
    walk,
)
from stretto.device.verifier.touched import Touched
from stretto.errors import VerifyError
from stretto.ir.sizes import Symbol

Assigned = frozenset[str]
"""Names of registers that are definitely assigned."""

Use = Callable[[Iterable[Reg], Assigned, str], None]
"""Called with the registers read, those assigned by then, and a description of the reader."""


class Assignment(Facts[Schedule, Assigned]):
    """Propagates the set of definitely assigned registers through a tree.

    kernel_reads: the registers that the tasks of a kernel read, by its name. use: called
    for each read.
    """

    def __init__(self, kernel_reads: Callable[[str], Iterable[Reg]], use: Use) -> None:
        super().__init__()
        self._kernel_reads = kernel_reads
        self._use = use

    def after(self, body: Schedule, state: Assigned) -> Assigned:
        ends = [self._items(items, state) for items in dict.fromkeys(body.units)]
        return ends[-1] if ends else state

    def _items(self, items: Iterable[object], state: Assigned) -> Assigned:
        for item in items:
            match item:
                case Run(kernel=name):
                    self._use(self._kernel_reads(name), state, f"kernel {name}")
                case Let(reg=register):
                    self._use(statement_reads(item), state, f"let {register.name}")
                    state |= {register.name}
                case Check():
                    self._use(statement_reads(item), state, "a check")
                case _:
                    pass
        return state

    def call(self, call: Call[Schedule], state: Assigned) -> tuple[Node[Schedule], Assigned]:
        self._use(reads(call), state, f"call of {call.function}")
        return call, state | {mine.name for mine, _ in call.results}

    def loop(self, node: Loop[Schedule], state: Assigned) -> tuple[Node[Schedule], Assigned]:
        """Handle parallel loops: registers that an iteration assigns are unassigned in other
        iterations and after the loop."""
        if not is_parallel(node):
            return super().loop(node, state)
        kept = state - {reg.name for reg in _assigned(node)}
        return super().loop(node, kept)[0], kept

    def decide(self, node: Loop[Schedule] | If[Schedule], state: Assigned) -> None:
        what = "bounds of a loop" if isinstance(node, For) else "a condition"
        self._use(reads(node), state, what)

    def begin(self, node: For[Schedule], state: Assigned) -> Assigned:
        return state | {node.index.name}

    def merge(self, a: Assigned, b: Assigned) -> Assigned:
        return a & b


def _assigned(loop: For[Schedule]) -> Iterator[Reg]:
    """Yield the registers that an iteration assigns."""
    for node in walk(loop):
        yield from assigns(node)
        if isinstance(node, Leaf):
            yield from (item.reg for item in node.body.statements if isinstance(item, Let))


def check_registers(
    function: TreeFunction[Schedule],
    externals: Iterable[Buffer],
    touched: Touched,
) -> None:
    """Raise VerifyError for a register that is used before it is assigned.

    Registers with the capacity of a list are set by the machine.
    """
    limits = {limit_register(buffer.slot).name for buffer in externals if buffer.kind == "list"}

    def require(registers: Iterable[Reg], assigned: Assigned, where: str) -> None:
        for name in sorted({reg.name for reg in registers} - assigned - limits):
            raise VerifyError(
                f"register {name} may be used before it is assigned: {where} "
                f"(function {function.name})"
            )

    start = frozenset(register.name for register in function.params)
    end = Assignment(touched.registers, require).end(function.body, start)
    require(function.results, end, "the end of the function")


# ---- Memory that a program changes: accesses to memory that is never written need no order.


L = TypeVar("L")


def written_externals(tree: Tree[L], kernels: Iterable[Kernel]) -> frozenset[str]:
    """Return the names of the external buffers that kernels write, directly or as a function's
    param."""
    buffers = [buffer for kernel in kernels for buffer in written_buffers(kernel)]
    for function in tree.functions:
        for call in calls(function.body):
            written = tree.function(call.function).written
            buffers.extend(access.buffer for param, access in call.tensors if param in written)
    return frozenset(b.name for b in buffers if b.kind not in ("local", "items", "param"))


def relevance(
    tree: Tree[L], kernels: Iterable[Kernel]
) -> Callable[[TreeFunction[L]], Callable[[Region], bool]]:
    """Return, for each function, a predicate on regions: True if an access to the region can be
    part of a conflict."""
    written = written_externals(tree, kernels)
    still = _still_params(tree, written)

    def of(function: TreeFunction[L]) -> Callable[[Region], bool]:
        return lambda region: not _is_still(region.buffer, still[function.name], written)

    return of


def _is_still(buffer: Buffer, params: set[str], written: frozenset[str]) -> bool:
    match buffer.kind:
        case "local" | "items":
            return False
        case "param":
            return buffer.name in params
        case _:
            return buffer.name not in written


def _still_params(tree: Tree[L], written: frozenset[str]) -> dict[str, set[str]]:
    """Return for each function the params that are bound only to memory that is never written."""
    still = {f.name: {p.name for p in f.tensors if p not in f.written} for f in tree.functions}
    changed = True
    while changed:
        changed = False
        for function in tree.functions:
            for call in calls(function.body):
                for param, access in call.tensors:
                    if param.name in still[call.function] and not _is_still(
                        access.buffer, still[function.name], written
                    ):
                        still[call.function].discard(param.name)
                        changed = True
    return still


# ---- Lists that only one unit accesses in the functions that are called.
#
# Accesses to these may be pending when a function is called or returns: only `main` can race with
# them. `races` checks what `main` does after the call.


Relevant = Callable[[Region], bool]


def own_lists(program: DeviceProgram, touched: Touched) -> frozenset[str]:
    """Return the names of the lists that in all functions but `main` a single unit accesses,
    always the same one, and under this name only."""
    units: dict[str, set[int]] = {}
    shared: set[str] = set()
    for function in program.tree.functions:
        shared.update(_renamed(function.body))
        if function.name != "main":
            for schedule in leaves(function.body):
                for name, unit in _accesses(schedule, touched):
                    units.setdefault(name, set()).add(unit)
    return frozenset(name for name, own in units.items() if len(own) == 1) - shared


@dataclass(frozen=True, slots=True)
class OwnListCalls:
    """Accesses pending after a call from `main`: those of the reachable functions to the lists
    named in `own`."""

    program: DeviceProgram
    own: frozenset[str]

    def schedules(self, function: str) -> Iterator[Schedule]:
        """Yield the leaves that a call of a function may reach."""
        functions = self.program.tree.functions
        callees = {one.name: called(one.body) for one in functions}
        names = {function, *reached(function, callees)}
        for one in functions:
            if one.name in names:
                yield from leaves(one.body)


def apart_from(own: frozenset[str], relevant: Relevant) -> Relevant:
    """Return a predicate for regions that are relevant and not of the lists of these names."""
    return lambda region: region.buffer.name not in own and relevant(region)


def _accesses(schedule: Schedule, touched: Touched) -> set[tuple[str, int]]:
    return {
        (region.buffer.name, unit)
        for unit, items in enumerate(schedule.units)
        for item in items
        for region in touched.regions(item)
        if region.buffer.kind == "list"
    }


def _renamed(body: Node[Schedule]) -> set[str]:
    """Return the names of buffers that are bound to parameters or rotated."""
    found: set[str] = set()
    for node in walk(body):
        found.update(swaps(rotation(node)))
        if isinstance(node, Call):
            found.update(access.buffer.name for _, access in node.tensors)
    return found


# ---- The result of a verification.


@dataclass(frozen=True, slots=True)
class Proof:
    """A proof that a program keeps the rules for all values of its symbols in their ranges.

    in_range: number of accesses that depend on symbols and were proved to be in range.
    at_run: number of those whose positions are known only at run time, when they are
    checked.
    """

    symbols: tuple[Symbol, ...] = ()
    in_range: int = 0
    at_run: int = 0

    def __str__(self) -> str:
        if not self.symbols:
            return "for its sizes"
        ranges = ", ".join(symbol.declaration for symbol in self.symbols)
        text = f"for {ranges}: {self.in_range} accesses in range"
        return f"{text}, {self.at_run} checked in the run" if self.at_run else text
