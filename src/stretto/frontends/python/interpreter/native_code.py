"""Tables of native code of which it is known what it changes.

A native function is called during a capture, once, with copies of the program's containers. That is
right if it depends on its arguments alone and acts on nothing but them. Functions that are not
in these tables are refused.
"""

from __future__ import annotations

import array
import builtins
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import io
import pathlib
import re
import string
import sys
import types
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import TreeSpec

from stretto.frontends.python.tracing.locations import is_user_file, package_of

PLAIN = (
    type(None), bool, int, float, complex, str, bytes, range, slice, torch.Tensor, torch.dtype,
    torch.device, torch.SymInt, torch.SymFloat, torch.SymBool, torch.layout, torch.memory_format,
    torch.Size, types.EllipsisType, types.NotImplementedType,
)  # fmt: skip
"""Classes of values without content that a program can change, except the memory of tensors."""
_IMMUTABLE = (
    *PLAIN, frozenset, enum.Enum, types.ModuleType, types.BuiltinFunctionType,
    types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.CodeType, types.GenericAlias, types.UnionType, datetime.date,
    datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal, fractions.Fraction,
    pathlib.PurePath, re.Pattern, re.Match, uuid.UUID, np.generic, np.dtype, np.ufunc,
    inspect.Signature, inspect.Parameter, dataclasses.Field, weakref.ReferenceType,
)  # fmt: skip
"""Classes whose objects never change."""
_MADE = (
    io.StringIO, io.BytesIO, io.TextIOWrapper, array.array, bytearray, memoryview, np.ndarray,
    string.Template, type(np.random),
)  # fmt: skip
"""Other classes of native objects that a program may make, and change before it ends."""
_GUARDS: tuple[type, ...] = tuple(
    kind
    for name, kind in vars(torch._C).items()  # pyright: ignore[reportPrivateUsage]
    if isinstance(kind, type) and ("Guard" in name or "Disable" in name or "AutoDispatch" in name)
)
"""Classes whose objects change how torch calls operators as long as they live."""
_REFUSED = (weakref.ReferenceType, np.nditer, *_GUARDS)
"""Classes of which no object is made: it would refer to a copy that nobody else has, or moves."""
_COPYING = (
    np.ndarray, array.array, bytearray, string.Template, io.StringIO, io.BytesIO, TreeSpec,
)  # fmt: skip
"""Those that copy what they are made of, or that nobody asks for it."""
_READERS: dict[type, frozenset[str]] = {
    np.ndarray: frozenset(dir(np.ndarray))
    - {
        "__delitem__", "__setitem__", "__setstate__", "byteswap", "fill", "itemset", "partition",
        "put", "resize", "setfield", "setflags", "sort",
        *(name for name in dir(np.ndarray) if name.startswith("__i") and name != "__init__"),
    },
    array.array: frozenset(("buffer_info", "count", "index", "tobytes", "tolist", "tounicode")),
    bytearray: frozenset(dir(bytes)),
    memoryview: frozenset(("hex", "tobytes", "tolist", "toreadonly", "cast")),
    io.StringIO: frozenset(("getvalue", "tell", "readable", "seekable", "writable")),
    io.BytesIO: frozenset(("getvalue", "tell", "readable", "seekable", "writable")),
    types.MappingProxyType: frozenset(("get", "items", "keys", "values", "copy")),
}  # fmt: skip
"""Methods of such classes that change nothing."""
_READING = frozenset(
    (
        "__bool__", "__contains__", "__eq__", "__float__", "__format__", "__ge__",
        "__getattribute__", "__getitem__", "__gt__", "__hash__", "__index__", "__int__",
        "__le__", "__len__", "__lt__", "__ne__", "__repr__", "__sizeof__", "__str__",
    )
)  # fmt: skip
"""Methods that change nothing in any class."""
_PURE_BUILTINS = frozenset(
    getattr(builtins, name)
    for name in (
        "abs", "ascii", "bin", "callable", "chr", "compile", "divmod", "eval", "exec", "format",
        "dir", "hash", "hex", "oct", "open", "ord", "pow", "round", "sum", "min", "max", "sorted",
    )
)  # fmt: skip
"""Built-in functions. `special` says which files may be opened and which texts executed."""
_PURE = frozenset(
    (
        "math", "cmath", "_operator", "_bisect", "_heapq", "_struct", "_statistics", "_json",
        "binascii", "zlib", "_codecs", "unicodedata", "_string", "_sre", "_datetime", "_decimal",
    )
)  # fmt: skip
"""Modules in C whose functions depend on their arguments alone and change nothing else."""
_PURE_IN_PYTHON = frozenset(
    (
        "re", "re._compiler", "re._parser", "enum", "typing", "inspect", "string", "textwrap",
        "fractions", "decimal", "_pydecimal", "statistics", "numbers", "datetime", "pprint",
        "json", "json.encoder", "json.decoder", "struct", "base64", "uuid", "abc", "_weakrefset",
        "reprlib", "copy", "copyreg", "threading", "pathlib", "posixpath", "genericpath",
        "importlib", "warnings", "logging",
    )
)  # fmt: skip
"""Modules in Python of which the same is true, but for caches that nobody sees. What they print is
recorded."""
_OF_TORCH = tuple(
    f"torch.{name}"
    for name in (
        "functional", "nn.functional", "nn.init", "nn.parameter", "nn.utils.rnn", "_tensor",
        "_ops", "overrides", "autograd", "amp", "cuda", "cpu", "backends", "utils._contextlib",
        "utils._pytree", "utils._cxx_pytree", "utils._python_dispatch", "_jit_internal", "jit",
        "_library", "library", "_higher_order_ops", "ao", "_refs", "_prims", "_prims_common",
        "_decomp", "masked", "sparse", "nested", "quantization", "storage", "_storage_docs",
        "types", "_VF", "_lowrank", "_linalg_utils", "_torch_docs", "linalg", "fft", "special",
        "compiler", "_compile", "_dynamo", "profiler", "_C", "export", "_functorch",
        "_vmap_internals", "func",
    )
)  # fmt: skip
"""Modules of torch whose functions do not act, but for the operators that they call and the
contexts that they enter. Functions of the others are interpreted."""
_OF_THE_SYSTEM = frozenset(("fspath", "intern", "import_module", "_get_sm_version", "get_ident"))
"""Functions of `os`, `sys` and others that neither act nor read what may change."""
_WRITES = frozenset(
    (
        "at", "copyto", "fill_diagonal", "nditer", "place", "put", "put_along_axis", "putmask",
        "require_in_place", "seed", "shuffle", "pack_into", "readinto", "readinto1", "insort_left",
        "insort_right",
    )
)  # fmt: skip
"""Native functions that write into an argument."""

