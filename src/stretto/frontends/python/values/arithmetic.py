"""Behaviour of Python numbers that 0-d tensors, which represent them in a trace, do not have.

A bool is an int; an int is not rounded when compared with a float; and numbers raise: for a
division by zero, or a float out of range. An int that does not fit into 64 bits stops the run. In
the promotion of dtypes a number counts less than a 0-d tensor; with a tensor that has dims both
count the same.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache, reduce
from typing import Any

import numpy as np
import torch

from stretto.errors import OnlyInPython
from stretto.frontends.python.tracing.fakes import mapped, tensors_of
from stretto.frontends.python.tracing.signals import COMPARISONS, fail
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data_dependent_sizes import SizeNumber, number_of_size
from stretto.frontends.python.values.either import Either, first_either
from stretto.frontends.python.values.leaves import kind_of
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.scalars import (
    COUNTER_BITS,
    MOST_BITS,
    bits_of,
    cast_number,
    is_number,
    number_kind,
    possible,
    python_kind,
    result_bits,
)
from stretto.ir.types import DType


def applied(name: str, first: Any, second: Any) -> Any:
    """Return the result of a Python operator on two numbers, at least one of them traced;
    NotImplemented if an operand is no number. Raises Abort for numeric types that cannot be
    traced."""
    first, second = _without_size(first), _without_size(second)
    if not all(is_number(item) or isinstance(item, bool | int | float) for item in (first, second)):
        other = second if is_number(first) else first
        if isinstance(other, Fraction | Decimal | timedelta):
            fail(
                f"a {type(other).__name__} is combined with a number that depends on a tensor",
                "convert it to a float, or compile with fallback=True",
            )
        if isinstance(other, complex | np.ndarray | np.generic):
            fail(
                f"a {type(other).__name__} is combined with a number that depends on a tensor",
                "make a tensor of it, or compile with fallback=True",
            )
        return NotImplemented
    if name in _OF_INTS and (_is_float(first) or _is_float(second)):
        names = [getattr(number_kind(item), "__name__", "") for item in (first, second)]
        kinds = " and ".join(map(repr, names))
        raise TypeError(f"unsupported operand type(s) for {_OF_INTS[name]}: {kinds}")
    if tracer().data is not None:
        return _of_instance(name, first, second)
    if not (name in _OF_BOOLS and number_kind(first) is number_kind(second) is bool):
        first, second = _without_bool(first), _without_bool(second)
    if _is_float(first) or _is_float(second) or name == "truediv":
        first, second = _in_range(first), _in_range(second)
    if name in COMPARISONS:
        return _compared(name, first, second)
    if number_kind(first) is number_kind(second) is int:
        check_int(name, first, second)
    if name in ("truediv", "floordiv", "mod"):
        _check_divisor(name, first, second)
    if name == "pow":
        return _power(first, second)
    if name == "rshift" and not (isinstance(second, int) and second < 64):
        second = second.clamp(max=63) if isinstance(second, TracedTensor) else 63
    if name == "mod" and (_is_float(first) or _is_float(second)):
        return _rest(_of_torch(name, first, second), second)
    return _of_torch(name, first, second)


def _of_instance(name: str, first: Any, second: Any) -> Any:
    """Return the result of a primitive, which has Python's meaning. A known int may be beyond 64
    bits."""
    if is_too_large(first) or is_too_large(second):
        is_float = _is_float(first) or _is_float(second)
        if is_float and name not in COMPARISONS:
            first, second = _in_range(first), _in_range(second)
        elif name in COMPARISONS and not is_float:
            first, second = (x if is_too_large(x) else 0 for x in (first, second))
            return getattr(operator, name)(first, second)
        else:
            check_int(name, first, second)
    return tracer().data.operated(name, first, second)


def _rest(rest: Any, divisor: Any) -> Any:
    """Give a remainder that is zero the sign of the divisor."""
    zero = torch.where(as_traced_float(divisor) < 0, as_traced_float(-0.0), as_traced_float(0.0))
    return torch.where(rest == 0, zero, rest)


def applied_to_one(name: str, number: Any) -> Any:
    """Return the result of a unary Python operator on a traced number."""
    if name == "invert" and _is_float(number):
        raise TypeError("bad operand type for unary ~: 'float'")
    data = tracer().data
    if data is not None:
        kind = float if _is_float(number) else int
        return data.converted(number, kind) if name == "pos" else data.computed(name, kind, number)
    number = _without_bool(number)
    if number_kind(number) is int:
        check_int(name, number, None)
    return getattr(torch.Tensor, f"__{name}__")(number)


_OF_INTS = {"and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>"}
_OF_BOOLS = ("and", "or", "xor", *COMPARISONS)


def _of_torch(name: str, first: Any, second: Any) -> Any:
    if isinstance(first, torch.Tensor):
        return getattr(torch.Tensor, f"__{name}__")(first, second)
    return getattr(torch.Tensor, f"__r{name}__")(second, first)


def _without_size(item: Any) -> Any:
    """Return a traced number for a size, or for a float computed from sizes; other items
    unchanged."""
    is_size = isinstance(item, SizeNumber)
    return number_of_size(tracer(), item, torch.float64) if is_size else item


def _without_bool(number: Any) -> Any:
    """Return the number, with a bool converted to an int."""
    if isinstance(number, TracedTensor):
        return cast_number(number, int) if number.dtype == torch.bool else number
    return int(number) if isinstance(number, bool) else number


def _in_range(number: Any) -> Any:
    """Return the number, with a known int beyond 64 bits converted to a float."""
    return float(number) if is_too_large(number) else number


def is_too_large(number: Any) -> bool:
    """True for a known int that does not fit into 64 bits."""
    return isinstance(number, int) and not -_LARGEST - 1 <= number <= _LARGEST


def _check_divisor(name: str, first: Any, second: Any) -> None:
    message = _message(name, is_float=_is_float(first) or _is_float(second))
    if isinstance(second, TracedTensor):
        check(second != 0, "ZeroDivisionError", message)
    elif not second:
        raise ZeroDivisionError(message)


def _compared(name: str, first: Any, second: Any) -> Any:
    """Return a comparison by value: Python does not round an int that is compared with a float."""
    if number_kind(first) is bool:
        return _of_torch(name, first, second)
    if not isinstance(first, TracedTensor):
        return _compared(_SWAPPED[name], second, first)
    if number_kind(first) is float or number_kind(second) is number_kind(first) is int:
        if is_too_large(second):
            return getattr(operator, name)(0, second)
        if number_kind(second) is not int or number_kind(first) is int:
            return _of_torch(name, first, second)
        if not isinstance(second, TracedTensor) or bits_of(second) <= _EXACT_BITS:
            return _of_torch(name, first, second)
        return _compared(_SWAPPED[name], second, first)
    if isinstance(second, TracedTensor):
        return _compared_with_float(name, first, second)
    if not math.isfinite(second):
        return getattr(operator, name)(0, second)
    if name in ("eq", "ne") and not second.is_integer():
        return name == "ne"
    bound = math.ceil(second) if name in ("lt", "ge") else math.floor(second)
    return _compared(name, first, bound)


def _compared_with_float(name: str, number: Any, other: Any) -> Any:
    """Compare an int with a float. If the int rounded to a float equals the float, the float is an
    int, and the ints are compared."""
    rounded = cast_number(number, float)
    by_floats = _of_torch(name, rounded, other)
    if bits_of(number) <= _EXACT_BITS:
        return by_floats
    is_larger = other == _LIMIT  # 2**63 is no 64-bit int, but one may be rounded to it
    by_ints = _of_torch(name, number, cast_number(other, int))
    of_equal = torch.where(is_larger, getattr(operator, name)(0, 1), by_ints)
    return cast_number(torch.where(rounded == other, of_equal, by_floats), bool)


_EXACT_BITS = 53
_LARGEST = 2**63 - 1
_GROWING = ("add", "sub", "mul", "pow", "lshift", "floordiv", "neg", "abs")
_LIMIT = 2.0**63
_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def check_int(name: str, first: Any, second: Any) -> None:
    """Stop the run if Python's result is an int beyond 64 bits."""
    for item in (first, second):
        if is_too_large(item):
            fail(
                f"an int of {bits_of(item)} bits is combined with one that depends on a tensor",
                "make one of them a float: in a compiled function such numbers have 64 bits",
            )
    if name in ("lshift", "rshift"):
        check(second >= 0, "ValueError", "negative shift count")
    if name not in _GROWING or result_bits(name, first, second) <= MOST_BITS:
        return
    match name:
        case "neg" | "abs":
            is_fine = first != -(2**63)
        case "add" | "sub":
            is_fine = _fits_sum(first, second, 1 if name == "add" else -1)
        case "mul":
            is_fine = _fits_product(first, second)
        case "pow" if isinstance(second, int) and second < 0:
            return  # the result is a float
        case "pow":
            is_fine = torch.pow(as_traced_float(first), as_traced_float(second)).abs() < _LIMIT
        case "lshift":
            is_fine = (
                as_traced_float(first).abs() * torch.pow(2.0, as_traced_float(second)) < _LIMIT
            )
        case _:
            if isinstance(second, int) and second != -1:
                return
            is_fine = _any_of(first != -(2**63), second != -1)
    check(is_fine, OnlyInPython.__name__, TOO_LARGE)


