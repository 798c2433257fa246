"""Views of whole tensors: another index for each element, never a copy. `parts` has the others."""

from __future__ import annotations

from stretto.device.expr import Extent, Index, is_known
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
    variables,
)
from stretto.lowering.rules.table import Call, rule, static_dims

# ---- the same elements -----------------------------------------------------------------------


@rule(
    "alias alias_copy detach detach_copy clone contiguous lift lift_fresh lift_fresh_copy "
    "view_as positive",
)
def _same(call: Call) -> Lazy:
    return reshaped(call, call.tensor("self"))


@rule(
    "_to_copy to.dtype to.dtype_layout to.device to.other type_as "
    "prims.convert_element_type.default",
)
def _to(call: Call) -> Lazy:
    name = "a" if "a" in call.arguments else "self"
    lazy = call.tensor(name)
    return Lazy(call.dtype, lazy.shape, cast(lazy.expr, call.dtype))


@rule("copy")
def _copy(call: Call) -> Lazy:
    source = broadcast(call.tensor("src"), call.shape)
    return Lazy(call.dtype, call.shape, cast(source.expr, call.dtype))


@rule(
    "view view_copy _unsafe_view reshape _reshape_copy reshape_as flatten.using_ints "
    "unflatten.int squeeze squeeze.dim squeeze.dims squeeze_copy squeeze_copy.dim "
    "squeeze_copy.dims unsqueeze unsqueeze_copy atleast_1d atleast_2d",
)
def _reshape(call: Call) -> Lazy:
    return reshaped(call, call.tensor("self"))


def reshaped(call: Call, lazy: Lazy) -> Lazy:
    """The tensor in the dims of the result; stored first where a dynamic dim is split or merged."""
    try:
        return reshape(lazy, call.shape)
    except ValueError:
        if not (_is_run_of_rows(lazy.shape) and _is_run_of_rows(call.shape)):
            return regrouped_by_value(lazy, call.shape)
    buffer = call.low.new_buffer("t", lazy.dtype, lazy.shape)
    return reshape(call.low.store(lazy, buffer), call.shape)


def _is_run_of_rows(shape: tuple[Extent, ...]) -> bool:
    """Whether a stored tensor of this shape lies in memory in row-major order without gaps."""
    return memory_shape(shape) == shape and all(map(is_known, shape[1:]))


# ---- order of dims ---------------------------------------------------------------------------


@rule("permute permute_copy")
def _permute(call: Call) -> Lazy:
    lazy = call.tensor("self")
    return permute(lazy, tuple(dim % lazy.rank for dim in call.integers("dims")))


@rule("transpose.int transpose_copy.int swapaxes")
def _transpose(call: Call) -> Lazy:
    lazy = call.tensor("self")
    names = ("axis0", "axis1") if "axis0" in call.arguments else ("dim0", "dim1")
    return swapped(lazy, *(call.axis(lazy.rank, name) for name in names))


@rule("t t_copy numpy_T mT")
def _t(call: Call) -> Lazy:
    lazy = call.tensor("self")
    return swapped(lazy, lazy.rank - 2, lazy.rank - 1) if lazy.rank >= 2 else lazy


def swapped(lazy: Lazy, first: int, second: int) -> Lazy:
    order = list(range(lazy.rank))
    if order:
        order[first], order[second] = second, first
    return permute(lazy, tuple(order))


@rule("movedim.intlist movedim.int")
def _movedim(call: Call) -> Lazy:
    lazy = call.tensor("self")
    source = [dim % lazy.rank for dim in call.integers("source")]
    target = [dim % lazy.rank for dim in call.integers("destination")]
    rest = iter(dim for dim in range(lazy.rank) if dim not in source)
    order = (source[target.index(d)] if d in target else next(rest) for d in range(lazy.rank))
    return permute(lazy, tuple(order))


# ---- repeated elements -----------------------------------------------------------------------


@rule("expand expand_copy expand_as")
@rule("broadcast_to")
def _expand(call: Call) -> Lazy:
    return broadcast(call.tensor("self"), call.shape)


@rule("repeat tile")
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


@rule("repeat_interleave.self_int")
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


@rule(
    "split.Tensor split_copy.Tensor split_with_sizes split_with_sizes_copy chunk "
    "tensor_split.sections unsafe_split.Tensor unsafe_chunk unsafe_split_with_sizes",
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


@rule("unbind.int unbind_copy.int")
def _unbind(call: Call) -> tuple[Lazy, ...]:
    lazy = call.tensor("self")
    dim = call.axis(lazy.rank)
    return tuple(select(lazy, dim, number) for number in range(len(call.op.results)))


@rule("unfold unfold_copy")
def _unfold(call: Call) -> Lazy:
    lazy = call.tensor("self")
    dim = call.axis(lazy.rank, "dimension")
    indices = list(variables(call.shape))
    inside = indices.pop()
    if lazy.rank == 0:
        return lazy.view(call.shape)
    indices[dim] = indices[dim] * call.integer("step") + inside
    return lazy.view(call.shape, *indices)
