"""What Python's numbers raise, and tensors do not: a division by zero, an int to a negative power.

Traced numbers are tensors without dims. Their operators come here first.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.scalars import cast_number, is_number

_OPERATORS = {
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
}


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
        _OPERATORS[name](*((zero, -one) if name == "pow" else (one, zero)))
    except ZeroDivisionError as error:
        return str(error)
    raise AssertionError(name)
