"""Load constants before the task that uses them may begin.

Which constants a task reads often depends only on its number. Such loads move ahead of the wait of
their kernel, so that they are in flight while the unit waits, or ahead of the loop around it, so
that the weights stay in the registers of the unit that uses them in every iteration. Constants for
which a loop has no registers are stored in shared memory (early_kernel.py), which is filled before
the outermost loop, at most once in a launch. The task itself loads whatever does not fit there
either.

All of this is decided on the control trees of a program, before they are printed; the printer adds
the statements (function.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from sys import maxsize

from stretto.device import tree
from stretto.device.expr import Buffer
from stretto.device.operator import label
from stretto.device.runs import called
from stretto.machines import statements as code
from stretto.machines.cuda.printer.early_kernel import (
    EarlyKernel,
    read_bytes,
    shared_bytes,
    shares,
    split_early,
)
from stretto.machines.cuda.printer.kernel import WARPS
from stretto.machines.cuda.printer.parts import ModuleParts
from stretto.machines.cuda.printer.scalar import BARRIER, UNIT
from stretto.machines.terms import Term, call, infix, separated
from stretto.schedule.barriers import BarrierStep, EndStep, LeafSteps
from stretto.schedule.merge import RunStep, Step, WaitStep, dealt_from

Key = tuple[str, int]
"""A kernel of which a unit has at most one task, and the unit of its first task."""
STATES = 0
"""The loop over the states of a recursive program (states.py), in place of the id of a loop."""


@dataclass(frozen=True, slots=True)
class Loading:
    """A call of a function that loads `constants` for a task, into the variables `values`; without
    any, into shared memory."""

    function: str
    constants: tuple[Buffer, ...]
    task: Term
    values: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True)
class Held:
    """The values of a kernel that registers hold. values: the variables that hold the values of
    the split. scarce: True if there are not enough registers for all that the loop would hold."""

    split: EarlyKernel | None = None
    values: tuple[Term, ...] = ()
    scarce: bool = False

    @property
    def nbytes(self) -> int:
        return 0 if self.split is None else self.split.nbytes


NOTHING = Held()


@dataclass(slots=True)
class EarlyLoads:
    """Decides where the functions of a program load constants, before they are printed.

    budget: bytes of registers for held values. ahead: bytes of them for loads ahead of a wait.
    warps: of a unit. shared: bytes of shared memory for what registers have no room for, of which
    `used` are taken. most: limit on the number of different kernel texts that are split, since each
    is compiled wherever it is inlined; `texts` are those split so far.

    Decisions: tasks: by the id of a step, the function of its tasks, and the values that it also
    takes. sections: by the id of the first wait before a run, the
    number of steps from there to the run, and the loads ahead of them. loads: by the id of a loop,
    the loads before it. fills: the same for the shared memory of all loops inside an outermost
    loop.

    kept: the most bytes that loops hold in registers at a time. lacking: bytes that loops would
    also hold if there were room. shares: by kernel and constant, the fraction of the kernel's loads
    that loops hold. read: by kernel, the bytes that a task reads from shared memory.

    held: what registers hold at the current node. outermost: the outermost loop around it.
    """

    parts: ModuleParts
    budget: int = 0
    ahead: int = maxsize
    warps: int = WARPS
    shared: int = 0
    most: int = 24
    tasks: dict[int, tuple[str, Held]] = field(default_factory=dict[int, tuple[str, Held]])
    sections: dict[int, tuple[int, Loading]] = field(default_factory=dict[int, tuple[int, Loading]])
    loads: dict[int, list[Loading]] = field(default_factory=dict[int, list[Loading]])
    fills: dict[int, list[Loading]] = field(default_factory=dict[int, list[Loading]])
    kept: int = 0
    lacking: int = 0
    used: int = 0
    shares: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    read: dict[str, int] = field(default_factory=dict[str, int])
    splits: dict[str, EarlyKernel] = field(default_factory=dict[str, EarlyKernel])
    texts: set[code.FunctionDefinition] = field(default_factory=set[code.FunctionDefinition])
    held: dict[Key, Held] = field(default_factory=dict[Key, Held])
    outermost: int | None = None

    # ---- statements --------------------------------------------------------------------------
    def statement(self, load: Loading) -> code.Statement:
        value = call(load.function, *map(self.parts.external, load.constants), load.task)
        return code.Assign(separated(load.values), value) if load.values else code.Do(value)

    def around(self, loop: int, statement: code.WhileLoop) -> code.Statements:
        """Return the statement of a loop with the loads before it. Loops that hold weights become
        functions."""
        fills = [self.statement(load) for load in self.fills.get(loop, ())]
        loads = [self.statement(load) for load in self.loads.get(loop, ())]
        found = code.Section((*loads, statement), least=1) if loads else statement
        return (code.Section((*fills, BARRIER), least=1), found) if fills else (found,)

    # ---- the walk ----------------------------------------------------------------------------
    def visit(self, node: tree.Node[LeafSteps]) -> None:
        """Decide for a node and all below it."""
        if isinstance(node, tree.Leaf):
            self.leaf(node.body)
        elif tree.is_loop(node) and not called(node):
            self.loop(id(node), tree.children(node), tree.children(node))
        else:
            for child in tree.children(node):
                self.visit(child)

    def leaf(self, body: LeafSteps) -> None:
        """Loads, the waits after them and a kernel form a section, so that all kernels of one text
        that wait alike share one function."""
        waits: list[Step | EndStep | BarrierStep] = []
        for step in body.items:
            if isinstance(step, WaitStep) or (waits and isinstance(step, BarrierStep)):
                waits.append(step)
                continue
            if isinstance(step, RunStep):
                key = self.key(step)
                load = self.load_ahead(key) if waits and key and key not in self.held else None
                self.tasks[id(step)] = self.function(step)
                if key is not None and load is not None:
                    self.sections[id(waits[0])] = len(waits), load
                    self.drop([key])
            waits.clear()

    def loop(
        self,
        loop: int,
        bodies: Sequence[tree.Node[LeafSteps]],
        again: Sequence[tree.Node[LeafSteps]],
    ) -> None:
        """Decide what the kernels of a loop hold on chip of what they read in every iteration, as
        far as it fits. Inner loops run more often, so room for what they hold is reserved first.

        again: the bodies that every iteration runs.
        """
        before, outside = set(self.held), self.outermost
        self.outermost = loop if outside is None else outside
        keys = [key for key in self.every_iteration(again) if key not in before]
        inner = max(map(self.wanted, bodies), default=0)
        reserved = min(inner, self.budget)
        self.budget -= reserved
        self.loads[loop] = self.keep(keys, max(self.shared - self.used - (inner - reserved), 0))
        self.budget += reserved
        for body in bodies:
            self.visit(body)
        self.drop(self.held.keys() - before)
        self.outermost = outside

    def every_iteration(self, bodies: Iterable[tree.Node[LeafSteps]]) -> list[Key]:
        """Return what a loop runs in every iteration, outside of inner loops and of branches that
        it does not always take; kernels that occur more than once are left out. Control nodes with
        calls are parts of the loop over states."""
        nodes = [
            node for body in bodies for node in tree.flattened(body, lambda n: bool(called(n)))
        ]
        leaves = [node.body for node in nodes if isinstance(node, tree.Leaf)]
        steps = [step for leaf in leaves for step in leaf.items if isinstance(step, RunStep)]
        counts = Counter(step.kernel for step in steps)
        keys = [self.key(step) for step in steps if counts[step.kernel] == 1]
        return [key for key in keys if key is not None]

    def key(self, step: RunStep) -> Key | None:
        """Return the key of a step's kernel; None if a unit may have several of its tasks, or a
        table has the number of its task."""
        kernel, units = self.parts.kernels[step.kernel], self.parts.program.units
        start = dealt_from(step, kernel, units)
        single = kernel.is_static and 0 < kernel.tasks <= units
        return (step.kernel, start) if single and start is not None else None

    # ---- what fits ---------------------------------------------------------------------------
    def wanted(self, node: tree.Node[LeafSteps]) -> int:
        """Return the bytes that the loops in a node would hold; of loops in sequence, the
        maximum."""
        inner = max(map(self.wanted, tree.children(node)), default=0)
        if tree.is_loop(node) and not called(node):
            splits = (self.split(kernel) for kernel, _ in self.every_iteration(tree.children(node)))
            inner += sum(split.nbytes for split in splits if split is not None)
        return inner

    def keep(self, keys: Iterable[Key], room: int) -> list[Loading]:
        """Return the loads that a loop makes before it for its kernels, as far as registers
        suffice: the largest blocks first. room: bytes of shared memory for the others."""
        splits = [(key, self.split(key[0])) for key in keys]
        found = [(key, split) for key, split in splits if split is not None]
        wanted = sum(split.nbytes for _, split in found)
        scarce = wanted > self.budget
        taken = _fitting([split for _, split in found], self.budget)
        places = self.places([split for _, split in found], taken, room)
        loads: list[Loading] = []
        for (key, whole), values, kept in zip(found, taken, places, strict=True):
            split: EarlyKernel | None = whole
            if len(values) < len(whole.loads):
                split = split_early(self.parts.texts[key[0]], self.warps, values, kept)
            if split is not None:
                load = self.hold(key, split, scarce)
                loads += [] if load is None else [load]
                self.shares[key[0]] = shares(split, whole)
                wanted -= split.held.total()
        self.lacking += wanted
        self.kept = max(self.kept, sum(held.nbytes for held in self.held.values()))
        return loads

    def places(
        self, found: list[EarlyKernel], taken: list[set[Term]], room: int
    ) -> list[dict[Term, int]]:
        """Assign places in shared memory to values that registers do not hold, the largest first;
        one map per kernel."""
        sizes = [
            (size, number, load.target)
            for number, split in enumerate(found)
            for load in split.movable
            if load.target not in taken[number] and (size := shared_bytes(load))
        ]
        places: list[dict[Term, int]] = [{} for _ in found]
        for size, number, value in sorted(sizes, key=lambda entry: -entry[0]):
            if size <= room:
                room -= size
                self.used += size
                places[number][value] = self.used
        return places

    def load_ahead(self, key: Key) -> Loading | None:
        """Return the loads of a kernel that follows a wait, if there are registers for all of
        them."""
        split = self.split(key[0])
        if split is None or split.nbytes > min(self.budget, self.ahead):
            return None
        return self.hold(key, split)

    def hold(self, key: Key, split: EarlyKernel, scarce: bool = False) -> Loading | None:
        """Return the loads of a split kernel into fresh variables. What shared memory holds is
        loaded by one of `fills`."""
        kernel, start = key
        values = tuple(self.parts.fresh(f"early_{v.text}") for v in split.sizes)
        self.held[key] = Held(split, values, scarce)
        self.budget -= split.nbytes
        last = self.parts.kernels[kernel].tasks - 1
        task = call("tl.minimum", first_task(start, self.parts.program.units), last)
        if split.shared and self.outermost is not None:
            function = self.parts.define(f"s_{label(kernel)}", split.fill, True, kernel)
            fills = self.fills.setdefault(self.outermost, [])
            fills.append(Loading(function, split.filled, task))
            self.read[kernel] = read_bytes(split.shared)
        if not values:
            return None
        function = self.parts.define(f"e_{label(kernel)}", split.early, True, kernel)
        return Loading(function, split.constants, task, values)

    def split(self, kernel: str) -> EarlyKernel | None:
        """Return a kernel split with all of its early loads; None if that is impossible or too
        many texts are split already."""
        if kernel not in self.splits:
            made = split_early(self.parts.texts[kernel], self.warps)
            if made is None or (len(self.texts) >= self.most and made.body not in self.texts):
                return None
            self.texts.add(made.body)
            self.splits[kernel] = made
        return self.splits[kernel]

    def drop(self, keys: Iterable[Key]) -> None:
        """Return registers to the budget."""
        for key in [*keys]:
            self.budget += self.held.pop(key).nbytes

    def function(self, step: RunStep) -> tuple[str, Held]:
        """Return the function of a step's tasks, and the values already held, which it takes."""
        key, kernel = self.key(step), step.kernel
        held = NOTHING if key is None else self.held.get(key, NOTHING)
        body = self.parts.texts[kernel].function if held.split is None else held.split.body
        return self.parts.define(f"k_{label(kernel)}", body, bool(held.values), kernel), held


def first_task(start: int, units: int) -> Term:
    """Return the number of the first task of a unit where `start` has task 0 and the units after it
    have the following ones."""
    return infix(UNIT + (units - start), "%", units) if start else UNIT


def _fitting(splits: list[EarlyKernel], room: int) -> list[set[Term]]:
    """Choose for each kernel the values that fit into `room` bytes together: all of them, or else
    only large ones (at least half the largest), the largest first. Small values are one number
    per row, which all lanes of a warp hold redundantly."""
    sizes = [
        (size, number, value)
        for number, split in enumerate(splits)
        for value, size in split.sizes.items()
    ]
    if sum(size for size, _, _ in sizes) <= room:
        return [{*split.sizes} for split in splits]
    largest = max(size for size, _, _ in sizes)
    taken: list[set[Term]] = [set() for _ in splits]
    for size, number, value in sorted(sizes, key=lambda entry: -entry[0]):
        if size <= room and 2 * size >= largest:
            taken[number].add(value)
            room -= size
    return taken
