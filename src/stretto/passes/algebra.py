"""Rules for arithmetic, casts, copies and views: ops whose result is an operand or a simpler
op, exactly.

Exact means: the same bits for every input, NaN, infinities, subnormals and both zeros
included. So `x + 0.0` stays, because it turns -0.0 into 0.0, while `x - 0.0`, `x * 1` and
`x + (-0.0)` are removed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from stretto.ir.core import Op, Value
from stretto.ir.ops import Argument, LiteralOp, TensorOp
from stretto.ir.rewrite import Definitions, Replacement
from stretto.ir.types import DType, TensorType
from stretto.ops.arguments import argument, int_argument, value_argument
from stretto.ops.infer import tensor_op
from stretto.ops.properties import is_lossless, is_random

TensorRule = Callable[[TensorOp, Definitions], Value | TensorOp | None]
"""Returns a value or an op that replaces the op's only result, or None. The caller
compares types."""

TensorRules = dict[str, tuple[TensorRule, ...]]
"""Rules by the target of the op."""


def number(item: Argument, definitions: Definitions) -> bool | int | float | None:
    """Return the number that an argument is, or the literal that it names; None if it is not
    known."""
    if isinstance(item, Value):
        maker = definitions.get(item)
        return maker.value if isinstance(maker, LiteralOp) else None
    return item if isinstance(item, bool | int | float) else None


def maker_of(item: Argument, definitions: Definitions, *targets: str) -> TensorOp | None:
    """Return the tensor op that defines the value, if it has one of the targets."""
    maker = definitions.get(item) if isinstance(item, Value) else None
    return maker if isinstance(maker, TensorOp) and maker.target in targets else None


def same_as_operand(op: TensorOp, _: Definitions) -> Value | None:
    """Remove an op that copies or only rearranges, if its result has the type of its operand."""
    operand = value_argument(op, "self")
    if operand is None:
        operand = value_argument(op, "input")
    return operand if operand is not None and operand.type == op.result.type else None


def dropout_off(op: TensorOp, definitions: Definitions) -> Value | None:
    return None if is_random(op) else same_as_operand(op, definitions)


def neutral(
    is_neutral: Callable[[bool | int | float, bool], bool], *names: str
) -> tuple[TensorRule, ...]:
    """Return the rule of operators that yield their other operand if one of those in `names` is
    neutral.

    `is_neutral` gets the number, and True if the result is a float.
    """

    def rule(op: TensorOp, definitions: Definitions) -> Value | None:
        if argument(op, "alpha") not in (None, 1):
            return None
        is_float = op.result.tensor.dtype.is_float
        for name in names:
            known = number(argument(op, name), definitions)
            if known is not None and is_neutral(known, is_float):
                return value_argument(op, "other" if name == "self" else "self")
        return None

    return (rule,)


def _is_one(value: float, _: bool) -> bool:
    return value == 1


def _is_zero_to_add(value: float, is_float: bool) -> bool:
    """True for -0.0 if the result is a float, and for either zero if it is an integer."""
    return value == 0 and (not is_float or math.copysign(1.0, value) < 0)


def _is_zero_to_subtract(value: float, _: bool) -> bool:
    return value == 0 and math.copysign(1.0, value) > 0


def logical(neutral: bool) -> TensorRule:
    """Return the rule of `and` (neutral: True) or `or` (neutral: False) of bools; the other bool
    absorbs."""

    def rule(op: TensorOp, definitions: Definitions) -> Value | None:
        operands = (value_argument(op, "self"), value_argument(op, "other"))
        if any(item is None or item.tensor.dtype is not DType.BOOL for item in operands):
            return None
        left, right = operands
        if left is right:
            return left
        for known, other in ((left, right), (right, left)):
            value = number(known, definitions)
            if value is not None:
                return other if value is neutral else known
        return None

    return rule


def twice(op: TensorOp, definitions: Definitions) -> Value | None:
    """Return the operand of an operator that is its own inverse and is applied twice."""
    inner = maker_of(argument(op, "self"), definitions, op.target)
    return value_argument(inner, "self") if inner is not None else None


def cast_of_cast(op: TensorOp, definitions: Definitions) -> TensorOp | Value | None:
    """Merge a cast to a wider dtype with the cast that follows."""
    inner = maker_of(argument(op, "self"), definitions, op.target)
    if inner is None or not (_is_plain_cast(op) and _is_plain_cast(inner)):
        return None
    source = value_argument(inner, "self")
    if source is None or not is_lossless(source.tensor.dtype, inner.result.tensor.dtype):
        return None
    if source.type == op.result.type:
        return source
    return tensor_op(op.target, source, dtype=op.result.tensor.dtype.torch)


def _is_plain_cast(op: TensorOp) -> bool:
    return len(op.args) == 1 and [key for key, _ in op.kwargs] == ["dtype"]


def where_known(op: TensorOp, definitions: Definitions) -> Value | None:
    condition = number(argument(op, "condition"), definitions)
    chosen, other = value_argument(op, "self"), value_argument(op, "other")
    if condition is None:
        return chosen if chosen is other else None
    return chosen if condition else other


_COPIES = (
    *("clone.default", "contiguous.default", "alias.default", "detach.default"),
    *("lift_fresh.default", "lift_fresh_copy.default", "_to_copy.default", "to.dtype"),
)

ALGEBRA_RULES: TensorRules = {
    **{f"aten.{name}": (same_as_operand,) for name in _COPIES},
    "aten._to_copy.default": (same_as_operand, cast_of_cast),
    "aten.dropout.default": (dropout_off,),
    **dict.fromkeys(("aten.mul.Tensor", "aten.mul.Scalar"), neutral(_is_one, "self", "other")),
    **dict.fromkeys(
        ("aten.add.Tensor", "aten.add.Scalar"), neutral(_is_zero_to_add, "self", "other")
    ),
    **dict.fromkeys(("aten.sub.Tensor", "aten.sub.Scalar"), neutral(_is_zero_to_subtract, "other")),
    **dict.fromkeys(("aten.div.Tensor", "aten.div.Scalar"), neutral(_is_one, "other")),
    "aten.pow.Tensor_Scalar": neutral(_is_one, "exponent"),
    **dict.fromkeys(
        ("aten.neg.default", "aten.logical_not.default", "aten.bitwise_not.default"), (twice,)
    ),
    **dict.fromkeys(("aten.logical_and.default", "aten.bitwise_and.Tensor"), (logical(True),)),
    **dict.fromkeys(("aten.logical_or.default", "aten.bitwise_or.Tensor"), (logical(False),)),
    "aten.where.self": (where_known,),
}


# ---- Rules for ops that only rearrange: transposes, reshapes, slices, parts of a cat or a stack.
#
# Each rule examines an op and the op that defines its operand, and finds one op, or none, that does
# both.


_PERMUTATIONS = ("aten.permute.default", "aten.transpose.int", "aten.t.default")
_RESHAPES = (
    *("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default"),
    *("aten.unsqueeze.default", "aten.flatten.using_ints", "aten.unflatten.int"),
    *("aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default"),
)
_NARROWS = ("stretto.narrow", "stretto.narrow.default")
_SLICES = ("aten.slice.Tensor", "aten.select.int", *_NARROWS)


def permutation(op: TensorOp) -> tuple[int, ...]:
    """Return, for each dim of the result, the dim of the operand that it is."""
    rank = op.result.tensor.rank
    order = list(range(rank))
    match argument(op, "dims"), int_argument(op, "dim0"), int_argument(op, "dim1"):
        case tuple() as dims, _, _:
            return tuple(dim % rank for dim in dims if isinstance(dim, int))
        case _, int() as first, int() as second:
            if rank:
                order[first], order[second] = order[second], order[first]
            return tuple(order)
        case _:  # aten.t
            return tuple(order[::-1])


def permuted_twice(op: TensorOp, definitions: Definitions) -> Value | TensorOp | None:
    """Merge a transpose with the transpose of its operand; remove one that leaves all dims in
    place."""
    source, order = value_argument(op, "self"), permutation(op)
    inner = maker_of(source, definitions, *_PERMUTATIONS)
    if inner is not None:
        source, first = value_argument(inner, "self"), permutation(inner)
        order = tuple(first[dim] for dim in order)
    if source is None or order == tuple(range(len(order))):
        return source
    return tensor_op("aten.permute.default", source, order) if inner is not None else None


def reshaped_twice(op: TensorOp, definitions: Definitions) -> Value | TensorOp | None:
    """Merge a reshape with the reshape of its operand; remove one to the shape of its operand."""
    inner = maker_of(argument(op, "self"), definitions, *_RESHAPES)
    if inner is None:
        return same_as_operand(op, definitions)
    source = value_argument(inner, "self")
    if source is None or source.type == op.result.type:
        return source
    return tensor_op("aten.view.default", source, op.result.tensor.shape)


def expanded_twice(op: TensorOp, definitions: Definitions) -> Value | TensorOp | None:
    inner = maker_of(argument(op, "self"), definitions, op.target)
    source = value_argument(inner, "self") if inner is not None else None
    if source is None:
        return same_as_operand(op, definitions)
    return tensor_op(op.target, source, op.result.tensor.shape)


@dataclass(frozen=True, slots=True)
class Slice:
    """`source[start : start + step * length : step]` along a dim; a select also drops the dim."""

    source: Value
    dim: int
    start: int
    step: int
    length: int
    drops_dim: bool = False

    @property
    def last(self) -> int:
        return self.start + self.step * (self.length - 1)

    def op(self) -> TensorOp:
        if self.drops_dim:
            return tensor_op("aten.select.int", self.source, self.dim, self.start)
        step: tuple[Argument, ...] = () if self.step == 1 else (self.step,)
        return tensor_op(
            "aten.slice.Tensor", self.source, self.dim, self.start, self.last + 1, *step
        )


def slice_of(op: TensorOp | None) -> Slice | None:
    """Return the slice that an op takes, if its position and the size of the dim are known
    numbers."""
    if op is None:
        return None
    source, dim = value_argument(op, "self"), int_argument(op, "dim")
    if source is None or dim is None:
        return None
    dim %= source.tensor.rank
    size = source.tensor.shape[dim]
    if not isinstance(size, int):
        return None
    if op.target == "aten.select.int":
        start = int_argument(op, "index")
        return None if start is None else Slice(source, dim, start % size, 1, 1, drops_dim=True)
    length = op.result.tensor.shape[dim]
    start, step = argument(op, "start"), int_argument(op, "step")
    start = 0 if start is None else start
    if not isinstance(start, int) or not isinstance(length, int) or length == 0:
        return None
    if start < 0:
        start = max(0, start + size)
    return Slice(source, dim, start, step or 1, length)


def whole_slice(op: TensorOp, definitions: Definitions) -> Value | None:
    """Remove a slice of step 1 that keeps the size of the dim, which may be symbolic."""
    return same_as_operand(op, definitions) if argument(op, "step") == 1 else None


def sliced_twice(op: TensorOp, definitions: Definitions) -> Value | TensorOp | None:
    """Merge a slice with the slice of its operand along the same dim; a narrow at a known position
    becomes a slice."""
    outer = slice_of(op)
    if outer is None:
        return None
    if not outer.drops_dim and outer.source.type == op.result.type:
        return outer.source
    inner = slice_of(maker_of(outer.source, definitions, *_SLICES))
    if inner is not None and not inner.drops_dim and inner.dim == outer.dim:
        start = inner.start + inner.step * outer.start
        step = inner.step * outer.step
        return Slice(inner.source, outer.dim, start, step, outer.length, outer.drops_dim).op()
    return outer.op() if op.target in _NARROWS else None


def slice_of_cat(op: TensorOp, definitions: Definitions) -> Value | TensorOp | None:
    """Take a slice that is inside one operand of a cat from that operand."""
    outer = slice_of(op)
    maker = maker_of(outer.source, definitions, "aten.cat.default") if outer is not None else None
    dim = int_argument(maker, "dim") if maker is not None else None
    if outer is None or maker is None or dim is None:
        return None
    pieces = argument(maker, "tensors")
    if dim % outer.source.tensor.rank != outer.dim or not isinstance(pieces, tuple):
        return None
    before = 0
    for piece in pieces:
        if not isinstance(piece, Value) or piece.tensor.rank != outer.source.tensor.rank:
            return None
        size = piece.tensor.shape[outer.dim]
        if not isinstance(size, int):
            return None
        if before <= outer.start and outer.last < before + size:
            if piece.type == op.result.type:
                return piece
            start = outer.start - before
            return Slice(piece, outer.dim, start, outer.step, outer.length, outer.drops_dim).op()
        before += size
    return None


def select_of_stack(op: TensorOp, definitions: Definitions) -> Value | None:
    """Replace an item of a stack by the stacked tensor, and the item of an unsqueezed dim by the
    operand."""
    outer = slice_of(op)
    if outer is None:
        return None
    maker = maker_of(outer.source, definitions, "aten.stack.default", "aten.unsqueeze.default")
    dim = int_argument(maker, "dim") if maker is not None else None
    if maker is None or dim is None or dim % outer.source.tensor.rank != outer.dim:
        return None
    if maker.target == "aten.unsqueeze.default":
        return value_argument(maker, "self")
    items = argument(maker, "tensors")
    item = items[outer.start] if isinstance(items, tuple) else None
    return item if isinstance(item, Value) else None


def items_of_stack(op: Op, definitions: Definitions) -> Replacement | None:
    """Replace the unbound items of a stack by the stacked tensors."""
    if not isinstance(op, TensorOp) or op.target != "aten.unbind.int":
        return None
    maker = maker_of(argument(op, "self"), definitions, "aten.stack.default")
    if maker is None:
        return None
    rank = maker.result.tensor.rank
    dims = (int_argument(op, "dim"), int_argument(maker, "dim"))
    items = argument(maker, "tensors")
    if None in dims or len({dim % rank for dim in dims if dim is not None}) > 1:
        return None
    assert isinstance(items, tuple)
    values = tuple(item for item in items if isinstance(item, Value))
    return ([], values) if _types(values) == _types(op.results) else None


def only_piece(op: TensorOp, _: Definitions) -> Value | None:
    """Replace a cat of one tensor by that tensor."""
    pieces = argument(op, "tensors")
    piece = pieces[0] if isinstance(pieces, tuple) and len(pieces) == 1 else None
    return piece if isinstance(piece, Value) else None


def nothing_padded(op: TensorOp, _: Definitions) -> Value | None:
    pad = argument(op, "pad")
    is_nothing = isinstance(pad, tuple) and all(item == 0 for item in pad)
    return value_argument(op, "self") if is_nothing else None


def _types(values: tuple[Value, ...]) -> tuple[TensorType, ...]:
    return tuple(value.tensor for value in values)


VIEW_RULES: TensorRules = {
    **dict.fromkeys(_PERMUTATIONS, (permuted_twice,)),
    **dict.fromkeys(_RESHAPES, (reshaped_twice,)),
    **dict.fromkeys(_SLICES, (slice_of_cat, sliced_twice)),
    "aten.slice.Tensor": (whole_slice, slice_of_cat, sliced_twice),
    "aten.select.int": (select_of_stack, slice_of_cat, sliced_twice),
    "aten.expand.default": (expanded_twice,),
    "aten.repeat.default": (same_as_operand,),
    "aten.cat.default": (only_piece,),
    "aten.constant_pad_nd.default": (nothing_padded,),
}
