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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from operator import is_
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from stretto.capture.frames import UNDEFINED
from stretto.capture.state import equal_leaves
from stretto.capture.tensor import TracedTensor

MOST_ITEMS = 256
"""A longer list or dict is taken to stay as it is."""


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """The Program is right as long as `read()` gives `values`, which have these names."""

    holder: str
    names: tuple[str, ...]
    read: Callable[[], Iterable[Any]]
    values: tuple[Any, ...]

    def is_current(self) -> bool:
        found = tuple(self.read())
        if len(found) == len(self.values) and all(map(is_, found, self.values)):
            return True
        return self.changed() is None

    def changed(self) -> str | None:
        """What is another value now, in words."""
        found = tuple(self.read())
        if len(found) != len(self.values):
            return f"the length of {self.holder}"
        for name, one, other in zip(self.names, found, self.values, strict=True):
            if not equal_leaves(one, other):
                return f"{name} of {self.holder}"
        return None


def guards_of(roots: Iterable[Any], functions: Iterable[FunctionType]) -> tuple[Guard, ...]:
    """Guards of all that `functions`, which were traced, may have read.

    roots: the captured function and its arguments.
    """
    search = _Search()
    search.guard("torch", ("autocast", "autocast dtype", "default dtype"), _torch_modes)
    for function in functions:
        reads = names_read(function.__code__)
        search.attributes |= reads.attributes
        search.variables(function, reads.globals)
    search.pending += roots
    search.run()
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

    def guard(
        self, holder: str, names: Iterable[str], read: Callable[[], Iterable[Any]]
    ) -> None:
        values = tuple(read())
        if any(isinstance(value, TracedTensor) for value in values):
            return
        self.pending += values
        if values:
            self.found.append(Guard(holder, tuple(names), read, values))

    def variables(self, function: FunctionType, loaded: frozenset[str]) -> None:
        """Globals and closure variables of a function."""
        table = function.__globals__
        names = tuple(sorted(loaded & table.keys()))
        self.guard(f"module {function.__module__}", names, partial(map, table.get, names))
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
                self.module(value)
            case list() | dict():
                self.container(value)
            case tuple():
                self.pending += value[:MOST_ITEMS]
            case type() | ModuleType():
                if _is_of_user(value):
                    names = tuple(sorted(self.attributes & vars(value).keys()))
                    self.guard(value.__name__, names, partial(map, vars(value).get, names))
            case _:
                self.instance(value)

    def container(self, value: list[Any] | dict[Any, Any]) -> None:
        if len(value) <= MOST_ITEMS:
            kind = type(value).__name__
            items = value.values if isinstance(value, dict) else partial(iter, value)
            keys = value if isinstance(value, dict) else range(len(value))
            self.guard(f"a {kind}", (f"item {key!r}" for key in keys), items)

    def module(self, value: nn.Module) -> None:
        holder = f"a {type(value).__name__}"
        if value._modules:
            self.guard(holder, value._modules, value._modules.values)
        if _is_of_user(type(value)):
            self.instance(value, "training")
        else:
            self.guard(holder, ("training",), partial(map, vars(value).get, ("training",)))

    def instance(self, value: Any, *more: str) -> None:
        """Attributes of an object of a user's class, also those that its class has."""
        kind = type(value)
        if not _is_of_user(kind):
            return
        self.pending.append(kind)
        self.pending += [base for base in kind.__mro__[1:-1] if _is_of_user(base)]
        if hasattr(value, "__dict__"):
            table = vars(value)
            shared = (name for name in self.attributes if _is_plain(getattr(kind, name, None)))
            names = tuple(sorted({*more, *shared, *(self.attributes & table.keys())}))
            self.guard(f"a {kind.__name__}", names, partial(map, table.get, names))
        elif dataclasses.is_dataclass(kind):
            names = tuple(item.name for item in dataclasses.fields(kind))
            self.guard(f"a {kind.__name__}", names, partial(map, partial(getattr, value), names))


def _is_plain(value: Any) -> bool:
    """Whether a value that a class has may be hidden by one of an instance."""
    return value is not None and not callable(value) and not isinstance(value, property)


def _torch_modes() -> tuple[object, ...]:
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
    )


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


def changed(guards: Iterable[Guard]) -> Iterator[str]:
    """What is another value now, in words."""
    for guard in guards:
        found = guard.changed()
        if found is not None:
            yield found
