"""Views, padding and joining. Only `cat` and `stack` store."""

from __future__ import annotations

from math import prod

from stretto.device.expr import (
    Apply,
    ComputedPosition,
    Const,
    Expr,
    Extent,
    Index,
    Load,
    Position,
    is_known,
)
from stretto.ir.core import Value, argument_values
from stretto.ir.ops import TensorOp
from stretto.ir.types import DType
from stretto.lowering.emit import apply, conjunction, where, within
from stretto.lowering.lazy import (
    Lazy,
    broadcast,
    cast,
    memory_shape,
    narrow,
    permute,
    regrouped_by_value,
    reshape,
    select,
    stored,
    variables,
    window,
)
from stretto.lowering.lower_function import Lowering
from stretto.lowering.rules import Decline, TensorOpCall, rule, static_dims
from stretto.ops.arguments import argument
from stretto.ops.table import Aliases, Fails, KeepDims, ShiftDims, describe
from stretto.passes.algebra import permutation
from stretto.passes.batching.rules import Batch, NotBatchable, batches, only_batched, shifted

# ---- properties ------------------------------------------------------------------------------

describe(
    "pixel_shuffle stack concat roll tile pad replication_pad1d repeat_interleave.self_int "
    "unsafe_split unsafe_chunk unsafe_split_with_sizes lift type_as _reshape_copy "
    "_unsafe_view atleast_1d atleast_2d",
    fails=Fails.NEVER,
)
describe("_unsafe_view", rearranges=True)
describe("reshape contiguous flatten.using_ints", aliases=Aliases.BY_LAYOUT)
describe(
    "lift unsafe_chunk unsafe_split.Tensor unsafe_split_with_sizes",  # the schemas do not say so
    aliases=Aliases.ALWAYS,
)
describe(
    "squeeze.dim squeeze.dims split.Tensor split_with_sizes chunk unbind unflatten.int",
    batching=ShiftDims(),
)
describe("unsqueeze", batching=ShiftDims(grows=True))
describe("flip roll", batching=ShiftDims(("dims",)))
describe("flatten.using_ints", batching=ShiftDims(("start_dim", "end_dim")))
describe("_to_copy to.dtype contiguous detach alias", batching=KeepDims(0))
describe("constant_pad_nd", batching=KeepDims(1))
describe("stack cat flip roll repeat", whole=True)


# ---- Views of whole tensors: another index for each element, never a copy ---------------------
# Views of parts are in `slices`.


# ---- the same elements -----------------------------------------------------------------------


@rule(
    "alias alias_copy detach detach_copy clone contiguous lift lift_fresh lift_fresh_copy "
    "view_as positive",
)
def _same(call: TensorOpCall) -> Lazy:
    return reshaped(call, call.tensor("self"))


@rule(
    "_to_copy to.dtype to.dtype_layout to.device to.other type_as "
    "prims.convert_element_type.default",
)
def _to(call: TensorOpCall) -> Lazy:
    name = "a" if "a" in call.arguments else "self"
    lazy = call.tensor(name)
    return Lazy(call.dtype, lazy.shape, cast(lazy.expr, call.dtype))


@rule("copy")
def _copy(call: TensorOpCall) -> Lazy:
    source = broadcast(call.tensor("src"), call.shape)
    return Lazy(call.dtype, call.shape, cast(source.expr, call.dtype))


@rule(
    "view view_copy _unsafe_view reshape _reshape_copy reshape_as flatten.using_ints "
    "unflatten.int squeeze squeeze.dim squeeze.dims squeeze_copy squeeze_copy.dim "
    "squeeze_copy.dims unsqueeze unsqueeze_copy atleast_1d atleast_2d",
)
def _reshape(call: TensorOpCall) -> Lazy:
    return reshaped(call, call.tensor("self"))


def reshaped(call: TensorOpCall, lazy: Lazy) -> Lazy:
    """Return the tensor in the dims of the result; stored first if a dynamic dim is split or
    merged."""
    try:
        return reshape(lazy, call.shape)
    except ValueError:
        if not (_is_run_of_rows(lazy.shape) and _is_run_of_rows(call.shape)):
            return regrouped_by_value(lazy, call.shape)
    buffer = call.low.new_buffer("t", lazy.dtype, lazy.shape)
    return reshape(call.low.store(lazy, buffer), call.shape)


