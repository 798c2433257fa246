"""Objects that are neither part of the state nor immutable, and the native calls that may
change them.

The state consists of variables, containers, and objects whose whole state is in attributes.
Any other object is *foreign*: a NumPy array, a file in memory, a C iterator. The tables
below list the native calls that leave foreign objects unchanged. Any other call counts as a
change, which `LastingChanges` records. A foreign object that outlives the captured function
must not be changed at all, since the program would not repeat the change.
"""

from __future__ import annotations

import array
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import io
import logging
import operator
import pathlib
import re
import sys
import threading
import types
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch

from stretto.frontends.python.guards.reach import ATOMS
from stretto.frontends.python.tracing.locations import package_of
from stretto.frontends.python.tracing.signals import abort, fail
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.state import CONTAINERS, TracedList, is_box, stored_items

_IMMUTABLE = (
    *ATOMS, enum.Enum, BaseException, type, types.ModuleType, types.FunctionType,
    types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType,
    types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.MappingProxyType, types.CodeType,
    types.GenericAlias, types.UnionType, types.NotImplementedType, types.EllipsisType,
    type({}.keys()), type({}.values()), type({}.items()), datetime.date, datetime.time,
    datetime.timedelta, datetime.tzinfo, decimal.Decimal, fractions.Fraction, pathlib.PurePath,
    re.Pattern, re.Match, uuid.UUID, np.generic, np.dtype, np.ufunc, property, staticmethod,
    classmethod, types.CellType, TracedList, inspect.Signature, inspect.Parameter,
    dataclasses.Field,
)  # fmt: skip
"""Classes whose objects never change."""
_ELSEWHERE = (
    logging.Logger,
    logging.Handler,
    logging.LoggerAdapter,
    io.TextIOWrapper,
    threading.Lock().__class__,
)
"""Classes of objects whose changes are side effects of the program."""
_READERS: dict[type, frozenset[str]] = {
    np.ndarray: frozenset(dir(np.ndarray))
    - {
        "__delitem__", "__setitem__", "__setstate__", "byteswap", "fill", "itemset", "partition",
        "put", "resize", "setfield", "setflags", "sort",
        *(name for name in dir(np.ndarray) if name.startswith("__i") and name != "__init__"),
    },
    array.array: frozenset(
        ("buffer_info", "count", "index", "tobytes", "tolist", "tounicode")
    ),
    bytearray: frozenset(dir(bytes)),
    memoryview: frozenset(("hex", "tobytes", "tolist", "toreadonly", "cast")),
    io.StringIO: frozenset(("getvalue", "tell", "readable", "seekable", "writable")),
    io.BytesIO: frozenset(("getvalue", "tell", "readable", "seekable", "writable")),
}  # fmt: skip
"""Methods of foreign classes that change nothing."""
_REMEMBERING = (
    type(functools.lru_cache(len)),
    functools.partial,
    operator.itemgetter,
    operator.attrgetter,
    operator.methodcaller,
)
"""Classes of objects that a call does not change; the contents of a cache can be recomputed."""
_READING = frozenset(
    (
        "__bool__", "__contains__", "__eq__", "__float__", "__format__", "__ge__",
        "__getattribute__", "__getitem__", "__gt__", "__hash__", "__index__", "__int__",
        "__iter__", "__le__", "__len__", "__lt__", "__ne__", "__repr__",
        "__sizeof__", "__str__", "copy", "__copy__", "__deepcopy__", "items", "keys", "values",
    )
)  # fmt: skip
"""Methods that change nothing in any class."""

_CHANGING_BUILTINS = {"setattr", "delattr", "exec", "eval", "next", "anext", "__build_class__"}
_USES_UP = {
    "all", "any", "bytearray", "bytes", "dict", "frozenset", "list", "max", "min", "set", "sorted",
    "sum", "tuple",
}  # fmt: skip
"""Built-in functions that consume an iterator. The others only read objects."""
_PURE_MODULES = frozenset(
    (
        "_abc", "_functools", "_operator", "_statistics", "_warnings", "abc", "builtins", "cmath",
        "contextlib", "copy", "dataclasses", "enum", "fractions", "functools", "inspect", "json",
        "json.encoder", "logging", "math", "numbers", "operator", "pprint", "re", "reprlib",
        "statistics", "string", "textwrap", "types", "typing", "warnings",
    )
)  # fmt: skip
"""Modules whose functions do not change their arguments, except iterators."""
_NUMPY_WRITES = frozenset(
    (
        "at", "copyto", "fill_diagonal", "nditer", "place", "put", "put_along_axis", "putmask",
        "require_in_place", "seed", "shuffle",
    )
)  # fmt: skip
"""NumPy functions that write into an argument."""


