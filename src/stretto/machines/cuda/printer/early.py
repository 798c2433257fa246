"""Loads constants before the task that uses them may begin.

Which constants a task reads often depends on nothing but its number. Such loads go ahead of the
wait of their kernel, so that they are under way meanwhile, or ahead of the loop around it, so that
the weights stay in the registers of the unit that uses them in every iteration. What registers have
no room for a loop keeps in shared memory (row_pieces.py), which is filled before the outermost
loop around, at most once in a launch. What finds no room there either the task loads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from sys import maxsize

from stretto.device.expr import Buffer
from stretto.device.operator import label
from stretto.machines import statements as code
from stretto.machines.cuda.printer.kernel import WARPS, TritonKernel
from stretto.machines.cuda.printer.load_order import loads_first
from stretto.machines.cuda.printer.row_pieces import (
    Places,
    filling,
    read_bytes,
    shared_bytes,
    with_kept,
)
from stretto.machines.cuda.printer.scalar import BARRIER, OK, TASK, UNIT
from stretto.machines.terms import Term, call, infix, separated

# ---- Splits a kernel into the loads of constants that may come early, and the rest of a task.
#
# Which constants a task reads often depends on nothing but its number. Registers may hold all of
# these loads, or some, and shared memory others; a task makes those that are left.


LEAST_BYTES = 2048
"""Less than this of a unit is not worth a function of its own."""
LANES = 32
"""Of a warp."""


@dataclass(frozen=True, slots=True)
class EarlyKernel:
    """A kernel in two functions.

    early: (constants ..., task), returns `values`. body: the rest, (buffers ..., registers ...,
    control, task, values ...). constants: the arguments of `early`, as places in the kernel's
    buffers. sizes: the bytes of each value in the registers of a unit. reads: what each value is
    loaded from. rest: the constants that `body` still loads from. fill: (constants ..., task),
    stores what shared memory keeps; those constants are `filled`. shared: what that is loaded from,
    with the bytes that it would take in registers. task_bytes: what a task reads from shared
    memory. sharable: by value, what it takes there, if it can be there.
    """

    early: code.Function
    body: code.Function
    constants: tuple[int, ...]
    values: tuple[Term, ...]
    sizes: tuple[int, ...]
    reads: tuple[Buffer, ...] = ()
    rest: frozenset[Buffer] = frozenset()
    fill: code.Function | None = None
    filled: tuple[int, ...] = ()
    shared: tuple[tuple[Buffer, int], ...] = ()
    task_bytes: int = 0
    sharable: Mapping[Term, int] = field(default_factory=dict[Term, int])

    @property
    def nbytes(self) -> int:
        return sum(self.sizes)

    def bytes_of(self, buffer: Buffer) -> int:
        """What registers and shared memory hold of a constant, as bytes of registers."""
        held = (*zip(self.reads, self.sizes, strict=True), *self.shared)
        return sum(size for read, size in held if read == buffer)

    @property
    def shared_nbytes(self) -> int:
        """What shared memory keeps, as bytes of registers."""
        return sum(size for _, size in self.shared)


def split_early(
    kernel: TritonKernel,
    warps: int = WARPS,
    taken: Collection[Term] | None = None,
    places: Places | None = None,
) -> EarlyKernel | None:
    """The two functions of a kernel; None where it has little or nothing to load early.

    warps: of a unit. taken: the values that registers hold, where those are not all that may be
    loaded early. places: of values that shared memory keeps.
    """
    parameters, body = kernel.function.parameters, kernel.function.body
    constants = {b: place for place, b in enumerate(kernel.buffers) if b.kind == "constant"}
    addresses, found = _constant_loads(kernel, constants)
    places = places or {}
    loads = [load for load in found if taken is None or load.target in taken]
    shared = [load for load in found if load.target in places]
    held = tuple(_held_bytes(load, warps) for load in (*loads, *shared))
    if sum(held) < LEAST_BYTES:
        return None
    values = tuple(load.target for load in loads)
    first = (*_needed(addresses, loads), *loads, code.Return(values))
    rest = tuple(statement for statement in body if statement not in loads)
    rest = loads_first(with_kept(rest, shared, places))
    used, filled = (
        tuple(sorted({constants[load.value.reads[0]] for load in some})) for some in (loads, shared)
    )
    arguments = (*(parameters[place] for place in filled), TASK)
    return EarlyKernel(
        code.Function((*(parameters[place] for place in used), TASK), first),
        code.Function((*parameters, *values), rest),
        used,
        values,
        held[: len(loads)],
        tuple(load.value.reads[0] for load in loads),
        frozenset(b for s in code.walk(rest) for b in code.reads(s) if b.kind == "constant"),
        filling(arguments, _needed(addresses, shared), shared, places) if shared else None,
        filled,
        tuple((s.value.reads[0], size) for s, size in zip(shared, held[len(loads) :], strict=True)),
        read_bytes(shared),
        {load.target: size for load in found if (size := shared_bytes(load))},
    )


def _constant_loads(
    kernel: TritonKernel, constants: Collection[Buffer]
) -> tuple[list[code.Assign], list[code.Assign]]:
    """What may be a part of the addresses of constants that depend on the task alone, and the loads
    of a kernel from such addresses."""
    parameters, body = kernel.function.parameters, kernel.function.body
    assignments = Counter(name for statement in code.walk(body) for name in code.defines(statement))
    pointers = (parameters[place] for place, b in enumerate(kernel.buffers) if b in constants)
    computable = {*TASK.names, *(name for pointer in pointers for name in pointer.names)}
    addresses: list[code.Assign] = []
    loads: list[code.Assign] = []
    for statement in body:
        if not isinstance(statement, code.Assign) or not computable.issuperset(
            statement.value.names
        ):
            continue
        if assignments[statement.target.text] > 1 or statement.value.effect:
            continue
        if not statement.value.reads:
            computable.add(statement.target.text)
            addresses.append(statement)
        elif statement.value.reads[0] in constants:
            loads.append(statement)
    return addresses, loads


def _needed(addresses: list[code.Assign], loads: list[code.Assign]) -> list[code.Assign]:
    """The parts of addresses that loads need."""
    needed = {name for load in loads for name in load.value.names}
    for address in reversed(addresses):
        if address.target.text in needed:
            needed.update(address.value.names)
    return [address for address in addresses if address.target.text in needed]


def _held_bytes(load: code.Assign, warps: int) -> int:
    """What a loaded block takes in the registers of a unit, of which every thread has as many."""
    itemsize = max(load.value.reads[0].dtype.itemsize, 4)
    if len(load.shape) == 3:  # (lanes, warps, rows of a warp): warps without a row have it, too
        lanes, _, each = load.shape
        return max(lanes, LANES) * warps * each * itemsize
    return max(prod(load.shape), warps * LANES) * itemsize


def shares(split: EarlyKernel, whole: EarlyKernel) -> dict[str, float]:
    """The parts of constants that a split holds, of those that it could hold all of."""
    return {
        buffer.name: split.bytes_of(buffer) / whole.bytes_of(buffer)
        for buffer in dict.fromkeys((*split.reads, *(read for read, _ in split.shared)))
        if buffer not in whole.rest
    }


@dataclass(frozen=True, slots=True)
class Held:
    """What registers hold of a kernel: `values` are the variables of those of the split. scarce:
    there are no registers for all that a loop would hold."""

    split: EarlyKernel
    values: tuple[Term, ...]
    scarce: bool = False


@dataclass(slots=True)
class EarlyLoads:
    """Places loads in a function of the module, and makes loops of the `Run`s of its kernels.

    kernels: by name. define: the name of a function of the module that is inlined where it is
    called, or not, and is made for a kernel. fresh: a new variable. budget: bytes of registers for
    what is held. ahead: bytes of them for what is loaded ahead of a wait. warps: of a unit. most:
    different texts of kernels that may be split, since each is compiled wherever it stands; `texts`
    are those that are. held: by the kernel and its first task, what is kept of it. functions: by
    kernel, the values that it is given, and its text. kept: the most bytes that a loop holds in
    registers. lacking: bytes that loops would hold besides if there were room for them. shares: by
    kernel and constant, the part of what the kernel loads that loops hold. shared: bytes of shared
    memory for what registers have no room for, of which `used` are. read: by kernel, what a task
    reads from there. fills: what stores those constants, not placed yet. depth: of loops around.
    """

    kernels: dict[str, TritonKernel]
    define: Callable[[str, code.Function, bool, str], str]
    fresh: Callable[[str], Term]
    budget: int = 0
    ahead: int = maxsize
    warps: int = WARPS
    most: int = 24
    splits: dict[str, EarlyKernel] = field(default_factory=dict[str, EarlyKernel])
    held: dict[tuple[str, Term], Held] = field(default_factory=dict[tuple[str, Term], Held])
    functions: dict[tuple[str, tuple[Term, ...], code.Function], str] = field(
        default_factory=dict[tuple[str, tuple[Term, ...], code.Function], str]
    )
    texts: set[code.Function] = field(default_factory=set[code.Function])
    kept: int = 0
    lacking: int = 0
    shares: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    shared: int = 0
    used: int = 0
    read: dict[str, int] = field(default_factory=dict[str, int])
    fills: list[code.Statement] = field(default_factory=list[code.Statement])
    depth: int = 0

    def placed(self, block: code.Block) -> code.Block:
        """The statements with their early loads. Loads, the wait behind them and the kernel are a
        section: a function for all kernels of one text that wait alike."""
        found: list[code.Statement] = []
        done = 0
        for place, statement in enumerate(block):
            if place < done:
                continue
            run = _run_behind_waits(block[place:])
            if run is not None and _key(run) not in self.held and (loads := self.load_ahead(run)):
                done = block.index(run, place) + 1
                waits = block[place : done - 1]
                found.append(code.Section((*loads, *waits, self.tasks(run)), least=1))
                self.drop([_key(run)])
                continue
            match statement:
                case code.Run():
                    found.append(self.tasks(statement))
                case code.If(_, then, orelse):
                    arms = self.placed(then), self.placed(orelse)
                    found.append(replace(statement, then=arms[0], orelse=arms[1]))
                case code.Section(body=body):
                    found.append(replace(statement, body=self.placed(body)))
                case code.For() | code.Loop():
                    self.depth += 1
                    made = self.loop(statement)
                    self.depth -= 1
                    found += (*self.filled(), made)
                case _:
                    found.append(statement)
        return tuple(found)

    def filled(self) -> code.Block:
        """What fills the shared memory of the loops inside of an outermost loop, which is behind
        it; nothing within loops."""
        if self.depth or not self.fills:
            return ()
        body = (*self.fills, BARRIER)
        self.fills.clear()
        return (code.Section(body, least=1),)

    def loop(self, loop: code.For | code.Loop) -> code.Statement:
        """A loop whose kernels keep on chip what they read in every iteration, as far as it fits.
        Loops inside of it run more often, so room for what those keep is left free."""
        if isinstance(loop, code.For):
            return replace(loop, body=self.placed(loop.body))
        before = set(self.held)
        runs = [run for run in every_iteration(loop) if _key(run) not in before]
        inner = self.wanted((*loop.head, *loop.body))
        reserved = min(inner, self.budget)
        self.budget -= reserved
        loads = self.keep(runs, max(self.shared - self.used - (inner - reserved), 0))
        self.budget += reserved
        made = replace(loop, head=self.placed(loop.head), body=self.placed(loop.body))
        self.drop(self.held.keys() - before)
        return code.Section((*loads, made), least=1) if loads else made

    def wanted(self, block: code.Block) -> int:
        """The bytes that the loops in a block would keep, of loops one after the other the most."""
        most = 0
        for statement in block:
            inner = max((self.wanted(part) for part in code.blocks(statement)), default=0)
            if isinstance(statement, code.Loop):
                splits = (self.split(run.kernel) for run in every_iteration(statement) if run.tasks)
                inner += sum(split.nbytes for split in splits if split is not None)
            most = max(most, inner)
        return most

    def keep(self, runs: Iterable[code.Run], room: int) -> list[code.Statement]:
        """The loads of kernels that a loop runs, as far as there are registers for them: the
        largest blocks first, in which no warp is without rows. room: bytes of shared memory for
        the others."""
        splits = [(run, self.split(run.kernel)) for run in runs if run.tasks]
        found = [(run, split) for run, split in splits if split is not None]
        wanted = sum(split.nbytes for _, split in found)
        scarce = wanted > self.budget
        taken = _fitting([split for _, split in found], self.budget)
        places = self.places(found, taken, room)
        loads: list[code.Statement] = []
        for (run, whole), values, kept in zip(found, taken, places, strict=True):
            split: EarlyKernel | None = whole
            if len(values) < len(whole.values):
                split = split_early(self.kernels[run.kernel], self.warps, values, kept)
            if split is not None:
                loads += self.hold(run, split, scarce)
                self.shares[run.kernel] = shares(split, whole)
                wanted -= split.nbytes + split.shared_nbytes
        self.lacking += wanted
        self.kept = max(self.kept, sum(held.split.nbytes for held in self.held.values()))
        return loads

    def places(
        self,
        found: list[tuple[code.Run, EarlyKernel]],
        taken: list[set[Term]],
        room: int,
    ) -> list[dict[Term, int]]:
        """Of each kernel where shared memory keeps what registers do not, the largest first. It is
        filled before the outermost loop, so the task must be known there."""
        sizes = [
            (size, number, value)
            for number, (run, split) in enumerate(found)
            for value, size in split.sharable.items()
            if value not in taken[number] and {*run.first.names} <= {*UNIT.names}
        ]
        places: list[dict[Term, int]] = [{} for _ in found]
        for size, number, value in sorted(sizes, key=lambda entry: -entry[0]):
            if size <= room:
                room -= size
                self.used += size
                places[number][value] = self.used
        return places

    def load_ahead(self, run: code.Run) -> list[code.Statement]:
        """The loads of a kernel behind a wait, if there are registers for all of them."""
        split = self.split(run.kernel) if run.tasks else None
        if split is None or split.nbytes > min(self.budget, self.ahead):
            return []
        return self.hold(run, split)

    def hold(self, run: code.Run, split: EarlyKernel, scarce: bool = False) -> list[code.Statement]:
        """The loads of a split kernel into registers of their own. What shared memory keeps is
        loaded by one of `fills`."""
        values = tuple(self.fresh(f"early_{v.text}") for v in split.values)
        task = call("tl.minimum", run.first, run.tasks - 1)
        self.held[_key(run)] = Held(split, values, scarce)
        self.budget -= split.nbytes
        if split.fill is not None:
            function = self.define(f"s_{label(run.kernel)}", split.fill, True, run.kernel)
            pointers = (run.arguments[place] for place in split.filled)
            self.fills.append(code.Do(call(function, *pointers, task)))
            self.read[run.kernel] = split.task_bytes
        if not values:
            return []
        function = self.define(f"e_{label(run.kernel)}", split.early, True, run.kernel)
        pointers = (run.arguments[place] for place in split.constants)
        return [code.Assign(separated(values), call(function, *pointers, task))]

    def split(self, kernel: str) -> EarlyKernel | None:
        """A kernel with all of its early loads apart."""
        if kernel not in self.splits:
            made = split_early(self.kernels[kernel], self.warps)
            if made is None or (len(self.texts) >= self.most and made.body not in self.texts):
                return None
            self.texts.add(made.body)
            self.splits[kernel] = made
        return self.splits[kernel]

    def drop(self, keys: Iterable[tuple[str, Term]]) -> None:
        """Gives registers back."""
        for key in [*keys]:
            self.budget += self.held.pop(key).split.nbytes

    def tasks(self, run: code.Run) -> code.Statement:
        """Calls of the kernel's function, with the values that are at hand already."""
        held = self.held.get(_key(run))
        given = held.split.values if held is not None else ()
        values = held.values if held is not None else ()
        body = held.split.body if held is not None else self.kernels[run.kernel].function
        key = run.kernel, given, body
        if key not in self.functions:
            name = f"k_{label(run.kernel)}"
            self.functions[key] = self.define(name, body, bool(values), run.kernel)
        task = code.Do(call(self.functions[key], *run.arguments, *values))
        if run.tasks:
            # What is computed of a number that changes does not stay in registers over the loop.
            changes = held is not None and held.scarce
            first = call("stretto_again", run.first) if changes else run.first
            mine = code.If(OK & infix(TASK, "<", run.last), (task,))
            return code.Section((code.Assign(TASK, first), mine))
        return code.For(TASK, run.first, call("tl.where", OK, run.last, 0), run.stride, (task,))


