"""Entries of dicts that the run may lack: those that one arm of a traced branch has added.

Such an entry is a value that is one of several, among them UNDEFINED. What looks at a single entry,
or passes it on as a keyword argument, finds a default in the place of that.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from stretto.frontends.python.control import branches
from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.values.either import Either, lacks_entries, may_be_missing


def with_defaults(function: types.FunctionType, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a call `function(**entries)`, with the defaults of parameters in the
    place of entries that are missing."""
    missing = [name for name, item in kwargs.items() if may_be_missing(item)]
    if not missing:
        return kwargs
    parameters = inspect.signature(function, follow_wrapped=False).parameters
    made = dict(kwargs)
    for name in missing:
        default = parameters[name].default if name in parameters else inspect.Parameter.empty
        if default is not inspect.Parameter.empty:
            made[name] = _with_default(made[name], default)
    return made


def method(function: Any, args: tuple[Any, ...]) -> Any:
    """The result of a dict's method that looks at one entry, where some may be missing; else
    NotImplemented."""
    owner: Any = getattr(function, "__self__", None)
    if not lacks_entries(owner) or function.__name__ not in _METHODS or not args:
        return NotImplemented
    if isinstance(args[0], Either | torch.Tensor):
        return NotImplemented
    if may_be_missing(dict.get(owner, args[0])):
        return _METHODS[function.__name__](owner, *args)
    return function(*args)


def _with_default(entry: Either, default: Any) -> Any:
    options = [default if x is UNDEFINED else x for x in entry.stretto_options]
    return branches.merged(entry.stretto_flags, options)


def _get(owner: dict[Any, Any], key: Any, default: Any = None) -> Any:
    return _with_default(owner[key], default)


def _pop(owner: dict[Any, Any], key: Any, *default: Any) -> Any:
    entry = owner.pop(key)
    return _with_default(entry, *default) if default else entry


def _set_default(owner: dict[Any, Any], key: Any, default: Any = None) -> Any:
    owner[key] = _with_default(owner[key], default)
    return owner[key]


_METHODS: dict[str, Callable[..., Any]] = {
    "get": _get,
    "pop": _pop,
    "setdefault": _set_default,
}
