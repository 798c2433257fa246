"""What a Program was captured with beside its arguments and the content of its constants.

Traced code reads globals, closure variables, and attributes of modules and other objects. What it
found there went into the Program, which is stale once any of it is another value. Which names are
read is taken from the bytecode of the functions that were traced; objects of torch, NumPy and the
standard library are not looked into, and neither are containers of many items.
"""

# pyright: reportPrivateUsage=false
# a module's children are in a private table

from __future__ import annotations

import dataclasses
import dis
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from operator import is_, itemgetter
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from stretto.capture.frames import UNDEFINED
from stretto.capture.state import equal_leaves
from stretto.capture.tensor import TracedTensor

_TABLES = ("_parameters", "_buffers", "_modules")

MOST_ITEMS = 256
"""A longer list or dict is taken to stay as it is."""


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """The Program is right as long as `read()` gives `values`, which have these names.

    `read` gives as many values each time.
    """

    holder: str
    names: tuple[str, ...]
    read: Callable[[], Iterable[Any]]
    values: tuple[Any, ...]

    def is_current(self) -> bool:
        return all(map(is_, self.read(), self.values)) or self.changed() is None

    def changed(self) -> str | None:
        """What is another value now, in words."""
        for name, one, other in zip(self.names, self.read(), self.values, strict=False):
            if not equal_leaves(one, other):
                return f"{name} of {self.holder}"
        return None


def guards_of(roots: Iterable[Any], functions: Iterable[FunctionType]) -> tuple[Guard, ...]:
    """Guards of all that `functions`, which were traced, may have read.

    roots: the captured function and its arguments.
    """
    search = _Search()
    search.guard("torch", ("autocast", "default dtype"), _torch_modes)
    loaded: dict[str, set[str]] = {}
    tables: dict[str, dict[str, Any]] = {}
    for function in functions:
        reads = names_read(function.__code__)
        search.attributes |= reads.attributes
        loaded.setdefault(function.__module__, set()).update(reads.globals)
        tables[function.__module__] = function.__globals__
        search.closure(function)
    for module, table in tables.items():
        search.entries(f"module {module}", table, loaded[module])
    search.pending += roots
    search.run()
    search.parts_of_modules()
    return tuple(search.found)


@dataclass(frozen=True, slots=True)
class Reads:
    """Names that a code object, with those nested in it, reads."""

    globals: frozenset[str]
    attributes: frozenset[str]


@cache
def names_read(code: CodeType) -> Reads:
    variables, attributes = set[str](), set[str]()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            variables.add(instruction.argval)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            attributes.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = names_read(constant)
            variables |= inner.globals
            attributes |= inner.attributes
        elif isinstance(constant, str) and constant.isidentifier():
            attributes.add(constant)  # for getattr
    return Reads(frozenset(variables), frozenset(attributes))


@dataclass(slots=True, eq=False)
class _Search:
    """Walks over what traced code can reach and enters guards into `found`."""

    found: list[Guard] = field(default_factory=list[Guard])
    attributes: set[str] = field(default_factory=set[str])
    pending: list[Any] = field(default_factory=list[Any])
    seen: dict[int, object] = field(default_factory=dict[int, object])
    modules: list[nn.Module] = field(default_factory=list[nn.Module])

    def guard(self, holder: str, names: Iterable[str], read: Callable[[], Iterable[Any]]) -> None:
        values = tuple(read())
        if any(isinstance(value, TracedTensor) for value in values):
            return
        self.pending += values
        if values:
            self.found.append(Guard(holder, tuple(names), read, values))

    def entries(self, holder: str, table: Mapping[str, Any], wanted: Iterable[str]) -> None:
        """Entries of a namespace; imported modules stay what they are."""
        present = ((name, table[name]) for name in wanted if name in table)
        names = tuple(sorted(n for n, v in present if not isinstance(v, ModuleType)))
        self.pending += (table[name] for name in wanted if name in table)
        self.guard(holder, names, partial(map, table.get, names))

    def closure(self, function: FunctionType) -> None:
        names, cells = function.__code__.co_freevars, function.__closure__ or ()
        self.guard(f"the closure of {function.__name__}", names, partial(map, _content, cells))

    def run(self) -> None:
        while self.pending:
            value = self.pending.pop()
            if id(value) not in self.seen:
                self.seen[id(value)] = value  # kept, so that no other object gets its id
                self.visit(value)

    def visit(self, value: Any) -> None:
        match value:
            case torch.Tensor() | TracedTensor() | FunctionType():
                return
            case MethodType():
                self.pending.append(value.__self__)
            case partial():
                self.pending += [value.func, *value.args, *value.keywords.values()]
            case nn.Module():
                self.modules.append(value)
                self.pending += value._modules.values()
                self.instance(value)
            case list() | dict():
                self.container(value)
            case tuple():
                self.pending += value[:MOST_ITEMS]
            case type() | ModuleType():
                if _is_of_user(value):
                    self.entries(value.__name__, vars(value), self.attributes)
            case _:
                self.instance(value)

    def container(self, value: list[Any] | dict[Any, Any]) -> None:
        if len(value) <= MOST_ITEMS:
            kind = type(value).__name__
            keys = value if isinstance(value, dict) else range(len(value))
            names = ("the length", *(f"item {key!r}" for key in keys))
            self.guard(f"a {kind}", names, partial(_items, value))

    def parts_of_modules(self) -> None:
        """Modes, parameters, buffers and children of all modules: there are many, so few guards."""
        states = [vars(module) for module in self.modules]
        kinds = [type(module).__name__ for module in self.modules]
        self.guard("modules", kinds, partial(map, itemgetter("training"), states))
        tables = [state[key] for state in states for key in _TABLES if state[key]]
        names = [f"the number of {', '.join(table)}" for table in tables]
        names += [name for table in tables for name in table]
        self.guard("modules", names, partial(_entries, tables))

    def instance(self, value: Any) -> None:
        """Attributes of an object of a user's class, also those that its class has."""
        kind = type(value)
        if not _is_of_user(kind):
            return
        self.pending.append(kind)
        self.pending += [base for base in kind.__mro__[1:-1] if _is_of_user(base)]
        if hasattr(value, "__dict__"):
            table = vars(value)
            shared = (name for name in self.attributes if _is_plain(getattr(kind, name, None)))
            names = tuple(sorted({*shared, *(self.attributes & table.keys())}))
            self.guard(f"a {kind.__name__}", names, partial(map, table.get, names))
        elif dataclasses.is_dataclass(kind):
            names = tuple(item.name for item in dataclasses.fields(kind))
            self.guard(f"a {kind.__name__}", names, partial(map, partial(getattr, value), names))


def _is_plain(value: Any) -> bool:
    """Whether a value that a class has may be hidden by one of an instance."""
    return value is not None and not callable(value) and not isinstance(value, property)


def _torch_modes() -> tuple[object, ...]:
    autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return autocast, torch.get_default_dtype()


def _items(box: list[Any] | dict[Any, Any]) -> Iterator[Any]:
    return chain((len(box),), box.values() if isinstance(box, dict) else box)


def _entries(tables: list[dict[str, Any]]) -> Iterator[Any]:
    return chain(map(len, tables), chain.from_iterable(map(dict.values, tables)))


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return UNDEFINED


_FOREIGN = {*sys.stdlib_module_names, "torch", "numpy", "stretto"} - {"__main__"}


def _is_of_user(value: type | ModuleType) -> bool:
    """Whether a class or module is neither of the standard library nor of torch."""
    name = value.__module__ if isinstance(value, type) else value.__name__
    return name.split(".")[0] not in _FOREIGN
