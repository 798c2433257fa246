"""Insert block barriers between steps whose threads may conflict in memory.

The threads of a unit run independently. Where one reads what another has written, or overwrites
what another reads, a barrier is needed in between. Waits and signals contain one, and so do many
kernels. Where there is none, this pass adds one, as late as possible.

    before                     after
      run k_sum: writes a        run k_sum: writes a
      n = a[0]                   barrier
      run k_scale: writes b      n = a[0]
      run k_zero: writes a       run k_scale: writes b
                                 barrier
                                 run k_zero: writes a

A data-flow analysis of the control trees tracks what each unit may have touched since its last
barrier, by parts of buffers (`device/accesses.py`). Tasks of one kernel do not conflict: they write
different elements.

A call writes to the stack and its return reads from it, so there is always a barrier between the
two: whatever the caller touched before the call is ordered before whatever follows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stretto.device import tree
from stretto.device.accesses import (
    FRAMES,
    NOTHING,
    OWN_FRAMES,
    STACK_READ,
    STACK_WRITTEN,
    Accesses,
    BufferAccess,
    KernelAccesses,
    Phase,
    TouchedMemory,
    kernel_accesses,
)
from stretto.device.aliases import IN_FRAMES, Aliasing, aliasing_of
from stretto.device.analyses import awaited_ends, has_end, has_waits
from stretto.device.expr import Apply, Buffer, Expr, Index, Position, Reg, loads
from stretto.device.flow import Flow, Loop
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, Schedule
from stretto.device.registers import Registers
from stretto.ir.types import DType
from stretto.schedule.merge import RunStep, SignalStep, StatementStep, Step, WaitStep, merge


@dataclass(frozen=True, slots=True)
class EndStep:
    """The end of a leaf: every unit advances by `steps`, and the `awaited` ones publish that."""

    steps: int
    awaited: frozenset[int]


@dataclass(frozen=True, slots=True)
class BarrierStep:
    """A barrier of the threads of every unit."""


BARRIER_STEP = BarrierStep()


@dataclass(frozen=True, slots=True)
class LeafSteps:
    """A leaf as it is printed: what all units go through in this order."""

    items: tuple[Step | EndStep | BarrierStep, ...]

    @property
    def statements(self) -> tuple[tree.Let | tree.Check, ...]:
        return tuple(step.item for step in self.items if isinstance(step, StatementStep))


BARRIER_LEAF = tree.Leaf(LeafSteps((BARRIER_STEP,)))
Functions = dict[str, tree.TreeFunction[LeafSteps]]


def merged_leaves(program: DeviceProgram) -> Functions:
    """Return the functions of a program with the steps of all units merged in each leaf."""
    awaited = awaited_ends(program)

    def steps(schedule: Schedule) -> LeafSteps:
        found = merge(schedule)
        if not has_end(schedule):
            return LeafSteps(found)
        return LeafSteps((*found, EndStep(schedule.steps, awaited[id(schedule)])))

    return {f.name: f.with_body(tree.map_leaves(f.body, steps)) for f in program.tree.functions}


def with_barriers(
    program: DeviceProgram, functions: Functions, phases: Mapping[str, Sequence[Phase]]
) -> Functions:
    """Return the functions of a program with barriers. phases: by kernel, what its tasks access, in
    order, with a barrier between each two of them.

    What may have been touched at the entry and exit of each function is propagated through calls
    to a fixpoint, twice: in the first round the accesses of callees are not known yet, so barriers
    that order other accesses are still missing.
    """
    accessed = ProgramAccesses(program, phases)
    found = accessed.followed({n: BarrierInsertion(accessed, f) for n, f in functions.items()})
    if len(functions) > 1:
        accessed.entries.clear()
        found = accessed.followed({n: BarrierInsertion(accessed, f) for n, f in functions.items()})
    return {name: functions[name].with_body(body) for name, body in found.items()}


class ProgramAccesses:
    """State that the functions of a program share.

    every: all units, as bits. entries, exits: what may have been touched at the beginning and at
    the end of each function, as far as the fixpoint iteration has found; changed: True if the last
    round has added something.
    """

    def __init__(self, program: DeviceProgram, phases: Mapping[str, Sequence[Phase]]) -> None:
        self.units = program.units
        self.every = (1 << program.units) - 1
        self.has_waits = has_waits(program)
        self.kernels: Mapping[str, Kernel] = {kernel.name: kernel for kernel in program.kernels}
        self.phases = phases
        self.aliasing: Mapping[str, Aliasing] = aliasing_of(program)
        self.entries: dict[str, TouchedMemory] = {}
        self.exits: dict[str, TouchedMemory] = {}
        self.changed = False
        self._known: dict[str, KernelAccesses] = {}

    def followed(self, analyses: Mapping[str, BarrierInsertion]) -> dict[str, tree.Node[LeafSteps]]:
        """Analyse all functions until nothing changes; return their bodies."""
        while True:
            self.changed = False
            found = {name: analysis.placed(name) for name, analysis in analyses.items()}
            if not self.changed:
                return found

    def kernel(self, name: str) -> KernelAccesses:
        """Return the accesses of a kernel (computed once)."""
        if name not in self._known:
            self._known[name] = kernel_accesses(self.kernels[name], self.phases[name])
        return self._known[name]

    def add(self, known: dict[str, TouchedMemory], function: str, touched: TouchedMemory) -> None:
        """Add to what is known at the beginning or the end of a function."""
        before = known.get(function, NOTHING)
        after = TouchedMemory(before.joined(touched).units)
        self.changed |= after != before
        known[function] = after


class BarrierInsertion(Flow[LeafSteps, LeafSteps, TouchedMemory]):
    """Places barriers in one function.

    counters: by the id of a loop, pseudo-registers for its counter and the end of its range, which
    are evaluated before it. changing: the registers that a loop assigns. heads: what may have been
    touched before an iteration of a loop, as far as the fixpoint iteration has found. entered:
    whether a loop surely has an iteration.
    """

    def __init__(self, accessed: ProgramAccesses, function: tree.TreeFunction[LeafSteps]) -> None:
        super().__init__()
        self.accessed = accessed
        self.every = accessed.every
        self.aliasing = accessed.aliasing[function.name]
        self.body = function.body
        self.counters: dict[int, tuple[Reg, Reg]] = {}
        self.changing: dict[int, tuple[Reg, ...]] = {}
        self.heads: dict[int, TouchedMemory] = {}
        self.entered: dict[int, bool] = {}
        for number, node in enumerate(filter(tree.is_loop, tree.walk(function.body))):
            self.counters[id(node)] = Reg(f"counter {number}"), Reg(f"end {number}")
        for node in filter(tree.is_loop, tree.walk(function.body)):
            self.changing[id(node)] = tuple(self._assigned(node))

    def _assigned(self, loop: tree.Node[LeafSteps]) -> Iterable[Reg]:
        for node in tree.walk(loop):
            yield from tree.assigns(node)
            if isinstance(node, tree.For):
                yield self.counters[id(node)][0]
                if node is not loop:
                    yield self.counters[id(node)][1]
        for leaf in tree.leaves(loop):
            yield from (item.reg for item in leaf.statements if isinstance(item, tree.Let))

    def placed(self, name: str) -> tree.Node[LeafSteps]:
        """Return the body of the function with barriers. Every function but `main` ends by reading
        from the stack where to continue."""
        body, touched = self.visit(self.body, self.accessed.entries.get(name, NOTHING))
        if name == "main":
            return body
        barrier, touched = self.ordered(touched, (STACK_READ,), self.every, f"return from {name}")
        touched = touched.plus((STACK_READ,), self.every)
        self.accessed.add(self.accessed.exits, name, touched)
        return tree.joined((body, *barrier))

    def ordered(
        self, touched: TouchedMemory, accesses: Iterable[BufferAccess], units: int, what: object
    ) -> tuple[tuple[tree.Leaf[LeafSteps], ...], TouchedMemory]:
        """Return a barrier if accesses of these units may conflict with what has been touched, and
        what is touched after it. what: describes the accesses."""
        if self.meet(touched, map(touched.in_known_terms, accesses), units):
            return (BARRIER_LEAF,), touched.without(self.every)
        return (), touched

    # ---- rules of the analysis -----------------------------------------------------------------
    def merge(self, a: TouchedMemory, b: TouchedMemory) -> TouchedMemory:
        return a.joined(b)

    def rotate(self, state: TouchedMemory, pairs: tree.Rotation) -> TouchedMemory:
        for a, b in pairs:
            state = state.renamed({a: b, b: a})
        return state

    def leaf(self, body: LeafSteps, state: TouchedMemory) -> tuple[LeafSteps, TouchedMemory]:
        found: list[Step | EndStep | BarrierStep] = []
        for step in body.items:
            barrier, state = self.ordered(state, *self.first_accesses(step), step)
            found += [BARRIER_STEP for _ in barrier]
            state = self.after_step(step, state)
            found.append(step)
        return LeafSteps(tuple(found)), state

    def first_accesses(self, step: Step | EndStep | BarrierStep) -> tuple[Accesses, int]:
        """Return what a step may touch before its first barrier, and its units."""
        match step:
            case RunStep(kernel):
                return self.accessed.kernel(kernel).before_first_barrier, running(step)
            case StatementStep(item):
                return loaded(item.exprs), self.every
            case _:
                return frozenset(), 0

    def after_step(self, step: Step | EndStep | BarrierStep, state: TouchedMemory) -> TouchedMemory:
        """Return what has been touched after a step."""
        match step:
            case RunStep():
                return self.after_run(step, state)
            case WaitStep(waits):
                return state.without(bits(unit for unit, found in waits.items() if found))
            case SignalStep(steps):
                return state.without(bits(steps)) if self.accessed.has_waits else state
            case EndStep(_, awaited):
                return state.without(bits(awaited))
            case BarrierStep():
                return state.without(self.every)
            case StatementStep(item):
                state = state.plus(loaded(item.exprs), self.every)
                return state.assigned(item.reg, item.value) if isinstance(item, tree.Let) else state

    def after_run(self, step: RunStep, state: TouchedMemory) -> TouchedMemory:
        kernel, units = self.accessed.kernel(step.kernel), running(step)
        if not kernel.has_barrier:
            touched = kernel.before_first_barrier | kernel.after_last_barrier
            return state.plus(map(state.in_known_terms, touched), units)
        # A unit without a task executes no barrier, and touches nothing.
        found = self.accessed.kernels[step.kernel]
        left = state.without(units) if found.is_static and found.tasks else state
        return left.plus(map(left.in_known_terms, kernel.after_last_barrier), units)

    # ---- loops ---------------------------------------------------------------------------------
    def loop(
        self, node: Loop[LeafSteps], state: TouchedMemory
    ) -> tuple[tree.Node[LeafSteps], TouchedMemory]:
        # The walk of a loop around it repeats this, the last time with what holds in every turn.
        self.entered[id(node)] = self.is_entered(node, state)
        barrier: tuple[tree.Node[LeafSteps], ...] = ()
        if isinstance(node, tree.For):
            reads = loaded(tree.inputs(node))
            barrier, state = self.ordered(state, reads, self.every, node)
            counter, end = self.counters[id(node)]
            state = state.plus(reads, self.every).assigned(counter, node.start)
            state = state.assigned(end, node.stop)
            if node.parallel:  # the first iteration depends on the unit
                state = state.assigned(counter, None)
        made, state = self.iterated(node, state)
        return tree.joined((*barrier, made)), state

    def is_entered(self, node: Loop[LeafSteps], state: TouchedMemory) -> bool:
        """Return True if a loop surely has an iteration in each unit."""
        if isinstance(node, tree.While):
            flag = Position(Index.of(node.condition))
            return self.visit(node.head, state)[1].registers.holds(flag) is True
        goes_on = Apply("lt" if node.step > 0 else "gt", (node.start, node.stop), DType.BOOL)
        return not node.parallel and state.registers.holds(goes_on) is True

    def iterated(
        self, node: Loop[LeafSteps], state: TouchedMemory
    ) -> tuple[tree.Node[LeafSteps], TouchedMemory]:
        """Iterate a loop to a fixpoint; return it, and what has been touched where its head leaves
        it."""
        state = state.varying(self.changing[id(node)])
        if id(node) in self.heads:
            state = state.grown(self.heads[id(node)], 0)
        turn = 0
        while True:
            made, behind, end = self._turn(node, state)
            end = self.rotate(end, node.rotate)
            if state.contains(end):
                break
            state = state.grown(end, turn)
            turn += 1
        self.heads[id(node)] = state
        if isinstance(node, tree.For):
            return made, end if self.entered[id(node)] else state
        return made, self.visit(node.head, end)[1] if self.entered[id(node)] else behind

    def begin(self, node: tree.For[LeafSteps], state: TouchedMemory) -> TouchedMemory:
        counter, _ = self.counters[id(node)]
        following = Index.of(counter) + node.step * (self.accessed.units if node.parallel else 1)
        state = state.assigned(node.index, Position(Index.of(counter)))
        return state.assigned(counter, Position(following))

    # ---- conflicts -----------------------------------------------------------------------------
    def meet(self, touched: TouchedMemory, accesses: Iterable[BufferAccess], units: int) -> bool:
        """Return True if one of the accesses by these units may conflict with one that another
        thread has made since the last barrier."""
        accesses = tuple(accesses)
        return any(
            others & units
            and any(self.conflict(one, another, touched.registers) for another in accesses)
            for one, others in touched.units.items()
        )

    def conflict(self, one: BufferAccess, other: BufferAccess, registers: Registers) -> bool:
        """Return True if two accesses may touch one element and one of them writes."""
        if not (one.writes or other.writes):
            return False
        a, b = one.buffer, other.buffer
        if a is None or b is None:
            # Nested calls write different words of the stack.
            return a is b and not (one.writes and other.writes)
        if a == b:
            return one.may_overlap(other, registers)
        if FRAMES in (a, b):
            return False
        if OWN_FRAMES in (a, b):
            return (b if a == OWN_FRAMES else a).kind in IN_FRAMES
        return self.aliasing.may_share(a, b)

    # ---- calls ---------------------------------------------------------------------------------
    def call(
        self, call: tree.Call[LeafSteps], state: TouchedMemory
    ) -> tuple[tree.Node[LeafSteps], TouchedMemory]:
        reads = loaded(tree.inputs(call))
        barrier, state = self.ordered(state, reads | {STACK_WRITTEN}, self.every, call)
        return tree.joined((*barrier, call)), self.called(call, state.plus(reads, self.every))

    def called(self, call: tree.Call[LeafSteps], before: TouchedMemory) -> TouchedMemory:
        """Return what has been touched after a call. Adds what was touched before it to the entry
        of the callee."""
        callee = self.accessed.aliasing[call.function]
        given = {param: access.buffer for param, access in call.tensors}
        touched = before.plus((STACK_WRITTEN,), self.every)
        for mine, _ in call.results:
            before = before.assigned(mine, None)
        entering: dict[BufferAccess, int] = {}
        for one, units in touched.units.items():
            for access in self._inside(one, given):
                entering[access] = entering.get(access, 0) | units
        self.accessed.add(self.accessed.entries, call.function, TouchedMemory(entering))
        behind: dict[BufferAccess, int] = {}
        for one, units in self.accessed.exits.get(call.function, NOTHING).units.items():
            for access in _outside(one, given, callee):
                behind[access] = behind.get(access, 0) | units
        return TouchedMemory(behind, before.registers)

    def _inside(self, one: BufferAccess, given: Mapping[Buffer, Buffer]) -> Iterable[BufferAccess]:
        """Yield the names under which a callee may touch what its caller has touched."""
        buffer = one.buffer
        if buffer is None:
            yield one
            return
        whole = BufferAccess(buffer, one.writes)
        if buffer in (FRAMES, OWN_FRAMES):
            yield replace(whole, buffer=OWN_FRAMES)
            return
        for param, place in given.items():
            if self.aliasing.may_share(buffer, place):
                yield replace(whole, buffer=param)
        for member in self.aliasing.group(buffer):
            yield from (replace(whole, buffer=other) for other in self.aliasing.externals(member))


def _outside(
    one: BufferAccess, given: Mapping[Buffer, Buffer], callee: Aliasing
) -> Iterable[BufferAccess]:
    """Yield what a returned callee has touched, in names of its caller."""
    if one.buffer is None:
        yield one
        return
    for member in callee.group(one.buffer):
        if member.kind in (*IN_FRAMES, "frames"):
            yield BufferAccess(FRAMES, one.writes)
        elif member.kind == "param":
            yield BufferAccess(given[member], one.writes)
        else:
            yield BufferAccess(member, one.writes)


def loaded(exprs: Iterable[Expr]) -> Accesses:
    """Return the loads of expressions."""
    return frozenset(
        BufferAccess(load.access.buffer, False) for expr in exprs for load in loads(expr)
    )


def running(step: RunStep) -> int:
    """Return the units that have tasks, as bits."""
    return bits(u for u, runs in step.runs.items() if any(run.count != 0 for run in runs))


def bits(units: Iterable[int]) -> int:
    return sum(1 << unit for unit in units)
