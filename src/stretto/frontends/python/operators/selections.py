"""Operators with a data-dependent number of results: `nonzero`, masks, `unique` and so on.

Each becomes a computation on tensors of bounded size, which ends with the positions of the chosen
elements at the front, and their number as a size. Positions are found by a prefix sum over the
mask, which keeps them in order (Blelloch, Prefix Sums and Their Applications, 1990, section 1.4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stretto.frontends.python.operators.checks import OF_OPERATORS
from stretto.frontends.python.operators.views import first_elements
from stretto.frontends.python.tracing.fakes import mapped
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data_dependent_sizes import Dim, bounded_dim, is_decided, plain
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.scalars import to_number
from stretto.ops.symints import SizeEnv

aten = torch.ops.aten

_MASKS = (torch.bool, torch.uint8)
_MOST_COLUMNS = 64
"""Maximum length of rows that are sorted column by column."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The positions where a mask is true, in order. `padded` has one element more than the mask:
    the first `count` are the positions, the others the number of elements of the mask."""

    padded: Any
    count: Dim
    ranks: Any
    """For each element, the number of chosen elements up to and including it."""

    @property
    def positions(self) -> Any:
        return head(self.padded, self.count)

    @property
    def lengths(self) -> Any:
        """The distance from each position to the next one, or to the end."""
        return head(self.padded[1:] - self.padded[:-1], self.count)


def head(x: Any, length: Dim) -> Any:
    """Return the first rows as a separate tensor. The caller ensures that there are `length` of
    them."""
    if isinstance(length, int):
        return x[:length]
    state = tracer()
    part = first_elements(x, 0, length)
    return state.fresh(state.read(part), part.fake)


def chosen(mask: Any) -> Chosen:
    """Return the positions where a mask of one dim is true."""
    size: Any = mask.shape[0]
    ranks: Any = torch.cumsum(mask, 0)
    last = ranks[-1] if isinstance(size, int) and size else mask.sum()
    count = bounded_dim(to_number(last), 0, size)
    places = torch.where(mask, ranks - 1, plain(size))
    numbers = torch.arange(size)
    padded = torch.zeros((size + 1,), dtype=torch.int64) + plain(size)
    if isinstance(size, int) and size == 0:
        return Chosen(padded, count, ranks)
    # Elements that are not chosen are written to the last place, which no property reads as a
    # position.
    return Chosen(padded.scatter(0, places, numbers), count, ranks)


def _flat_positions(mask: Any) -> Any:
    """Return the row-major positions of true elements in a mask of any rank."""
    state = tracer()
    value = state.read(mask)
    found = state.chosen.get(value)
    if found is None or not state.is_known(found.memory.state.base):
        state.chosen[value] = found = chosen(mask.reshape(-1)).positions
    return found


def _columns(flat: Any, shape: Sequence[Any]) -> list[Any]:
    """Split row-major positions into one position per dim."""
    columns: list[Any] = []
    for place, size in enumerate(shape):
        step = math.prod(shape[place + 1 :])
        column = flat if place + 1 == len(shape) else flat // plain(step)
        columns.append(column if place == 0 else column % plain(size))
    return columns


def _nonzero(x: Any) -> Any:
    mask = _as_mask(x)
    flat = _flat_positions(mask)
    if x.dim() == 1:
        return flat.unsqueeze(1)
    if x.dim() == 0:
        return flat.unsqueeze(1)[:, :0]
    return torch.stack(_columns(flat, x.shape), 1)


def _nonzero_numpy(x: Any) -> list[Any]:
    x = x.reshape(1) if x.dim() == 0 else x
    return _columns(_flat_positions(_as_mask(x)), x.shape)


def _as_mask(x: Any) -> Any:
    x = x if isinstance(x, TracedTensor) else tracer().promote(x)
    return x if x.dtype is torch.bool else x != 0


# ---- masks as indices --------------------------------------------------------------------------


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in _MASKS


def _check_mask(mask: Any, place: int, x: Any, dim: int) -> None:
    """Check that a mask has the sizes of the dims that it indexes; raise IndexError, now or in the
    run, if not."""

    if dim + mask.dim() > x.dim():
        raise IndexError("too many indices for tensor of dimension " + str(x.dim()))
    for place, (own, other) in enumerate(zip(mask.shape, x.shape[dim:], strict=False)):
        if isinstance(own, int) and isinstance(other, int):
            if own != other:
                raise IndexError(
                    f"The shape of the mask {list(mask.shape)} at index {place} does not match "
                    f"the shape of the indexed tensor {list(x.shape)} at index {dim + place}"
                )
        elif tracer().dim(own) != tracer().dim(other):
            message = "The shape of the mask, {} at index " + str(place)
            message += f", does not match the shape of the indexed tensor at index {dim + place}"
            number = plain(own)
            value = tracer().read(number) if isinstance(number, TracedTensor) else None
            check(number == plain(other), "IndexError", message, value)


def _without_masks(x: Any, indices: Sequence[Any]) -> list[Any]:
    """Return the indices with each mask replaced by positions, one index per dim of the mask."""
    found: list[Any] = []
    for index in indices:
        if not _is_mask(index):
            found.append(index)
            continue
        mask = _as_mask(index)
        _check_mask(mask, 0, x, len(found))
        if mask.dim() == 0:
            fail("a mask without dims is used together with other indices", "index in two steps")
        found += _columns(_flat_positions(mask), mask.shape)
    return found


def _only_mask(indices: Sequence[Any]) -> tuple[Any, int] | None:
    """Return the mask and its first dim if it is the only index; else None."""
    given = [(index, place) for place, index in enumerate(indices) if index is not None]
    if len(given) == 1 and _is_mask(given[0][0]) and given[0][0].dim():
        return _as_mask(given[0][0]), given[0][1]
    return None


def _index(x: Any, indices: Sequence[Any]) -> Any:
    if not any(map(_is_mask, indices)):
        return NotImplemented
    x = x if isinstance(x, TracedTensor) else tracer().promote(x)
    alone = _only_mask(indices)
    if alone is None:
        return aten.index.Tensor(x, _without_masks(x, indices))
    mask, dim = alone
    _check_mask(mask, 0, x, dim)
    flat = _flat_positions(mask)
    merged = x if mask.dim() == 1 else x.flatten(dim, dim + mask.dim() - 1)
    return merged.index_select(dim, flat)


def _broadcast(x: Any, mask: Any) -> tuple[Any, Any]:
    """Return both with one shape. With data-dependent sizes, the operators that broadcast compare
    the sizes in the run, and the elements of `x` where the mask is False are meaningless."""
    if any(map(is_decided, (*x.shape, *mask.shape))):
        mask = torch.logical_and(mask, torch.ones_like(x, dtype=torch.bool))
        return torch.where(mask, x, x.new_zeros(())), mask
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    return x.expand(shape), mask.expand(shape)


def _masked_select(x: Any, mask: Any) -> Any:
    if mask.dtype not in _MASKS:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    mask = _as_mask(mask)
    if tracer().type_of(x).shape != tracer().type_of(mask).shape:
        x, mask = _broadcast(x, mask)
    return x.reshape(-1).index_select(0, _flat_positions(mask))


def _index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    if not any(map(_is_mask, indices)):
        return NotImplemented
    x = x if isinstance(x, TracedTensor) else tracer().promote(x)
    alone = None if accumulate else _only_mask(indices)
    if alone is None:
        return aten.index_put.default(x, _without_masks(x, indices), values, accumulate)
    mask, dim = alone
    _check_mask(mask, 0, x, dim)
    rest = x.dim() - dim - mask.dim()
    if values.dim() <= rest or _is_one(values.shape[values.dim() - rest - 1]):
        if values.dim() > rest:
            values = values.squeeze(values.dim() - rest - 1)
        spread = values.reshape(
            *values.shape[: max(values.dim() - rest, 0)],
            *([1] * mask.dim()),
            *values.shape[max(values.dim() - rest, 0) :],
        )
        return torch.where(mask.reshape(*mask.shape, *[1] * rest), spread, x)
    flat = _flat_positions(mask)
    values = _of_length(values, values.dim() - rest - 1, flat.shape[0])
    merged = x if mask.dim() == 1 else x.flatten(dim, dim + mask.dim() - 1)
    before: list[Any] = [None] * dim
    return aten.index_put.default(merged, [*before, flat], values).reshape(x.shape)


def _shown(x: Any) -> str:
    """Return the shape of a tensor as text, with names for unknown sizes."""
    return f"[{', '.join(str(tracer().dim(size)) for size in x.shape)}]"


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _of_length(values: Any, dim: int, length: Dim) -> Any:
    """Return the values, with a check that `dim` has size `length`."""
    size = values.shape[dim]
    state = tracer()
    if state.dim(size) == state.dim(length):
        return values
    number = plain(length)
    shown = state.read(number) if isinstance(number, TracedTensor) else None
    message = (
        f"shape mismatch: value tensor of shape {_shown(values)} cannot be broadcast to "
        "indexing result of shape [{}]"
    )
    check(number == plain(size), "RuntimeError", message, shown)
    return (
        values.narrow(dim, 0, length)
        if isinstance(length, int)
        else first_elements(
            values if isinstance(values, TracedTensor) else state.promote(values), dim, length
        )
    )


# ---- repetitions -------------------------------------------------------------------------------


def _repeat_interleave(repeats: Any, *, output_size: Any = None) -> Any:
    """Return each position as often as it is repeated."""
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int64, torch.int32):
        raise RuntimeError("repeats has to be Long or Int tensor")
    check((repeats >= 0).all(), "RuntimeError", "repeats can not be negative")
    ends = torch.cumsum(repeats, 0)
    total = to_number(repeats.sum())
    if output_size is not None:
        message = "allocated size does not match required size: the repeats add up to {}"
        check(total == plain(output_size), "RuntimeError", message, tracer().read(total))
    count = bounded_dim(total) if output_size is None else output_size
    # A position starts where the previous ones end; several start at one place if some repeat 0
    # times.
    starts = torch.zeros((count + 1,), dtype=torch.int64)
    ones = torch.ones((repeats.shape[0],), dtype=torch.int64)
    starts = starts.index_add(0, ends - repeats, ones)
    found = torch.cumsum(starts, 0) - 1
    return head(found, count) if not isinstance(count, int) else found[:count]


def _bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    if x.dim() != 1 or x.dtype.is_floating_point:
        return NotImplemented
    check(
        (x >= 0).all(), "RuntimeError", "bincount only supports 1-d non-negative integral inputs."
    )
    check(plain(minlength >= 0), "RuntimeError", "minlength should be >= 0")
    positions = x.to(torch.int64)
    most: Any = torch.cat((positions, torch.full((1,), minlength - 1))).amax(0) + 1
    count = bounded_dim(to_number(most))
    if weights is None:
        weights = torch.ones((x.shape[0],), dtype=torch.int64)
    elif weights.dtype != torch.float32:
        weights = weights.to(torch.float64)
    return torch.zeros((count,), dtype=weights.dtype).index_add(0, positions, weights)


def _one_hot(index: Any, classes: int = -1) -> Any:
    if index.dtype != torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if classes >= 0:
        return NotImplemented
    if classes != -1:
        raise RuntimeError("Class values must be smaller than num_classes.")
    check((index >= 0).all(), "RuntimeError", "Class values must be non-negative.")
    count: Any = bounded_dim(to_number(index.amax() + 1), 1)
    return (index.unsqueeze(-1) == torch.arange(count)).to(torch.int64)


# ---- unique ------------------------------------------------------------------------------------


def _runs(x: Any, *, with_inverse: bool, with_counts: bool) -> tuple[Any, Any, Any]:
    """Return the first row of each run of equal rows, the run number of each row, and the run
    lengths."""
    differs = x[1:] != x[:-1]
    if x.dim() > 1:
        differs = differs.flatten(1).any(1)
    if is_decided(x.shape[0]):
        begins = torch.ones((x.shape[0],), dtype=torch.bool)
        begins[1:] = differs  # also correct without rows
    else:
        begins = torch.cat((torch.ones((1,), dtype=torch.bool), differs))
    found = chosen(begins)
    nothing = torch.empty((0,), dtype=torch.int64)
    return (
        x.index_select(0, found.positions),
        found.ranks - 1 if with_inverse else nothing,
        found.lengths if with_counts else nothing,
    )


def _is_empty(x: Any) -> bool:
    """True if a tensor is known to have no elements."""
    return any(isinstance(size, int) and size == 0 for size in x.shape)


def _no_runs(x: Any, dim: int | None, return_inverse: bool) -> tuple[Any, Any, Any]:
    """Return the results for a tensor without elements: for all of them, or for its rows along a
    dim."""
    shape = (0,) if dim is None else x.shape
    positions = x.shape if return_inverse and dim is None else (0,)
    return (
        torch.empty(shape, dtype=x.dtype),
        torch.empty(positions, dtype=torch.int64),
        torch.empty((0,), dtype=torch.int64),
    )


def _has_no_rows(x: Any, dim: int) -> bool:
    """True if a tensor has no rows along a dim, and is empty for no other reason."""
    empty = [place for place, size in enumerate(x.shape) if isinstance(size, int) and size == 0]
    return empty == [dim % x.dim()]


def _unique_consecutive(
    x: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    x = x if isinstance(x, TracedTensor) else tracer().promote(x)
    if _is_empty(x):
        if dim is None or _has_no_rows(x, dim):
            return _no_runs(x, dim, return_inverse)
        return NotImplemented
    rows = x.reshape(-1) if dim is None else x.movedim(dim, 0)
    values, inverse, counts = _runs(rows, with_inverse=return_inverse, with_counts=return_counts)
    if dim is not None:
        return values.movedim(0, dim), inverse, counts
    return values, inverse.reshape(x.shape) if return_inverse else inverse, counts


def _unique(
    x: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    x = x if isinstance(x, TracedTensor) else tracer().promote(x)
    if _is_empty(x):
        return _no_runs(x, None, return_inverse)
    flat = x.reshape(-1)
    ordered, order = torch.sort(flat, stable=True)
    values, inverse, counts = _runs(ordered, with_inverse=return_inverse, with_counts=return_counts)
    if return_inverse:
        inverse = torch.zeros_like(order).scatter(0, order, inverse).reshape(x.shape)
    return values, inverse, counts


def _unique_dim(
    x: Any, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    x = x if isinstance(x, TracedTensor) else tracer().promote(x)
    if _is_empty(x):
        return _no_runs(x, dim, return_inverse) if _has_no_rows(x, dim) else NotImplemented
    rows = x.movedim(dim, 0)
    flat = rows.flatten(1) if rows.dim() > 1 else rows.unsqueeze(1)
    columns = flat.shape[1]
    if not isinstance(columns, int) or columns > _MOST_COLUMNS:
        fail(
            f"unique along a dim sorts rows of more than {_MOST_COLUMNS} elements",
            "give each row a number, and call unique on the numbers",
        )
    order = torch.arange(rows.shape[0])
    for column in reversed(range(columns)):
        _, places = torch.sort(flat[:, column].index_select(0, order), stable=True)
        order = order.index_select(0, places)
    values, inverse, counts = _runs(
        rows.index_select(0, order), with_inverse=return_inverse, with_counts=return_counts
    )
    if return_inverse:
        inverse = torch.zeros_like(order).scatter(0, order, inverse)
    return values.movedim(0, dim), inverse, counts


def _unique_dim_consecutive(
    x: Any, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    return _unique_consecutive(x, return_inverse, return_counts, dim)


RULES: dict[Any, Callable[..., Any]] = {
    aten.nonzero.default: _nonzero,
    aten.nonzero_numpy.default: _nonzero_numpy,
    aten.index.Tensor: _index,
    aten.index_put.default: _index_put,
    aten.masked_select.default: _masked_select,
    aten.repeat_interleave.Tensor: _repeat_interleave,
    aten.bincount.default: _bincount,
    aten.one_hot.default: _one_hot,
    aten.unique_consecutive.default: _unique_consecutive,
    aten._unique2.default: _unique,
    aten.unique_dim.default: _unique_dim,
    aten.unique_dim_consecutive.default: _unique_dim_consecutive,
}
"""Rules by overload. A rule that returns NotImplemented leaves the operator to later handlers."""


# ---- User operators whose result has a data-dependent size in one dim.
#
# Their fake function declares it by `torch.library.get_ctx().new_dynamic_size()`. In the Program
# such a call is two operators: the first returns the size, and the second computes the result, into
# memory allocated in between. Both call the user's operator, which is assumed to be deterministic,
# like every recorded operator.


_library = torch.library.Library("stretto_sized", "FRAGMENT")
_OURS = ("aten", "prims", "stretto", "stretto_sized")


@dataclass(frozen=True, slots=True)
class _Form:
    """A result: its sizes, with None for the data-dependent one, and its dtype."""

    sizes: tuple[int | None, ...]
    dtype: torch.dtype

    @property
    def dim(self) -> int:
        return self.sizes.index(None)

    def of_size(self, size: Any) -> tuple[Any, ...]:
        return tuple([size if known is None else known for known in self.sizes])


def with_decided_size(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of such an operator; NotImplemented for any other one."""
    if func.namespace in _OURS or [str(item.type) for item in func._schema.returns] != ["Tensor"]:
        return NotImplemented
    form = _form(func, args, kwargs)
    if form is None:
        return NotImplemented
    count, made = _operators(func, form)
    with tracer().mode:
        size: Any = bounded_dim(to_number(count(*args, **kwargs)))
        return made(*args, **kwargs, stretto_size=size)


