"""Sizes that data decide: traced numbers as dims of tensors, and such dims as traced numbers.

In the shape of a tensor such a size is a `torch.SymInt` without a hint. Where Python would need its
value (a condition, a loop, arithmetic with tensors), it becomes a traced number; where torch needs
a dim, a traced number becomes a SymInt, which an op of the Program binds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, TypeGuard

import torch
from torch.utils._pytree import tree_map_only

from stretto.errors import OnlyInPython
from stretto.frontends.python.tracing.fakes import mapped, tensors_of
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import Tracer, active, tracer
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.scalars import cast_number, is_number, known_value
from stretto.ir.size_bounds import at_most, bounds
from stretto.ir.sizes import Size

# ---- Sizes in the place of numbers: `x * n`, `x / math.sqrt(n)`, `torch.full(shape, n)`.
#
# torch knows a size, or a float that is computed from sizes, as a SymInt or a SymFloat, with an
# expression of sympy's. In the Program it is a scalar, computed from the sizes of the call.


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


Dim = int | torch.SymInt

Symbolic = torch.SymInt | torch.SymFloat | torch.SymBool
MOST = 1 << 40
"""The largest size that a run tries to take memory for, whatever the memory of the machine."""

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_decided(value: object) -> TypeGuard[Symbolic]:
    """Whether data decide a size, or what Python has computed of sizes."""
    return isinstance(value, _SYMBOLIC) and not value.node.has_hint()


def plain(value: Any) -> Any:
    """The value; a traced number for a size that data decide, and a flag for a condition on one."""
    if not is_decided(value):
        return value
    state = tracer()
    if isinstance(value, torch.SymBool):
        found = condition_of_sizes(state, value)
    else:
        found = number_of_size(state, value, torch.float64)
    if found is None:
        fail(
            f"the condition {value.node.expr} on a size that data decide is not captured",
            "compare sizes, and what +, -, *, //, %, min and max make of them",
        )
    return found


def plain_parts(value: Any) -> Any:
    """The same for what containers hold."""
    if active() is None:
        return value
    return tree_map_only(_SYMBOLIC, plain, value)


def is_integer(value: Any) -> bool:
    """Whether a value is a traced number that may be a size."""
    return is_number(value) and value.dtype == torch.int64


def dim_of(
    number: Any,
    message: str,
    low: int = 0,
    most: Dim | None = None,
    error: type[Exception] = RuntimeError,
) -> Dim:
    """A number as a dim. The run stops with `error` and `message` where it is below `low`; the
    caller knows that it is at most `most`."""
    known = known_value(number) if isinstance(number, TracedTensor) else number
    if known is not None:
        return known
    check(number >= low, error.__name__, message, tracer().read(number))
    return bounded_dim(number, low, most)


def bounded_dim(number: TracedTensor, low: int = 0, most: Dim | None = None) -> Dim:
    """A number that surely lies between `low` and `most` as a dim. The same number is the same
    dim."""
    known = known_value(number)
    if known is not None:
        return known
    state = tracer()
    value = state.read(number)
    if value in state.sizes_read:
        return state.symbolic_dim(state.sizes_read[value])
    found: Any = state.sizes_of.get(value)
    if isinstance(found, int):  # of a size that is a number in this capture
        return found
    # A trace that was given up may have found that the size is a constant there.
    if found is not None and found.node.expr in state.symbols:
        symbol = state.symbols[found.node.expr]
        if state.is_known(state.symbol_values[symbol]):
            return found
    limit = None if most is None else Size.of(state.dim(most))
    if limit is None:
        too_many = "a size of {} is more than memory has room for"
        with state.mode:
            check(number <= MOST, "RuntimeError", too_many, value)
    high = None if limit is None else bounds(limit)[1]
    tells = limit is not None and limit.terms and (high is None or _is_of_the_call(limit))
    size = state.new_size(value, low, high, limit if tells else None)
    state.sizes_of[value] = size
    return size


def _is_of_the_call(size: Size) -> bool:
    return tracer().symbol_dims.keys().isdisjoint(size.symbols)


def compare_in_run() -> None:
    """Emits the comparisons of sizes that torch has made outside of operators. A function that C++
    makes of several operators, as `broadcast_tensors`, compares sizes before it calls any of them,
    and takes those that data decide for what it needs. A call where they are others runs in
    Python."""
    state = tracer()
    for symbol, expression in state.sizes.env.forget_equal(state.symbols):
        dim = state.dim_of(expression)
        if dim is not None and state.is_known(state.symbol_values[symbol]):
            same: Any = state.symbolic_dim(Size.of(symbol)) == state.symbolic_dim(dim)
            check(plain(same), OnlyInPython.__name__, f"sizes are needed with {symbol} == {dim}")


def is_size_number(value: Any) -> bool:
    """Whether a value is a size that is known at the call, or a float computed from such sizes, as
    torch has them."""
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return value.node.expr.free_symbols <= tracer().sizes.known.keys()
    return False