RECORDS = frozenset([("torch._dynamo.mutation_guard", "GenerationTracker.tag")])
"""Functions, by module and name, that only note for torch.compile that an object was made."""


def is_immutable(value: Any) -> bool:
    """True for a value that never changes. Classes count as such if calling one runs no function
    of the user."""
    if isinstance(value, type):
        return not any(
            isinstance(maker, types.FunctionType) and is_user_file(maker.__code__.co_filename)
            for maker in (value.__new__, value.__init__, type(value).__call__)
        )
    return isinstance(value, _IMMUTABLE)


def is_of_torch(value: Any) -> bool:
    """True for an object of a class of torch whose state is not the program's: no module."""
    kind = type(value)
    return package_of(kind) == "torch" and not isinstance(value, torch.nn.Module)


def is_of_this_package(value: Any) -> bool:
    """True for an object by which the capture represents a value."""
    return package_of(type(value)) == "stretto"


def is_of_user(kind: type) -> bool:
    """True for a class of the user, or of a library whose functions are interpreted."""
    package = package_of(kind)
    return package not in sys.stdlib_module_names and package not in ("torch", "numpy", "stretto")


def is_function_of_torch(function: Any) -> bool:
    """True for a function of torch that may be asked for other classes than tensors."""
    module = getattr(function, "__module__", None) or getattr(
        getattr(function, "__self__", None), "__module__", ""
    )
    return (
        callable(function)
        and str(module).split(".")[0] == "torch"
        and not isinstance(function, type | torch.nn.Module)
    )


