"""Views: another index for each element, never a copy."""

from __future__ import annotations

from stretto.device.expr import Extent, Index
from stretto.lowering.lazy import (
    Lazy,
    broadcast,
    cast,
    memory_shape,
    narrow,
    permute,
    reshape,
    select,
    variables,
)
from stretto.lowering.rules.table import Call, Decline, rule, static_dims
from stretto.ops.bounds import out_of_range, window_out_of_range

# ---- the same elements -----------------------------------------------------------------------


@rule(
    "aten.alias.default",
    "aten.alias_copy.default",
    "aten.detach.default",
    "aten.detach_copy.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.lift.default",
    "aten.lift_fresh.default",
    "aten.lift_fresh_copy.default",
    "aten.view_as.default",
    "aten.positive.default",
)
def _same(call: Call) -> Lazy:
    return reshaped(call, call.tensor("self"))


@rule(
    "aten._to_copy.default",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.to.device",
    "aten.to.other",
    "aten.type_as.default",
    "prims.convert_element_type.default",
)
def _to(call: Call) -> Lazy:
    name = "a" if "a" in call.arguments else "self"
    lazy = call.tensor(name)
    return Lazy(call.dtype, lazy.shape, cast(lazy.expr, call.dtype))


@rule("aten.copy.default")
def _copy(call: Call) -> Lazy:
    source = broadcast(call.tensor("src"), call.shape)
    return Lazy(call.dtype, call.shape, cast(source.expr, call.dtype))


@rule(
    "aten.view.default",
    "aten.view_copy.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten._reshape_copy.default",
    "aten.reshape_as.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.squeeze_copy.default",
    "aten.squeeze_copy.dim",
    "aten.squeeze_copy.dims",
    "aten.unsqueeze.default",
    "aten.unsqueeze_copy.default",
    "aten.atleast_1d.default",
    "aten.atleast_2d.default",
)
def _reshape(call: Call) -> Lazy:
    return reshaped(call, call.tensor("self"))


def reshaped(call: Call, lazy: Lazy) -> Lazy:
    """The tensor in the dims of the result; stored first where a dynamic dim is split or merged."""
    try:
        return reshape(lazy, call.shape)
    except ValueError:
        if memory_shape(lazy.shape) != lazy.shape or memory_shape(call.shape) != call.shape:
            raise Decline("a dynamic dim that is not the first is split or merged") from None
    buffer = call.low.new_buffer("t", lazy.dtype, lazy.shape)
    return reshape(call.low.store(lazy, buffer), call.shape)


# ---- order of dims ---------------------------------------------------------------------------


@rule("aten.permute.default", "aten.permute_copy.default")
def _permute(call: Call) -> Lazy:
    lazy = call.tensor("self")
    return permute(lazy, tuple(dim % lazy.rank for dim in call.integers("dims")))


@rule("aten.transpose.int", "aten.transpose_copy.int", "aten.swapaxes.default")
def _transpose(call: Call) -> Lazy:
    lazy = call.tensor("self")
    names = ("axis0", "axis1") if "axis0" in call.arguments else ("dim0", "dim1")
    return swapped(lazy, *(call.axis(lazy.rank, name) for name in names))


@rule("aten.t.default", "aten.t_copy.default", "aten.numpy_T.default", "aten.mT.default")
def _t(call: Call) -> Lazy:
    lazy = call.tensor("self")
    return swapped(lazy, lazy.rank - 2, lazy.rank - 1) if lazy.rank >= 2 else lazy


def swapped(lazy: Lazy, first: int, second: int) -> Lazy:
    order = list(range(lazy.rank))
    if order:
        order[first], order[second] = second, first
    return permute(lazy, tuple(order))


@rule("aten.movedim.intlist", "aten.movedim.int")
def _movedim(call: Call) -> Lazy:
    lazy = call.tensor("self")
    source = [dim % lazy.rank for dim in call.integers("source")]
    target = [dim % lazy.rank for dim in call.integers("destination")]
    rest = iter(dim for dim in range(lazy.rank) if dim not in source)
    order = (source[target.index(d)] if d in target else next(rest) for d in range(lazy.rank))
    return permute(lazy, tuple(order))


# ---- repeated elements -----------------------------------------------------------------------


@rule("aten.expand.default", "aten.expand_copy.default", "aten.expand_as.default")
@rule("aten.broadcast_to.default")
def _expand(call: Call) -> Lazy:
    return broadcast(call.tensor("self"), call.shape)


@rule("aten.repeat.default", "aten.tile.default")
def _repeat(call: Call) -> Lazy:
    lazy = call.tensor("self")
    lead = len(call.shape) - lazy.rank
    indices: list[Index] = []
    for dim, (size, index) in enumerate(zip(lazy.shape, variables(call.shape)[lead:], strict=True)):
        if size == call.shape[lead + dim]:
            indices.append(index)
        else:
            indices.append(index % static_dims((size,))[0] if size else Index())
    return lazy.view(call.shape, *indices)


