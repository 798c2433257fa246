"""Views as steps that can be read and written back, so that aliases see each other's writes.

A view op on a traced tensor adds a ViewStep to its chain instead of computing a value of its own.
"""

from __future__ import annotations

from typing import Any

import torch

from stretto.frontends.python.tracing.fakes import call_key, known_result, remember
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import SET_ROW, TracedTensor, ViewStep
from stretto.frontends.python.tracing.tracer import tracer
from stretto.ir.core import Value
from stretto.ir.ops import Argument
from stretto.ir.types import TensorType
from stretto.ops.positions import Positions

aten = torch.ops.aten

Arguments = tuple[Argument, ...]


def extend(tensor: TracedTensor, fake: torch.Tensor, step: ViewStep) -> TracedTensor:
    """The alias of `tensor` that one more view step makes."""
    return TracedTensor(fake, tensor.memory, (*tensor.steps, step), None)


def fake_view(tensor: TracedTensor, func: Any, *args: Any) -> Any:
    """What a view operator makes of the fake tensor. Its memory is not that of `tensor.fake`: only
    storages of traced tensors say what is shared."""
    state = tracer()
    key = call_key(func, (tensor.fake, *args), {})
    known = None if key is None else known_result(state.fake_mode, key)
    if known is None:
        with state.faking():
            known = func(tensor.fake, *args)
        if key is not None:
            remember(key, known)
    return known


def shape_arguments(shape: Any) -> tuple[Argument, ...]:
    """A shape as an argument; symbolic dims are values, one alone may be -1."""
    state = tracer()
    symbolic = [dim for dim in shape if not isinstance(state.dim(dim), int)]
    if len(symbolic) == 1:
        return tuple(d if isinstance(d := state.dim(dim), int) else -1 for dim in shape)
    return tuple(dim if isinstance(dim, int) else state.dim_argument(dim) for dim in shape)


def reshaped(tensor: TracedTensor, fake: torch.Tensor) -> TracedTensor:
    """`tensor` seen with another shape, elements in the same order."""
    before, after = shape_arguments(tensor.shape), shape_arguments(fake.shape)
    view = "aten.view.default"
    last = _last(tensor, view)
    if last is not None and last.inverse is not None:
        (before,) = last.inverse
        tensor = _without_last(tensor)
    if before == after:
        return TracedTensor(fake, tensor.memory, tensor.steps)
    return extend(tensor, fake, ViewStep(view, (after,), tracer().type_of(fake), inverse=(before,)))


def _last(tensor: TracedTensor, target: str) -> ViewStep | None:
    """The last view, if it is that operator."""
    return tensor.steps[-1] if tensor.steps and tensor.steps[-1].target == target else None


def _without_last(tensor: TracedTensor) -> TracedTensor:
    return TracedTensor(tensor.fake, tensor.memory, tensor.steps[:-1])


def permuted(tensor: TracedTensor, fake: torch.Tensor, order: list[int]) -> TracedTensor:
    """`tensor` with its dims in another order."""
    order = [dim % max(1, tensor.dim()) for dim in order]
    permute = "aten.permute.default"
    last = _last(tensor, permute)
    if last is not None:
        (first,) = last.arguments
        assert isinstance(first, tuple)
        order = [int(first[dim]) for dim in order]  # type: ignore[call-overload]
        tensor = _without_last(tensor)
    if order == sorted(order):
        return TracedTensor(fake, tensor.memory, tensor.steps)
    inverse = tuple(order.index(dim) for dim in range(len(order)))
    step = ViewStep(permute, (tuple(order),), tracer().type_of(fake), inverse=(inverse,))
    return extend(tensor, fake, step)


def selected(tensor: TracedTensor, dim: int, index: int | Value) -> TracedTensor:
    """`tensor.select(dim, index)`, also at a position known only at run time."""
    state = tracer()
    fake = fake_view(tensor, aten.select.int, dim, index if isinstance(index, int) else 0)
    scatter = "aten.select_scatter.default" if isinstance(index, int) else SET_ROW
    step = ViewStep(
        "aten.select.int", (dim % tensor.dim(), index), state.type_of(fake), scatter=scatter
    )
    if isinstance(index, Value):
        _check(index, tensor, dim, 1, "aten.select.int")
    inside = _selected_before_expand(tensor, fake, dim % tensor.dim(), index)
    return extend(tensor, fake, step) if inside is None else inside


