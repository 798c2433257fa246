"""The user's objects that outlive a call, as they were before its capture.

Capturing runs the user's function, so its changes of attributes, items, lists, dicts, sets,
globals and closures really happen, with traced values. The heap copies all of these
beforehand, finds the changes, and restores everything, whether the capture succeeds or not.

A *box* is one mutable thing: a list, dict, set, deque or object of a user's class, the
table of attributes of any other object, or a `Holder`.
"""

from __future__ import annotations

import copy
import types
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from stretto.errors import SourceLocation
from stretto.frontends.python.guards.guards import content_of
from stretto.frontends.python.guards.reach import ATOMS, is_of_user
from stretto.frontends.python.source.redirected import code_of
from stretto.frontends.python.source.syntax_trees import names_read
from stretto.frontends.python.tracing.frames import read_cell
from stretto.frontends.python.tracing.locations import is_user_file, package_of, user_location
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.state import contents, is_box, is_same, refill, stored_items
from stretto.frontends.python.values.stores import (
    CellVariable,
    ClassAttributes,
    Holder,
    NamespaceEntries,
    SlotAttributes,
    slots_of,
)

# ---- Side effects of a function, as a journal that is carried out after each run.
#
# During a capture nothing is printed, warned of or logged. Instead the program keeps a journal: a
# list of the lines with side effects that it reached, in order, and for each of these lines
# (`SideEffectSite`) lists of the values that it needs. These lists are state of the program like
# any list of the user's, so arms and loops append to them when the run reaches them. When the run
# has ended, the side effects of the lines are executed in Python, in order, with the values of the
# run.


SideEffect = Callable[[Sequence[Any]], object]
"""Function that performs the side effect of a line, given the values of the run that it needs."""


@dataclass(frozen=True, slots=True, eq=False)
class SideEffectSite:
    """A line with a side effect. columns: a list for each value that it needs. of_user: True if
    the user's own code has the effect, not a library's."""

    number: int
    act: SideEffect
    columns: tuple[list[Any], ...]
    of_user: bool


@dataclass(frozen=True, slots=True, eq=False)
class Journal:
    """The journal of a capture: the numbers of its sites in the order in which a run reaches them.
    All lists are empty before a run."""

    order: list[int] = field(default_factory=list[int])
    sites: dict[Hashable, SideEffectSite] = field(default_factory=dict[Hashable, SideEffectSite])
    referred: list[Any] = field(default_factory=list[Any])
    """Objects that are shown in their state after the run, so they must not change during it."""

    def lists(self) -> list[list[Any]]:
        """Return all lists of the journal."""
        return [self.order, *(column for site in self.sites.values() for column in site.columns)]

    def holds(self, box: Any) -> bool:
        """True if a list belongs to the journal."""
        return any(box is item for item in self.lists())

    def site(self, key: Hashable, act: SideEffect, columns: int, of_user: bool) -> SideEffectSite:
        """Return the site of a key, created if there is none."""
        if key not in self.sites:
            lists = tuple(list[Any]() for _ in range(columns))
            self.sites[key] = SideEffectSite(len(self.sites), act, lists, of_user)
        return self.sites[key]


def act_out(
    sites: Sequence[SideEffectSite], order: Sequence[int], columns: Sequence[Sequence[Any]]
) -> None:
    """Perform the side effects of the lines that a run reached. columns: those of all sites,
    concatenated."""
    supply = iter(columns)
    values: list[list[Iterator[Any]]] = [[iter(next(supply)) for _ in s.columns] for s in sites]
    for number in order:
        sites[number].act([next(column) for column in values[number]])


# pyright: reportPrivateUsage=false
# the tables of an nn.Module are private


MUTATORS = frozenset(
    (
        "__delitem__", "__ior__", "__setitem__", "add", "append", "appendleft", "clear",
        "difference_update", "discard", "extend", "extendleft", "insert", "intersection_update",
        "move_to_end", "pop", "popitem", "popleft", "remove", "reverse", "rotate", "setdefault",
        "sort", "symmetric_difference_update", "update",
    )
)  # fmt: skip
"""Container methods that change the container."""


