"""What a program has done: what its calls returned or raised, and the state that they left behind.

An observation is plain data that shares no memory with the program: tensors are copies, objects are
`Thing`s. Two runs of one program can then be compared part by part (`compare.py`).
"""

from __future__ import annotations

import contextlib
import io
import random
import types
import warnings
from array import array
from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stretto.errors import StrettoWarning

PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclass(frozen=True, slots=True)
class Thing:
    """An object with attributes, or a container other than list and tuple."""

    kind: str
    parts: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One call: what it returned, or the exception, and the state afterwards: arguments, globals,
    the generators of random numbers, and the lines that were printed and warned."""

    result: Any
    error: BaseException | None
    state: Any


def observe(value: Any, seen: frozenset[int] = frozenset()) -> Any:
    """A copy of a value as plain data."""
    if isinstance(value, torch.Tensor):
        if type(value) not in PLAIN:
            return Thing(type(value).__name__, ())  # such as one that capture has left behind
        if value.layout is not torch.strided:
            return observe(value.detach().to_dense(), seen)
        if value.requires_grad and torch.is_grad_enabled():
            return Thing("tensor that requires grad", (("value", value.detach().clone()),))
        return value.detach().clone()
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return value
    if isinstance(value, torch.dtype | torch.device | torch.Size | slice):
        return repr(value)
    if isinstance(value, type):
        return f"class {value.__qualname__}"  # the module of a program has another name in each run
    if isinstance(value, Thing):
        return value
    if id(value) in seen:
        return "..."
    seen = seen | {id(value)}
    if type(value) in (tuple, list):
        return type(value)(observe(item, seen) for item in value)
    if isinstance(value, tuple | list):
        parts = tuple((str(n), observe(item, seen)) for n, item in enumerate(value))
        return Thing(type(value).__name__, parts)
    if isinstance(value, Mapping):
        parts = tuple((repr(key), observe(item, seen)) for key, item in value.items())
        return Thing(type(value).__name__, parts)
    if isinstance(value, set | frozenset):
        return Thing(type(value).__name__, (("items", sorted(map(repr, value))),))
    if isinstance(value, deque | np.ndarray):
        parts = tuple((str(n), observe(item, seen)) for n, item in enumerate(value))
        return Thing(f"{type(value).__name__} {getattr(value, 'dtype', '')}", parts)
    if isinstance(value, bytearray | np.generic | range | array):
        return Thing(type(value).__name__, (("value", repr(value)),))
    if isinstance(value, io.StringIO):
        return Thing("StringIO", (("text", value.getvalue()), ("place", value.tell())))
    if isinstance(value, torch.Generator):
        return Thing("Generator", (("state", value.get_state()),))
    return Thing(type(value).__name__, _attributes(value, seen))


def _attributes(value: Any, seen: frozenset[int]) -> tuple[tuple[str, Any], ...]:
    if isinstance(value, torch.nn.Module):
        groups = (value._parameters, value._buffers, value._modules)  # pyright: ignore[reportPrivateUsage]
        found = {name: item for group in groups for name, item in group.items()}
        found |= {name: item for name, item in vars(value).items() if not name.startswith("_")}
    else:
        found = dict(getattr(value, "__dict__", {}))
        slots = [name for one in type(value).__mro__ for name in getattr(one, "__slots__", ())]
        found |= {name: getattr(value, name) for name in slots if hasattr(value, name)}
        if hasattr(value, "__length_hint__"):  # an iterator of a list, a range and the like
            found["items left"] = value.__length_hint__()
    return tuple((name, observe(item, seen)) for name, item in sorted(found.items()))


SILENT = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)


def observe_globals(namespace: Mapping[str, Any]) -> Any:
    """The values of a module's globals: no functions, classes and modules."""
    found = {
        name: value
        for name, value in sorted(namespace.items())
        if not name.startswith("_") and not isinstance(value, SILENT)
    }
    return observe(found)


_WARNED_ONCE = "degrees of freedom is <= 0"
"""Part of a warning that torch gives once per process, so which run has it is chance."""


@contextlib.contextmanager
def recorded(said: list[str]) -> Generator[None]:
    """Adds to `said` what is printed inside, and the warnings of the program itself."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            said.append(printed.getvalue())
            theirs = [w for w in warned if not issubclass(w.category, StrettoWarning)]
            said += [str(w.message) for w in theirs if _WARNED_ONCE not in str(w.message)]


def observe_generators() -> Any:
    """The state of torch's and Python's own generators of random numbers."""
    return torch.get_rng_state(), hash(random.getstate())
