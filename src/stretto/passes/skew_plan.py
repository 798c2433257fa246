"""Planning of skewed loops: which loops run at the same time, and how many steps behind each
other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from stretto.ir.core import Block, Op, Value
from stretto.ir.ops import ForOp, IfOp, ListGetOp, ListNewOp, ListPushOp, ListStackOp, TensorOp
from stretto.ir.rewrite import free_values_of_op, users
from stretto.ir.size_bounds import at_most
from stretto.ir.types import Dim, TensorListType, TensorType
from stretto.ops.effects import has_effect, may_have_effect
from stretto.ops.properties import is_contraction, is_view
from stretto.passes.hoist import stay_reason
from stretto.passes.manager import PassCosts, Target
from stretto.passes.rows import NotRowWise, stacked_lists
from stretto.text import seconds_text


@dataclass(frozen=True, slots=True)
class SkewedLoop:
    """One of the loops. number: the iterations by which it is behind. reads: the ops of its body
    that read one step of a list, or of a value computed from lists, with that list or value."""

    loop: ForOp
    number: int
    reads: Mapping[Op, Value]


@dataclass(slots=True)
class LoopGroup:
    """Loops of one block with the same number of iterations.

    lists: the lists that the loops fill, with the stage that does. makers: the ops between the
    loops that depend on them, by result; moved: the same ops. dependent: results of the loops
    and of these ops.
    """

    trips: Dim
    stages: list[SkewedLoop] = field(default_factory=list[SkewedLoop])
    lists: dict[Value, SkewedLoop] = field(default_factory=dict[Value, SkewedLoop])
    makers: dict[Value, Op] = field(default_factory=dict[Value, Op])
    moved: set[Op] = field(default_factory=set[Op])
    dependent: set[Value] = field(default_factory=set[Value])

    @property
    def ramp(self) -> int:
        """The number of iterations by which the last stage is behind the first."""
        return max(stage.number for stage in self.stages)

    def add(self, loop: ForOp, reads: Mapping[Op, Value]) -> None:
        """Add a loop as a stage; `reads` as returned by `_reads`."""
        sources = [self.lists[item] for value in reads.values() for item in self.sources(value)]
        number = max((source.number + 1 for source in sources), default=0)
        stage = SkewedLoop(loop, number, reads)
        self.stages.append(stage)
        self.dependent.update(loop.results)
        for value in loop.results:
            if isinstance(value.type, TensorListType):
                self.lists[value] = stage

    def sources(self, value: Value) -> set[Value]:
        """Return the lists of which one step is read. Raises NoRow if more are read."""
        if value in self.lists:
            return {value}
        found = stacked_lists(value, self.makers, self.dependent, self.trips)
        if not found <= self.lists.keys():
            raise NotRowWise("it reads a list that another loop fills")
        return found

    def depends(self, op: Op) -> bool:
        return not self.dependent.isdisjoint(free_values_of_op(op))

    def note(self, op: Op) -> None:
        """Record an op between the loops, if it depends on them."""
        if self.depends(op):
            self.makers.update(dict.fromkeys(op.results, op))
            self.dependent.update(op.results)
            self.moved.add(op)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The function around the loops: the readers of each value, and the op that defines it."""

    users: Mapping[Value, list[Op]]
    makers: Mapping[Value, Op]

    @staticmethod
    def of(body: Block) -> Surroundings:
        return Surroundings(users(body), {value: op for op in body.walk() for value in op.results})


def find_groups(block: Block, around: Surroundings) -> Iterator[LoopGroup | tuple[ForOp, str]]:
    """Yield groups of at least two loops, and each loop that could not join the previous group,
    with the reason."""
    group: LoopGroup | None = None
    for op in block.ops:
        if isinstance(op, ForOp):
            reason = why_not(op, around)
            joined = reason is None and group is not None and _join(group, op)
            if joined is True:
                continue
            if group is not None:
                yield from _finished(group, around)
                if reason is not None or isinstance(joined, str):
                    yield op, reason or str(joined)
            group = None
            if reason is None:
                trips = op.trips()
                assert trips is not None
                group = LoopGroup(trips)
                group.add(op, {})
        elif group is not None:
            if any(map(may_have_effect, op.walk())):
                yield from _finished(group, around)
                group = None
            else:
                group.note(op)
    if group is not None:
        yield from _finished(group, around)


def _join(group: LoopGroup, loop: ForOp) -> bool | str:
    """Add a loop to the group and return True, or return the reason why it cannot join."""
    if loop.trips() != group.trips:
        return "it has another number of iterations"
    try:
        reads = _reads(group, loop)
    except NotRowWise as reason:
        return f"it reads more than the same step of the loop before: {reason}"
    if (reason := _why_no_extra_iterations(loop, reads)) is not None:
        return reason
    group.add(loop, reads)
    return True