TOO_LARGE = (
    "an int is beyond 64 bits, which Python computes and a compiled function does not: call "
    "float() on the operands"
)


def is_counter(before: Any, after: Any) -> bool:
    """True if an iteration of a loop only adds small values to a number that may be an int."""
    if number_kind(before) is int and not isinstance(before, TracedTensor):
        return max(bits_of(before), bits_of(after)) <= COUNTER_BITS
    return number_kind(after) is not int or bits_of(after) <= COUNTER_BITS


def check_counter(number: Any) -> None:
    """Stop the run if an int leaves no room for a loop to add to it."""
    if tracer().data is not None:
        return  # the primitives check each addition
    if number_kind(number) is int and bits_of(number) > COUNTER_BITS:
        is_fine = torch.logical_and(number < 2**61, number >= -(2**61))
        check(is_fine, OnlyInPython.__name__, TOO_LARGE)


def as_traced_float(number: Any) -> Any:
    """Return a number, traced or not, as a traced float."""
    if isinstance(number, TracedTensor):
        return cast_number(number, float)
    return tracer().number(tracer().literal(float(number), DType.F64))


def _fits_product(first: Any, second: Any) -> Any:
    """Return a flag that is true if the product of two ints fits into 64 bits. For two traced ints
    the product is computed as a float, which may reject the largest one that fits."""
    if not isinstance(first, TracedTensor):
        first, second = second, first
    if isinstance(second, TracedTensor):
        return (as_traced_float(first) * as_traced_float(second)).abs() < _LIMIT
    bound = _LARGEST // abs(second) if second else _LARGEST
    return abs(second) <= 1 or torch.logical_and(first <= bound, first >= -bound)


