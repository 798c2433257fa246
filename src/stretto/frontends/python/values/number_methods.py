"""Attributes that Python's numbers have and tensors lack, for traced numbers.

What can be computed in the run is; for all others the value has to be known while the function is
captured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from stretto.frontends.python.tracing.tensor import OF_GRADIENTS, Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.scalars import (
    cast_number,
    concrete,
    number_of,
    python_kind,
)
from stretto.ir.types import DType

_BITS = 63
_LEAST = -(1 << _BITS)


def attribute(number: TracedTensor, name: str) -> Any:
    """The value of `number.name`. Raises AttributeError where numbers of its type have no such
    attribute."""
    check_attribute(number, name)
    if name in _VALUES:
        return _VALUES[name](number)
    if name in _METHODS:
        return lambda *args: _METHODS[name](number, *args)
    return getattr(concrete(number, kind_of_number(number).__name__), name)


def check_attribute(number: TracedTensor, name: str) -> None:
    """Raises AttributeError where numbers of this type have no attribute of this name."""
    kind = kind_of_number(number)
    if not hasattr(kind, name):
        raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")


def tensor_attribute(holder: Any, name: str) -> Any:
    """`holder.name`, for an attribute of tensors."""
    if isinstance(holder, TracedTensor):
        if holder.number is not None:
            check_attribute(holder, name)
        elif name in OF_GRADIENTS:
            tracer().gradients.ask()
    return getattr(holder, name)


def kind_of_number(number: TracedTensor) -> type:
    """The type that a traced number has in Python."""
    return python_kind(DType.from_torch(number.dtype))


def _imaginary(number: Any) -> Any:
    return 0.0 if number.dtype.is_floating_point else 0


def _itself(number: Any) -> Any:
    """A bool is an int here."""
    return cast_number(number, int) if number.dtype == torch.bool else number


def _is_integer(number: Any) -> Any:
    if not number.dtype.is_floating_point:
        return True
    return number_of(torch.isfinite(number) & (torch.trunc(number) == number))


def _bit_length(number: Any) -> Any:
    whole = cast_number(number, int)
    used = (whole.abs() >> torch.arange(_BITS)) > 0
    return number_of(torch.where(whole == _LEAST, _BITS + 1, used.sum()))


def _bit_count(number: Any) -> Any:
    whole = cast_number(number, int)
    ones = (whole.abs() >> torch.arange(_BITS)) & 1
    return number_of(torch.where(whole == _LEAST, 1, ones.sum()))


_VALUES: dict[str, Callable[[Any], Any]] = {
    "real": _itself,
    "imag": _imaginary,
    "numerator": _itself,
    "denominator": lambda number: 1,
}
_METHODS: dict[str, Callable[..., Any]] = {
    "conjugate": _itself,
    "is_integer": _is_integer,
    "bit_length": _bit_length,
    "bit_count": _bit_count,
    "__trunc__": lambda number: Hooks.call(int, number),
    "__floor__": lambda number: Hooks.call(math.floor, number),
    "__ceil__": lambda number: Hooks.call(math.ceil, number),
    "__round__": lambda number, *digits: Hooks.call(round, number, *digits),
}