def _selected_before_expand(
    tensor: TracedTensor, fake: torch.Tensor, dim: int, index: int | Value
) -> TracedTensor | None:
    """`x.expand(...).select(dim, index)` as a view of `x`, which can be written."""
    last = _last(tensor, "aten.expand.default")
    if last is None:
        return None
    state = tracer()
    base = _without_last(tensor)
    type = base.steps[-1].type if base.steps else state.type_of(_whole(tensor))
    new = tensor.dim() - len(type.shape)
    if dim >= new:
        at = index if type.shape[dim - new] != 1 else 0
        scatter = "aten.select_scatter.default" if isinstance(at, int) else SET_ROW
        left = tuple(size for place, size in enumerate(type.shape) if place != dim - new)
        type = TensorType(type.dtype, left)
        base = extend(
            base, fake, ViewStep("aten.select.int", (dim - new, at), type, scatter=scatter)
        )
    if type == state.type_of(fake):
        return TracedTensor(fake, base.memory, base.steps)
    (sizes,) = last.arguments
    assert isinstance(sizes, tuple)
    step = ViewStep("aten.expand.default", (sizes[:dim] + sizes[dim + 1 :],), state.type_of(fake))
    return extend(base, fake, step)


def _whole(tensor: TracedTensor) -> torch.Tensor:
    assert tensor.memory.fake is not None
    return tensor.memory.fake


def _check(position: Value, tensor: TracedTensor, dim: int, length: int, operator: str) -> None:
    """Raise where the position is out of range, although nobody may read the view."""
    state = tracer()
    dim %= tensor.dim()
    size = state.dim(tensor.shape[dim])
    if isinstance(size, int):
        state.emit(Positions(state.use(position), size, length, operator, dim, True).check(), ())


def narrowed(tensor: TracedTensor, dim: int, start: Value, length: int) -> TracedTensor:
    """`length` elements of `dim` from a position known only at run time."""
    state = tracer()
    fake = fake_view(tensor, aten.narrow.default, dim, 0, length)
    step = ViewStep(
        "stretto.narrow",
        (dim, start, length),
        state.type_of(fake),
        scatter="stretto.narrow_scatter",
    )
    _check(start, tensor, dim, length, "stretto.narrow")
    return extend(tensor, fake, step)


def sliced(
    tensor: TracedTensor, fake: torch.Tensor, dim: int, start: Any, end: Any, step: int
) -> TracedTensor:
    """`tensor[..., start:end:step, ...]` in dim `dim` with Python bounds."""
    state = tracer()
    dim %= tensor.dim()
    size: Any = tensor.shape[dim]
    if isinstance(size, int):
        start, end, step = slice(start, end, step).indices(size)
        end = max(start, end)
        if (start, end, step) == (0, size, 1):
            return TracedTensor(fake, tensor.memory, tensor.steps)
    arguments = (dim, start, end, step)
    type = state.type_of(fake)
    view = ViewStep("aten.slice.Tensor", arguments, type, scatter="aten.slice_scatter.default")
    return extend(tensor, fake, view)


def expanded(tensor: TracedTensor, fake: torch.Tensor) -> TracedTensor:
    """`tensor` repeated without copies; where an element is repeated it cannot be written."""
    state = tracer()
    new = fake.dim() - tensor.dim()
    if fake.shape[new:] == tensor.shape and all(size == 1 for size in fake.shape[:new]):
        return reshaped(tensor, fake)
    symbolic = any(not isinstance(state.dim(dim), int) for dim in fake.shape)
    if symbolic:
        lead = fake.dim() - tensor.dim()
        sizes = tuple(
            -1 if i >= lead and not isinstance(state.dim(d), int) else _size(d)
            for i, d in enumerate(fake.shape)
        )
    else:
        sizes = tuple(fake.shape)

    step = ViewStep("aten.expand.default", (sizes,), state.type_of(fake))
    return extend(tensor, fake, step)


def _size(dim: Any) -> Argument:
    return dim if isinstance(dim, int) else tracer().dim_argument(dim)


def diagonal(tensor: TracedTensor, fake: torch.Tensor, arguments: Arguments) -> TracedTensor:
    """A diagonal: `arguments` are offset, dim1, dim2."""
    scatter = "aten.diagonal_scatter.default"
    step = ViewStep("aten.diagonal.default", arguments, tracer().type_of(fake), scatter=scatter)
    return extend(tensor, fake, step)


def strided(tensor: TracedTensor, fake: torch.Tensor, arguments: Arguments) -> TracedTensor:
    """as_strided of a whole storage; of a view it would need the storage's layout."""
    if tensor.steps or not tensor.fake.is_contiguous():
        fail("as_strided of a view is not captured", "use slices, unfold or reshape instead")
    scatter = "aten.as_strided_scatter.default"
    step = ViewStep("aten.as_strided.default", arguments, tracer().type_of(fake), scatter=scatter)
    return extend(tensor, fake, step)


def alias(tensor: TracedTensor, fake: torch.Tensor) -> TracedTensor:
    """The same tensor under another Python object."""
    return TracedTensor(fake, tensor.memory, tensor.steps, tensor.number)