def _is_run_of_rows(shape: tuple[Extent, ...]) -> bool:
    """True if a stored tensor of this shape is row-major in memory without gaps."""
    return memory_shape(shape) == shape and all(map(is_known, shape[1:]))


# ---- order of dims ---------------------------------------------------------------------------


@rule("permute permute_copy")
def _permute(call: TensorOpCall) -> Lazy:
    lazy = call.tensor("self")
    return permute(lazy, tuple(dim % lazy.rank for dim in call.integers("dims")))


@rule("transpose.int transpose_copy.int swapaxes")
def _transpose(call: TensorOpCall) -> Lazy:
    lazy = call.tensor("self")
    names = ("axis0", "axis1") if "axis0" in call.arguments else ("dim0", "dim1")
    return swapped(lazy, *(call.axis(lazy.rank, name) for name in names))


@rule("t t_copy numpy_T mT")
def _t(call: TensorOpCall) -> Lazy:
    lazy = call.tensor("self")
    return swapped(lazy, lazy.rank - 2, lazy.rank - 1) if lazy.rank >= 2 else lazy


def swapped(lazy: Lazy, first: int, second: int) -> Lazy:
    """Return the tensor with two dims swapped."""
    order = list(range(lazy.rank))
    if order:
        order[first], order[second] = second, first
    return permute(lazy, tuple(order))


@rule("movedim.intlist movedim.int")
def _movedim(call: TensorOpCall) -> Lazy:
    lazy = call.tensor("self")
    source = [dim % lazy.rank for dim in call.integers("source")]
    target = [dim % lazy.rank for dim in call.integers("destination")]
    rest = iter(dim for dim in range(lazy.rank) if dim not in source)
    order = (source[target.index(d)] if d in target else next(rest) for d in range(lazy.rank))
    return permute(lazy, tuple(order))


# ---- repeated elements -----------------------------------------------------------------------


@rule("expand expand_copy expand_as")
@rule("broadcast_to")
def _expand(call: TensorOpCall) -> Lazy:
    return broadcast(call.tensor("self"), call.shape)


@rule("repeat tile")
def _repeat(call: TensorOpCall) -> Lazy:
    lazy = call.tensor("self")
    lead = len(call.shape) - lazy.rank
    indices: list[Index] = []
    for dim, (size, index) in enumerate(zip(lazy.shape, variables(call.shape)[lead:], strict=True)):
        if size == call.shape[lead + dim]:
            indices.append(index)
        else:
            indices.append(index % static_dims((size,))[0] if size else Index())
    return lazy.view(call.shape, *indices)


@rule("repeat_interleave.self_int")
def _repeat_interleave(call: TensorOpCall) -> Lazy:
    lazy = call.tensor("self")
    if not call.has("dim"):
        lazy = reshape(lazy, (prod(static_dims(lazy.shape)),))
    dim = call.axis(lazy.rank) if call.has("dim") else 0
    indices = list(variables(call.shape))
    indices[dim] = indices[dim] // max(call.integer("repeats"), 1)
    return lazy.view(call.shape, *indices)


# ---- parts -----------------------------------------------------------------------------------


@rule(
    "split.Tensor split_copy.Tensor split_with_sizes split_with_sizes_copy chunk "
    "tensor_split.sections unsafe_split.Tensor unsafe_chunk unsafe_split_with_sizes",
)
def _split(call: TensorOpCall) -> tuple[Lazy, ...]:
    lazy = call.tensor("self")
    dim = call.axis(lazy.rank)
    parts: list[Lazy] = []
    start = Index()
    for value in call.op.results:
        size = call.low.extents(value.tensor.shape)[dim]
        parts.append(narrow(lazy, dim, start, size))
        start = start + size
    return tuple(parts)


@rule("unbind.int unbind_copy.int")
def _unbind(call: TensorOpCall) -> tuple[Lazy, ...]:
    lazy = call.tensor("self")
    dim = call.axis(lazy.rank)
    return tuple(select(lazy, dim, number) for number in range(len(call.op.results)))


