"""Loads constants before the task that uses them may begin.

Which constants a task reads often depends on nothing but its number. Such loads go ahead of the
wait of their kernel, so that they are under way meanwhile, or ahead of the loop around it, so that
the weights stay in the registers of the unit that uses them in every iteration. What registers have
no room for a loop keeps in shared memory (shared_blocks.py), which is filled before the outermost
loop around, at most once in a launch. What finds no room there either the task loads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from sys import maxsize

from stretto.device.operator import label
from stretto.machines import statements as code
from stretto.machines.cuda.printer.early_split import EarlyKernel, shares, split_early
from stretto.machines.cuda.printer.kernel import WARPS, TritonKernel
from stretto.machines.cuda.printer.scalar import BARRIER, OK, TASK, UNIT
from stretto.machines.terms import Term, call, infix, separated


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
