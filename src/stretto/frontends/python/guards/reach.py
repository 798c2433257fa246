"""Walk to everything that traced code can reach: closures, globals, attributes and containers.

Attributes of the user's objects are followed if the code contains their names, or if it builds
names at run time. Reached functions that have run count as code too, because tracing does not
see calls of a property's getter or of a `__getitem__`. So the walk is repeated until no new
names are found.
"""

from __future__ import annotations

import builtins
import gc
import os
import sys
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property, partial
from types import (
    BuiltinMethodType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _device

from stretto.frontends.python.guards.guards import GuardedEntries, GuardedItems, Guards, content_of
from stretto.frontends.python.guards.reading import Exempt
from stretto.frontends.python.source.syntax_trees import names_read
from stretto.frontends.python.tracing.frames import UNDEFINED, read_cell
from stretto.frontends.python.tracing.locations import ExecutedCode, is_user_file, package_of
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.values.state import stored_items, stored_keys

# pyright: reportPrivateUsage=false
# a module's tables are private, and so is the original of a compiled function


ATOMS: frozenset[type] = frozenset(
    (type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device)
)

MODULE_INTERNALS = frozenset(vars(nn.Module()))
"""Attributes that every module has. The tables among them are guarded separately."""

TENSORS = ("_parameters", "_buffers")
HOOKS = ("_forward_hooks", "_forward_pre_hooks")

_RUNNERS = {
    "IPython", "_pytest", "coverage", "debugpy", "execnet", "hypothesis", "ipykernel", "pluggy",
    "py", "pytest", "xdist",
}  # fmt: skip
"""Packages that run or watch programs and are not part of them. pytest gives every function with
an `assert` a name through which the whole test session can be reached."""

_TOOLS = {"torch", "sympy", "mpmath", "numpy", "stretto"}

_FOREIGN = {*sys.stdlib_module_names, *_RUNNERS, *_TOOLS} - {"__main__"}

_UNSEEN = frozenset(
    (
        "__class_getitem__", "__copy__", "__deepcopy__", "__del__", "__dir__", "__getstate__",
        "__hash__", "__init__", "__init_subclass__", "__new__", "__post_init__", "__reduce__",
        "__reduce_ex__", "__repr__", "__set_name__", "__setstate__", "__sizeof__", "__str__",
        "__subclasshook__",
    )
)  # fmt: skip
"""Methods that computing with an existing object does not call."""

_MAKERS = ("__init__", "__new__", "__post_init__")


def is_of_user(value: type | ModuleType) -> bool:
    """Return True if a class or module belongs neither to the standard library nor to torch and
    other tools."""
    name: Any = getattr(value, "__module__" if isinstance(value, type) else "__name__")
    if not isinstance(name, str):  # a metaclass may define a descriptor of this name
        return False
    return name.split(".")[0] not in _FOREIGN


def original(value: Any) -> Any:
    """Return the function from which stretto or torch.compile made a compiled function; any other
    object itself."""
    while True:
        kind = type(value)
        if kind.__module__ == "stretto.call.compiled" and "_function" in vars(value):
            value = vars(value)["_function"]
        elif kind is FunctionType and "_torchdynamo_orig_callable" in value.__dict__:
            value = value.__dict__["_torchdynamo_orig_callable"]
        elif kind.__name__ == "OptimizedModule" and kind.__module__ == "torch._dynamo.eval_frame":
            value = vars(value)["_modules"]["_orig_mod"]
        else:
            return value


def is_foreign_module(value: object) -> bool:
    return isinstance(value, ModuleType) and not is_of_user(value)


@dataclass(frozen=True, slots=True)
class CapturedCode:
    """The code that a capture ran: traced functions, all executed code, and attribute names that
    the code built and the tracer saw."""

    traced: Collection[FunctionType]
    executed: ExecutedCode
    names: Collection[str]


@dataclass(slots=True, eq=False)
class ReachableObjects:
    """Everything that was found, each object once."""

    roots: list[Any]
    executed: ExecutedCode
    names: set[str]
    every_name: bool = False
    """True if the code reads attributes by names that it builds, unseen by the tracer."""
    functions: dict[int, FunctionType] = field(default_factory=dict[int, FunctionType])
    seen: dict[int, Any] = field(default_factory=dict[int, Any])
    skipped: set[int] = field(default_factory=set[int])
    """Ids of objects that are not looked into."""
    loaded: set[str] = field(default_factory=set[str])
    """Global names that the code reads."""
    made: set[type] = field(default_factory=set[type])
    """Classes that the code may instantiate, and their bases."""

    def read(self, function: FunctionType, *, traced: bool) -> None:
        """Count `function` as code."""
        if id(function) not in self.functions:
            self.functions[id(function)] = function
            reads = names_read(function.__code__)
            self.names |= reads.attributes
            self.loaded |= reads.globals
            self.every_name |= reads.by_path or (reads.by_name and not traced)

    def walk(self) -> None:
        while True:
            size = (len(self.names), len(self.functions), self.every_name, len(self.made))
            self.seen.clear()
            pending = [*self.roots, *self.functions.values()]
            while pending:
                value = pending.pop()
                known = type(value) in ATOMS or id(value) in self.skipped
                if not known and id(value) not in self.seen:
                    self.seen[id(value)] = value
                    pending.extend(self._next(value))
            if size == (len(self.names), len(self.functions), self.every_name, len(self.made)):
                return

    def _has_run(self, function: FunctionType) -> bool:
        return self.executed.may_have_run(function.__code__)

    # ---- objects reached from an object --------------------------------------------------------

    def _next(self, value: Any) -> Iterable[Any]:
        if original(value) is not value:
            return (original(value),)
        match value:
            case TracedTensor() | np.generic():
                return ()
            case torch.Tensor():
                return self.attributes(value).values()
            case FunctionType():
                return list(self._of_function(value))
            case MethodType() | BuiltinMethodType():
                return (value.__self__, getattr(value, "__func__", None))
            case partial():
                return (value.func, value.args, value.keywords)  # pyright: ignore[reportUnknownMemberType]
            case property():
                return (value.fget,)
            case staticmethod() | classmethod():
                return (value.__func__,)  # pyright: ignore[reportUnknownMemberType]
            case cached_property():
                return (value.func,)  # pyright: ignore[reportUnknownMemberType]
            case ModuleType():
                return [vars(value)[name] for name in self.entries_of_module(value)]
            case type():
                return list(self._of_class(value))
            case Enum():
                return (value._value_,)
            case _:
                return list(self._of_object(value))

    def _of_function(self, function: FunctionType) -> Iterator[Any]:
        yield getattr(function, "__wrapped__", None)
        for cell in function.__closure__ or ():
            yield read_cell(cell)
        if not is_user_file(function.__code__.co_filename):
            return
        if id(function) not in self.functions and not self._has_run(function):
            return
        self.read(function, traced=False)
        yield function.__defaults__
        yield function.__kwdefaults__
        for name in names_read(function.__code__).globals:
            yield function.__globals__.get(name)

    def _of_class(self, kind: type) -> Iterator[Any]:
        """Follow a class that the code names, and may therefore instantiate."""
        self.made.update(kind.__mro__)
        yield from self.class_entries(kind).values()

    def _of_object(self, value: Any) -> Iterator[Any]:
        kind = type(value)
        match value:
            case dict():
                yield from (*stored_keys(value), *stored_items(value))  # pyright: ignore[reportUnknownArgumentType]
            case MappingProxyType():
                yield from gc.get_referents(value)  # the dict below it
            case list() | tuple() | set() | frozenset() | deque():
                yield from stored_items(value)
            case np.ndarray() if value.dtype == object:
                yield from value.ravel().tolist()
            case weakref.ref():
                yield value()  # pyright: ignore[reportUnknownVariableType]
            case nn.Module():
                for table in ("_modules", *TENSORS, *HOOKS):
                    yield from vars(value)[table].values()
            case _:
                pass
        yield table_of(value).get("__wrapped__")
        yield from self.attributes(value).values()
        yield from self.slots(value).values()
        for base in user_classes(kind):
            yield from self.class_entries(base).values()

    # ---- entries of an object that the code may read -------------------------------------------

    def entries_of_module(self, module: ModuleType) -> list[str]:
        if not is_of_user(module):
            return []
        table = vars(module)
        if self.every_name:
            return [name for name in table if not name.startswith("__")]
        return sorted(self.names & table.keys())

    def class_entries(self, kind: type) -> dict[str, Any]:
        """Return the relevant entries of one user class, without those of its bases."""
        if not is_of_user(kind):
            return {}
        wanted = self.names
        makers = _MAKERS if kind in self.made else ()
        return {
            name: value
            for name, value in vars(kind).items()
            if name in wanted
            or name in makers
            or (name.startswith("__") and name not in _UNSEEN and isinstance(value, _CODE))
            or (self.every_name and not name.startswith("__"))
        }

    def attributes(self, value: Any) -> dict[str, Any]:
        """Return the relevant entries of an object's `__dict__`."""
        kind = type(value)
        table = table_of(value)
        if package_of(kind) in _OPAQUE:
            return {}
        if self.every_name or _is_computed_with_by_torch(kind):
            return {name: item for name, item in table.items() if name not in MODULE_INTERNALS}
        return {name: table[name] for name in self.names & table.keys() - MODULE_INTERNALS}

    def slots(self, value: Any) -> dict[str, Any]:
        """Return the relevant slots of an object, with UNDEFINED for those not set."""
        found = slots_of(type(value))
        wanted = found if self.every_name else [name for name in found if name in self.names]
        return {name: read_attribute(value, name, UNDEFINED) for name in wanted}


_CODE = (FunctionType, staticmethod, classmethod, property)
_OPAQUE = frozenset(
    ("asyncio", "concurrent", "logging", "multiprocessing", "stretto", "threading", "weakref")
)
"""Modules on whose objects programs do not depend."""


def _is_computed_with_by_torch(kind: type) -> bool:
    """Return True if torch or NumPy code, which is not looked into, reads an object's
    attributes."""
    return any(
        base is not nn.Module and package_of(base) in ("torch", "numpy") for base in kind.__mro__
    )


@cache
def user_classes(kind: type) -> tuple[type, ...]:
    """Return the user's classes that an object's class derives from, itself first."""
    return tuple(base for base in kind.__mro__ if is_of_user(base))


@cache
def slots_of(kind: type) -> tuple[str, ...]:
    """Return the names of the slots of a user class and its bases."""
    return tuple(
        name
        for base in user_classes(kind)
        for name, entry in vars(base).items()
        if isinstance(entry, MemberDescriptorType)
    )


def table_of(value: Any) -> dict[str, Any]:
    """Return an object's `__dict__`, or an empty dict. Methods of the user's classes are not
    called."""
    return read_attribute(value, "__dict__", {})


def read_attribute(value: Any, name: str, default: Any) -> Any:
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return default


# ---- Guards of a capture: everything reachable that traced code may have read.


# pyright: reportPrivateUsage=false
# a module's tables, the hooks of all modules, and whether autocast is on, are private


def guards_of(
    roots: Iterable[Any],
    code: CapturedCode,
    missing: Iterable[tuple[Any, str]],
    exempt: Exempt,
) -> Guards:
    """Return guards of everything that code which ran in a capture may have read.

    roots: the captured function and its arguments. missing: attributes that were looked up and
    not found. exempt: state that needs no guard.
    """
    reach = ReachableObjects([*roots, *exempt.leaves], code.executed, set(code.names))
    reach.skipped = {id(item) for item in exempt.objects}
    for function in code.traced:
        reach.read(function, traced=True)
    reach.walk()
    layout = _Collector(reach, exempt)
    layout.entries("torch", vars(_device), ("CURRENT_DEVICE",))
    if _ENVIRONMENT & (reach.names | reach.loaded):
        layout.box(os.environ._data)  # type: ignore[attr-defined]
    for value in list(reach.seen.values()):
        layout.visit(value)
    for holder, name in missing:
        table = read_attribute(holder, "__dict__", None)
        if table is not None:
            layout.entries(f"a {type(holder).__name__}", table, (name,))
    return layout.made()


@dataclass(slots=True, eq=False)
class _Collector:
    """Collects guards of the objects that were reached."""

    reach: ReachableObjects
    exempt: Exempt
    places: dict[int, GuardedEntries] = field(default_factory=dict[int, GuardedEntries])
    absent: dict[tuple[int, str], tuple[Any, str, str]] = field(
        default_factory=dict[tuple[int, str], tuple[Any, str, str]]
    )
    known: set[type] = field(default_factory=set[type])
    objects: list[tuple[Any, type]] = field(default_factory=list[tuple[Any, type]])
    sizes: dict[int, tuple[Any, int]] = field(default_factory=dict[int, tuple[Any, int]])
    boxes: dict[int, GuardedItems] = field(default_factory=dict[int, GuardedItems])
    arrays: list[Any] = field(default_factory=list[Any])

    def entries(
        self,
        holder: str,
        table: Mapping[str, Any],
        names: Iterable[str],
        anchor: int | None = None,
    ) -> None:
        """Guard entries of a namespace, whether they exist or not. anchor: the id by which
        exemptions identify the namespace."""
        for name in names:
            if self.exempt.has(id(table) if anchor is None else anchor, name):
                continue
            if name in table:
                self._place(holder, table, name, table[name], is_table=True)
            else:
                self.absent[id(table), name] = (table, name, holder)

    def attributes(self, holder: str, subject: Any, names: Iterable[str]) -> None:
        for name in names:
            if not self.exempt.has(id(subject), name):
                self._place(holder, subject, name, getattr(subject, name), is_table=False)

    def _place(self, holder: str, subject: Any, name: str, value: Any, *, is_table: bool) -> None:
        if not isinstance(value, TracedTensor):
            place = self.places.setdefault(
                id(subject), GuardedEntries(holder, subject, is_table, {})
            )
            place.values[name] = value

    def box(self, value: Any) -> None:
        if self.exempt.has(id(value)):
            return
        keys: list[Any] | None = stored_keys(value) if isinstance(value, dict) else None
        items = stored_items(value)
        if not any(isinstance(item, TracedTensor) for item in items):
            self.sizes[id(value)] = (value, len(items))
            if items:
                self.boxes[id(value)] = GuardedItems(value, keys, items)

    def made(self) -> Guards:
        return Guards(
            {read: read() for read in _settings(self.reach.names | self.reach.loaded)},
            tuple(self.places.values()),
            tuple(self.absent.values()),
            tuple(self.objects),
            tuple(self.sizes.values()),
            tuple(self.boxes.values()),
            tuple((item, content_of(item)) for item in self.arrays),
            tuple(item.copy() for item in self.arrays if isinstance(item, np.ndarray)),
        )

    # ---- guards of an object -------------------------------------------------------------------

    def visit(self, value: Any) -> None:
        if original(value) is not value:
            return
        match value:
            case FunctionType():
                self.function(value)
                return
            case ModuleType():
                names, table = self.reach.entries_of_module(value), vars(value)
                own = [name for name in names if not is_foreign_module(table[name])]
                self.entries(f"module {value.__name__}", table, own)
                return
            case type():
                self.classes(value)
                return
            case list() | dict() | set() | deque():
                self.box(value)
            case np.ndarray() | bytearray() | array():
                self.arrays.append(value)
            case nn.Module():
                self.module(value)
            case _:
                pass
        if not isinstance(value, _NO_INSTANCES):
            self.instance(value)

    def function(self, function: FunctionType) -> None:
        if id(function) not in self.reach.functions:
            return
        name = function.__name__
        self.attributes(name, function, ("__code__", "__defaults__", "__kwdefaults__"))
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for free, cell in cells:
            if read_cell(cell) is not UNDEFINED:
                self.attributes(f"the variable '{free}' of {name}", cell, ("cell_contents",))
        table = function.__globals__
        names = names_read(function.__code__)
        read = names.globals | names.stored  # storing the present value changes nothing
        own = (n for n in read if n in table and not is_foreign_module(table[n]))
        hidden = (n for n in read if n not in table and hasattr(builtins, n))
        self.entries(f"module {function.__module__}", table, (*own, *hidden))

    def classes(self, kind: type) -> None:
        """Guard entries of a class and its bases, also absent ones that would hide them if
        added."""
        if kind in self.known:
            return
        self.known.add(kind)
        if issubclass(kind, nn.Module):
            for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
                self.entries(base.__name__, vars(base), ("forward",))
        classes = user_classes(kind)
        found = [self.reach.class_entries(base) for base in classes]
        for number, base in enumerate(classes):
            later = set[str]().union(*found[number:])
            earlier = set[str]().union(*found[:number])
            names = {*found[number], *(later - earlier)}
            self.entries(base.__name__, vars(base), sorted(names), id(base))

    def module(self, module: nn.Module) -> None:
        table = vars(module)
        self.entries(f"a {type(module).__name__}", table, ("forward", "training"))
        for box in (table["_modules"], *(table[name] for name in HOOKS), *_GLOBAL_HOOKS):
            self.box(box)
        for name in TENSORS:
            if not self.exempt.has(id(table[name])):
                self.sizes[id(table[name])] = (table[name], len(table[name]))
            self.entries(f"the {name[1:]} of a {type(module).__name__}", table[name], table[name])

    def instance(self, value: Any) -> None:
        kind, reach = type(value), self.reach
        self.classes(kind)
        holder = f"a {kind.__name__}"
        table = read_attribute(value, "__dict__", None)
        if table is not None:
            names = {*reach.attributes(value)}
            for base in user_classes(kind):
                names |= {n for n in reach.class_entries(base) if not n.startswith("__")}
            self.entries(holder, table, sorted(names - MODULE_INTERNALS))
        if is_of_user(kind) or isinstance(value, nn.Module):
            self.objects.append((value, kind))
        slots = reach.slots(value)
        self.attributes(holder, value, (n for n, item in slots.items() if item is not UNDEFINED))
        for name in sorted(name for name, item in slots.items() if item is UNDEFINED):
            if not self.exempt.has(id(value), name):
                self.absent[id(value), name] = (_SlotsSet(value), name, holder)


class _SlotsSet:
    """The slots of an object as a container of the names that are set."""

    __slots__ = ("owner",)

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def __contains__(self, name: str) -> bool:
        return read_attribute(self.owner, name, UNDEFINED) is not UNDEFINED


_NO_INSTANCES = (
    torch.Tensor, partial, property, staticmethod, classmethod, np.generic, TracedTensor
)  # fmt: skip
_GLOBAL_HOOKS = (
    torch.nn.modules.module._global_forward_hooks,
    torch.nn.modules.module._global_forward_pre_hooks,
)


def _settings(names: set[str]) -> tuple[Callable[[], Any], ...]:
    """Return the settings on which operators depend besides their arguments, and those read by
    code with these names."""
    autocast = _autocast if torch._C._is_any_autocast_enabled() else _is_autocast_enabled
    asked = (_SETTINGS[name] for name in sorted(_SETTINGS.keys() & names))
    return (torch.get_default_dtype, autocast, *asked)


def _autocast() -> tuple[Any, ...]:
    enabled = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in enabled)


_is_autocast_enabled = torch._C._is_any_autocast_enabled
_SETTINGS: dict[str, Callable[[], Any]] = {
    "is_grad_enabled": torch.is_grad_enabled,
    "is_inference_mode_enabled": torch.is_inference_mode_enabled,
    "are_deterministic_algorithms_enabled": torch.are_deterministic_algorithms_enabled,
    "get_float32_matmul_precision": torch.get_float32_matmul_precision,
    "get_num_threads": torch.get_num_threads,
}
"""Settings on which only code with these names depends."""
_ENVIRONMENT = frozenset(("environ", "getenv"))