@rule("aten.repeat_interleave.self_int")
def _repeat_interleave(call: Call) -> Lazy:
    lazy = call.tensor("self")
    if not call.has("dim"):
        lazy = reshape(lazy, (static_size_of(lazy),))
    dim = call.axis(lazy.rank) if call.has("dim") else 0
    indices = list(variables(call.shape))
    indices[dim] = indices[dim] // max(call.integer("repeats"), 1)
    return lazy.view(call.shape, *indices)


def static_size_of(lazy: Lazy) -> int:
    size = 1
    for dim in static_dims(lazy.shape):
        size *= dim
    return size


# ---- parts -----------------------------------------------------------------------------------


@rule("aten.select.int", "aten.select_copy.int")
def _select(call: Call) -> Lazy:
    lazy = call.tensor("self")
    dim = call.axis(lazy.rank)
    failure = out_of_range(call.op.target, dim, lazy.shape[dim])
    return select(lazy, dim, call.low.position(call.arguments["index"], lazy.shape[dim], failure))


@rule("aten.slice.Tensor", "aten.slice_copy.Tensor")
def _slice(call: Call) -> Lazy:
    lazy = call.tensor("self")
    dim = call.axis(lazy.rank)
    start = slice_start(call, lazy.shape[dim])
    return narrow(lazy, dim, start, call.shape[dim], call.integer("step"))


def slice_start(call: Call, size: Extent) -> Index:
    """Where a slice begins, by Python's rules."""
    start = call.integer("start") if call.has("start") else 0
    if isinstance(size, int):
        return Index(const=slice(start, None, 1).indices(size)[0])
    return Index.of(size) + start if start < 0 else Index(const=start)


@rule("aten.narrow.default", "aten.narrow_copy.default", "stretto.narrow.default", "stretto.narrow")
def _narrow(call: Call) -> Lazy:
    lazy = call.tensor("self")
    dim = call.axis(lazy.rank)
    length = call.shape[dim]
    return narrow(lazy, dim, narrow_start(call, lazy.shape[dim], length), length)


def narrow_start(call: Call, size: Extent, length: Extent) -> Index:
    """The position of a slice of `length`; negative ones count from the end of the dim."""
    failure = window_out_of_range(size, length)
    if "scatter" in call.op.target and length == 1:  # an item that is assigned to
        failure = out_of_range(call.op.target, call.axis(len(call.shape)), size)
    return call.low.position(call.arguments["start"], size, failure, length)


@rule(
    "aten.split.Tensor",
    "aten.split_copy.Tensor",
    "aten.split_with_sizes.default",
    "aten.split_with_sizes_copy.default",
    "aten.chunk.default",
    "aten.tensor_split.sections",
    "aten.unsafe_split.Tensor",
    "aten.unsafe_chunk.default",
    "aten.unsafe_split_with_sizes.default",
)
def _split(call: Call) -> tuple[Lazy, ...]:
    lazy = call.tensor("self")
    dim = call.axis(lazy.rank)
    parts: list[Lazy] = []
    start = Index()
    for value in call.op.results:
        size = call.low.extents(value.tensor.shape)[dim]
        parts.append(narrow(lazy, dim, start, size))
        start = start + size
    return tuple(parts)


@rule("aten.unbind.int", "aten.unbind_copy.int")
def _unbind(call: Call) -> tuple[Lazy, ...]:
    lazy = call.tensor("self")
    dim = call.axis(lazy.rank)
    return tuple(select(lazy, dim, number) for number in range(len(call.op.results)))


@rule("aten.diagonal.default", "aten.diagonal_copy.default")
def _diagonal(call: Call) -> Lazy:
    lazy = call.tensor("self")
    first, second = (call.axis(lazy.rank, name) for name in ("dim1", "dim2"))
    offset = call.integer("offset")
    along = variables(call.shape)[-1]
    rest = iter(variables(call.shape)[:-1])
    indices = [Index()] * lazy.rank
    for dim in range(lazy.rank):
        if dim not in (first, second):
            indices[dim] = next(rest)
    indices[first] = along + max(-offset, 0)
    indices[second] = along + max(offset, 0)
    return lazy.view(call.shape, *indices)


@rule("aten.unfold.default", "aten.unfold_copy.default")
def _unfold(call: Call) -> Lazy:
    lazy = call.tensor("self")
    dim = call.axis(lazy.rank, "dimension")
    indices = list(variables(call.shape))
    inside = indices.pop()
    if lazy.rank == 0:
        return lazy.view(call.shape)
    indices[dim] = indices[dim] * call.integer("step") + inside
    return lazy.view(call.shape, *indices)
