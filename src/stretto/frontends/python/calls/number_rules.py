"""Rules for Python's numeric functions of traced numbers: `int`, `float`, `round`, `divmod` and
the module `math`. They raise the same exceptions as Python's."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from stretto.errors import OnlyInPython
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.arithmetic import TOO_LARGE, as_traced_float
from stretto.frontends.python.values.data_dependent_sizes import is_size_number
from stretto.frontends.python.values.number_methods import own_method
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.scalars import (
    cast_number,
    is_number,
    known_value,
    number_kind,
    to_number,
)

Rule = Callable[..., Any]


def _traced(value: Any) -> bool:
    return isinstance(value, TracedTensor)


def cast(kind: type) -> Rule:
    """Return a rule for `int` or `float`."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and is_size_number(args[0]):
            return torch.sym_int(args[0]) if kind is int else torch.sym_float(args[0])
        if len(args) == 1 and isinstance(args[0], torch.SymInt):
            return cast_number(tracer().number_of_dim(args[0]), kind)
        if len(args) == 1 and kind in _CONVERSIONS:
            made = _converted(kind, args[0])
            if made is not NotImplemented:
                return made
        if len(args) != 1 or not _traced(args[0]):
            return NotImplemented
        known = known_value(args[0])
        if known is not None:
            return kind(known)
        return _integer(args[0]) if kind is int else cast_number(args[0], kind)

    return rule


_CONVERSIONS = {int: ("__int__", "__index__"), float: ("__float__", "__index__")}


def _converted(kind: type, value: Any) -> Any:
    """Convert an object by its user-defined `__int__`, `__float__` or `__index__`; NotImplemented
    if it has none."""
    for name in _CONVERSIONS[kind]:
        method = own_method(value, name)
        if method is not None:
            made = Hooks.call(method)
            is_one = is_number(made) and number_kind(made) is kind
            return made if is_one else kind(_Converted(made))
        if isinstance(value, int | float) and hasattr(type(value), name):
            break
    return NotImplemented


class _Converted:
    """Lets the interpreter check the type of a conversion's result."""

    def __init__(self, made: Any) -> None:
        self.__made = made

    def __int__(self) -> int:
        return self.__made

    def __float__(self) -> float:
        return self.__made


def _integer(value: Any) -> Any:
    """Truncate a traced number to a traced int."""
    number = to_number(value, ValueError)
    if not number.dtype.is_floating_point:
        return cast_number(number, int)
    if tracer().data is not None:
        return cast_number(number, int)
    to_integer = "cannot convert float {} to integer"
    check(torch.logical_not(torch.isnan(number)), "ValueError", to_integer.format("NaN"))
    check(torch.logical_not(torch.isinf(number)), "OverflowError", to_integer.format("infinity"))
    check(number.abs() < 2.0**63, OnlyInPython.__name__, TOO_LARGE)
    return cast_number(number, int)


def _to_integer(on_tensor: Rule) -> Rule:
    """Return a rule for `math.floor`, `math.ceil` or `math.trunc`."""

    def rule(value: Any) -> Any:
        of_sizes = getattr(torch, f"_sym_{on_tensor.__name__}", None)
        if of_sizes is not None and is_size_number(value):
            return of_sizes(value)
        if not _traced(value):
            return NotImplemented
        number = to_number(value, ValueError)
        return _integer(on_tensor(number) if number.dtype.is_floating_point else number)

    return rule


_MOST_DIGITS = 22
"""The largest n for which 10**n is exactly a float."""
_SPLITTER = 2.0**27 + 1
_ALL_WHOLE = 2.0**53
"""From this product on, floats are spaced more widely than the decimals to round to."""


