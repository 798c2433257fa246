"""Load constants before the task that uses them may begin.

Which constants a task reads often depends only on its number. Such loads move ahead of the wait of
their kernel, so that they are in flight while the unit waits, or ahead of the loop around it, so
that the weights stay in the registers of the unit that uses them in every iteration. Constants for
which a loop has no registers are stored in shared memory (row_pieces.py), which is filled before
the outermost loop, at most once in a launch. The task itself loads whatever does not fit there
either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from sys import maxsize

from stretto.device.expr import Buffer
from stretto.device.operator import label
from stretto.machines import statements as code
from stretto.machines.cuda.costs import WARP
from stretto.machines.cuda.printer.kernel import WARPS, TritonKernel
from stretto.machines.cuda.printer.load_order import loads_first
from stretto.machines.cuda.printer.row_pieces import (
    Places,
    fill_function,
    read_bytes,
    shared_bytes,
    with_shared_loads,
)
from stretto.machines.cuda.printer.scalar import BARRIER, OK, TASK, UNIT
from stretto.machines.terms import Term, call, infix, separated

# ---- Splitting a kernel into loads of constants that may come early, and the rest of a task.
#
# Registers hold some or all of these loads, shared memory others; a task makes the remaining ones.


LEAST_BYTES = 2048
"""Bytes per unit below which early loads are not worth a separate function."""


@dataclass(frozen=True, slots=True)
class EarlyKernel:
    """A kernel split into two functions: early loads and the remaining task.

    early: (constants ..., task), returns `values`. body: the rest, (buffers ..., registers ...,
    control, task, values ...). constants: the arguments of `early`, as positions in the kernel's
    buffers. sizes: the bytes of each value in the registers of a unit. reads: the buffer that each
    value is loaded from. rest: the constants that `body` still loads from. fill: (constants ...,
    task), stores the constants that shared memory holds; `filled` are its arguments, as positions.
    shared: the buffers that those are loaded from, with the bytes that each would take in
    registers. task_bytes: bytes that a task reads from shared memory. sharable: for each value that
    shared memory can hold, its bytes there.
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
        """Bytes of registers of a unit that the values take."""
        return sum(self.sizes)

    def bytes_of(self, buffer: Buffer) -> int:
        """Return the bytes of a constant that registers and shared memory hold, counted as bytes
        of registers."""
        held = (*zip(self.reads, self.sizes, strict=True), *self.shared)
        return sum(size for read, size in held if read == buffer)

    @property
    def shared_nbytes(self) -> int:
        """Bytes that shared memory holds, counted as bytes of registers."""
        return sum(size for _, size in self.shared)