@rule("unfold unfold_copy")
def _unfold(call: TensorOpCall) -> Lazy:
    lazy = call.tensor("self")
    dim = call.axis(lazy.rank, "dimension")
    indices = list(variables(call.shape))
    inside = indices.pop()
    if lazy.rank == 0:
        return lazy.view(call.shape)
    indices[dim] = indices[dim] * call.integer("step") + inside
    return lazy.view(call.shape, *indices)


# ---- other orders ----------------------------------------------------------------------------


@rule("flip")
def _flip(call: TensorOpCall) -> Lazy:
    lazy = call.tensor("self")
    indices = list(variables(lazy.shape))
    for dim in {d % max(lazy.rank, 1) for d in call.integers("dims")} if lazy.rank else ():
        indices[dim] = indices[dim] * -1 + Index.of(lazy.shape[dim]) + -1
        if lazy.shape[dim] == 1:
            indices[dim] = Index()
    return lazy.view(lazy.shape, *indices)


@rule("roll")
def _roll(call: TensorOpCall) -> Lazy:
    lazy = call.tensor("self")
    dims, shifts = call.integers("dims"), call.integers("shifts")
    if 0 in lazy.shape or not lazy.rank:
        return lazy
    shape = lazy.shape
    if not dims:
        lazy, dims = reshape(lazy, (prod(static_dims(lazy.shape)),)), (0,)
    indices = list(variables(lazy.shape))
    for dim, shift in zip(dims, shifts, strict=True):
        size = static_dims((lazy.shape[dim],))[0]
        indices[dim] = (indices[dim] + -shift) % size
    return reshape(lazy.view(lazy.shape, *indices), shape)


# ---- padding ---------------------------------------------------------------------------------


@rule("constant_pad_nd pad")
def _pad(call: TensorOpCall) -> Lazy:
    value = call.scalar("value") if call.has("value") else Const(0.0, DType.F32)
    return _padded(call, str(call.arguments.get("mode", "constant")), value)


for _name, _mode in (("reflection", "reflect"), ("replication", "replicate")):

    @rule(*(f"{_name}_pad{dims}d" for dims in (1, 2, 3)))
    def _edge_pad(call: TensorOpCall, mode: str = _mode) -> Lazy:
        return _padded(call, mode, None)


