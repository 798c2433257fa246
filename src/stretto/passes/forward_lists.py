"""List forwarding: readers of a list that a loop copied out of a tensor read the tensor.

Once all work of a loop is batched, the loop only pushes item after item of the batched
result. Stacking that list gives the batched result again; its length is the trip count; an
item at a position that is known to be in range is the tensor's item.

Changes: readers of lists that a loop fills from empty, with `select(%tensor, 0, %index)` in
each iteration, if the tensor has as many items as the loop has iterations. Needs: loops in
canonical form, as `batch_loops` leaves them. Guarantees: the same results; `dce` then drops
the list, and the loop if nothing else is left in it.

    %l = list.new()                                     %s = relu(%ys)
    %m = for %t in (0, 64, 1) carry (%c = %l) {
      %y = select(%ys, 0, %t)                    =>
      %n = list.push(%c, %y)
      yield %n }
    %s = relu(list.stack(%m))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import (
    ForOp,
    ListGetOp,
    ListLengthOp,
    ListNewOp,
    ListPushOp,
    ListStackOp,
    LiteralOp,
    TensorOp,
)
from stretto.ir.rewrite import Replacement, rewrite_block
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size
from stretto.ir.types import INDEX, Dim
from stretto.ops.infer import size_op, tensor_op

Range = tuple[Dim, Dim]
"""Lower and upper bound of an integer, as far as known."""


@dataclass(frozen=True, slots=True)
class ForwardLists:
    name: ClassVar[str] = "forward_lists"

    def apply(self, program: Program) -> bool:
        return sum(_forward_function(item.body) for item in program.functions.values()) > 0


def copied_tensor(loop: ForOp, place: int, makers: Mapping[Value, Op]) -> Value | str:
    """Return the tensor whose items the loop pushes to its carried list number `place`, or the
    reason why there is none."""
    start = makers.get(loop.inits[place])
    if not isinstance(start, ListNewOp) or start.items:
        return "the list is not empty before the loop"
    push = makers.get(loop.body.yields[place])
    if not isinstance(push, ListPushOp) or push.list is not loop.carried[place]:
        return "the loop does more to the list than to push one item"
    if push not in loop.body.ops or (loop.start, loop.step) != (0, 1):
        return "the loop does not push in each iteration, or does not count from 0"
    item = makers.get(push.item)
    if not isinstance(item, TensorOp) or item.target != "aten.select.int":
        return "the item is not an item of a tensor"
    source, dim, position = item.args
    if not isinstance(source, Value) or dim != 0 or position is not loop.index:
        return "the item is not the one of this iteration"
    if source in loop.body.params or any(source in op.results for op in loop.body.ops):
        return "the tensor is made by the iteration"
    if source.tensor.shape[0] != loop.trips():
        return "the tensor has another number of items"
    return source


def _forward_function(body: Block) -> bool:
    makers = {value: op for op in body.walk() for value in op.results}
    loops = (op for op in body.walk() if isinstance(op, ForOp))
    found = {
        result: copied_tensor(loop, place, makers)
        for loop in loops
        for place, result in enumerate(loop.results)
    }
    sources = {result: source for result, source in found.items() if isinstance(source, Value)}
    stacked = {
        op.result: sources[op.list]
        for op in body.walk()
        if isinstance(op, ListStackOp) and op.list in sources
    }
    for result, source in sources.items():
        while source in stacked and stacked[source].type == source.type:  # a copy of a copy
            source = stacked[source]
        sources[result] = source
    ranges = dict(_ranges(body))
    return bool(sources) and rewrite_block(body, lambda op, _: _reader(op, sources, ranges))


def _ranges(body: Block) -> Iterator[tuple[Value, Range]]:
    """Yield the integers of known range, with it: indices of loops, and literals."""
    for op in body.walk():
        if isinstance(op, LiteralOp) and op.result.type == INDEX:
            yield op.result, (int(op.value), int(op.value))
        if isinstance(op, ForOp):
            ends = [Size.of(end) for end in (op.start, op.stop) if not isinstance(end, Value)]
            if len(ends) == 2:
                start, stop = ends
                yield op.index, (start, stop - 1) if op.step > 0 else (stop + 1, start)


def _reader(op: Op, sources: dict[Value, Value], ranges: dict[Value, Range]) -> Replacement | None:
    """Return the replacement of an op that reads a forwarded list: the tensor itself or a new op;
    None if there is none."""
    if not isinstance(op, ListStackOp | ListLengthOp | ListGetOp) or op.list not in sources:
        return None
    source = sources[op.list]
    length = source.tensor.shape[0]
    if isinstance(op, ListStackOp):
        return ([], (source,)) if source.type == op.result.type else None
    if isinstance(op, ListLengthOp):
        new = size_op(length)
    elif op.index in ranges and _inside(ranges[op.index], length):
        new = tensor_op("aten.select.int", source, 0, op.index)
    else:
        return None
    new.result.hint, new.location = op.result.hint, op.location
    return [new], new.results


def _inside(positions: Range, length: Dim) -> bool:
    first, last = positions
    return at_most(0, length + first) and at_most(last + 1, length)
