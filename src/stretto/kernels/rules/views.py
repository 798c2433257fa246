"""Views and moves: another index for each element, never a copy (but for `cat` and `stack`)."""

from __future__ import annotations

from stretto.kernels.expr import Access, Apply, Const, Dynamic, Expr, Extent, Index, Position, Var
from stretto.kernels.lazy import (
    Lazy,
    broadcast,
    cast,
    memory_shape,
    narrow,
    permute,
    placed_at,
    reshape,
    select,
    stored,
    variables,
)
from stretto.ir.types import DType
from stretto.kernels.operator import Operator
from stretto.kernels.rules.scalar import apply, conjunction, where, within
from stretto.kernels.rules.table import Call, Decline, rule, static_dims

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
    """The tensor with the dims of the result; stored first where a dynamic dim is split or merged."""
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
    return select(lazy, dim, call.low.position(call.arguments["index"], lazy.shape[dim]))


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
    return call.low.position(call.arguments["start"], size, length)


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


# ---- other orders ----------------------------------------------------------------------------


@rule("aten.flip.default")
def _flip(call: Call) -> Lazy:
    lazy = call.tensor("self")
    indices = list(variables(lazy.shape))
    for dim in {d % max(lazy.rank, 1) for d in call.integers("dims")} if lazy.rank else ():
        indices[dim] = indices[dim] * -1 + Index.of(lazy.shape[dim]) + -1
        if lazy.shape[dim] == 1:
            indices[dim] = Index()
    return lazy.view(lazy.shape, *indices)


@rule("aten.roll.default")
def _roll(call: Call) -> Lazy:
    lazy = call.tensor("self")
    dims, shifts = call.integers("dims"), call.integers("shifts")
    if 0 in lazy.shape or not lazy.rank:
        return lazy
    shape = lazy.shape
    if not dims:
        lazy, dims = reshape(lazy, (static_size_of(lazy),)), (0,)
    indices = list(variables(lazy.shape))
    for dim, shift in zip(dims, shifts, strict=True):
        size = static_dims((lazy.shape[dim],))[0]
        indices[dim] = (indices[dim] + -shift) % size
    return reshape(lazy.view(lazy.shape, *indices), shape)


# ---- padding ---------------------------------------------------------------------------------


@rule("aten.constant_pad_nd.default")
def _constant_pad(call: Call) -> Lazy:
    return _padded(call, "constant", call.scalar("value"))


@rule("aten.pad.default")
def _pad(call: Call) -> Lazy:
    value = call.scalar("value") if call.has("value") else Const(0.0, DType.F32)
    return _padded(call, call.text("mode") or "constant", value)


@rule(*(f"aten.reflection_pad{n}d.default" for n in (1, 2, 3)))
def _reflection_pad(call: Call) -> Lazy:
    return _padded(call, "reflect", None)


@rule(*(f"aten.replication_pad{n}d.default" for n in (1, 2, 3)))
def _replication_pad(call: Call) -> Lazy:
    return _padded(call, "replicate", None)


def _padded(call: Call, mode: str, value: Expr | None) -> Lazy:
    lazy = call.tensor("self")
    name = "pad" if "pad" in call.arguments else "padding"
    amounts = call.integers(name)
    indices = list(variables(call.shape))
    conditions: list[Expr] = []
    for number in range(len(amounts) // 2):
        dim = lazy.rank - 1 - number
        before, after = amounts[2 * number : 2 * number + 2]
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
    """A position outside of 0 .. size-1 brought back by the given mode."""
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
    return Index.of(Dynamic(inside))


@rule("aten.pixel_shuffle.default")
def _pixel_shuffle(call: Call) -> Lazy:
    lazy = call.tensor("self")
    factor = call.integer("upscale_factor")
    *lead, channel, y, x = variables(call.shape)
    source = channel * (factor * factor) + (y % factor) * factor + x % factor
    return lazy.view(call.shape, *lead, source, y // factor, x // factor)


@rule("aten.upsample_nearest2d.default", "aten.upsample_nearest2d.vec")
@rule("aten.upsample_nearest1d.default", "aten.upsample_nearest1d.vec")
def _upsample_nearest(call: Call) -> Lazy:
    lazy = call.tensor("self" if "self" in call.arguments else "input")
    indices = list(variables(call.shape))
    for dim in range(2, lazy.rank):
        old, new = static_dims((lazy.shape[dim], call.shape[dim]))
        if new % old:
            raise Decline("the scale is not a whole number")
        indices[dim] = indices[dim] // (new // old)
    return lazy.view(call.shape, *indices)


# ---- joining ---------------------------------------------------------------------------------


@rule("aten.cat.default", "aten.concat.default")
def _cat(call: Call) -> Lazy:
    parts = [part for part in call.tensors("tensors") if part.shape != (0,) or len(call.shape) == 1]
    return joined(call, parts, call.axis(len(call.shape)))


@rule("aten.stack.default")
def _stack(call: Call) -> Lazy:
    dim = call.axis(len(call.shape))
    parts = [
        part.view((*part.shape[:dim], 1, *part.shape[dim:]), *_without(part, dim))
        for part in call.tensors("tensors")
    ]
    return joined(call, parts, dim)


def _without(part: Lazy, dim: int) -> tuple[Index, ...]:
    """Variables of the dims of `part` when a dim of size 1 is put in at `dim`."""
    return (*variables(part.shape[:dim]), *variables(part.shape[dim:], dim + 1))


def joined(call: Call, parts: list[Lazy], dim: int) -> Lazy:
    """Stores the parts one after the other along `dim`."""
    buffer = call.low.output(call.result)
    start = Index()
    for part in parts:
        store_region(call, part, buffer_access(call, buffer, part.shape, dim, start))
        start = start + part.shape[dim]
    return stored(buffer, call.shape)


def buffer_access(call: Call, buffer, shape: tuple[Extent, ...], dim: int, start: Index) -> Access:
    """The region of the result from `start` on along `dim`."""
    indices = list(variables(shape))
    indices[dim] = indices[dim] + start
    return placed_at(buffer, call.shape, tuple(indices))


def store_region(call: Call, part: Lazy, out: Access) -> None:
    if 0 in part.shape:
        return
    value = cast(part.expr, out.buffer.dtype)
    call.low.emit(Operator("copy", part.shape, (), "", value, out, source=call.low.source))
