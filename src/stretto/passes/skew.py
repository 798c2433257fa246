"""Skewing: consecutive loops over the same steps run at the same time, each one step behind.

A loop that reads at step t what an earlier loop computed at step t runs one step behind it, in the
same loop: then nothing in an iteration waits for anything else in it, only for the previous
iteration. A stack of layers over a sequence becomes a wavefront over both (Lamport, "The Parallel
Execution of DO Loops", 1974; Cocktailer, section 3.2), whichever of the two loops was the outer one
in the source, since `distribute` splits one loop into these. Loops that read nothing of each other,
as the two directions of a recurrent layer, run in the same step. Ops between the loops that run for
all steps are replaced by ops that run for one (`rows`).

Changes: `for` loops of one block, if it pays by the machine's costs. Needs: loops distributed and
batched, lists forwarded. Guarantees: each loop computes the same values as before, in the same
order. It also runs before its first step and after its last one, on values that nothing reads; so
it must have nothing that can stop the run. A list that it fills is longer by these steps, until it
is stacked.

    %ys = for %t in (0, 64, 1) carry (%h, %l) {     for %d in (0, 65, 1) carry (%h, %g, %p = 0) {
      %y = cell(x[%t], %h)                            %y = cell(x[min(%d, 63)], %h)
      yield %y, list.push(%l, %y) }             =>    %z = cell(linear(%p, %W), %g)
    %w = linear(list.stack(%ys), %W)                  %h2 = %y if %d < 64 else %h
    for %t in (0, 64, 1) carry (%g) {                 %g2 = %z if %d >= 1 else %g
      %z = cell(select(%w, 0, %t), %g)                yield %h2, %g2, %y }
      yield %z }
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from stretto.ir.core import Block, Op, Program, Value, fresh
from stretto.ir.ops import Argument, ForOp, ListStackOp
from stretto.ir.rewrite import all_blocks, clone_op, substitute, users, uses
from stretto.ir.sizes import Size
from stretto.ir.types import TensorListType, TensorType
from stretto.ops.infer import tensor_op
from stretto.passes.manager import Target
from stretto.passes.rows import RowEmitter
from stretto.passes.skew_plan import (
    LoopGroup,
    SkewedLoop,
    Surroundings,
    find_groups,
    pushed,
    why_sequential,
)


@dataclass(frozen=True, slots=True)
class Skew:
    """The pass. target: the machine, whose costs decide whether skewing pays; without one no loop
    changes, unless `always` is set."""

    target: Target | None = None
    always: bool = False
    name: ClassVar[str] = "skew"

    def apply(self, program: Program) -> bool:
        changed = False
        for function in program.functions.values():
            for block in list(all_blocks(function.body)):
                for found in list(find_groups(block, Surroundings.of(function.body))):
                    if isinstance(found, LoopGroup):
                        loop, reason = found.stages[0].loop, self._why_in_turn(found)
                    else:
                        loop, reason = found
                    if reason is not None:
                        program.remarks.decline(self.name, "for", reason, loop.location)
                    elif isinstance(found, LoopGroup):
                        skew(found, block, function.body)
                        changed = True
        return changed

    def _why_in_turn(self, group: LoopGroup) -> str | None:
        if self.always:
            return None
        return "no machine is known" if self.target is None else why_sequential(group, self.target)


def skew(group: LoopGroup, block: Block, body: Block) -> None:
    """Replace the loops of a group of a block by one loop. body: the body of the function."""
    made = _SkewBuilder(group, users(body), frozenset(uses(body)))
    new = made.ops()
    gone = {stage.loop for stage in group.stages}
    place = block.ops.index(group.stages[-1].loop) + 1
    between = [op for op in block.ops[:place] if op not in gone]
    moved = [op for op in between if op in group.moved]
    before = [op for op in between if op not in group.moved]
    block.ops = [*before, *new, *moved, *block.ops[place:]]
    for item in all_blocks(body):
        item.ops = [op for op in item.ops if op not in made.replaced]
    substitute(body, {op.result: rows for op, rows in made.replaced.items()})


@dataclass(slots=True)
class _SkewBuilder:
    """The new loop under construction.

    used: all values that are read. index: the index of the new loop. carried: its carried values
    with their initial values; yields, results: in the same order. items: the item that a step puts
    into each list. late: by list and number of steps, the carried value that holds the item of that
    many steps ago. replaced: stacks of lists, with the tensor that now has their items.
    """

    group: LoopGroup
    users: Mapping[Value, list[Op]]
    used: frozenset[Value]
    index: Value = field(init=False)
    before: list[Op] = field(default_factory=list[Op])
    inside: list[Op] = field(default_factory=list[Op])
    behind: list[Op] = field(default_factory=list[Op])
    carried: list[tuple[Value, Value]] = field(default_factory=list[tuple[Value, Value]])
    yields: list[Value] = field(default_factory=list[Value])
    results: list[Value] = field(default_factory=list[Value])
    items: dict[Value, Value] = field(default_factory=dict[Value, Value])
    late: dict[tuple[Value, int], Value] = field(default_factory=dict[tuple[Value, int], Value])
    replaced: dict[Op, Value] = field(default_factory=dict[Op, Value])

    def __post_init__(self) -> None:
        self.index = fresh(self.group.stages[0].loop.index)

    @property
    def trips(self) -> Size:
        return Size.of(self.group.trips)

    def ops(self) -> list[Op]:
        for stage in self.group.stages:
            self.stage(stage)
        for (source, delay), holder in self.late.items():
            value = self.items[source] if delay == 1 else self.late[source, delay - 1]
            self.carry(holder, self.zeros(holder), value, fresh(holder))
        first = self.group.stages[0].loop
        body = Block(
            (self.index, *(value for value, _ in self.carried)), self.inside, tuple(self.yields)
        )
        stop = (self.trips + self.group.ramp).dim
        inits = tuple(init for _, init in self.carried)
        loop = ForOp(0, stop, 1, inits, body, results=tuple(self.results), location=first.location)
        return [*self.before, loop, *self.behind]

    def stage(self, stage: SkewedLoop) -> None:
        """Emit the ops of one loop, at its step."""
        loop = stage.loop
        step = self.step(stage)
        mapping = {loop.index: step}
        mapping.update((value, fresh(value)) for value in loop.carried)
        rows = RowEmitter(
            self.group.makers,
            self.group.trips,
            step,
            lambda source: self.item(source, stage),
            self.inside.append,
        )
        for op in loop.body.ops:
            source = stage.reads.get(op)
            if source is None:
                self.inside.append(clone_op(op, mapping))
            elif source in self.group.lists:
                mapping[op.results[0]] = self.item(source, stage)
            else:
                mapping[op.results[0]] = rows.item_of(source)
        for place, old in enumerate(loop.carried):
            yielded, result = loop.body.yields[place], loop.results[place]
            value, current = mapping.get(yielded, yielded), mapping[old]
            if isinstance(old.type, TensorListType):
                item = pushed(loop, place)
                self.items[result] = mapping.get(item, item)
                longer = self.longer(result, stage)
                if longer is not None:
                    self.carry(current, loop.inits[place], value, longer)
                else:
                    self.inside = [op for op in self.inside if value not in op.results]
            else:
                value = self.kept(stage, value, current, result)
                self.carry(current, loop.inits[place], value, result)

    def carry(self, value: Value, init: Value, following: Value, result: Value) -> None:
        self.carried.append((value, init))
        self.yields.append(following)
        self.results.append(result)

    def step(self, stage: SkewedLoop) -> Value:
        """Return the step that a loop is at, clamped to the steps that exist."""
        if not self.group.ramp:
            return self.index
        late = self.index
        if stage.number:
            late = self.emit("aten.sub.Tensor", self.index, stage.number)
        return self.emit("aten.clamp.default", late, 0, (self.trips - 1).dim)

    def item(self, source: Value, stage: SkewedLoop) -> Value:
        """Return the item that an earlier loop put into a list at the step that this loop is at
        now."""
        delay = stage.number - self.group.lists[source].number
        for steps in range(1, delay + 1):
            self.late.setdefault((source, steps), fresh(self.items[source]))
        return self.late[source, delay]

    def kept(self, stage: SkewedLoop, value: Value, current: Value, result: Value) -> Value:
        """Return the value to carry on: the old one while the loop is before its first or after
        its last step."""
        conditions: list[Value] = []
        if stage.number:
            conditions.append(self.emit("aten.ge.Scalar", self.index, stage.number))
        if stage.number < self.group.ramp and result in self.used:
            end = (self.trips + stage.number).dim
            conditions.append(self.emit("aten.lt.Scalar", self.index, end))
        for condition in conditions:
            value = self.emit("aten.where.self", condition, value, current)
        return value

    def longer(self, result: Value, stage: SkewedLoop) -> Value | None:
        """Return a list with the items of all iterations, of which the stacks get a slice; None if
        only the loops read the list."""
        readers = [op for op in self.users.get(result, []) if isinstance(op, ListStackOp)]
        if not readers:
            return None
        longer = fresh(result)
        item = readers[0].result.tensor
        length = (self.trips + self.group.ramp).dim
        whole = Value(TensorType(item.dtype, (length, *item.shape[1:])))
        self.behind.append(ListStackOp(longer, results=(whole,)))
        end = (self.trips + stage.number).dim
        self.behind.append(tensor_op("aten.slice.Tensor", whole, 0, stage.number, end))
        rows = self.behind[-1].result
        self.replaced.update((op, rows) for op in readers)
        return longer

    def zeros(self, value: Value) -> Value:
        dtype = value.tensor.dtype.torch
        self.before.append(tensor_op("aten.zeros.default", value.tensor.shape, dtype=dtype))
        return self.before[-1].results[0]

    def emit(self, target: str, *args: Argument) -> Value:
        op = tensor_op(target, *args)
        op.location = self.group.stages[0].loop.location
        self.inside.append(op)
        return op.result
