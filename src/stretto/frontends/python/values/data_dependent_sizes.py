"""Data-dependent sizes: traced numbers as dims of tensors, and such dims as traced numbers.

In the shape of a tensor such a size is a `torch.SymInt` without a hint. Where Python would
need its value (a condition, a loop, arithmetic with tensors), it becomes a traced number;
where torch needs a dim, a traced number becomes a SymInt, which an op of the Program binds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, TypeGuard

import torch

from stretto.errors import OnlyInPython
from stretto.frontends.python.tracing.fakes import mapped, tensors_of
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import Tracer, tracer
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.scalars import cast_number, is_number, known_value
from stretto.ir.size_bounds import at_most, bounds
from stretto.ir.sizes import Size

# ---- Sizes used as numbers: `x * n`, `x / math.sqrt(n)`, `torch.full(shape, n)`.
#
# torch represents a size, or a float computed from sizes, as a SymInt or a SymFloat with a sympy
# expression. In the Program it is a scalar, computed from the sizes of the call.


SizeNumber = torch.SymInt | torch.SymFloat


def with_numbers(state: Tracer, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return an operator's arguments with traced numbers in place of the tensors that torch makes
    of sizes, whose contents are meaningless."""

    def replaced(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        size = getattr(item, "_wrapped_number", None)
        if not isinstance(size, SizeNumber):
            return item
        return number_of_size(state, size, float_kind((args, kwargs)))

    return mapped(replaced, args), {name: mapped(replaced, item) for name, item in kwargs.items()}


def float_kind(arguments: Any) -> torch.dtype:
    """Return the dtype of a float used with these arguments, wide enough to be as exact as
    Python's."""
    wide = any(x.dtype == torch.float64 for x in tensors_of(list(arguments)))
    return torch.float64 if wide else torch.get_default_dtype()


def number_of_size(state: Tracer, size: SizeNumber, dtype: torch.dtype) -> Any:
    """Return a traced number for a size, or one of `dtype` for a float of sizes. A float that
    cannot be expressed is settled by a guard."""
    if isinstance(size, torch.SymInt):
        return state.number_of_dim(size)
    with state.mode:
        found = _value(state, size.node.expr)
        if found is None:
            return float(size)
        return found.to(dtype) if isinstance(found, torch.Tensor) else float(found)


def _value(state: Tracer, expression: Any) -> Any:
    """Return an expression as a Python number or a traced one of 64 bits; None if it cannot be
    expressed."""
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
    """Return the truth of a comparison of two sizes if their ranges determine it; else None."""
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
    """Return a traced flag for a condition on sizes; None if it cannot be expressed."""
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
"""The computation of each class of torch's sympy expressions, by class name."""


Dim = int | torch.SymInt

Symbolic = torch.SymInt | torch.SymFloat | torch.SymBool
MOST = 1 << 40
"""The largest size for which a run tries to allocate memory, regardless of the machine's memory."""

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_decided(value: Any) -> TypeGuard[Symbolic]:
    """True for a data-dependent size, or a number or condition computed from one."""
    return issubclass(type(value), _SYMBOLIC) and not value.node.has_hint()


def plain(value: Any) -> Any:
    """Return the value; for a data-dependent size a traced number, for a condition on one a flag.
    Raises Abort for conditions that cannot be expressed."""
    if not is_decided(value):
        return value
    state = tracer()
    if isinstance(value, torch.SymBool):
        found = condition_of_sizes(state, value)
    else:
        found = number_of_size(state, value, torch.float64)
    if found is None:
        fail(
            f"the condition {value.node.expr} on a data-dependent size cannot be captured",
            "compare sizes, or results of +, -, *, //, %, min and max on sizes",
        )
    return found


def is_integer(value: Any) -> bool:
    """True for a traced number that may be a size."""
    return is_number(value) and value.dtype == torch.int64


def dim_of(
    number: Any,
    message: str,
    low: int = 0,
    most: Dim | None = None,
    error: type[Exception] = RuntimeError,
) -> Dim:
    """Return a number as a dim. The run stops with `error` and `message` if it is below `low`; the
    caller ensures that it is at most `most`."""
    known = known_value(number) if isinstance(number, TracedTensor) else number
    if known is not None:
        return known
    check(number >= low, error.__name__, message, tracer().read(number))
    return bounded_dim(number, low, most)


def bounded_dim(number: TracedTensor, low: int = 0, most: Dim | None = None) -> Dim:
    """Return a number that is certainly between `low` and `most` as a dim. The same number is
    always the same dim."""
    known = known_value(number)
    if known is not None:
        return known
    state = tracer()
    value = state.read(number)
    if value in state.sizes_read:
        return state.symbolic_dim(state.sizes_read[value])
    found: Any = state.sizes_of.get(value)
    if isinstance(found, int):  # a size that is a number in this capture
        return found
    # An abandoned trace may have settled the size, and its symbol may belong to that trace only.
    if found is not None and found.node.expr in state.symbols:
        symbol = state.symbols[found.node.expr]
        if state.is_known(state.symbol_values[symbol]):
            return found
    limit = None if most is None else Size.of(state.dim(most))
    if limit is None:
        too_many = "a size of {} is too large for the memory"
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
    """Emit checks for the comparisons of sizes that torch made outside of operators. A C++ function
    that calls several operators, such as `broadcast_tensors`, compares sizes first, and assumes the
    answers it needs for data-dependent ones. A call whose sizes differ runs in Python."""
    state = tracer()
    for symbol, expression in state.sizes.env.forget_equal(state.symbols):
        dim = state.dim_of(expression)
        if dim is not None and state.is_known(state.symbol_values[symbol]):
            same: Any = state.symbolic_dim(Size.of(symbol)) == state.symbolic_dim(dim)
            check(plain(same), OnlyInPython.__name__, f"the sizes must satisfy {symbol} == {dim}")


def is_size_number(value: Any) -> bool:
    """True for a SymInt or SymFloat computed from sizes that are known at the call."""
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return value.node.expr.free_symbols <= tracer().sizes.known.keys()
    return False