def _fitting(splits: list[EarlyKernel], room: int) -> list[set[Term]]:
    """Of each kernel the values that fit into so many bytes together: all of them, or else large
    ones, the largest first. Small ones are numbers per row, which all lanes of a warp hold alike.
    """
    sizes = [
        (size, number, value)
        for number, split in enumerate(splits)
        for value, size in zip(split.values, split.sizes, strict=True)
    ]
    if sum(size for size, _, _ in sizes) <= room:
        return [{*split.values} for split in splits]
    largest = max(size for size, _, _ in sizes)
    taken: list[set[Term]] = [set() for _ in splits]
    for size, number, value in sorted(sizes, key=lambda entry: -entry[0]):
        if size <= room and 2 * size >= largest:
            taken[number].add(value)
            room -= size
    return taken


def every_iteration(loop: code.Loop) -> list[code.Run]:
    """The kernels that a loop runs outside of inner loops, and of branches that it does not take
    again and again; each in one place."""
    found = list(_runs((*loop.head, *loop.body)))
    counts = Counter(run.kernel for run in found)
    return [run for run in found if counts[run.kernel] == 1]


def _runs(block: code.Block) -> Iterator[code.Run]:
    for statement in block:
        match statement:
            case code.Run():
                yield statement
            case code.For(body=body) | code.Section(body=body) | code.If(then=body, recurs=True):
                yield from _runs(body)
            case _:
                pass


def _run_behind_waits(block: code.Block) -> code.Run | None:
    """The run that the waits at the beginning of `block` are for."""
    if not _waits(block[0]):
        return None
    behind = next((s for s in block if not _waits(s) and s != BARRIER), None)
    return behind if isinstance(behind, code.Run) else None


def _waits(statement: code.Statement) -> bool:
    match statement:
        case code.Wait():
            return True
        case code.If(then=body) | code.For(body=body):
            return any(isinstance(inner, code.Wait) for inner in body)
        case _:
            return False


def _key(run: code.Run) -> tuple[str, Term]:
    return run.kernel, run.first
