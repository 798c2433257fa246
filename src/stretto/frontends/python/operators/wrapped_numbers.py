"""Traced numbers beside 0-d tensors: the result has the dtype that a number of Python gives.

A traced number is a tensor without dims. Beside a tensor with dims that makes no difference, but in
the promotion of dtypes a 0-d tensor counts as much as another one, and a number less.
"""

from __future__ import annotations

from typing import Any

import torch

from stretto.frontends.python.values.scalars import is_number, python_kind
from stretto.ir.types import DType

aten = torch.ops.aten

_QUOTIENTS = (aten.div, aten.true_divide)
_OPERATORS = frozenset(
    (
        *(aten.add, aten.sub, aten.rsub, aten.mul, *_QUOTIENTS, aten.pow, aten.remainder),
        *(aten.lt, aten.le, aten.gt, aten.ge, aten.eq, aten.ne, aten.fmod, aten.floor_divide),
        *(aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor),
    )
)
_HALF = (torch.float16, torch.bfloat16)


def is_beside_scalar(func: Any, args: Any) -> bool:
    """Whether an operator has two operands, one a traced number and one a 0-d tensor."""
    if func.overloadpacket not in _OPERATORS or len(args) != 2:
        return False
    scalars = [item for item in args if not is_number(item)]
    return len(scalars) == 1 and isinstance(scalars[0], torch.Tensor) and not scalars[0].dim()


def with_number(func: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of such an operator; NotImplemented where the dtypes need no care."""
    place = 0 if is_number(args[0]) else 1
    number, other = args[place], args[1 - place]
    kind = python_kind(DType.from_torch(number.dtype))
    dtype = torch.result_type(torch.empty((), dtype=other.dtype), kind(1))
    if number.dtype == dtype:
        return NotImplemented
    if dtype not in _HALF or func.overloadpacket not in (aten.mul, *_QUOTIENTS):
        return func(*_placed(place, number.to(dtype), other), **kwargs)
    if func.overloadpacket in _QUOTIENTS and place == 0 and not kwargs:
        return other.reciprocal() * number  # as Python's operator does
    # Kernels for half precision compute products in float32, and do not round the number before.
    wide = _placed(place, number.to(torch.float32), other.to(torch.float32))
    return func(*wide, **kwargs).to(dtype)


def _placed(place: int, number: Any, other: Any) -> tuple[Any, Any]:
    return (number, other) if place == 0 else (other, number)