def rounded(number: Any, ndigits: Any = None) -> Any:
    """`round`: half to even on the exact decimal value."""
    if _traced(ndigits):
        fail("round() to a number of digits that depends on a tensor", "give it a known number")
    if not is_number(number):
        return NotImplemented
    if ndigits is not None:
        operator.index(ndigits)
    if not number.dtype.is_floating_point:
        number = cast_number(number, int)
        return number if ndigits is None or ndigits >= 0 else _rounded_int(number, 10**-ndigits)
    data = tracer().data
    if ndigits is None:
        rounds = data is not None
        return data.computed("round", int, number) if rounds else _integer(torch.round(number))
    digits = operator.index(ndigits)
    if not 0 <= digits <= _MOST_DIGITS:
        fail(
            f"round() of a float that depends on a tensor to {digits} digits",
            f"round to at least 0 and at most {_MOST_DIGITS} digits",
        )
    if data is not None:
        return data.computed("round_to", float, number, digits)
    return _rounded_float(number, 10.0**digits)


def _rounded_int(number: Any, unit: int) -> Any:
    rest = number % unit
    low = number - rest
    is_odd = (low // unit) % 2 == 1
    is_up = torch.logical_or(rest * 2 > unit, torch.logical_and(rest * 2 == unit, is_odd))
    return low + is_up * unit


def _rounded_float(number: Any, scale: float) -> Any:
    """Round a float to the decimals given by `scale`, a power of 10 that is exactly a float."""
    product, error = _product(number, scale)
    below = torch.floor(product)
    beyond_half = (product - below - 0.5) + error
    is_odd = torch.remainder(below, 2.0) == 1.0
    is_up = torch.logical_or(beyond_half > 0.0, torch.logical_and(beyond_half == 0.0, is_odd))
    result = torch.copysign(torch.where(is_up, below + 1.0, below) / scale, number)
    has_decimals = product.abs() < _ALL_WHOLE  # False for NaN and infinities, too
    chosen: Any = torch.where(has_decimals, result, number)
    return to_number(chosen)


def _product(number: Any, factor: float) -> tuple[Any, Any]:
    """Return a product and its rounding error (Dekker, "A floating-point technique for extending
    the available precision", 1971, section 5)."""
    high, factor_high = number * _SPLITTER, factor * _SPLITTER
    high, factor_high = high - (high - number), factor_high - (factor_high - factor)
    low, factor_low = number - high, factor - factor_high
    product = number * factor
    error = high * factor_high - product + high * factor_low + low * factor_high
    return product, error + low * factor_low


def quotient_and_rest(first: Any, second: Any) -> Any:
    """`divmod`."""
    are_numbers = [is_number(item) or is_size_number(item) for item in (first, second)]
    if not any(are_numbers) or any(_traced(x) and not is_number(x) for x in (first, second)):
        return NotImplemented
    if float in map(number_kind, (first, second)) and not is_size_number(second):
        check(second != 0, "ZeroDivisionError", _NO_DIVISOR)
    return first // second, first % second


try:
    divmod(1.0, 0.0)
except ZeroDivisionError as error:
    _NO_DIVISOR = str(error)  # depends on Python's version


@dataclass(frozen=True, slots=True)
class _OfMath:
    """A function of the module `math` of one float.

    is_defined: condition under which it does not raise; None: it never does. overflows: it
    raises if its result is infinite and its argument is not.
    """

    on_tensor: Rule
    is_defined: Rule | None = None
    overflows: bool = False

    def __call__(self, value: Any) -> Any:
        of_sizes = getattr(torch, f"_sym_{getattr(self.on_tensor, '__name__', '')}", None)
        if of_sizes is not None and is_size_number(value):
            is_defined = _DEFINED.get(self.is_defined)
            if is_defined is None or self.overflows:
                return NotImplemented
            if not is_defined(value):
                raise ValueError("math domain error")
            return of_sizes(value)
        if not _traced(value):
            return NotImplemented
        number = cast_number(value, float)
        if self.is_defined is not None:
            check(self.is_defined(number), "ValueError", "math domain error")
        result = cast_number(self.on_tensor(number), float)
        if self.overflows:
            _check_range(result, number)
        return result


def _check_range(result: Any, *numbers: Any) -> None:
    """Check in the run that a result is finite unless an argument is infinite; raises
    OverflowError if not."""
    is_fine = torch.logical_not(torch.isinf(result))
    for number in numbers:
        is_fine = torch.logical_or(is_fine, torch.isinf(number))
    check(is_fine, "OverflowError", "math range error")


def _unless(is_undefined: Rule) -> Rule:
    """Return the negation of a condition; with comparisons, NaN therefore counts as defined."""
    return lambda number: torch.logical_not(is_undefined(number))


_FINITE = _unless(torch.isinf)
_NEVER_NEGATIVE, _POSITIVE = _unless(lambda x: x < 0.0), _unless(lambda x: x <= 0.0)
_DEFINED: dict[Rule | None, Rule] = {
    None: lambda size: True,
    _FINITE: lambda size: True,
    _NEVER_NEGATIVE: lambda size: size >= 0,
    _POSITIVE: lambda size: size > 0,
}
"""Conditions that can also be decided for sizes, by a guard."""
_OF_ONE: dict[str, _OfMath] = {
    "sqrt": _OfMath(torch.sqrt, _NEVER_NEGATIVE),
    "exp": _OfMath(torch.exp, overflows=True),
    "exp2": _OfMath(torch.exp2, overflows=True),
    "expm1": _OfMath(torch.expm1, overflows=True),
    "log": _OfMath(torch.log, _POSITIVE),
    "log2": _OfMath(torch.log2, _POSITIVE),
    "log10": _OfMath(torch.log10, _POSITIVE),
    "log1p": _OfMath(torch.log1p, _unless(lambda x: x <= -1.0)),
    "sin": _OfMath(torch.sin, _FINITE),
    "cos": _OfMath(torch.cos, _FINITE),
    "tan": _OfMath(torch.tan, _FINITE),
    "asin": _OfMath(torch.asin, _unless(lambda x: x.abs() > 1.0)),
    "acos": _OfMath(torch.acos, _unless(lambda x: x.abs() > 1.0)),
    "atan": _OfMath(torch.atan),
    "sinh": _OfMath(torch.sinh, overflows=True),
    "cosh": _OfMath(torch.cosh, overflows=True),
    "tanh": _OfMath(torch.tanh),
    "asinh": _OfMath(torch.asinh),
    "acosh": _OfMath(torch.acosh, _unless(lambda x: x < 1.0)),
    "atanh": _OfMath(torch.atanh, _unless(lambda x: x.abs() >= 1.0)),
    "erf": _OfMath(torch.erf),
    "erfc": _OfMath(torch.erfc),
    "fabs": _OfMath(torch.abs),
    "degrees": _OfMath(lambda x: x * (180.0 / math.pi)),
    "radians": _OfMath(lambda x: x * (math.pi / 180.0)),
}


def _log(value: Any, *base: Any) -> Any:
    if not base:
        return _OF_ONE["log"](value)
    if not (_traced(value) or _traced(*base)):
        return NotImplemented
    one, other = (RULES[math.log](x) if _traced(x) else math.log(x) for x in (value, *base))
    return one / other


def _test(on_tensor: Rule) -> Rule:
    """Return a rule for `isnan`, `isinf` or `isfinite`."""

    def rule(value: Any) -> Any:
        return (
            cast_number(on_tensor(to_number(value, ValueError)), bool)
            if _traced(value)
            else NotImplemented
        )

    return rule


def _of_two(on_tensors: Rule, is_defined: Rule | None = None, *, overflows: bool = False) -> Rule:
    """Return a rule for a function of the module `math` of two floats."""

    def rule(one: Any, other: Any) -> Any:
        if not (_traced(one) or _traced(other)):
            return NotImplemented
        pair = as_traced_float(one), as_traced_float(other)
        if is_defined is not None:
            check(is_defined(*pair), "ValueError", "math domain error")
        result = cast_number(on_tensors(*pair), float)
        if overflows:
            _check_range(result, *pair)
        return result

    return rule


def _has_remainder(x: Any, y: Any) -> Any:
    is_undefined = torch.logical_or(torch.isinf(x), y == 0.0)
    is_nan = torch.logical_or(torch.isnan(x), torch.isnan(y))
    return torch.logical_or(is_nan, torch.logical_not(is_undefined))


def _has_power(x: Any, y: Any) -> Any:
    is_finite = torch.logical_and(torch.isfinite(x), torch.isfinite(y))
    is_complex = torch.logical_and(x < 0.0, y != torch.trunc(y))
    is_infinite = torch.logical_and(x == 0.0, y < 0.0)
    is_undefined = torch.logical_and(is_finite, torch.logical_or(is_complex, is_infinite))
    return torch.logical_not(is_undefined)


def _is_close(a: Any, b: Any, *, rel_tol: Any = 1e-09, abs_tol: Any = 0.0) -> Any:
    if not any(map(_traced, (a, b, rel_tol, abs_tol))):
        return NotImplemented
    a, b, rel_tol, abs_tol = map(as_traced_float, (a, b, rel_tol, abs_tol))
    check((rel_tol >= 0) & (abs_tol >= 0), "ValueError", _NEGATIVE_TOLERANCE)
    difference = abs(b - a)
    is_near = difference <= abs(rel_tol * b)
    for bound in (abs(rel_tol * a), abs_tol):
        is_near = is_near | (difference <= bound)
    are_finite = (abs(a) != math.inf) & (abs(b) != math.inf)
    return Hooks.python.or_(a == b, lambda: Hooks.python.and_(are_finite, lambda: is_near))


def check_sum(numbers: Any) -> None:
    """Stop the run if the sum of ints might not fit in 64 bits."""
    check(numbers.double().abs().sum() < 2.0**63, OnlyInPython.__name__, TOO_LARGE)


_NEGATIVE_TOLERANCE = "tolerances must be non-negative"


def _power(base: Any, exponent: Any, mod: Any = None) -> Any:
    if mod is not None and any(map(_traced, (base, exponent, mod))):
        fail("pow() of three numbers that depend on tensors", "use `base**exponent % mod`")
    return NotImplemented


def _of_math(name: str, rule: Rule) -> Rule:
    """Return the rule for a function of the module `math`; on numbers of an instance it is a
    primitive."""

    def with_primitive(*args: Any, **kwargs: Any) -> Any:
        data = tracer().data
        if (
            data is None
            or not any(map(_traced, args))
            or len(args) not in _PRIMITIVES.get(name, ())
        ):
            return rule(*args, **kwargs)
        kind = bool if name in _TESTS else int if name in _TO_INTEGER else float
        given = [to_number(x, ValueError) if _traced(x) else x for x in args]
        if kind is int and number_kind(given[0]) is not float:
            return cast_number(given[0], int)
        floats = [cast_number(x, float) if _traced(x) else float(x) for x in given]
        return data.computed("math", kind, *floats, detail=name)

    return with_primitive


_TESTS = ("isnan", "isinf", "isfinite")
_TO_INTEGER = ("floor", "ceil", "trunc")
_PRIMITIVES = {
    **dict.fromkeys(_OF_ONE.keys() - {"degrees", "radians"}, (1,)),
    **dict.fromkeys((*_TESTS, *_TO_INTEGER), (1,)),
    **dict.fromkeys(("atan2", "copysign", "hypot", "fmod", "pow"), (2,)),
}
"""Functions that are primitives of instances, with the numbers of their arguments."""


_RULES_OF_MATH: dict[str, Rule] = {
    **_OF_ONE,
    **{name: _test(getattr(torch, name)) for name in _TESTS},
    **{name: _to_integer(getattr(torch, name)) for name in _TO_INTEGER},
    "log": _log,
    "isclose": _is_close,
    "atan2": _of_two(torch.atan2),
    "copysign": _of_two(torch.copysign),
    "hypot": _of_two(torch.hypot, overflows=True),
    "fmod": _of_two(torch.fmod, _has_remainder),
    "pow": _of_two(torch.pow, _has_power, overflows=True),
}
RULES: dict[Any, Rule] = {
    pow: _power,
    int: cast(int),
    float: cast(float),
    round: rounded,
    divmod: quotient_and_rest,
    **{
        getattr(math, name): _of_math(name, rule)
        for name, rule in _RULES_OF_MATH.items()
        if hasattr(math, name)
    },
}
