"""What Python's numbers do that tensors without dims, as which they are traced, do not.

They raise: a division by zero, an int to a negative power. And beside a 0-d tensor they count less
in the promotion of dtypes; beside a tensor with dims both count the same.
"""

from __future__ import annotations

import operator
from functools import cache, reduce
from typing import Any

import torch

from stretto.frontends.python.tracing.fakes import mapped, tensors_of
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.scalars import cast_number, is_number, python_kind
from stretto.ir.types import DType


def operands(name: str, first: Any, second: Any) -> tuple[Any, Any]:
    """The operands of a Python operator, of which one is a traced number, after their checks."""
    if not all(is_number(item) or isinstance(item, bool | int | float) for item in (first, second)):
        return first, second
    if name == "pow":
        return _power(first, second)
    message = _message(name, _is_float(first) or _is_float(second))
    if not isinstance(second, TracedTensor):
        if not second:
            raise ZeroDivisionError(message)
    else:
        check(second != 0, "ZeroDivisionError", message)
    return first, second


def _power(base: Any, exponent: Any) -> tuple[Any, Any]:
    if not isinstance(exponent, TracedTensor) and exponent >= 0:
        return base, exponent
    if _is_float(base) or _is_float(exponent):
        if isinstance(base, TracedTensor) or base == 0:
            is_fine = (exponent >= 0) | (base != 0)
            check(is_fine, "ZeroDivisionError", _message("pow", True))
        return base, exponent
    if isinstance(exponent, TracedTensor):
        check(
            exponent >= 0,
            "RuntimeError",
            "an int to the power of a negative int is a float in Python, and an int in a compiled "
            "function: call float() on the base",
        )
        return base, exponent
    return operands("pow", cast_number(base, float), exponent)


def _is_float(number: Any) -> bool:
    if isinstance(number, TracedTensor):
        return number.dtype.is_floating_point
    return isinstance(number, float)


@cache
def _message(name: str, is_float: bool) -> str:
    """The text of this Python's own error."""
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
    """Whether the dtype of a result depends on a traced number, a float, and on tensors that are
    none."""
    if func.overloadpacket in _FILLING:
        return False
    tensors = tensors_of((args, kwargs))
    return any(_is_traced_float(item) for item in tensors) and not all(map(is_number, tensors))


def is_beside_scalar(func: Any, args: Any) -> bool:
    """Whether an operator has two operands, one a traced number and one a 0-d tensor."""
    if func.overloadpacket not in _OPERATORS or len(args) != 2:
        return False
    scalars = [item for item in args if not is_number(item)]
    return len(scalars) == 1 and isinstance(scalars[0], torch.Tensor) and not scalars[0].dim()


def with_floats(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of an operator with floats of Python beside tensors, where a float has 64 bits
    but counts less than any tensor of floats, and beside other tensors is of the default dtype."""
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
    """Whether an operator has numbers alone, some of them ints, and its result is a float."""
    tensors = tensors_of(args)
    if kwargs or func.overloadpacket not in _OPERATORS or not all(map(is_number, tensors)):
        return False
    is_float = func.overloadpacket in _QUOTIENTS or any(map(_is_float, args))
    return is_float and not all(map(_is_traced_float, tensors))


def as_floats(args: Any) -> Any:
    """The operands as floats of Python."""
    return tuple(cast_number(x, float) if isinstance(x, TracedTensor) else x for x in args)


def is_inverse(func: Any, args: Any) -> bool:
    """Whether a number is divided by a tensor."""
    is_quotient = func.overloadpacket in _QUOTIENTS and len(args) == 2
    return is_quotient and is_number(args[0]) and _is_tensor(args[1])


def by_reciprocal(number: Any, other: Any) -> Any:
    """The quotient of a number and a tensor, as Python's operator computes it."""
    return other.reciprocal() * number


def with_number(func: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of an operator with a number and a 0-d tensor; NotImplemented where the dtypes
    need no care."""
    place = 0 if is_number(args[0]) else 1
    number, other = args[place], args[1 - place]
    kind = python_kind(DType.from_torch(number.dtype))
    dtype = torch.result_type(torch.empty((), dtype=other.dtype), kind(1))
    if number.dtype == dtype:
        return NotImplemented
    if dtype not in _HALF or func.overloadpacket not in (aten.mul, *_QUOTIENTS):
        return func(*_placed(place, number.to(dtype), other), **kwargs)
    # Kernels for half precision compute products in float32, and do not round the number before.
    wide = _placed(place, number.to(torch.float32), other.to(torch.float32))
    return func(*wide, **kwargs).to(dtype)


def _is_tensor(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and not is_number(item)


def _is_traced_float(item: Any) -> bool:
    return is_number(item) and item.dtype.is_floating_point


def _placed(place: int, number: Any, other: Any) -> tuple[Any, Any]:
    return (number, other) if place == 0 else (other, number)