def _padded(call: TensorOpCall, mode: str, value: Expr | None) -> Lazy:
    lazy = call.tensor("self")
    amounts = call.integers("pad" if "pad" in call.arguments else "padding")
    indices = list(variables(call.shape))
    conditions: list[Expr] = []
    for pair in range(len(amounts) // 2):
        dim = lazy.rank - 1 - pair
        before, after = amounts[2 * pair : 2 * pair + 2]
        place = indices[dim] + -before
        if mode == "constant":
            indices[dim] = place
            inside = within(place, Index.of(lazy.shape[dim]))
            conditions += [inside[n] for n, amount in enumerate((before, after)) if amount > 0]
        elif before or after:
            indices[dim] = _folded(place, static_dims((lazy.shape[dim],))[0], mode)
    moved = lazy.at(*indices)
    condition = conjunction(conditions)
    if condition is None or value is None:
        return Lazy(lazy.dtype, call.shape, moved)
    return Lazy(lazy.dtype, call.shape, where(condition, moved, cast(value, lazy.dtype)))


def _folded(place: Index, size: int, mode: str) -> Index:
    """Map a position outside of 0 .. size-1 back into the range, by the padding mode."""
    last, position = Const(size - 1, DType.I64), Position(place)
    match mode:
        case "circular":
            return place % size
        case "replicate":
            inside = apply("minimum", apply("maximum", position, Const(0, DType.I64)), last)
        case "reflect":
            mirrored = Apply("sub", (last, Apply("abs", (position,), DType.I64)), DType.I64)
            inside = apply("sub", last, Apply("abs", (mirrored,), DType.I64))
        case _:
            raise Decline(f"padding mode {mode}")
    return Index.of(ComputedPosition(inside))


@rule("pixel_shuffle")
def _pixel_shuffle(call: TensorOpCall) -> Lazy:
    lazy = call.tensor("self")
    factor = call.integer("upscale_factor")
    *lead, channel, y, x = variables(call.shape)
    source = channel * (factor * factor) + (y % factor) * factor + x % factor
    return lazy.view(call.shape, *lead, source, y // factor, x // factor)


# ---- joining ---------------------------------------------------------------------------------


@rule("cat concat")
def _cat(call: TensorOpCall) -> Lazy:
    parts = [part for part in call.tensors("tensors") if part.shape != (0,) or len(call.shape) == 1]
    return joined(call, parts, call.axis(len(call.shape)))


@rule("stack")
def _stack(call: TensorOpCall) -> Lazy:
    dim = call.axis(len(call.shape))
    parts: list[Lazy] = []
    for part in call.tensors("tensors"):  # insert the new dim, of size 1
        places = (*variables(part.shape[:dim]), *variables(part.shape[dim:], dim + 1))
        parts.append(part.view((*part.shape[:dim], 1, *part.shape[dim:]), *places))
    return joined(call, parts, dim)


def joined(call: TensorOpCall, parts: list[Lazy], dim: int) -> Lazy:
    """Store the parts one after the other along `dim`."""
    place = _place(call.low, call.result)
    start = Index()
    for part in parts:
        target = place.at(*window(part.shape, dim, start))
        assert isinstance(target, Load)
        if part.expr != target:
            call.low.write("copy", part.shape, cast(part.expr, place.dtype), target.access)
        start = start + part.shape[dim]
    return place


def _place(low: Lowering, value: Value) -> Lazy:
    """Return the memory of a joined tensor, as the tensor that it will be."""
    if value not in low.begun:
        inside = _place_in_whole(low, value)
        if inside is None:
            inside = stored(low.output(value), low.extents(value.tensor.shape))
        low.begun[value] = inside
    return low.begun[value]


def _place_in_whole(low: Lowering, value: Value) -> Lazy | None:
    """Return the place of a part in the tensor that it is joined into, if that is contiguous
    memory."""
    joint = low.joints.get(value)
    if joint is None or value in low.destinations:
        return None
    whole, dim = joint.whole, joint.dim
    shape, own = low.extents(whole.tensor.shape), low.extents(value.tensor.shape)
    if any(extent != 1 for extent in shape[:dim]) or not all(map(is_known, shape)):
        return None
    if own[dim + (not joint.is_stack) :] != shape[dim + 1 :]:
        return None
    if low.destinations.get(whole) in low.mutable:
        return None
    indices = list(variables(own))
    if joint.is_stack:
        indices.insert(dim, Index(const=joint.number))
    else:
        sizes = (low.extents(part.tensor.shape)[dim] for part in joint.before)
        indices[dim] = sum(map(Index.of, sizes), start=indices[dim])
    return _place(low, whole).view(own, *indices)


# ---- batching ------------------------------------------------------------------------------


@batches("view.default reshape.default _unsafe_view.default squeeze.default")
def _batch_to_result_shape(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    """view and similar operators: all of them keep the order of elements."""
    _, value = only_batched(batch, op)
    return (batch.reshape(batch.twins[value], (batch.length, *op.result.tensor.shape)),)


@batches("expand.default")
def _batch_expand(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    _, value = only_batched(batch, op)
    shape = op.result.tensor.shape
    aligned = batch.aligned(value, len(shape))
    return (batch.emit("aten.expand.default", aligned, (batch.length, *shape)),)


@batches("permute.default transpose.int t.default")
def _batch_permute(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    _, value = only_batched(batch, op)
    order = (dim + 1 for dim in permutation(op))
    return (batch.permute(batch.twins[value], (0, *order)),)


@batches("cat.default stack.default")
def _batch_concatenate(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    values = argument_values(argument(op, "tensors"))
    if len({value.tensor.rank for value in values}) > 1:
        raise NotBatchable("its operands differ in rank")
    parts = tuple(batch.expanded(value) for value in values)
    return (batch.emit(op.target, parts, shifted(argument(op, "dim"))),)


@batches("repeat.default")
def _batch_repeat(batch: Batch, op: TensorOp) -> tuple[Value, ...]:
    _, value = only_batched(batch, op)
    repeats = argument(op, "repeats")
    assert isinstance(repeats, tuple)
    aligned = batch.aligned(value, len(repeats))
    return (batch.emit("aten.repeat.default", aligned, (1, *repeats)),)