def _form(func: Any, args: Any, kwargs: Any) -> _Form | None:
    """Return the form of the operator's result, which must be the same for small and larger values
    of all sizes decided by the run or the call; None if the forms differ."""
    forms = {_form_with(func, args, kwargs, size) for size in (7, 11)}
    (found,) = forms if len(forms) == 1 else (None,)
    return found


def _form_with(func: Any, args: Any, kwargs: Any, size: int) -> _Form | None:
    mode = FakeTensorMode(shape_env=SizeEnv(), allow_non_fake_inputs=False)

    def known(item: Any) -> Any:
        if isinstance(item, torch.SymInt):
            return size
        if not isinstance(item, torch.Tensor):
            return item
        shape = [size if isinstance(dim, torch.SymInt) else dim for dim in item.shape]
        return torch.empty(shape, dtype=item.dtype, device=item.device)

    try:
        with tracer().native(), mode:
            named = {name: mapped(known, item) for name, item in kwargs.items()}
            found = func(*mapped(known, args), **named)
    except OF_OPERATORS:  # there is no fake function, or it refuses these sizes
        return None
    if not isinstance(found, torch.Tensor):
        return None
    sizes = tuple([None if isinstance(dim, torch.SymInt) else int(dim) for dim in found.shape])
    return _Form(sizes, found.dtype) if sizes.count(None) == 1 else None


