"""Which ATen overloads are views, and which step each of them is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stretto.frontends.python.aliasing import views
from stretto.frontends.python.operators.eager import OF_OPERATORS, eager_error
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer

aten = torch.ops.aten

ViewRule = Callable[..., Any]


def _fake(func: Any, tensor: TracedTensor, *args: Any) -> Any:
    try:
        return views.fake_view(tensor, func, *args)
    except OF_OPERATORS as problem:
        raise (eager_error(func, (tensor, *args), {}) or problem) from None


def _reshape(func: Any) -> ViewRule:
    return lambda x, *args: views.reshaped(x, _fake(func, x, *args))


def _alias(x: TracedTensor, *args: Any) -> TracedTensor:
    return views.alias(x, _fake(aten.alias.default, x))


def _permuted(func: Any) -> ViewRule:
    """A view whose dims are those of the tensor in another order, as its strides show."""

    def rule(x: TracedTensor, *args: Any) -> TracedTensor:
        fake = _fake(func, x, *args)
        with tracer().native():
            numbered = torch.empty_strided([1] * x.dim(), list(range(x.dim())), device="meta")
            order = func(numbered, *args).stride()
        return views.permuted(x, fake, list(order))

    return rule


def _slice(x: TracedTensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    fake = _fake(aten.slice.Tensor, x, dim, start, end, step)
    return views.sliced(x, fake, dim, start, end, step)


def _narrow(x: TracedTensor, dim: int, start: Any, length: int) -> TracedTensor:
    if isinstance(start, TracedTensor):
        return views.narrowed(x, dim % x.dim(), tracer().read(start), length)
    fake = _fake(aten.narrow.default, x, dim, start, length)
    start = start % x.shape[dim] if start < 0 else start
    return views.sliced(x, fake, dim, start, start + length, 1)


def _unbind(x: TracedTensor, dim: int = 0) -> tuple[TracedTensor, ...]:
    return tuple(views.selected(x, dim, index) for index in range(x.shape[dim]))


def _pieces(func: Any) -> ViewRule:
    def rule(x: TracedTensor, *args: Any, dim: int | None = None) -> Any:
        sizes, *rest = args
        axis = (rest[0] if rest else 0) if dim is None else dim
        pieces = _fake(func, x, sizes, axis)
        if not x.dim():
            raise RuntimeError("split expects at least a 1-dimensional tensor")
        start, made = 0, list[TracedTensor]()
        for piece in pieces:
            length = piece.shape[axis]
            made.append(views.sliced(x, piece, axis, start, start + length, 1))
            start += length
        return tuple(made)

    return rule


def _expand(x: TracedTensor, sizes: list[int], *, implicit: bool = False) -> TracedTensor:
    return views.expanded(x, _fake(aten.expand.default, x, sizes))


def _diagonal(x: TracedTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TracedTensor:
    fake = _fake(aten.diagonal.default, x, offset, dim1, dim2)
    return views.diagonal(x, fake, (offset, dim1, dim2))


def _as_strided(x: TracedTensor, size: Any, stride: Any, offset: int | None = None) -> TracedTensor:
    fake = _fake(aten.as_strided.default, x, size, stride, offset)
    return views.strided(x, fake, (tuple(size), tuple(stride), offset))


_RESHAPES = (
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
)
_PERMUTATIONS = (
    aten.permute.default,
    aten.transpose.int,
    aten.swapaxes.default,
    aten.swapdims.default,
    aten.t.default,
    aten.numpy_T.default,
    aten.mT.default,
    aten.movedim.int,
    aten.movedim.intlist,
)
_ALIASES = (aten.alias.default, aten.detach.default, aten.lift_fresh.default, aten.detach_.default)

RULES: dict[Any, ViewRule] = {
    **{func: _reshape(func) for func in _RESHAPES},
    **{func: _permuted(func) for func in _PERMUTATIONS},
    **dict.fromkeys(_ALIASES, _alias),
    aten.select.int: lambda x, dim, index: views.selected(x, dim, index),
    aten.slice.Tensor: _slice,
    aten.narrow.default: _narrow,
    aten.narrow.Tensor: _narrow,
    aten.unbind.int: _unbind,
    aten.split.Tensor: _pieces(aten.split.Tensor),
    aten.split_with_sizes.default: _pieces(aten.split_with_sizes.default),
    aten.chunk.default: _pieces(aten.chunk.default),
    aten.expand.default: _expand,
    aten.expand_as.default: lambda x, other: _expand(x, list(other.shape)),
    aten.diagonal.default: _diagonal,
    aten.as_strided.default: _as_strided,
}