@dataclass(eq=False)
class Heap:
    """Boxes by id, with their contents before the capture (`before`) and at its start (`start`).

    The two differ where tensors were replaced by traced ones.
    """

    boxes: dict[int, Any] = field(default_factory=dict[int, Any])
    before: dict[int, dict[Any, Any]] = field(default_factory=dict[int, dict[Any, Any]])
    start: dict[int, dict[Any, Any]] = field(default_factory=dict[int, dict[Any, Any]])
    touched: dict[int, Any] = field(default_factory=dict[int, Any])
    places: dict[int, SourceLocation | None] = field(
        default_factory=dict[int, SourceLocation | None]
    )
    """The line that changed a box, by id."""
    seen: dict[int, Any] = field(default_factory=dict[int, Any])
    owners: dict[int, type] = field(default_factory=dict[int, type])
    """Classes of the objects whose attributes a box holds."""
    arguments: set[int] = field(default_factory=set[int])
    """Containers among the arguments; the next call may have others."""
    shared: set[int] = field(default_factory=set[int])
    """Containers among the arguments that the function also reaches in another way, and their
    copies."""
    keep: list[Any] = field(default_factory=list[Any])
    arrays: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    """Arrays, with copies of them. They cannot hold traced values, so changes are refused."""
    journal: Journal = field(default_factory=Journal)
    stores: dict[tuple[str, int], Holder] = field(default_factory=dict[tuple[str, int], Holder])

    # ---- finding -----------------------------------------------------------------------------
    def add(self, roots: Iterable[Any]) -> None:
        """Copy everything reachable from `roots` that is not known yet."""
        pending = deque(roots)
        while pending:
            value = pending.popleft()
            if type(value) not in ATOMS and id(value) not in self.seen:
                self.seen[id(value)] = value
                pending.extend(self._visit(value))

    def knows(self, value: object) -> bool:
        """True if an object existed before the capture."""
        return self.seen.get(id(value)) is value

    def add_arguments(self, arguments: Any) -> bool:
        """Copy everything reachable from the arguments of the captured function.

        Returns True if a container is found twice among them.
        """
        pending, twice = [arguments], False
        while pending:
            value = pending.pop()
            if isinstance(value, list | dict | deque):
                twice |= id(value) in self.arguments
                if self.knows(value):
                    self.shared.add(id(value))
                elif id(value) not in self.arguments:
                    self.arguments.add(id(value))
                    pending += contents(value).values()
            elif isinstance(value, tuple):
                pending += stored_items(value)
        self.add((arguments,))
        return twice

    def has_attributes(self, box: Any) -> bool:
        """True if the entries of a box are found by name, not by position or key."""
        return isinstance(box, Holder) or id(box) in self.owners

    def codes_of(self, box: Any) -> Iterator[CodeType]:
        """Yield the code of the methods of the object whose attributes `box` holds."""
        for base in self.owners.get(id(box), object).__mro__:
            if is_of_user(base):
                for value in vars(base).values():
                    code = getattr(getattr(value, "fget", value), "__code__", None)
                    if isinstance(code, CodeType):
                        yield code

    def owns(self, box: Any) -> bool:
        """True if a container existed before the capture."""
        return self.boxes.get(id(box)) is box

    def holders(self, value: Any) -> list[Any]:
        """Return the boxes that hold an object, directly or in tuples."""
        return [
            box for key, box in self.boxes.items() if _holds(tuple(self.start[key].values()), value)
        ]

    def is_held_by_others(self, value: Any) -> bool:
        """True if a bound method, a default or the like refers to an object."""
        for item in self.seen.values():
            match item:
                case MethodType() | types.BuiltinMethodType():
                    held: tuple[Any, ...] = (item.__self__,)
                case partial():
                    held = (*item.args, *item.keywords.values())
                case FunctionType():
                    held = (*(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values())
                case _:
                    continue
            if _holds(held, value):
                return True
        return False

    def boxes_of(self, holder: Any) -> Iterator[Any]:
        """Yield the boxes that contain attributes or items of `holder`."""
        if id(holder) in self.boxes:
            yield holder
        for kind in ("class", "slots", "names", "cell"):
            store = self.stores.get((kind, id(holder)))
            if store is not None:
                yield store
        table = getattr(holder, "__dict__", None)
        if isinstance(table, dict) and id(table) in self.boxes:
            yield table
            if isinstance(holder, nn.Module):
                yield from (holder._parameters, holder._buffers, holder._modules)

    def _visit(self, value: Any) -> Iterable[Any]:
        """Register the boxes of an object, and return the objects it refers to."""
        match value:
            case torch.Tensor() | ModuleType() | Enum():
                return ()
            case np.ndarray() | bytearray() | array():
                self.arrays.append((value, copy.copy(value)))  # pyright: ignore[reportUnknownArgumentType]
                return ()
            case tuple():
                return stored_items(value)
            case frozenset():
                return list(frozenset.__iter__(value))
            case MethodType():
                return (value.__self__, value.__func__)
            case types.BuiltinMethodType():
                return (value.__self__,)
            case partial():
                return (value.func, *value.args, *value.keywords.values())
            case FunctionType():
                return list(self._function(value))
            case type():
                return list(self._class(value))
            case _:
                return list(self._object(value))

    def _box(self, box: Any) -> Iterable[Any]:
        """Register a box, and return its contents."""
        if id(box) not in self.boxes:
            self.boxes[id(box)] = box
            self.before[id(box)] = self.start[id(box)] = contents(box)
        values = self.before[id(box)]
        return (*values.keys(), *values.values()) if isinstance(box, dict) else values.values()

    def _store(self, kind: str, owner: object, made: Holder) -> Iterable[Any]:
        return self._box(self.stores.setdefault((kind, id(owner)), made))

    def _object(self, value: Any) -> Iterator[Any]:
        kind = type(value)
        if package_of(kind) == "stretto":
            yield getattr(value, "__dict__", {}).get("_function")
            return
        container = isinstance(value, list | dict | set | deque)
        if container:
            yield from self._box(value)
        if not (is_of_user(kind) or is_box(value) or isinstance(value, nn.Module)):
            return
        yield kind
        if not container and is_box(value):
            self.owners[id(value)] = kind
            yield from self._box(value)
            return
        if hasattr(value, "__dict__"):
            self.owners[id(vars(value))] = kind
            yield from self._box(vars(value))
        if any(True for _ in slots_of(kind)):
            yield from self._store("slots", value, SlotAttributes(value))
            self.owners[id(self.stores["slots", id(value)])] = kind

    def _class(self, kind: type) -> Iterator[Any]:
        if is_of_user(kind) and not issubclass(kind, Enum):
            yield from self._store("class", kind, ClassAttributes(kind))
            yield from kind.__mro__[1:-1]

    def _function(self, function: FunctionType) -> Iterator[Any]:
        code = code_of(function)
        for cell, name in zip(function.__closure__ or (), code.co_freevars, strict=True):
            if is_user_file(code.co_filename):
                yield from self._store("cell", cell, CellVariable(cell, name))
            else:
                yield read_cell(cell)
        yield from (function.__defaults__ or (), *(function.__kwdefaults__ or {}).values())
        if function.__dict__ or is_user_file(code.co_filename):
            self.owners[id(function.__dict__)] = FunctionType
            yield from self._box(function.__dict__)
        if is_user_file(code.co_filename):
            yield from self._globals(function.__globals__, code)

    def _globals(self, table: dict[str, Any], code: CodeType) -> Iterator[Any]:
        reads = names_read(code)
        yield from self._names(table, reads.stored)
        for name in sorted(reads.globals & table.keys()):
            value = table[name]
            if isinstance(value, ModuleType) and is_of_user(value):
                yield from self._names(vars(value), reads.attributes & vars(value).keys())
            yield value

    def _names(self, table: dict[str, Any], wanted: frozenset[str]) -> Iterable[Any]:
        """Register some entries of a namespace, and return their values."""
        store = self.stores.get(("names", id(table)))
        if not isinstance(store, NamespaceEntries):
            return (
                self._store("names", table, NamespaceEntries(table, tuple(wanted)))
                if wanted
                else ()
            )
        added = {name: table[name] for name in wanted - {*store.names} if name in table}
        store.names = (*store.names, *(wanted - {*store.names}))
        for known in (self.before, self.start):
            known[id(store)] = known[id(store)] | added
        return added.values()

    def enter_globals(self, values: Mapping[int, Any]) -> None:
        """Register the global variables that hold one of these values, given by id."""
        functions = [item for item in self.seen.values() if isinstance(item, FunctionType)]
        for function in functions if values else ():
            table, code = function.__globals__, code_of(function)
            names = names_read(code).globals & table.keys()
            held = frozenset(name for name in names if id(table[name]) in values)
            if is_user_file(code.co_filename):
                self._names(table, held)

    # ---- changes -----------------------------------------------------------------------------
    def touch(self, holder: Any, in_region: bool) -> None:
        """Record that the user's line being traced changes `holder`.

        in_region: the change may not happen in each run, or more than once.
        """
        self.places[id(holder)] = user_location()
        for box in self.boxes_of(holder):
            self.places[id(box)] = user_location()
            tracer().lasting.note_box(box)
            if in_region:
                self.touched[id(box)] = box

    def changed(self) -> list[Any]:
        """Return the boxes whose contents differ from those at the start."""
        return [
            box for key, box in self.boxes.items() if not is_same(contents(box), self.start[key])
        ]

    def copied(self, box: Any, values: dict[Any, Any]) -> Any:
        """Return a registered copy of a shared container for the capture, with these contents."""
        made = copy.copy(box)
        refill(made, values)
        self.shared.add(id(made))
        self.keep.append(made)
        self.boxes[id(made)] = made
        self.before[id(made)] = self.start[id(made)] = contents(made)
        return made

    def changed_arrays(self) -> list[tuple[Any, Any]]:
        """Return the arrays whose contents have changed, with their copies."""
        return [(one, was) for one, was in self.arrays if content_of(one) != content_of(was)]

    def restore(self) -> None:
        """Restore everything to its state before the capture."""
        for item, was in self.changed_arrays():
            item[... if isinstance(item, np.ndarray) else slice(None)] = was
        for key, box in self.boxes.items():
            if not is_same(contents(box), self.before[key]):
                refill(box, self.before[key])
        self.start = dict(self.before)
        self.touched = {}

    def before_of(self, box: Any) -> dict[Any, Any]:
        """Return the contents of a box before the capture."""
        return self.before.get(id(box), {})

    def place(self, box: Any, values: dict[Any, Any]) -> None:
        """Start the capture with these contents of `box`."""
        if not is_same(contents(box), values):
            refill(box, values)
        self.start[id(box)] = values


def _holds(items: tuple[Any, ...], value: Any) -> bool:
    return any(
        item is value or (isinstance(item, tuple) and _holds(item, value))  # pyright: ignore[reportUnknownArgumentType]
        for item in items
    )
