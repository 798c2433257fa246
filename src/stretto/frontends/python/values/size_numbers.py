"""Sizes in the place of numbers: `x * n`, `x / math.sqrt(n)`, `torch.full(shape, n)`.

torch knows a size, or a float that is computed from sizes, as a SymInt or a SymFloat, with an
expression of sympy's. In the Program it is a scalar, computed from the sizes of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

from stretto.frontends.python.tracing.fakes import mapped, tensors_of
from stretto.frontends.python.tracing.tracer import Tracer
from stretto.frontends.python.values.scalars import cast_number
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size

SizeNumber = torch.SymInt | torch.SymFloat


def with_numbers(state: Tracer, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of an operator with traced numbers in the place of the tensors that torch makes
    of sizes. The content of such a tensor means nothing."""

    def replaced(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        size = getattr(item, "_wrapped_number", None)
        if not isinstance(size, SizeNumber):
            return item
        return number_of_size(state, size, float_kind((args, kwargs)))

    return mapped(replaced, args), {name: mapped(replaced, item) for name, item in kwargs.items()}


def float_kind(arguments: Any) -> torch.dtype:
    """The dtype for a float beside these arguments, so that it is as exact as Python's."""
    wide = any(x.dtype == torch.float64 for x in tensors_of(list(arguments)))
    return torch.float64 if wide else torch.get_default_dtype()


def number_of_size(state: Tracer, size: SizeNumber, dtype: torch.dtype) -> Any:
    """A traced number for a size, or for a float of sizes, which gets the dtype. A float of another
    form is settled by a guard."""
    if isinstance(size, torch.SymInt):
        return state.number_of_dim(size)
    with state.mode:
        found = _value(state, size.node.expr)
        if found is None:
            return float(size)
        return found.to(dtype) if isinstance(found, torch.Tensor) else float(found)


def _value(state: Tracer, expression: Any) -> Any:
    """A number of Python, or a traced one of 64 bits; None for what there is no form for."""
    if expression.is_Boolean and expression.is_Atom:
        return bool(expression)
    if expression.is_number:
        return int(expression) if expression.is_Integer else float(expression)
    size = None if expression.is_Boolean else state.dim_of(expression)
    if size is not None:
        return state.number_of_size(size)
    meaning = _MEANINGS.get(type(expression).__name__)
    known = _known_comparison(state, expression)
    if known is not None:
        return known
    parts = [_value(state, part) for part in expression.args]
    if meaning is None or any(part is None for part in parts):
        return None
    return meaning(*parts)


def _known_comparison(state: Tracer, expression: Any) -> bool | None:
    """The truth of a comparison of two sizes, where their ranges tell it."""
    if not expression.is_Relational:
        return None
    one, other = (state.dim_of(part) for part in expression.args)
    if one is None or other is None:
        return None
    is_at_most, is_at_least = at_most(one, other), at_most(other, one)
    is_less, is_more = at_most(Size.of(one) + 1, other), at_most(Size.of(other) + 1, one)
    holds, fails = {
        "Equality": (is_at_most and is_at_least, is_less or is_more),
        "Unequality": (is_less or is_more, is_at_most and is_at_least),
        "StrictLessThan": (is_less, is_at_least),
        "LessThan": (is_at_most, is_more),
        "StrictGreaterThan": (is_more, is_at_most),
        "GreaterThan": (is_at_least, is_less),
    }[type(expression).__name__]
    return True if holds else False if fails else None


def _wide(value: Any) -> Any:
    return value.to(torch.float64) if isinstance(value, torch.Tensor) else float(value)


def _power(base: Any, exponent: Any) -> Any:
    if exponent == 0.5:
        return torch.sqrt(_wide(base))
    return _wide(base) ** exponent


def _unary(operation: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: operation(_wide(value))


def _integer(operation: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: cast_number(operation(value), int)


def condition_of_sizes(state: Tracer, condition: torch.SymBool) -> Any:
    """A traced flag for a condition on sizes; None for what there is no form for."""
    with state.mode:
        return _value(state, condition.node.expr)


_MEANINGS: dict[str, Callable[..., Any]] = {
    "ToFloat": _wide,
    "IntTrueDiv": lambda one, other: _wide(one) / _wide(other),
    "FloatTrueDiv": lambda one, other: _wide(one) / _wide(other),
    "Add": lambda *parts: reduce(lambda one, other: one + other, parts),
    "Mul": lambda *parts: reduce(lambda one, other: one * other, parts),
    "Pow": _power,
    "FloatPow": _power,
    "Equality": lambda one, other: one == other,
    "Unequality": lambda one, other: one != other,
    "StrictLessThan": lambda one, other: one < other,
    "LessThan": lambda one, other: one <= other,
    "StrictGreaterThan": lambda one, other: one > other,
    "GreaterThan": lambda one, other: one >= other,
    "And": lambda *parts: reduce(lambda one, other: one & other, parts),
    "Or": lambda *parts: reduce(lambda one, other: one | other, parts),
    "Not": lambda one: not one if isinstance(one, bool) else torch.logical_not(one),
    "FloorToInt": _integer(torch.floor),
    "CeilToInt": _integer(torch.ceil),
    "TruncToInt": _integer(torch.trunc),
    **{
        f"OpaqueUnaryFn_{name}": _unary(getattr(torch, name))
        for name in ("sqrt", "exp", "log", "log2", "sin", "cos", "tanh")
    },
}
"""What expressions of torch's sympy compute, by the names of their classes."""