def _fits_sum(first: Any, second: Any, sign: int) -> Any:
    """Return a flag that is true if the sum or difference of two ints fits into 64 bits."""
    if not isinstance(first, TracedTensor) and sign > 0:
        first, second = second, first
    if not isinstance(second, TracedTensor):
        second *= sign
        return first <= _LARGEST - second if second > 0 else first >= -_LARGEST - 1 - second
    total = torch.add(first, second) if sign > 0 else torch.sub(first, second)
    # An overflow has a sign that neither addend has.
    one, other = first ^ total, (second if sign > 0 else ~second) ^ total
    return torch.bitwise_and(one, other) >= 0


def _power(base: Any, exponent: Any) -> Any:
    if _is_float(base) or _is_float(exponent):
        return _power_of_floats(base, exponent)
    if isinstance(exponent, TracedTensor):
        check(
            exponent >= 0,
            OnlyInPython.__name__,
            "an int to the power of a negative int is a float in Python, and an int in a compiled "
            "function: call float() on the base",
        )
    elif exponent < 0:
        return _power_of_floats(cast_number(base, float), exponent)
    return _of_torch("pow", base, exponent)


def _power_of_floats(base: Any, exponent: Any) -> Any:
    if isinstance(exponent, TracedTensor) or exponent < 0:
        check(
            _any_of(exponent >= 0, base != 0), "ZeroDivisionError", _message("pow", is_float=True)
        )
    if isinstance(exponent, TracedTensor) or not float(exponent).is_integer():
        is_nan = torch.isnan(base) if isinstance(base, TracedTensor) else math.isnan(base)
        is_real = _any_of(base >= 0, is_nan)
        if isinstance(exponent, TracedTensor):
            is_whole = exponent == torch.trunc(as_traced_float(exponent))
            is_real = _any_of(is_real, is_whole, torch.isnan(exponent))
        check(is_real, OnlyInPython.__name__, _COMPLEX)
    power = _of_torch("pow", base, exponent)
    if isinstance(exponent, TracedTensor) or not 0 <= exponent <= 1:
        infinite = [
            torch.isinf(item) if isinstance(item, TracedTensor) else math.isinf(item)
            for item in (base, exponent)
        ]
        is_fine = _any_of(torch.logical_not(torch.isinf(power)), *infinite)
        check(is_fine, "OverflowError", "(34, 'Numerical result out of range')")
    return power