def is_known(function: Any, owner: Any) -> bool:
    """True if a native function, or the class `function`, may be called. owner: the object of a
    method."""
    if isinstance(function, type):
        return is_immutable(function) and _is_known_class(function) and function not in _REFUSED
    if owner is not None:
        kind = owner if isinstance(owner, type) else type(owner)
        return _is_known_class(kind) or isinstance(owner, Iterator)
    if isinstance(function, types.MethodDescriptorType | types.WrapperDescriptorType):
        return issubclass(function.__objclass__, _IMMUTABLE)
    module = getattr(function, "__module__", None) or ""
    package = module.split(".")[0]
    if isinstance(function, types.FunctionType):
        if package == "torch":
            return module == package or module.startswith(_OF_TORCH)
        return package in ("stretto", "numpy") or module in _PURE_IN_PYTHON
    if module == "builtins" or function is open:
        return function in _PURE_BUILTINS
    if package in ("torch", "numpy") or type(function).__module__.startswith(("torch", "numpy")):
        return True
    return module in _PURE or getattr(function, "__name__", "") in _OF_THE_SYSTEM


def _is_known_class(kind: type) -> bool:
    if issubclass(kind, (*_IMMUTABLE, *_MADE, *_READERS, functools.partial)):
        return True
    if kind.__module__ in _PURE_IN_PYTHON or kind is types.BuiltinFunctionType:
        return True
    return package_of(kind) in ("torch", "stretto", "numpy")


_FINITE = (
    *(type(iter(made)) for made in ((), [], {}, set(), "", b"", {}.values(), {}.items())),
    type(re.finditer("", "")),
)
"""Classes of iterators over known items, which nothing else sees."""


def is_over_known_items(value: Any) -> bool:
    return isinstance(value, _FINITE)


def takes_copies(made: Any) -> bool:
    """True for a value that refers to no container that it was made of."""
    if isinstance(made, (*_COPYING, list, dict, set, tuple, collections.deque)):
        return True
    if isinstance(made, types.FunctionType | types.MethodType | torch.nn.Module | Exception):
        return True
    return is_immutable(made) or is_over_known_items(made) or is_of_this_package(made)


def is_of_a_context(owner: Any) -> bool:
    """True for a context of torch or of threads, which acts while it is entered."""
    return hasattr(owner, "__enter__") and package_of(type(owner)) in ("torch", "_thread")


def reads_only(owner: Any, name: str) -> bool:
    """True for a method of a native object that does not change it."""
    if is_immutable(owner) or isinstance(owner, torch.Tensor) or is_of_this_package(owner):
        return True
    if name in _READING or is_of_torch(owner):
        return True
    return any(name in names for kind, names in _READERS.items() if isinstance(owner, kind))


def may_write(function: Any, name: str, item: Any, written: Any) -> bool:
    """True if a function may change a native object among its arguments."""
    return name in _WRITES or item is written or isinstance(item, Iterator)


def restorer(value: Any) -> Callable[[], None] | None:
    """Return a function that gives a native object the content that it has now; None if that is
    not known."""
    match value:
        case np.ndarray():
            shape, numbers = value.shape, value.copy()

            def restore() -> None:
                if value.shape != shape:
                    value.resize(shape, refcheck=False)
                value[...] = numbers

            return restore
        case bytearray() | array.array():
            held: Any = value
            items = held[:]
            return lambda: held.__setitem__(slice(None), items)
        case io.StringIO() | io.BytesIO() if not value.closed:
            content, place = value.getvalue(), value.tell()

            def rewrite() -> None:
                value.seek(0)
                value.truncate()
                value.write(content)  # type: ignore[arg-type]
                value.seek(place)

            return rewrite
        case np.random.Generator():
            state = value.bit_generator.state
            return lambda: setattr(value.bit_generator, "state", state)
        case np.random.BitGenerator():
            state = value.state
            return lambda: setattr(value, "state", state)
        case np.random.RandomState():
            legacy = value.get_state()
            return lambda: value.set_state(legacy)
        case memoryview():  # it has no content of its own
            return lambda: None
        case _:
            return None