def _reads(group: LoopGroup, loop: ForOp) -> dict[Op, Value]:
    """Return the ops that read one step of a value that depends on the group, with that value.
    Raises NoRow."""
    if not group.dependent.isdisjoint(loop.operands):
        raise NotRowWise("a carried value starts with a result of it")
    found: dict[Op, Value] = {}
    for op in loop.body.ops:
        read = [value for value in free_values_of_op(op) if value in group.dependent]
        if not read:
            continue
        source = _step_read(op, loop)
        if source is None or read != [source]:
            raise NotRowWise(f"`{op.name}` does not read one step")
        group.sources(source)
        found[op] = source
    if not group.dependent.isdisjoint(loop.body.yields):
        raise NotRowWise("an iteration yields a result of it")
    return found


def _step_read(op: Op, loop: ForOp) -> Value | None:
    """Return the value of which an op reads the item at the loop's index; None if it does
    something else."""
    if isinstance(op, ListGetOp) and op.index is loop.index:
        return op.list
    if isinstance(op, TensorOp) and op.target == "aten.select.int":
        source, dim, position = op.args
        if isinstance(source, Value) and dim == 0 and position is loop.index:
            return source
    return None


def _finished(group: LoopGroup, around: Surroundings) -> Iterator[LoopGroup]:
    """Yield the group if it has several loops, and nothing else reads a list before it is
    complete."""
    if len(group.stages) < 2:
        return
    readers = {op for stage in group.stages for op in stage.reads}
    for value in group.lists:
        for op in around.users.get(value, []):
            if op in readers:
                continue
            if not isinstance(op, ListStackOp) or op.result.tensor.shape[0] != group.trips:
                return
    yield group


def why_not(loop: ForOp, around: Surroundings) -> str | None:
    """Return why a loop cannot run together with others, or None."""
    if loop.parallel:
        return "its iterations run in parallel"
    trips = loop.trips()
    if trips is None or trips == 1 or not at_most(1, trips):
        return "it runs once, or is not known to run at all"
    if (loop.start, loop.step) != (0, 1):
        return "it does not count from 0 in steps of 1"
    if has_effect(loop):
        return "it has a check or a draw"
    if (reason := _why_no_extra_iterations(loop)) is not None:
        return reason
    for place, value in enumerate(loop.carried):
        reason = _why_no_list(loop, place, around)
        if isinstance(value.type, TensorListType) and reason is not None:
            return reason
    return None


def _why_no_extra_iterations(loop: ForOp, reads: Collection[Op] = ()) -> str | None:
    """Return why an iteration must not run on other values than those of the loop, or None.

    An op that depends only on the index may run again: it then does the same as in the first or
    the last iteration. reads: ops that read values of other loops.
    """
    changing = {*loop.carried, *(value for op in reads for value in op.results)}
    for op in loop.body.ops:
        read = free_values_of_op(op)
        if changing.isdisjoint(read):
            continue
        changing.update(op.results)
        if isinstance(op, ListPushOp) or (is_view(op) and changing.isdisjoint(read[1:])):
            continue
        if (reason := stay_reason(op)) is not None:
            return f"an iteration must not run on other values, since {reason}"
    return None


def _why_no_list(loop: ForOp, place: int, around: Surroundings) -> str | None:
    carried, yielded = loop.carried[place], loop.body.yields[place]
    start = around.makers.get(loop.inits[place])
    if not isinstance(start, ListNewOp) or start.items:
        return "a list is carried that is not empty before the loop"
    pushes = [op for op in loop.body.ops if isinstance(op, ListPushOp) and op.list is carried]
    if len(pushes) != 1 or pushes[0].result is not yielded:
        return "a list is carried that does not get one item in each iteration"
    if around.users.get(carried, []) != pushes or around.users.get(yielded, []) != [loop]:
        return "a list is read while it grows"
    return None


def pushed(loop: ForOp, place: int) -> Value:
    """Return the item that each iteration pushes to the carried list number `place`."""
    for op in loop.body.ops:
        if isinstance(op, ListPushOp) and op.list is loop.carried[place]:
            return op.item
    raise AssertionError("the list gets no item")


# ---- Cost estimates: should loops run at the same time, each a step behind, or in sequence?
#
# At the same time, they wait once per step, whatever their number; but the weights of all loops
# compete for the cache, and work that ran for all steps at once runs for one.


_WITH_SUMMAND = ("aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default")
"""Products whose first operand is added to the result."""


RAMP_GAIN = 1.25
"""Factor by which loops must be faster if one is behind another: a step has more small kernels and
selects states, which the estimates leave out."""


@dataclass(frozen=True, slots=True)
class Products:
    """The products of a step. operations: multiplications and additions. nbytes: of the operands
    that are the same in each step. chain: length of the longest chain of dependent products."""

    operations: int = 0
    nbytes: int = 0
    chain: int = 0

    def __add__(self, other: Products) -> Products:
        """Both, independent of each other."""
        chain = max(self.chain, other.chain)
        return Products(self.operations + other.operations, self.nbytes + other.nbytes, chain)


