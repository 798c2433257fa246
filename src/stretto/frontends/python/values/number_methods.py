"""Attributes of Python numbers that tensors lack, for traced numbers; and the user's special
methods.

Attributes that a run can compute are computed; for all others the value has to be known
during the capture.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from stretto.frontends.python.source.definitions import is_user_function
from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.tensor import OF_GRADIENTS, Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.scalars import (
    cast_number,
    concrete,
    is_number,
    number_kind,
    number_of,
    python_kind,
)
from stretto.ir.types import DType

_BITS = 63
_LEAST = -(1 << _BITS)


def attribute(number: TracedTensor, name: str) -> Any:
    """Return `number.name`. Raises AttributeError if numbers of its type have no such attribute."""
    check_attribute(number, name)
    if name in _VALUES:
        return _VALUES[name](number)
    if name in _METHODS:
        return lambda *args: _METHODS[name](number, *args)
    return getattr(concrete(number, kind_of_number(number).__name__), name)


def is_of_operator(function: Any, args: tuple[Any, ...]) -> bool:
    """True for a method of numbers that an operator calls, such as `n.__add__` or `int.__add__`.
    False for objects of derived classes: they may have a method of the same name, which calls
    this one."""
    if _name(function) not in _OPERATORS:
        return False
    owner = getattr(function, "__self__", None)
    if owner is None:
        is_known = getattr(function, "__objclass__", None) in (bool, int, float) and bool(args)
        return is_known and (is_number(args[0]) or type(args[0]) in _PLAIN)
    return is_number(owner) or type(owner) in (*_PLAIN, *_BESIDE_NUMBERS)


def of_operator(function: Any, args: tuple[Any, ...]) -> Any:
    """Call such a method. Returns NotImplemented if it does not support the other type."""
    owner = getattr(function, "__self__", None)
    values = args if owner is None else (owner, *args)
    name = _name(function)
    if type(owner) in _BESIDE_NUMBERS:
        is_known = not any(map(is_number, args))
        return function(*args) if is_known else Hooks.call(_OPERATORS[name], *values)
    kind: Any = function.__objclass__ if owner is None else _kind(owner)
    if not hasattr(kind, name):
        raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")
    if len(values) != 2:
        return Hooks.call(getattr(kind, name), *values)
    first, second = values
    other = _kind(second)
    if other is None or (other is float and kind is not float):
        return NotImplemented
    if name.startswith("__r") and name not in _NOT_REFLECTED:
        first, second = second, first
    return Hooks.call(_OPERATORS[name], first, second)


def _name(function: Any) -> str:
    """Return the name of a method: for methods of sizes, the name of the operator that
    calls them."""
    of_size = _OF_SIZES.get(getattr(function, "__func__", None))
    return getattr(function, "__name__", "") if of_size is None else of_size


def _kind(value: Any) -> type | None:
    """Return the type of a Python number, a traced number or a size; None for anything else."""
    return number_kind(value) or _KINDS_OF_SIZES.get(type(value))


_KINDS_OF_SIZES = {torch.SymBool: bool, torch.SymFloat: float, torch.SymInt: int}
_PLAIN = (bool, int, float, *_KINDS_OF_SIZES)
_BESIDE_NUMBERS = (complex, np.ndarray)
_NOT_REFLECTED = ("__rshift__",)
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    f"__{prefix}{name}__": getattr(operator, f"__{name}__")
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
    for prefix in ("", "r")
} | {f"__{name}__": getattr(operator, name) for name in ("lt", "le", "eq", "ne", "gt", "ge")}
_OPERATORS["__divmod__"] = _OPERATORS["__rdivmod__"] = divmod
_OF_SIZES = {
    vars(kind)[name]: name for kind in _KINDS_OF_SIZES for name in _OPERATORS if name in vars(kind)
}


def check_attribute(number: TracedTensor, name: str) -> None:
    """Raise AttributeError if numbers of this type have no attribute of this name."""
    kind = kind_of_number(number)
    if not hasattr(kind, name):
        raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")


def tensor_attribute(holder: Any, name: str) -> Any:
    """Return `holder.name`, for an attribute of tensors."""
    if isinstance(holder, TracedTensor):
        if holder.number is not None:
            check_attribute(holder, name)
        elif name in OF_GRADIENTS:
            tracer().gradients.ask()
    return getattr(holder, name)


def kind_of_number(number: TracedTensor) -> type:
    """Return the Python type of a traced number."""
    return python_kind(DType.from_torch(number.dtype))


def _imaginary(number: Any) -> Any:
    return 0.0 if number.dtype.is_floating_point else 0


def _itself(number: Any) -> Any:
    """Return the number, with a bool converted to an int."""
    return cast_number(number, int) if number.dtype == torch.bool else number


def _is_integer(number: Any) -> Any:
    if not number.dtype.is_floating_point:
        return True
    return number % 1.0 == 0.0


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


# ---- Special methods that the user has written in Python.


def _entry(kind: type, name: str) -> Any:
    """Return the attribute of a class or its bases for a special method; UNDEFINED if there is
    none."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), UNDEFINED)


def own_method(holder: Any, name: str) -> Any:
    """Return the special method of an object, bound to it; None if it is not the user's."""
    kind = type(holder)
    entry = _entry(kind, name)
    if entry is UNDEFINED or not _is_written(entry):
        return None
    return entry.__get__(holder, kind) if hasattr(entry, "__get__") else entry


def _is_written(entry: Any) -> bool:
    while isinstance(entry, staticmethod | classmethod | MethodType | partial):
        entry = entry.func if isinstance(entry, partial) else entry.__func__  # pyright: ignore[reportUnknownMemberType]
    if not isinstance(entry, FunctionType):
        return isinstance(_entry(type(entry), "__get__"), FunctionType)
    return is_user_function(inspect.unwrap(entry))
