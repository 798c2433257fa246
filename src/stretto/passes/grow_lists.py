"""Growing in place: rows that a cat appends to the stack of a list are appended to the list itself.

A tensor that grows by a `cat` in each iteration of a loop (a cache of keys and values) is carried
as a list of its slices along the dim that grows. The iteration stacks the list, makes a new tensor
with a few more rows, and makes a new list of that. Instead, the list is extended by the new rows,
and the new tensor is its stack: nothing is copied.

Changes: an empty list that is extended by a cat, permuted or not, whose first part is a stack of a
list, permuted back. Needs: repeated views simplified. Guarantees: the same results; the stack's
leading dim is the same formula as the cat's, so its length is checked and no new symbol is bound.

    %c = list.stack(%k) : f32[m, 4]               %c = list.stack(%k) : f32[m, 4]
    %d = cat([%c, %x]) : f32[m + 1, 4]     =>     %n = list.extend(%k, %x)
    %e = list.new()                               %d = list.stack(%n) : f32[m + 1, 4]
    %n = list.extend(%e, %d)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.ir.core import Block, Op, Program, Value, argument_values
from stretto.ir.ops import ListExtendOp, ListNewOp, ListStackOp, TensorOp
from stretto.ir.rewrite import Definitions, all_blocks, substitute
from stretto.ir.types import TensorType
from stretto.ops.arguments import argument, int_argument, value_argument
from stretto.ops.infer import tensor_op
from stretto.passes.algebra import permutation


@dataclass(frozen=True, slots=True)
class GrowLists:
    name: ClassVar[str] = "grow_lists"

    def apply(self, program: Program) -> bool:
        changed = False
        for function in program.functions.values():
            makers = {value: op for op in function.body.walk() for value in op.results}
            for block in all_blocks(function.body):
                for op in [op for op in block.ops if isinstance(op, ListExtendOp)]:
                    grown = growing(op, block, makers)
                    if isinstance(grown, Growing):
                        _grow(op, block, grown, function.body)
                        changed = True
                    else:
                        program.remarks.decline(self.name, op.name, grown, op.location)
        return changed


@dataclass(frozen=True, slots=True)
class Growing:
    """A cat of the rows of `list` and of `parts`, along the dim that comes first in `order`."""

    list: Value
    cat: TensorOp
    parts: tuple[Value, ...]
    order: tuple[int, ...]


def growing(op: ListExtendOp, block: Block, makers: Definitions) -> Growing | str:
    """Return the cat that the op copies into an empty list, or the reason why it copies none."""
    start = makers.get(op.list)
    if not isinstance(start, ListNewOp) or start.items:
        return "the list has other items already"
    cat, order = _turned(op.rows, makers)
    if not isinstance(cat, TensorOp) or cat.target != "aten.cat.default" or cat not in block.ops:
        return "the rows are not a concatenation in the same block"
    first, *parts = argument_values(argument(cat, "tensors"))
    dim, result = int_argument(cat, "dim"), cat.result.tensor
    if dim is None or dim % result.rank != order[0]:
        return "the concatenation is along another dim"
    types = [part.tensor for part in (first, *parts)]
    if any((type.dtype, type.rank) != (result.dtype, result.rank) for type in types):
        return "the concatenated tensors differ in dtype or rank"
    stack, inner = _turned(first, makers)
    if not isinstance(stack, ListStackOp) or [inner[place] for place in order] != sorted(order):
        return "the concatenation does not begin with a stack of a list"
    return Growing(stack.list, cat, tuple(parts), order)


def _turned(value: Value, makers: Definitions) -> tuple[Op | None, tuple[int, ...]]:
    """Return the op that defines the source of a chain of permutations, or None, and the source
    dim that each dim of the value is."""
    maker, order = makers.get(value), tuple(range(value.tensor.rank))
    while isinstance(maker, TensorOp) and maker.target == "aten.permute.default":
        source, inner = value_argument(maker, "self"), permutation(maker)
        assert source is not None
        maker, order = makers.get(source), tuple(inner[place] for place in order)
    return maker, order


def _grow(op: ListExtendOp, block: Block, grown: Growing, body: Block) -> None:
    cat, current = grown.cat, grown.list
    ops: list[Op] = []
    for part in grown.parts:
        rows = _permuted(part, grown.order, ops)
        longer = Value(current.type, op.result.hint)
        ops.append(ListExtendOp(current, rows, results=(longer,)))
        current = longer
    shape = tuple(cat.result.tensor.shape[place] for place in grown.order)
    whole = Value(TensorType(cat.result.tensor.dtype, shape), cat.result.hint)
    ops.append(ListStackOp(current, results=(whole,)))
    back = tuple(grown.order.index(place) for place in range(len(shape)))
    known = _permuted(whole, back, ops)
    for new in ops:
        new.location = cat.location
    place = block.ops.index(cat)
    block.ops[place : place + 1] = ops
    block.ops.remove(op)
    substitute(body, {cat.result: known, op.result: current})


def _permuted(value: Value, order: tuple[int, ...], ops: list[Op]) -> Value:
    if order == tuple(range(len(order))):
        return value
    ops.append(tensor_op("aten.permute.default", value, order))
    return ops[-1].results[0]
