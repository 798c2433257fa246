"""Binding of arguments to the parameters of a function, as Python does it."""

from __future__ import annotations

import inspect
import types
from typing import Any

from stretto.frontends.python.interpreter.heap import PythonHeap


def bound(
    heap: PythonHeap, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the values of the parameters by name. Raises the TypeError that Python raises."""
    code = function.__code__
    names, count = code.co_varnames, code.co_argcount
    last = count + code.co_kwonlyargcount
    takes_more = bool(code.co_flags & inspect.CO_VARARGS)
    found = dict(zip(names[:count], args, strict=False))
    if len(args) > count and not takes_more:
        raise _error(function, args, kwargs)
    more: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name in names[code.co_posonlyargcount : last] and name not in found:
            found[name] = value
        else:
            more[name] = value
    if more and not code.co_flags & inspect.CO_VARKEYWORDS:
        raise _error(function, args, kwargs)
    if any(name in names[code.co_posonlyargcount : last] for name in more):
        raise _error(function, args, kwargs)  # given twice
    if len(found) < last:
        _fill_defaults(heap, function, found, names, count, last)
        if len(found) < last:
            raise _error(function, args, kwargs)
    if takes_more:
        found[names[last]] = tuple(args[count:])
    if code.co_flags & inspect.CO_VARKEYWORDS:
        found[names[last + takes_more]] = heap.new(dict, more)
    return found


def _fill_defaults(
    heap: PythonHeap,
    function: types.FunctionType,
    found: dict[str, Any],
    names: tuple[str, ...],
    count: int,
    last: int,
) -> None:
    defaults, named = function.__defaults__ or (), function.__kwdefaults__ or {}
    values = dict(zip(names[count - len(defaults) : count], defaults, strict=True))
    values |= {name: named[name] for name in names[count:last] if name in named}
    for name, value in values.items():
        if name not in found:
            found[name] = value if heap.is_own(function) else heap.adopt(value)


def _error(
    function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Exception:
    """Return the error that Python raises for these arguments, which do not fit."""
    try:
        function(*args, **kwargs)
    except TypeError as error:
        return error.with_traceback(None)
    raise AssertionError(f"the arguments of {function.__qualname__} fit")
