"""Rules for ops that only rearrange: transposes, reshapes, slices, parts of a cat or a stack.

Each rule looks at an op and the op that makes its operand, and finds one op, or none, that does
both.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.ir.core import Op, Value
from stretto.ir.ops import Argument, TensorOp
from stretto.ir.rewrite import Definitions, Replacement
from stretto.ir.types import TensorType
from stretto.ops.arguments import argument, int_argument, value_argument
from stretto.ops.infer import tensor_op
from stretto.passes.simplifications.algebra import TensorRules, maker_of, same_as_operand

_PERMUTATIONS = ("aten.permute.default", "aten.transpose.int", "aten.t.default")
_RESHAPES = (
    *("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default"),
    *("aten.unsqueeze.default", "aten.flatten.using_ints", "aten.unflatten.int"),
    *("aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default"),
)
_NARROWS = ("stretto.narrow", "stretto.narrow.default")
_SLICES = ("aten.slice.Tensor", "aten.select.int", *_NARROWS)


def permutation(op: TensorOp) -> tuple[int, ...]:
    """Which dim of the operand each dim of the result is."""
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
    """A transpose of a transpose is one transpose; one that leaves all dims in place goes."""
    source, order = value_argument(op, "self"), permutation(op)
    inner = maker_of(source, definitions, *_PERMUTATIONS)
    if inner is not None:
        source, first = value_argument(inner, "self"), permutation(inner)
        order = tuple(first[dim] for dim in order)
    if source is None or order == tuple(range(len(order))):
        return source
    return tensor_op("aten.permute.default", source, order) if inner is not None else None


def reshaped_twice(op: TensorOp, definitions: Definitions) -> Value | TensorOp | None:
    """A reshape of a reshape is one reshape; one to the shape of its operand goes."""
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
    """The slice that an op takes, when its position and the size of the dim are known."""
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
    """A slice without step that leaves the size is all of it, for symbolic sizes too."""
    return same_as_operand(op, definitions) if argument(op, "step") == 1 else None


def sliced_twice(op: TensorOp, definitions: Definitions) -> Value | TensorOp | None:
    """A slice of a slice along the same dim is one slice; a narrow of known position is a slice."""
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
    """What is taken of one piece of a cat is taken of the piece itself."""
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
    """An item of a stack is that item, and the only place of an unsqueezed dim its operand."""
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
    """All items of a stack are what was stacked."""
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
    """A cat of one tensor is that tensor."""
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
