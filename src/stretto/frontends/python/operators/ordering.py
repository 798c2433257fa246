"""Replaces operators that sort by operators whose order of equal elements is known.

Eager PyTorch leaves it open which of several equal elements `sort` and `topk` name first. A program
needs this settled: the interpreter, the emulator and every machine must agree. So the operators
become `aten.sort.stable` and `stretto.topk`, and all that is built from them follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stretto.frontends.python.operators.eager import infer
from stretto.frontends.python.operators.value_checks import check_all
from stretto.frontends.python.tracing.tracer import tracer

aten = torch.ops.aten


def _check_dim(x: Any, dim: int) -> None:
    """Refuses a dim out of range, which torch's shape rule of `sort` accepts."""
    rank = max(x.dim(), 1)
    if not -rank <= dim < rank:
        allowed = f"[{-rank}, {rank - 1}]"
        raise IndexError(
            f"Dimension out of range (expected to be in range of {allowed}, but got {dim})"
        )


def _sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    _check_dim(x, dim)
    return aten.sort.stable(x, stable=True, dim=dim, descending=descending)


def _sort_stable(
    x: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    _check_dim(x, dim)
    return NotImplemented if stable else _sort(x, dim, descending)


def _topk(x: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if not isinstance(k, int):
        return NotImplemented
    infer(tracer(), aten.topk.default, (x, k, dim, largest, sorted), {})
    return torch.ops.stretto.topk.default(x, k, dim, largest)


def _kthvalue(x: Any, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    if not isinstance(k, int):
        return NotImplemented
    infer(tracer(), aten.kthvalue.default, (x, k, dim, keepdim), {})
    if x.dim() == 0:
        return _sort(x)
    size = x.size(dim)
    if not 1 <= k <= size:
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {dim}")
    if 2 * k <= size:
        values, places = torch.ops.stretto.topk.default(x, k, dim, False)
    else:
        values, places = torch.ops.stretto.topk.default(x, size - k + 1, dim, True)
    return _selected(values, dim, keepdim, -1), _selected(places, dim, keepdim, -1)


def _selected(x: Any, dim: int, keepdim: bool, place: int) -> Any:
    chosen = x.select(dim, place)
    return chosen.unsqueeze(dim) if keepdim else chosen.clone()


def _of_all(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The median of all elements, by the rule for one dim."""
    return lambda x: rule(x.reshape(-1), 0)[0] if x.numel() else NotImplemented


def _median_dim(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The lower of the two in the middle; NaN where there is one."""
    infer(tracer(), aten.median.dim, (x, dim, keepdim), {})
    if x.dim() == 0:
        return _sort(x)
    if x.numel() == 0:
        return NotImplemented
    values, places = _sort(x, dim)
    middle = (x.size(dim) - 1) // 2
    value, place = (_selected(item, dim, keepdim, middle) for item in (values, places))
    if not x.is_floating_point():
        return value, place
    last = _selected(values, dim, keepdim, -1)
    first_nan = torch.argmax(x, dim, keepdim)
    return torch.where(last.isnan(), last, value), torch.where(last.isnan(), first_nan, place)


def _nanmedian_dim(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The median of the elements that are no NaN; NaN if there are none."""
    if not x.is_floating_point():
        return _median_dim(x, dim, keepdim)
    infer(tracer(), aten.nanmedian.dim, (x, dim, keepdim), {})
    if x.dim() == 0:
        return _sort(x)
    if x.numel() == 0:
        return NotImplemented
    values, places = _sort(x, dim)
    numbers = (~x.isnan()).sum(dim, keepdim=True)
    middle = ((numbers - 1).clamp(min=0)) // 2
    found = tuple(item.gather(dim, middle) for item in (values, places))
    return found if keepdim else tuple(item.squeeze(dim) for item in found)


_ROUNDED = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}


def _quantile(name: str) -> Callable[..., Any]:
    """`quantile` and `nanquantile`: elements of the sorted tensor at places that `q` gives, or
    between two of them."""

    def rule(
        x: Any,
        q: Any,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
    ) -> Any:
        q = _quantiles(name, x, q, interpolation)
        if dim is not None:
            _check_dim(x, dim)
        rows = x.reshape(-1) if dim is None or x.dim() == 0 else x.movedim(dim, -1)
        values = _sort(rows)[0]
        if name == "nanquantile":
            places = q * ((~values.isnan()).sum(-1, keepdim=True) - 1)
            places = places.masked_fill(places < 0, 0)
        else:
            last = values.size(-1) - 1
            places = (q * last).masked_fill(values.isnan().any(-1, keepdim=True), last)
        found = _at(values, places, interpolation)
        if keepdim and x.dim():
            ones = [1] * x.dim()
            found = found.reshape(*ones, -1) if dim is None else found.unsqueeze(dim % x.dim())
        return found.movedim(-1, 0).clone() if q.dim() else found.squeeze(-1)

    return rule


def _quantiles(name: str, x: Any, q: Any, interpolation: str) -> Any:
    """The quantiles that are asked for as a tensor, after eager's checks have passed."""
    if interpolation not in ("linear", "midpoint", *_ROUNDED):
        raise RuntimeError(
            f"{name}() interpolation must be one of linear, lower, higher, midpoint or nearest, "
            f"but got {interpolation}"
        )
    if x.numel() == 0:
        raise RuntimeError(f"{name}() input tensor must be non-empty")
    if x.dtype not in (torch.float32, torch.float64):
        raise RuntimeError(f"{name}() input tensor must be either float or double dtype")
    if not isinstance(q, torch.Tensor):
        if not 0 <= q <= 1:
            raise RuntimeError(f"{name}() q must be in the range [0, 1] but got {q}")
        return x.new_full((), q)
    if q.dim() > 1:
        raise RuntimeError(f"{name}() q must be a scalar or 1D tensor")
    if q.dtype != x.dtype:
        raise RuntimeError(f"{name}() q tensor must be same dtype as the input tensor")
    valid = (q >= 0) & (q <= 1)
    check_all(valid, "RuntimeError", "quantile() q values must be in the range [0, 1]")
    return q


def _at(values: Any, places: Any, interpolation: str) -> Any:
    """The elements of the last dim at these places, which may lie between two elements."""
    if interpolation in _ROUNDED:
        return values.gather(-1, _ROUNDED[interpolation](places).to(torch.int64))
    below = places.to(torch.int64)
    weight = torch.full_like(places, 0.5) if interpolation == "midpoint" else places - below
    above = values.gather(-1, places.ceil().to(torch.int64))
    return values.gather(-1, below).lerp(above, weight)


RULES: dict[Any, Any] = {
    aten.quantile.default: _quantile("quantile"),
    aten.quantile.scalar: _quantile("quantile"),
    aten.nanquantile.default: _quantile("nanquantile"),
    aten.nanquantile.scalar: _quantile("nanquantile"),
    aten.sort.default: _sort,
    aten.sort.stable: _sort_stable,
    aten.topk.default: _topk,
    aten.kthvalue.default: _kthvalue,
    aten.median.default: _of_all(_median_dim),
    aten.median.dim: _median_dim,
    aten.nanmedian.default: _of_all(_nanmedian_dim),
    aten.nanmedian.dim: _nanmedian_dim,
}