def is_foreign(value: object) -> bool:
    """True for an object that may change and that no snapshot holds."""
    kind = type(value)
    known = _known_class(kind)
    return not is_box(value) if known is None else known


@cache
def _known_class(kind: type) -> bool | None:
    """False for classes of objects that are immutable or tracked by the capture; None if the
    object itself decides."""
    if issubclass(kind, (*_IMMUTABLE, *_ELSEWHERE, torch.Tensor, torch.nn.Module)):
        return False
    if issubclass(kind, CONTAINERS):
        return False
    if package_of(kind) == "torch" or _is_ours(kind):
        return False
    return None


def _is_ours(kind: type) -> bool:
    """True for a class of this package. Classes that C code creates at run time also name it as
    their module."""
    if package_of(kind) != "stretto":
        return False
    return any(item is kind for item in vars(sys.modules[kind.__module__]).values())


def note_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record the foreign objects that a native call may change."""
    name = getattr(function, "__name__", type(function).__name__)
    for target in _changed_by(function, name, args, kwargs):
        note_change(target, f"'{name}'")


def note_change(target: Any, what: str) -> None:
    """Record that a foreign object may be changed. Raises Abort if it outlives the call.

    what: the source of the change, for the error.
    """
    state = tracer()
    if any(_share_memory(target, reference()) for reference, _ in state.arrays):
        fail(
            f"{what} may change an array whose memory a tensor shares",
            "make the tensor of a copy of the array",
        )
    kind = type(target).__name__
    stop = abort(
        f"{what} may change an object of class {kind}, which is not known to the capture",
        "keep the state in tensors, numbers, lists, dicts or objects with attributes, or compile "
        "with fallback=True",
    )
    for item in state.lasting.origins(target):
        if state.heap.knows(item):
            raise stop
        state.lasting.note_change(item, stop)


def _share_memory(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.may_share_memory(one, other)
    return one is other


def note_use(iterable: Any) -> None:
    """Record that the items of an iterator are consumed."""
    if isinstance(iterable, Iterator) and is_foreign(iterable):
        note_change(iterable, "iterating over it")


def note_made(made: Any, function: Any, args: Iterable[Any]) -> None:
    """Record the foreign objects that a native call has returned. They may refer to its
    arguments."""
    for item in stored_items(made) if isinstance(made, tuple | list) else (made,):
        is_fixed = isinstance(item, np.ndarray) and not item.flags.writeable
        if is_foreign(item) and not is_fixed:
            sources = [
                x for x in _flat((getattr(function, "__self__", None), *args)) if is_foreign(x)
            ]
            tracer().lasting.note_made(item, sources)


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    """Yield values, and those in tuples and lists."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _flat(stored_items(value))
        else:
            yield value


def _changed_by(
    function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Any]:
    owner = getattr(function, "__self__", None)
    if args and getattr(type(args[0]), name, None) is function:  # an unbound method
        owner, args = args[0], args[1:]
    if owner is not None and is_foreign(owner) and not _reads(owner, name):
        yield owner
    if is_foreign(function) and not isinstance(function, _REMEMBERING):
        yield function
    rest = [item for item in _flat((*args, *kwargs.values())) if is_foreign(item)]
    if not rest:
        return
    may_change = _argument_rule(function, name, kwargs)
    yield from (item for item in rest if may_change(item))


def _reads(owner: Any, name: str) -> bool:
    """True for a method of a foreign object that does not change it."""
    if name in _READING or (name == "get" and isinstance(owner, Mapping)):
        return True
    return any(name in names for kind, names in _READERS.items() if isinstance(owner, kind))


def _argument_rule(function: Any, name: str, kwargs: dict[str, Any]) -> Callable[[Any], bool]:
    """Return a predicate for the foreign arguments that a function may change."""
    owner = getattr(function, "__self__", None)
    kind = type(function) if owner is None or isinstance(owner, types.ModuleType) else type(owner)
    module: Any = getattr(function, "__module__", None) or kind.__module__
    module = module if isinstance(module, str) else ""
    package = module.split(".")[0]
    if package == "numpy":
        written = kwargs.get("out")
        if name in _NUMPY_WRITES:
            return lambda item: True
        return lambda item: item is written or isinstance(item, Iterator)
    if module == "builtins":
        if name in _CHANGING_BUILTINS:
            return lambda item: True
        if name in _USES_UP or (owner is not None and not isinstance(owner, types.ModuleType)):
            return lambda item: isinstance(item, Iterator)
        return lambda item: False
    if package in ("torch", "stretto") or module in _PURE_MODULES or package == "itertools":
        return lambda item: isinstance(item, Iterator) and package != "itertools"
    return lambda item: True