def _any_of(*flags: Any) -> Any:
    """Return a flag that is true if one of the flags, Python or traced bools, is."""
    traced = [flag for flag in flags if isinstance(flag, TracedTensor)]
    if any(flag for flag in flags if not isinstance(flag, TracedTensor)):
        return True
    return reduce(torch.logical_or, traced) if traced else False


_COMPLEX = (
    "a negative number to the power of a fraction is complex in Python, and not computed in a "
    "compiled function"
)


def _is_float(number: Any) -> bool:
    if isinstance(number, TracedTensor):
        return number.dtype.is_floating_point
    return isinstance(number, float)


@cache
def _message(name: str, *, is_float: bool) -> str:
    """Return the message of this Python version's own ZeroDivisionError."""
    one, zero = (1.0, 0.0) if is_float else (1, 0)
    try:
        getattr(operator, name)(*((zero, -one) if name == "pow" else (one, zero)))
    except ZeroDivisionError as error:
        return str(error)
    raise AssertionError(name)


aten = torch.ops.aten

_QUOTIENTS = (aten.div, aten.true_divide)
_OPERATORS = frozenset(
    (
        *(aten.add, aten.sub, aten.rsub, aten.mul, *_QUOTIENTS, aten.pow, aten.remainder),
        *(aten.lt, aten.le, aten.gt, aten.ge, aten.eq, aten.ne, aten.fmod, aten.floor_divide),
        *(aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor),
    )
)
_FILLING = frozenset(
    (aten.copy, aten.fill, aten.masked_fill, aten.index_fill, aten.scatter, aten.full_like)
)
"""Operators that convert a number to the dtype of a tensor."""
_HALF = (torch.float16, torch.bfloat16)


def is_beside_tensor(func: Any, args: Any, kwargs: Any) -> bool:
    """True if the dtype of a result depends on a traced float and on tensors that are not
    numbers."""
    if func.overloadpacket in _FILLING:
        return False
    tensors = tensors_of((args, kwargs))
    return any(_is_traced_float(item) for item in tensors) and not all(map(is_number, tensors))


