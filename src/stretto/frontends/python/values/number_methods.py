"""Attributes that Python's numbers have and tensors lack, for traced numbers.

What can be computed in the run is; for all others the value has to be known while the function is
captured.
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

from stretto.frontends.python.source.redirected import RESULTS, is_rewritten
from stretto.frontends.python.source.rewrite import is_user_function
from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import OF_GRADIENTS, Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import active, tracer
from stretto.frontends.python.values.either import check_truth
from stretto.frontends.python.values.raises import check
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
    """The value of `number.name`. Raises AttributeError where numbers of its type have no such
    attribute."""
    check_attribute(number, name)
    if name in _VALUES:
        return _VALUES[name](number)
    if name in _METHODS:
        return lambda *args: _METHODS[name](number, *args)
    return getattr(concrete(number, kind_of_number(number).__name__), name)


def is_of_operator(function: Any, args: tuple[Any, ...]) -> bool:
    """Returns True for a method of numbers that an operator calls, as `n.__add__` and
    `int.__add__`; not for one of an object whose class is derived from that of numbers: it may have
    a method of the same name, which calls this one."""
    if _name(function) not in _OPERATORS:
        return False
    owner = getattr(function, "__self__", None)
    if owner is None:
        is_known = getattr(function, "__objclass__", None) in (bool, int, float) and bool(args)
        return is_known and (is_number(args[0]) or type(args[0]) in _PLAIN)
    return is_number(owner) or type(owner) in (*_PLAIN, *_BESIDE_NUMBERS)


def of_operator(function: Any, args: tuple[Any, ...]) -> Any:
    """Calls such a method. It returns NotImplemented if it does not know the other type."""
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
    """The name of a method. Those of sizes that operators call have another one."""
    of_size = _OF_SIZES.get(getattr(function, "__func__", None))
    return getattr(function, "__name__", "") if of_size is None else of_size


def _kind(value: Any) -> type | None:
    """The type of a number of Python, of a traced one and of a size."""
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


# ---- Special methods that the user has written in Python.
#
# Where the interpreter calls one of them and takes its result as it comes, nothing is to be done:
# its calls are redirected. Where the interpreter takes a bool or an int only, the tracer calls
# the method itself, since the result may be traced.


def _entry(kind: type, name: str) -> Any:
    """What a class and its bases have under the name of a special method."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), UNDEFINED)


def own_method(holder: Any, name: str) -> Any:
    """The special method of an object, bound to it; None where it is not the user's."""
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
    return is_rewritten(entry) or is_user_function(inspect.unwrap(entry))


def tested(value: Any) -> Any:
    """A value whose truth is that of `value`: what its own method says, if there is one."""
    check_truth(value)
    if active() is None or type(value) in _WITHOUT_METHODS:
        return value
    method = own_method(value, "__bool__")
    if method is not None:
        result = Hooks.call(method)
        if not isinstance(result, bool) and not (is_number(result) and _is_flag(result)):
            name = type(result).__name__
            raise TypeError(f"__bool__ should return bool, returned {name}")
        return result
    return value if own_method(value, "__len__") is None else own_length(value) != 0


_WITHOUT_METHODS = frozenset((bool, int, float, type(None), TracedTensor, list, dict, tuple, str))


def _is_flag(number: TracedTensor) -> bool:
    return number.dtype.itemsize == 1


def returned(name: str, result: Any) -> Any:
    """What a method called `name` gives the interpreter, which called it."""
    kind = RESULTS.get(name)
    if kind in (bool, int, float) and isinstance(result, TracedTensor):
        return kind(result)
    if kind is not None and type(result).__module__.startswith("stretto."):
        fail(
            f"'{name}' gives a value that the run decides where Python needs one of class "
            f"{kind.__name__}",
            "call a method of another name",
        )
    return result


def own_length(holder: Any) -> Any:
    """What `__len__` of the user says."""
    length = Hooks.call(own_method(holder, "__len__"))
    if isinstance(length, TracedTensor):
        check(length >= 0, "ValueError", "__len__() should return >= 0")
        return length
    return len(_OfLength(length))


class _OfLength:
    """Has the interpreter check a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


Hooks.returned = returned
