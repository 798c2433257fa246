"""Special methods that the user has written in Python.

Where the interpreter calls one of them and takes its result as it comes, nothing is to be done: its
calls are redirected. Where the interpreter takes a bool or an int only, the tracer calls the method
itself, since the result may be traced.
"""

from __future__ import annotations

import inspect
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from stretto.frontends.python.source.redirected import RESULTS, is_rewritten
from stretto.frontends.python.source.rewrite import is_user_function
from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import active
from stretto.frontends.python.values.either import check_truth
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.scalars import is_number


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