def why_sequential(group: LoopGroup, target: Target) -> str | None:
    """Return why the loops of a group should run in sequence, or None. Both ways are also
    estimated for a single unit, which never waits."""
    if target.is_alone:
        return "one unit has nothing to wait for"
    for stage in group.stages:
        if any(not isinstance(op, IfOp) for op in stage.loop.body.walk() if op.blocks):
            return "there are loops or calls in its steps"
    ways = {target, target if target.costs.uniform else Target(target.costs, 1)}
    in_turn = min(sequential_seconds(group, way) for way in ways)
    at_once = min(skewed_seconds(group, way) for way in ways)
    if at_once * (RAMP_GAIN if group.ramp else 1.0) < in_turn:
        return None
    return (
        f"one after the other they take {seconds_text(in_turn)}, "
        f"at the same time {seconds_text(at_once)}, as estimated"
    )


def sequential_seconds(group: LoopGroup, target: Target) -> float:
    """Estimate the seconds of the loops in sequence; the ops between them run for all steps at
    once."""
    costs, total = target.costs, 0.0
    trips = costs.size(group.trips)
    for stage in group.stages:
        step = products_of(stage, costs)
        total += trips * step_seconds(step, target)
        work = trips * _between(group, stage, costs).operations
        total += costs.product_seconds(work, 0, target.units)
    return total


def skewed_seconds(group: LoopGroup, target: Target) -> float:
    """Estimate the seconds of all loops in one."""
    costs, whole = target.costs, Products()
    for stage in group.stages:
        between = _between(group, stage, costs)
        whole += between + products_of(stage, costs, between.chain)
    return (costs.size(group.trips) + group.ramp) * step_seconds(whole, target)


def step_seconds(step: Products, target: Target) -> float:
    """Estimate the seconds of a step of a loop, its waits included."""
    work = target.costs.product_seconds(step.operations, step.nbytes, target.units)
    if target.is_alone:
        return work + max(step.chain, 1) * target.costs.start_seconds
    return work + max(step.chain, 1) * target.costs.dependent_seconds


def _between(group: LoopGroup, stage: SkewedLoop, costs: PassCosts) -> Products:
    """Return the products of the ops before a stage's loop that one step needs."""
    needed = set(stage.reads.values())
    ops: list[Op] = []
    for op in reversed(list(dict.fromkeys(group.makers.values()))):
        if not needed.isdisjoint(op.results):
            ops.append(op)
            needed.update(value for value in op.operands if value in group.makers)
    found = _products(ops[::-1], set(), {}, costs)
    return Products(found.operations // costs.size(group.trips), found.nbytes, found.chain)


def products_of(stage: SkewedLoop, costs: PassCosts, begun: int = 0) -> Products:
    """Return the products in a step of a loop. Values that it reads from other loops wait for
    `begun` products."""
    loop = stage.loop
    ops = [op for op in loop.body.ops if op not in stage.reads]
    chain = {value: begun for op in stage.reads for value in op.results}
    return _products(ops, {loop.index, *loop.carried, *chain}, chain, costs)


def loop_products(ops: Iterable[Op], loop: ForOp, costs: PassCosts) -> Products:
    """Return the products among some ops of a loop's body."""
    return _products(ops, {loop.index, *loop.carried}, {}, costs)


def products_by_row(ops: Iterable[Op], rows: Iterable[Value], costs: PassCosts) -> Products:
    """Return the products among ops outside a loop; `rows` are the values that differ between
    rows."""
    return _products(ops, set(rows), {}, costs)


def _products(
    ops: Iterable[Op], changing: set[Value], chain: dict[Value, int], costs: PassCosts
) -> Products:
    """Return the products among ops, which are in program order. changing: values that differ
    between steps. chain: the number of products that each value waits for. Adds the results of
    the ops to both."""
    operations = nbytes = longest = 0
    for op in ops:
        reach = max((chain.get(value, 0) for value in op.operands), default=0)
        if isinstance(op, TensorOp) and is_contraction(op):
            reach += 1
            operations += 2 * _multiplications(op, costs)
            weights = dict.fromkeys(value for value in op.operands if value not in changing)
            nbytes += sum(_bytes(value, costs) for value in weights)
        changing.update(op.results)
        chain.update(dict.fromkeys(op.results, reach))
        longest = max(longest, reach)
    return Products(operations, nbytes, longest)


def _multiplications(op: TensorOp, costs: PassCosts) -> int:
    """Return the multiplications of a matrix product: the product of the sizes rows * depth, depth
    * columns and rows * columns is the square of rows * depth * columns."""
    factors = op.operands[1:3] if op.target in _WITH_SUMMAND else op.operands[:2]
    sizes = [costs.points(value.tensor.shape) for value in (*factors, op.results[0])]
    return round(prod(sizes) ** 0.5)


def _bytes(value: Value, costs: PassCosts) -> int:
    if not isinstance(value.type, TensorType):
        return 0
    return costs.points(value.tensor.shape) * value.tensor.dtype.itemsize
