"""Registers that are definitely assigned on every path."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from stretto.device.expr import Buffer, Reg, limit_register
from stretto.device.flow import Facts, Loop
from stretto.device.program import Run, Schedule, assigned_registers
from stretto.device.regions import statement_reads
from stretto.device.tree import (
    Call,
    Check,
    For,
    If,
    Let,
    Node,
    TreeFunction,
    is_parallel,
    reads,
    walk,
)
from stretto.device.verifier.touched import ItemRegions
from stretto.errors import VerifyError

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
        kept = state - {reg.name for reg in assigned_registers(node)}
        return super().loop(node, kept)[0], kept

    def decide(self, node: Loop[Schedule] | If[Schedule], state: Assigned) -> None:
        what = "bounds of a loop" if isinstance(node, For) else "a condition"
        self._use(reads(node), state, what)

    def begin(self, node: For[Schedule], state: Assigned) -> Assigned:
        return state | {node.index.name}

    def merge(self, a: Assigned, b: Assigned) -> Assigned:
        return a & b


def check_registers(
    function: TreeFunction[Schedule],
    externals: Iterable[Buffer],
    touched: ItemRegions,
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


L = TypeVar("L")


def function_calls(function: TreeFunction[L]) -> tuple[Call[L], ...]:
    return tuple(node for node in walk(function.body) if isinstance(node, Call))