def split_early(
    kernel: TritonKernel,
    warps: int = WARPS,
    taken: Collection[Term] | None = None,
    places: Places | None = None,
) -> EarlyKernel | None:
    """Split a kernel into its early loads and the rest; None if it has less than LEAST_BYTES to
    load early.

    warps: of a unit. taken: the values that registers hold, if not all that may be loaded
    early. places: for values that shared memory holds, their distance in bytes from its end.
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
    rest = loads_first(with_shared_loads(rest, shared, places))
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
        fill_function(arguments, _needed(addresses, shared), shared, places) if shared else None,
        filled,
        tuple((s.value.reads[0], size) for s, size in zip(shared, held[len(loads) :], strict=True)),
        read_bytes(shared),
        {load.target: size for load in found if (size := shared_bytes(load))},
    )


def _constant_loads(
    kernel: TritonKernel, constants: Collection[Buffer]
) -> tuple[list[code.Assign], list[code.Assign]]:
    """Return the assignments that compute addresses from constant pointers and the task number
    alone, and the loads of constants from such addresses."""
    parameters, body = kernel.function.parameters, kernel.function.body
    assignments = code.assignments(body)
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
    """Return the address computations that the loads need."""
    needed = {name for load in loads for name in load.value.names}
    for address in reversed(addresses):
        if address.target.text in needed:
            needed.update(address.value.names)
    return [address for address in addresses if address.target.text in needed]


def _held_bytes(load: code.Assign, warps: int) -> int:
    """Return the bytes that a loaded block takes in the registers of a unit, where every thread
    has the same number of them."""
    itemsize = max(load.value.reads[0].dtype.itemsize, 4)
    if len(load.shape) == 3:  # (lanes, warps, rows of a warp): warps without a row hold it, too
        lanes, _, each = load.shape
        return max(lanes, WARP) * warps * each * itemsize
    return max(prod(load.shape), warps * WARP) * itemsize


def shares(split: EarlyKernel, whole: EarlyKernel) -> dict[str, float]:
    """Return, for each constant that `whole` could hold all of, the fraction that `split` holds."""
    return {
        buffer.name: split.bytes_of(buffer) / whole.bytes_of(buffer)
        for buffer in dict.fromkeys((*split.reads, *(read for read, _ in split.shared)))
        if buffer not in whole.rest
    }


@dataclass(frozen=True, slots=True)
class Held:
    """The values of a kernel that registers hold. values: the variables that hold the values of
    the split. scarce: True if there are not enough registers for all that the loop would hold."""

    split: EarlyKernel
    values: tuple[Term, ...]
    scarce: bool = False


@dataclass(slots=True)
class EarlyLoads:
    """Places early loads in a function of the module, and expands the `Run`s of its kernels.

    kernels: by name. define: adds a function to the module (hint, function, inlined where it is
    called, kernel that it is made for) and returns its name. fresh: makes a new variable. budget:
    bytes of registers for held values. ahead: bytes of them for loads ahead of a wait. warps: of a
    unit. most: limit on the number of different kernel texts that are split, since each is compiled
    wherever it is inlined; `texts` are those split so far. held: by kernel and first task, what
    registers hold for it. functions: by kernel, given values and text, the name of its function.
    kept: the most bytes that loops hold in registers at a time. lacking: bytes that loops would
    also hold if there were room. shares: by kernel and constant, the fraction of the kernel's loads
    that loops hold. shared: bytes of shared memory for what registers have no room for, of which
    `used` are taken. read: by kernel, the bytes that a task reads from there. fills: statements
    that store those constants and are not placed yet. depth: number of loops around the current
    statement.
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
        """Return the statements with their early loads. Loads, the wait after them and the kernel
        form a section, so that all kernels of one text that wait alike share one function."""
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
                case code.For() | code.Loop():
                    self.depth += 1
                    made = self.loop(statement)
                    self.depth -= 1
                    found += (*self.filled(), made)
                case _:
                    found.append(code.with_blocks(statement, self.placed))
        return tuple(found)

    def filled(self) -> code.Block:
        """Return the statements that fill the shared memory of all loops inside an outermost loop,
        to be placed before it; nothing while inside a loop."""
        if self.depth or not self.fills:
            return ()
        body = (*self.fills, BARRIER)
        self.fills.clear()
        return (code.Section(body, least=1),)

    def loop(self, loop: code.For | code.Loop) -> code.Statement:
        """Return a loop whose kernels hold on chip what they read in every iteration, as far as it
        fits. Inner loops run more often, so room for what they hold is reserved first."""
        if isinstance(loop, code.For):
            return code.with_blocks(loop, self.placed)
        before = set(self.held)
        runs = [run for run in every_iteration(loop) if _key(run) not in before]
        inner = self.wanted((*loop.head, *loop.body))
        reserved = min(inner, self.budget)
        self.budget -= reserved
        loads = self.keep(runs, max(self.shared - self.used - (inner - reserved), 0))
        self.budget += reserved
        made = code.with_blocks(loop, self.placed)
        self.drop(self.held.keys() - before)
        return code.Section((*loads, made), least=1) if loads else made

    def wanted(self, block: code.Block) -> int:
        """Return the bytes that the loops in a block would hold; of loops in sequence, the
        maximum."""
        most = 0
        for statement in block:
            inner = max((self.wanted(part) for part in code.blocks(statement)), default=0)
            if isinstance(statement, code.Loop):
                splits = (self.split(run.kernel) for run in every_iteration(statement) if run.tasks)
                inner += sum(split.nbytes for split in splits if split is not None)
            most = max(most, inner)
        return most

    def keep(self, runs: Iterable[code.Run], room: int) -> list[code.Statement]:
        """Return the loads that a loop makes before it for its kernels, as far as registers
        suffice: the largest blocks first. room: bytes of shared memory for the others."""
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
        """Assign places in shared memory to values that registers do not hold, the largest first;
        one map per kernel. It is filled before the outermost loop, so the task number must be
        known there."""
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
        """Return the loads of a kernel that follows a wait, if there are registers for all of
        them."""
        split = self.split(run.kernel) if run.tasks else None
        if split is None or split.nbytes > min(self.budget, self.ahead):
            return []
        return self.hold(run, split)

    def hold(self, run: code.Run, split: EarlyKernel, scarce: bool = False) -> list[code.Statement]:
        """Return the loads of a split kernel into fresh variables. What shared memory holds is
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
        """Return a kernel split with all of its early loads; None if that is impossible or too
        many texts are split already."""
        if kernel not in self.splits:
            made = split_early(self.kernels[kernel], self.warps)
            if made is None or (len(self.texts) >= self.most and made.body not in self.texts):
                return None
            self.texts.add(made.body)
            self.splits[kernel] = made
        return self.splits[kernel]

    def drop(self, keys: Iterable[tuple[str, Term]]) -> None:
        """Return registers to the budget."""
        for key in [*keys]:
            self.budget += self.held.pop(key).split.nbytes

    def tasks(self, run: code.Run) -> code.Statement:
        """Return the calls of the kernel's function, which receives the values already held."""
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
            # `stretto_again` hides the number, so that what is computed from it is not kept in
            # registers over the loop.
            changes = held is not None and held.scarce
            first = call("stretto_again", run.first) if changes else run.first
            mine = code.If(OK & infix(TASK, "<", run.last), (task,))
            return code.Section((code.Assign(TASK, first), mine))
        return code.For(TASK, run.first, call("tl.where", OK, run.last, 0), run.stride, (task,))


def _fitting(splits: list[EarlyKernel], room: int) -> list[set[Term]]:
    """Choose for each kernel the values that fit into `room` bytes together: all of them, or else
    only large ones (at least half the largest), the largest first. Small values are one number
    per row, which all lanes of a warp hold redundantly."""
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
    """Return the runs that a loop executes in every iteration, outside of inner loops and of
    branches that it does not always take; kernels that occur more than once are left out."""
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
    """Return the run that directly follows the waits at the beginning of `block`; None if there is
    none."""
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
