"""Moves: other orders, padding, joining. Only `cat` and `stack` store."""

from __future__ import annotations

from stretto.device.expr import Apply, Const, Dynamic, Expr, Index, Load, Position, is_known
from stretto.ir.core import Value
from stretto.ir.types import DType
from stretto.lowering.function import Lowering
from stretto.lowering.lazy import Lazy, cast, reshape, stored, variables
from stretto.lowering.rules.scalar import apply, conjunction, where, within
from stretto.lowering.rules.table import Call, Decline, rule, static_dims
from stretto.lowering.rules.views import static_size_of

# ---- other orders ----------------------------------------------------------------------------


@rule("flip")
def _flip(call: Call) -> Lazy:
    lazy = call.tensor("self")
    indices = list(variables(lazy.shape))
    for dim in {d % max(lazy.rank, 1) for d in call.integers("dims")} if lazy.rank else ():
        indices[dim] = indices[dim] * -1 + Index.of(lazy.shape[dim]) + -1
        if lazy.shape[dim] == 1:
            indices[dim] = Index()
    return lazy.view(lazy.shape, *indices)


@rule("roll")
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


@rule("constant_pad_nd pad")
def _pad(call: Call) -> Lazy:
    value = call.scalar("value") if call.has("value") else Const(0.0, DType.F32)
    return _padded(call, str(call.arguments.get("mode", "constant")), value)


for _name, _mode in (("reflection", "reflect"), ("replication", "replicate")):

    @rule(*(f"{_name}_pad{dims}d" for dims in (1, 2, 3)))
    def _edge_pad(call: Call, mode: str = _mode) -> Lazy:
        return _padded(call, mode, None)


def _padded(call: Call, mode: str, value: Expr | None) -> Lazy:
    lazy = call.tensor("self")
    amounts = call.integers("pad" if "pad" in call.arguments else "padding")
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


@rule("pixel_shuffle")
def _pixel_shuffle(call: Call) -> Lazy:
    lazy = call.tensor("self")
    factor = call.integer("upscale_factor")
    *lead, channel, y, x = variables(call.shape)
    source = channel * (factor * factor) + (y % factor) * factor + x % factor
    return lazy.view(call.shape, *lead, source, y // factor, x // factor)


# ---- joining ---------------------------------------------------------------------------------


@rule("cat concat")
def _cat(call: Call) -> Lazy:
    parts = [part for part in call.tensors("tensors") if part.shape != (0,) or len(call.shape) == 1]
    return joined(call, parts, call.axis(len(call.shape)))


@rule("stack")
def _stack(call: Call) -> Lazy:
    dim = call.axis(len(call.shape))
    parts: list[Lazy] = []
    for part in call.tensors("tensors"):  # with a dim of size 1 put in
        places = (*variables(part.shape[:dim]), *variables(part.shape[dim:], dim + 1))
        parts.append(part.view((*part.shape[:dim], 1, *part.shape[dim:]), *places))
    return joined(call, parts, dim)


def joined(call: Call, parts: list[Lazy], dim: int) -> Lazy:
    """Stores the parts one after the other along `dim`."""
    place = _place(call.low, call.result)
    start = Index()
    for part in parts:
        indices = list(variables(part.shape))
        indices[dim] = indices[dim] + start
        target = place.at(*indices)
        assert isinstance(target, Load)
        if part.expr != target:
            call.low.write("copy", part.shape, cast(part.expr, place.dtype), target.access)
        start = start + part.shape[dim]
    return place


def _place(low: Lowering, value: Value) -> Lazy:
    """The memory of a tensor that is put together, as the tensor that it will be."""
    if value not in low.begun:
        inside = _place_in_whole(low, value)
        if inside is None:
            inside = stored(low.output(value), low.extents(value.tensor.shape))
        low.begun[value] = inside
    return low.begun[value]


def _place_in_whole(low: Lowering, value: Value) -> Lazy | None:
    """The place of a part in the tensor that it is put into, where that is a run of memory."""
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