def is_beside_scalar(func: Any, args: Any) -> bool:
    """True if an operator has two operands, a traced number and a 0-d tensor."""
    if func.overloadpacket not in _OPERATORS or len(args) != 2:
        return False
    scalars = [item for item in args if not is_number(item)]
    return len(scalars) == 1 and isinstance(scalars[0], torch.Tensor) and not scalars[0].dim()


def with_floats(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Convert traced floats among an operator's arguments for promotion: they have 64 bits, but
    count less than any float tensor; without float tensors they get the default dtype."""
    others = list(filter(_is_tensor, tensors_of((args, kwargs))))
    floats = [item for item in others if item.dtype.is_floating_point]
    if any(item.dim() for item in floats):
        return args, kwargs
    dtype = reduce(torch.promote_types, (item.dtype for item in floats)) if floats else None
    dtype = dtype or torch.get_default_dtype()

    def converted(item: Any) -> Any:
        return item.to(dtype) if _is_traced_float(item) and item.dtype != dtype else item

    return mapped(converted, args), {name: mapped(converted, item) for name, item in kwargs.items()}


def is_float_of_ints(func: Any, args: Any, kwargs: Any) -> bool:
    """True if an operator has only numbers as operands, some of them ints, and its result is a
    float."""
    if kwargs or func.overloadpacket not in _OPERATORS:
        return False
    tensors = tensors_of(args)
    if not all(map(is_number, tensors)):
        return False
    is_float = func.overloadpacket in _QUOTIENTS or any(map(_is_float, args))
    return is_float and not all(map(_is_traced_float, tensors))


def as_floats(args: Any) -> Any:
    """Return the operands as Python floats."""
    return tuple(cast_number(x, float) if isinstance(x, TracedTensor) else x for x in args)


def is_inverse(func: Any, args: Any) -> bool:
    """True if a number is divided by a tensor."""
    is_quotient = func.overloadpacket in _QUOTIENTS and len(args) == 2
    return is_quotient and is_number(args[0]) and _is_tensor(args[1])


def by_reciprocal(number: Any, other: Any) -> Any:
    """Return the quotient of a number and a tensor, computed as Python's operator does."""
    return other.reciprocal() * number


def with_number(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the result of an operator on a number and a 0-d tensor; NotImplemented if the dtypes
    need no conversion."""
    place = 0 if is_number(args[0]) else 1
    number, other = args[place], args[1 - place]
    kind = python_kind(DType.from_torch(number.dtype))
    dtype = torch.result_type(torch.empty((), dtype=other.dtype), kind(1))
    if number.dtype == dtype:
        return NotImplemented
    if dtype not in _HALF or func.overloadpacket not in (aten.mul, *_QUOTIENTS):
        return func(*_placed(place, number.to(dtype), other), **kwargs)
    # Half-precision kernels compute products in float32, without rounding the number first.
    wide = _placed(place, number.to(torch.float32), other.to(torch.float32))
    return func(*wide, **kwargs).to(dtype)


def _is_tensor(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and not is_number(item)


def _is_traced_float(item: Any) -> bool:
    return is_number(item) and item.dtype.is_floating_point


def _placed(place: int, number: Any, other: Any) -> tuple[Any, Any]:
    return (number, other) if place == 0 else (other, number)


# ---- Operators on a value that may be an int, a float, or a 0-d tensor.
#
# Most uses do not depend on which of them it is: a product with a float tensor, or a comparison
# with another number. These need no branch on the flags of the value.


_OF_NUMBERS = {*COMPARISONS, "add", "sub", "mul", "neg", "pos", "abs"}
"""Operators that raise for no int and no float."""
_OF_TENSORS = {*COMPARISONS, "add", "sub", "mul", "truediv", "floordiv", "mod", "pow"}
"""Operators whose result with a float tensor does not depend on the kind of a number."""
_FUNCTIONS = {
    "add": "add", "add_": "add", "sub": "sub", "sub_": "sub", "mul": "mul", "mul_": "mul",
    "div": "truediv", "div_": "truediv", "true_divide": "truediv", "pow": "pow", "pow_": "pow",
    "__rsub__": "sub", "__rdiv__": "truediv", "__rpow__": "pow", "__truediv__": "truediv",
    **{name: name for name in COMPARISONS}, "clamp_min": "lt", "clamp_max": "lt",
    **{f"__{prefix}{name}__": name for name in _OF_TENSORS for prefix in ("", "r", "i")},
}  # fmt: skip
"""Functions and methods of torch with two operands, with the equivalent operator."""

Operation = Callable[..., Any]


def of_operator(name: str, operation: Operation, value: Either, others: tuple[Any, ...]) -> Any:
    """Return the result of `operation(value, *others)` without a branch on the value's flags;
    NotImplemented if it needs one.

    `operation` is applied to each number that `value` may be.
    """
    if tracer().data is not None:
        return NotImplemented  # a primitive runs for the kind of number only that the value is of
    pairs = possible(value)
    options = [option for _, option in pairs]
    if len(pairs) < 2 or any(isinstance(option, Either) for option in options):
        return NotImplemented
    if any(isinstance(other, torch.Tensor) and not is_number(other) for other in others):
        merged = _merged(pairs, others[0]) if name in _OF_TENSORS else None
        return NotImplemented if merged is None else operation(merged, *others)
    are_plain = all(number_kind(item) in (int, float) for item in (*options, *others))
    if name not in _OF_NUMBERS or not are_plain:
        return NotImplemented
    return _one_of(pairs, [operation(option, *others) for option in options])


def of_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the same for a torch function with two operands."""
    name = _FUNCTIONS.get(getattr(function, "__name__", ""))
    if name is None or kwargs or len(args) != 2:
        return NotImplemented
    for number, value in enumerate(args):
        if isinstance(value, Either) and first_either(args[1 - number]) is None:
            place = function if number == 0 else lambda option, other: function(other, option)
            return of_operator(name, place, value, (args[1 - number],))
    return NotImplemented


def _merged(pairs: list[tuple[Any, Any]], other: torch.Tensor) -> Any:
    """Return one number or 0-d tensor that can replace every option of a value; None if the dtype
    of the result with `other`, a float tensor, depends on the option."""
    dtype = other.dtype
    if not dtype.is_floating_point:
        return None
    for _, option in pairs:
        if number_kind(option) in (int, float):
            continue
        if not isinstance(option, TracedTensor) or option.dim() or option.dtype == torch.bool:
            return None
        if not other.dim() and torch.promote_types(option.dtype, dtype) != dtype:
            return None
    widest = torch.float64 if dtype == torch.float64 else torch.get_default_dtype()
    for _, option in pairs:
        if isinstance(option, TracedTensor) and option.dtype.is_floating_point:
            widest = torch.promote_types(option.dtype, widest)
    converted = [(flag, _converted(option, widest)) for flag, option in pairs]
    value = converted[-1][1]
    for flag, other in converted[:-1]:
        value = torch.where(flag, other, value)
    return value


def _converted(option: Any, dtype: torch.dtype) -> Any:
    if isinstance(option, TracedTensor):
        return option if option.dtype == dtype else option.to(dtype)
    state = tracer()
    return state.number(state.literal(float(option), DType.from_torch(dtype)))


def _one_of(pairs: list[tuple[Any, Any]], results: list[Any]) -> Any:
    """Return a value that is one of the results. Results of one kind become one number."""
    found = list[tuple[Any, Any]]()
    for (flag, _), result in zip(pairs, results, strict=True):
        same = next((n for n, (_, x) in enumerate(found) if kind_of(x) == kind_of(result)), None)
        if same is None:
            found.append((flag, result))
        else:
            other, value = found[same]
            found[same] = torch.logical_or(flag, other), torch.where(flag, result, value)
    if len(found) == 1:
        return found[0][1]
    return Either(*zip(*found, strict=True))


Hooks.arithmetic, Hooks.arithmetic_of_one = applied, applied_to_one
Hooks.of_operator, Hooks.of_function = of_operator, of_function
