"""Loads constants before the task that uses them may begin.

Which constants a task reads often depends on nothing but its number. Such loads go ahead of the
wait of their kernel, so that they are under way meanwhile, or ahead of the loop around it, so that
the weights stay in the registers of the unit that uses them in every iteration. Registers may hold
some of the loads of a kernel only; its task then makes the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from sys import maxsize

from stretto.device.expr import Buffer
from stretto.device.names import label
from stretto.machines import statements as code
from stretto.machines.cuda.printer.kernel import WARPS, TritonKernel
from stretto.machines.cuda.printer.load_order import loads_first
from stretto.machines.cuda.printer.scalar import BARRIER, OK, TASK
from stretto.machines.terms import Term, call, infix, separated

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
    loaded from. rest: the constants that `body` still loads from.
    """

    early: code.Function
    body: code.Function
    constants: tuple[int, ...]
    values: tuple[Term, ...]
    sizes: tuple[int, ...]
    reads: tuple[Buffer, ...] = ()
    rest: frozenset[Buffer] = frozenset()

    @property
    def nbytes(self) -> int:
        return sum(self.sizes)

    def bytes_of(self, buffer: Buffer) -> int:
        """What registers hold of a constant."""
        return sum(
            size for size, read in zip(self.sizes, self.reads, strict=True) if read == buffer
        )


def split_early(
    kernel: TritonKernel, warps: int = WARPS, taken: Collection[Term] | None = None
) -> EarlyKernel | None:
    """The two functions of a kernel; None where it has little or nothing to load early.

    warps: of a unit. taken: the values that are loaded early, where those are not all that may be.
    """
    parameters, body = kernel.function.parameters, kernel.function.body
    constants = {b: place for place, b in enumerate(kernel.buffers) if b.kind == "constant"}
    assignments = Counter(name for statement in code.walk(body) for name in code.defines(statement))
    computable = {*TASK.names, *(name for p in constants.values() for name in parameters[p].names)}
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
    loads = [load for load in loads if taken is None or load.target in taken]
    sizes = tuple(_held_bytes(load, warps) for load in loads)
    if sum(sizes) < LEAST_BYTES:
        return None
    places = tuple(sorted({constants[load.value.reads[0]] for load in loads}))
    needed = {name for load in loads for name in load.value.names}
    for address in reversed(addresses):
        if address.target.text in needed:
            needed.update(address.value.names)
    values = tuple(load.target for load in loads)
    first = (*(a for a in addresses if a.target.text in needed), *loads, code.Return(values))
    rest = loads_first(tuple(statement for statement in body if statement not in loads))
    return EarlyKernel(
        code.Function((*(parameters[place] for place in places), TASK), first),
        code.Function((*parameters, *values), rest),
        places,
        values,
        sizes,
        tuple(load.value.reads[0] for load in loads),
        frozenset(b for s in code.walk(rest) for b in code.reads(s) if b.kind == "constant"),
    )


def _held_bytes(load: code.Assign, warps: int) -> int:
    """What a loaded block takes in the registers of a unit, of which every thread has as many."""
    itemsize = max(load.value.reads[0].dtype.itemsize, 4)
    if len(load.shape) == 3:  # (lanes, warps, rows of a warp): warps without a row have it, too
        lanes, _, each = load.shape
        return max(lanes, LANES) * warps * each * itemsize
    return max(prod(load.shape), warps * LANES) * itemsize


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
    are those that are. held: by the kernel and its first task, what is in registers. functions: by
    kernel, and the values that it is given. kept: the most bytes that a loop holds. lacking: bytes
    that loops would hold besides if there were registers for them. shares: by kernel and constant,
    the part of what the kernel loads that loops hold.
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
    functions: dict[tuple[str, tuple[Term, ...]], str] = field(
        default_factory=dict[tuple[str, tuple[Term, ...]], str]
    )
    texts: set[code.Function] = field(default_factory=set[code.Function])
    kept: int = 0
    lacking: int = 0
    shares: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])

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
                case code.For(body=body) | code.Section(body=body):
                    found.append(replace(statement, body=self.placed(body)))
                case code.Loop():
                    found.append(self.loop(statement))
                case _:
                    found.append(statement)
        return tuple(found)

    def loop(self, loop: code.Loop) -> code.Statement:
        """A loop whose kernels keep in registers what they read in every iteration, as far as it
        fits. Loops inside of it run more often, so registers for what those keep are left free."""
        before = set(self.held)
        runs = [run for run in every_iteration(loop) if _key(run) not in before]
        inner = self.wanted((*loop.head, *loop.body))
        reserved = min(inner, self.budget)
        self.budget -= reserved
        loads = self.keep(runs)
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

    def keep(self, runs: Iterable[code.Run]) -> list[code.Statement]:
        """The loads of kernels that a loop runs, as far as there are registers for them: the
        largest blocks first, in which no warp is without rows."""
        splits = [(run, self.split(run.kernel)) for run in runs if run.tasks]
        found = [(run, split) for run, split in splits if split is not None]
        wanted = sum(split.nbytes for _, split in found)
        scarce = wanted > self.budget
        taken = _fitting([split for _, split in found], self.budget)
        loads: list[code.Statement] = []
        for (run, whole), values in zip(found, taken, strict=True):
            split: EarlyKernel | None = whole
            if len(values) < len(whole.values):
                split = split_early(self.kernels[run.kernel], self.warps, values)
            if split is not None:
                loads.append(self.hold(run, split, scarce))
                self.shares[run.kernel] = _shares(split, whole)
                wanted -= split.nbytes
        self.lacking += wanted
        self.kept = max(self.kept, sum(held.split.nbytes for held in self.held.values()))
        return loads

    def load_ahead(self, run: code.Run) -> list[code.Statement]:
        """The loads of a kernel behind a wait, if there are registers for all of them."""
        split = self.split(run.kernel) if run.tasks else None
        if split is None or split.nbytes > min(self.budget, self.ahead):
            return []
        return [self.hold(run, split)]

    def hold(self, run: code.Run, split: EarlyKernel, scarce: bool = False) -> code.Statement:
        """The loads of a split kernel into registers of their own."""
        values = tuple(self.fresh(f"early_{v.text}") for v in split.values)
        function = self.define(f"e_{label(run.kernel)}", split.early, True, run.kernel)
        pointers = (run.arguments[place] for place in split.constants)
        task = call("tl.minimum", run.first, run.tasks - 1)
        self.held[_key(run)] = Held(split, values, scarce)
        self.budget -= split.nbytes
        return code.Assign(separated(values), call(function, *pointers, task))

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
        key = run.kernel, given
        if key not in self.functions:
            body = held.split.body if held is not None else self.kernels[run.kernel].function
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


def _shares(split: EarlyKernel, whole: EarlyKernel) -> dict[str, float]:
    """The parts of constants that a split holds, of those that it could hold all of."""
    return {
        buffer.name: split.bytes_of(buffer) / whole.bytes_of(buffer)
        for buffer in dict.fromkeys(split.reads)
        if buffer not in whole.rest
    }


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