@cache
def _operators(func: Any, form: _Form) -> tuple[Any, Any]:
    """Register and return the two operators for a user operator whose result has this form."""
    name = "_".join((*str(func).split("."), str(_operators.cache_info().currsize)))
    text = str(func._schema)
    given = text[text.index("(") + 1 : text.rindex(") ->")]
    mark = "" if "*" in given else "*, "
    _library.define(f"{name}_count({given}) -> Tensor")
    _library.define(f"{name}({given}, {mark}SymInt stretto_size) -> Tensor")

    def count(*args: Any, **kwargs: Any) -> torch.Tensor:
        found = func(*args, **kwargs)
        return torch.full((), found.shape[form.dim], dtype=torch.int64, device=found.device)

    def fake_count(*args: Any, **kwargs: Any) -> torch.Tensor:
        return _like(args, kwargs, (), torch.int64)

    def made(*args: Any, stretto_size: int, **kwargs: Any) -> torch.Tensor:
        found = func(*args, **kwargs)
        if tuple(found.shape) != form.of_size(stretto_size):
            raise RuntimeError(f"{func} gives another number of elements when it is called again")
        return found

    def fake_made(*args: Any, stretto_size: Any, **kwargs: Any) -> torch.Tensor:
        return _like(args, kwargs, form.of_size(stretto_size), form.dtype)

    for suffix, kernel, fake in (("_count", count, fake_count), ("", made, fake_made)):
        _library.impl(f"{name}{suffix}", kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(f"stretto_sized::{name}{suffix}", fake, lib=_library)
    space = torch.ops.stretto_sized
    return getattr(space, f"{name}_count").default, getattr(space, name).default


def _like(args: Any, kwargs: Any, shape: tuple[Any, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an empty tensor on the device of the first tensor among the arguments."""
    tensors = [item for item in (*args, *kwargs.values()) if isinstance(item, torch.Tensor)]
    return torch.empty(shape, dtype=dtype, device=tensors[0].device if tensors else None)
