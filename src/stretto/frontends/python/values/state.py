"""The user's Python state: all local variables of active frames and everything they contain.

`Snapshot` copies it shallowly per container, so that a branch or a loop body can be traced more
than once from the same state. Containers keep their identity: they are restored in place.
"""

from __future__ import annotations

import argparse
import struct
import sys
import types
from collections import ChainMap, OrderedDict, UserDict, UserList, UserString, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from functools import cache, partial
from operator import is_
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from stretto.frontends.python.tracing.frames import UNDEFINED, CallFrame, is_internal
from stretto.frontends.python.tracing.signals import Replan
from stretto.frontends.python.tracing.tensor import Hooks, Storage, TracedTensor
from stretto.frontends.python.tracing.tracer import Tracer, active, tracer
from stretto.frontends.python.values.either import NONE, Either
from stretto.frontends.python.values.stores import (
    CellVariable,
    ClassAttributes,
    Holder,
    SlotAttributes,
    read_slot,
    slots_of,
)
from stretto.frontends.python.values.texts import TracedText, is_text


@dataclass(eq=False, slots=True, weakref_slot=True)
class TracedList:
    """A list whose length may depend on the run. `memory` holds a value of ListType.

    `numbers`: its items are Python numbers.
    """

    memory: Storage
    numbers: bool = False
    fake: torch.Tensor | None = None
    """A fake tensor like each item."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Hooks.list_method(self, name)

    def __getitem__(self, index: Any) -> Any:
        return Hooks.staging.getitem(self, index)

    def __setitem__(self, index: Any, item: Any) -> None:
        Hooks.staging.setitem(self, index, item)

    def __delitem__(self, index: Any) -> None:
        Hooks.staging.delitem(self, index)

    def __contains__(self, item: object) -> bool:
        return bool(Hooks.staging.contains(self, item))

    def __repr__(self) -> str:
        return str(Hooks.call(repr, self))

    def __iter__(self) -> Iterator[Any]:
        return iter(Hooks.list_items(self))

    def __len__(self) -> int:
        return Hooks.list_length(self)

    def __iadd__(self, others: Any) -> TracedList:
        Hooks.list_method(self, "extend")(others)
        return self

    def __eq__(self, other: object) -> bool:
        return other is self or Hooks.list_operator(self, "==", other)

    def __ne__(self, other: object) -> bool:
        return other is not self and Hooks.list_operator(self, "!=", other)

    __hash__ = object.__hash__


TracedList.__name__ = "list"  # the name that Python's error messages show to the user


def _operator(symbol: str) -> Callable[[TracedList, Any], Any]:
    return lambda items, operand: Hooks.list_operator(items, symbol, operand)


for _name, _symbol in {"add": "+", "radd": "r+", "mul": "*", "rmul": "*", "imul": "*="}.items():
    setattr(TracedList, f"__{_name}__", _operator(_symbol))
for _name, _symbol in {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    setattr(TracedList, f"__{_name}__", _operator(_symbol))


def is_box(value: Any) -> bool:
    """True for a mutable container, or an object of a user's class, whose contents are part of the
    state."""
    known = _box_class(type(value))
    if known is not None:
        return known
    state = active()  # the heap tracks the user's modules
    return state is not None and not state.heap.knows(value)


@cache
def _box_class(kind: type) -> bool | None:
    """True if all values of a class are boxes, False if none is; None if it depends on the
    value."""
    if issubclass(kind, list | dict | set | deque | Holder):
        return True
    if issubclass(kind, nn.Module):
        return None
    # Members of an enumeration are compared by identity.
    if issubclass(kind, type | Enum | torch.Tensor | TracedList | FunctionType | Either):
        return False
    return _is_record_class(kind)


_RECORDS = (
    types.SimpleNamespace, argparse.Namespace, UserDict, UserList, UserString, ChainMap,
)  # fmt: skip
"""Classes of the standard library whose whole state is in attributes."""
_FOREIGN = frozenset(("torch", "stretto", "numpy", *sys.stdlib_module_names)) - {"__main__"}


def _is_record_class(kind: type) -> bool:
    """True for a class whose whole state is in attributes that Python code can read and set."""
    if issubclass(kind, tuple) or kind.__flags__ & _IS_IMMUTABLE:
        return kind in _RECORDS
    if _has_hidden_state(kind):
        return False
    package: Any = getattr(kind, "__module__", "")
    package = package.split(".")[0] if isinstance(package, str) else "builtins"
    if package == "stretto" and (getattr(kind, MODELLED, False) or not kind.__dictoffset__):
        return getattr(kind, MODELLED, False)
    return package not in _FOREIGN or kind in _RECORDS or is_dataclass(kind)


_IS_IMMUTABLE = 1 << 8
"""The type flag of C classes whose attributes cannot be set."""
MODELLED = "__stretto_modelled__"
"""Marks classes of this package whose objects are part of the user's state."""
_POINTER = struct.calcsize("P")


def _has_hidden_state(kind: type) -> bool:
    """True for a class whose objects hold more than attributes: the fields of a base
    written in C."""
    slots = sum(1 for _ in slots_of(kind))
    most = object.__basicsize__ + _POINTER * (slots + 2)  # the table of attributes, weak references
    return kind.__basicsize__ > most or kind.__itemsize__ > 0


def attributes_of(value: Any) -> dict[str, Any]:
    """Return a copy of the attributes of an object, slots included."""
    found = dict(vars(value)) if hasattr(value, "__dict__") else dict[str, Any]()
    for name, slot in _slots(type(value)):
        held = read_slot(slot, value)
        if held is not UNDEFINED:
            found[name] = held
    return found


@cache
def _slots(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple(slots_of(kind))


def _refill_attributes(value: Any, values: dict[Any, Any]) -> None:
    slots = dict(_slots(type(value)))
    for name, slot in slots.items():
        before, after = read_slot(slot, value), values.get(name, UNDEFINED)
        if after is UNDEFINED and before is not UNDEFINED:
            slot.__delete__(value)
        elif after is not before:
            slot.__set__(value, after)
    if hasattr(value, "__dict__"):
        rest = {name: item for name, item in values.items() if name not in slots}
        _refill_table(vars(value), rest)


CONTAINERS: tuple[type[Any], ...] = (OrderedDict, dict, list, tuple, set, frozenset, deque)


def container_of(value: Any) -> type[Any] | None:
    """Return the built-in container class of an object. Its methods are used to read the object,
    as a user's overrides may do anything, such as import a package or read a file."""
    return _container_class(type(value))


@cache
def _container_class(kind: type) -> type[Any] | None:
    return next((base for base in CONTAINERS if issubclass(kind, base)), None)


def stored_keys(value: dict[Any, Any]) -> list[Any]:
    """Return the keys of a dict, without calling the user's overrides."""
    kind: Any = container_of(value)
    return [*kind.keys(value)]


def stored_items(value: Any) -> list[Any]:
    """Return the items of a container or tuple, or the values of a dict, without calling
    overrides."""
    if isinstance(value, tuple):
        return list(tuple.__iter__(value))
    kind: Any = container_of(value)
    return [*(kind.values(value) if issubclass(kind, dict) else kind.__iter__(value))]


def contents(box: Any) -> dict[Any, Any]:
    """Return a copy of a container's contents by key."""
    match box:
        case dict() if type(box) is dict:  # pyright: ignore[reportUnknownArgumentType]
            return dict(box)  # pyright: ignore[reportUnknownArgumentType]
        case dict():
            return dict(zip(stored_keys(box), stored_items(box), strict=True))  # pyright: ignore[reportUnknownArgumentType]
        case list() | deque():
            return dict(enumerate(stored_items(box)))
        case set():
            return {item: item for item in stored_items(box)}
        case Holder():
            return box.read()
        case _:
            return attributes_of(box)


def refill(box: Any, values: dict[Any, Any]) -> None:
    """Put contents back in place. Methods that a user's class overrides are not called."""
    match box:
        case list():
            list.__setitem__(box, slice(None), values.values())  # pyright: ignore
        case deque():
            deque.clear(box)  # pyright: ignore[reportUnknownArgumentType]
            deque.extend(box, values.values())  # pyright: ignore[reportUnknownArgumentType]
        case set():
            set.clear(box)  # pyright: ignore[reportUnknownArgumentType]
            set.update(box, values.values())  # pyright: ignore[reportUnknownArgumentType]
        case Holder():
            box.write(values)
        case dict():
            _refill_table(box, values)  # pyright: ignore[reportUnknownArgumentType]
        case _:
            _refill_attributes(box, values)


def _refill_table(table: dict[Any, Any], values: dict[Any, Any]) -> None:
    """Change as few entries as possible, so that other threads find the rest at all times."""
    kind = OrderedDict if isinstance(table, OrderedDict) else dict
    for key in [key for key in stored_keys(table) if key not in values]:
        kind.__delitem__(table, key)  # type: ignore[arg-type]
    if not all(
        map(is_, stored_keys(table), values)
    ):  # the remaining keys are not a prefix of the new ones
        kind.clear(table)  # type: ignore[arg-type]
    for key, value in values.items():
        if dict.get(table, key, UNDEFINED) is not value:
            kind.__setitem__(table, key, value)  # type: ignore[arg-type]


def is_same(first: dict[Any, Any], second: dict[Any, Any]) -> bool:
    """True if contents have the same objects under the same keys, in the same order."""
    return (
        len(first) == len(second)
        and all(map(is_, first.values(), second.values()))
        and all(map(is_, first, second))
    )


def parts_of(value: Any) -> Sequence[Any] | None:
    """Return the parts of an immutable composite (a tuple, a text that shows values, or an
    Either); None for other values."""
    if is_text(value):
        return value.stretto_values
    if isinstance(value, Either):
        pairs = zip(value.stretto_flags, value.stretto_options, strict=True)
        return [part for pair in pairs for part in pair]
    return stored_items(value) if isinstance(value, tuple) else None


def rebuild_tuple(old: Any, items: list[Any]) -> Any:
    """Return a composite of the same class with other parts, without calling methods of a user's
    class."""
    if is_text(old):
        return TracedText(old.stretto_pieces, items)
    if isinstance(old, Either):
        return Either(items[::2], items[1::2])
    kind = type(old)
    try:
        made = tuple.__new__(kind, items)
    except TypeError:  # a torch class: an operator's return type, or torch.Size
        is_known = kind is not torch.Size or all(isinstance(n, int | torch.SymInt) for n in items)
        return kind(items) if is_known else tuple(items)
    if hasattr(old, "__dict__"):
        vars(made).update(vars(old))
    return made


def with_part(whole: Any, path: Sequence[Any], part: Any, *, in_boxes: bool = False) -> Any:
    """Return a composite with one part replaced. A container on the path is changed itself if
    in_boxes, else the result is NONE."""
    if not path:
        return part
    parts = parts_of(whole)
    if parts is None and not in_boxes:
        return NONE
    items = contents(whole) if parts is None else dict(enumerate(parts))
    made = with_part(items.get(path[0]), path[1:], part, in_boxes=in_boxes)
    if made is NONE:
        return NONE
    items[path[0]] = made
    if parts is not None:
        return rebuild_tuple(whole, list(items.values()))
    refill(whole, items)
    return whole


def are_of_one_form(first: Any, second: Any) -> bool:
    """True if the parts of two immutable composites correspond to each other."""
    parts, others = parts_of(first), parts_of(second)
    if parts is None or others is None or type(first) is not type(second):
        return False
    if is_text(first):
        return first.stretto_pieces == second.stretto_pieces
    return len(parts) == len(others)


def have_same_parts(first: Any, second: Any) -> bool:
    """True if two tuples have the same length, two texts the same pieces, or two boxes of one
    class the same keys."""
    if type(first) is not type(second):
        return False
    if isinstance(first, tuple) or is_text(first):
        return are_of_one_form(first, second)
    return is_box(first) and contents(first).keys() == contents(second).keys()


def children(value: Any) -> Iterator[Any]:
    """Yield the direct contents of a composite or container."""
    parts = parts_of(value)
    if parts is not None:
        yield from parts
    elif is_box(value):
        yield from contents(value).values()


_HOLDING = (FunctionType, MethodType, partial, type)
"""Classes of objects that are no boxes, but whose variables, defaults or attributes are."""


def held_by(value: Any, local: Collection[int]) -> Iterator[Any]:
    """Yield the boxes that belong to a function, method or class created by the captured function.

    local: ids of cells that are variables of active calls, which are left out.
    """
    state = tracer()
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, MethodType):
            pending += (item.__self__, item.__func__)
        elif isinstance(item, partial):
            pending += (item.func, *item.args, *item.keywords.values())
        elif is_box(item):
            yield item
        elif isinstance(item, type):
            if _is_class_of_call(item):
                yield state.holder("class", item, ClassAttributes)
        elif isinstance(item, FunctionType) and not state.heap.knows(item):
            for name, cell in zip(item.__code__.co_freevars, item.__closure__ or (), strict=True):
                if id(cell) not in local and not is_internal(name):
                    yield state.holder("cell", cell, lambda cell, n=name: CellVariable(cell, n))
            pending += (*(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values())
            if item.__dict__:
                yield item.__dict__


@cache
def _is_leaf(kind: type) -> bool:
    """True if values of a class hold nothing that is part of the state."""
    holding = (tuple, Either, TracedText, *_HOLDING)
    return _box_class(kind) is False and not issubclass(kind, holding)


def _attribute_boxes(value: Any) -> Iterator[Any]:
    """Yield the boxes of the attributes of a container whose class derives from a built-in one."""
    if hasattr(value, "__dict__"):
        yield vars(value)
    if _slots(type(value)):
        known = tracer().heap.stores.get(("slots", id(value)))
        yield known or tracer().holder("slots", value, SlotAttributes)


def _is_class_of_call(kind: type) -> bool:
    """True for a class that the captured function has created."""
    module: Any = getattr(kind, "__module__", "")
    foreign = not isinstance(module, str) or module.split(".")[0] in _FOREIGN
    return not foreign and not issubclass(kind, Enum) and not tracer().heap.knows(kind)


CellKey = tuple[int, str]


@dataclass(eq=False)
class Snapshot:
    """Variables by (frame number, name), and the contents of every reachable container."""

    frames: list[CallFrame]
    cells: dict[CellKey, Any] = field(default_factory=dict[CellKey, Any])
    boxes: dict[int, tuple[Any, dict[Any, Any]]] = field(
        default_factory=dict[int, tuple[Any, dict[Any, Any]]]
    )
    fixed: set[int] = field(default_factory=set[int])
    """Boxes that a default of a function or a bound argument refers to: no other object can
    replace them there."""
    time: int = field(default_factory=lambda: tracer().lasting.time)

    @staticmethod
    def take(extra: tuple[Any, ...] = ()) -> Snapshot:
        """Return the present state; `extra` are further values to follow."""
        state = tracer()
        frames = list(state.frames)
        snapshot = Snapshot(frames)
        pending = [*extra, *state.tracked.values()]
        local = set(state.tracked_cells)
        for number, frame in enumerate(frames):
            for name, cell in frame.cells.items():
                if id(cell) in state.tracked_cells:
                    continue
                local.add(id(cell))
                value = frame.get(name)
                snapshot.cells[number, name] = value
                pending.append(value)
        boxes = snapshot.boxes
        while pending:
            value = pending.pop()
            if _is_leaf(type(value)):
                continue
            held = parts_of(value)
            if held is not None:
                pending.extend(held)
            if is_box(value):
                if id(value) not in boxes:
                    inside = contents(value)
                    boxes[id(value)] = (value, inside)
                    pending.extend(inside.values())
                    if type(value) not in CONTAINERS and isinstance(value, CONTAINERS):
                        pending.extend(_attribute_boxes(value))
            elif isinstance(value, _HOLDING):
                for box in held_by(value, local):
                    if not isinstance(box, Holder):
                        snapshot.fixed.add(id(box))
                    if id(box) not in boxes:
                        inside = contents(box)
                        boxes[id(box)] = (box, inside)
                        pending.extend(inside.values())
        return snapshot

    def is_now(self) -> bool:
        """True if variables and containers still hold the same objects."""
        return all(
            self.frames[number].get(name) is value for (number, name), value in self.cells.items()
        ) and all(is_same(contents(box), values) for box, values in self.boxes.values())

    def values(self) -> Iterator[Any]:
        """Yield the values of variables and containers."""
        yield from self.cells.values()
        for _, values in self.boxes.values():
            yield from values.values()

    def knows(self, box: Any) -> bool:
        """True if an object existed at the time of the snapshot."""
        return id(box) in self.boxes or tracer().heap.knows(box)

    def restore(self) -> None:
        """Restore the state. Raises Abort or Replan if that is not possible."""
        state: Tracer = tracer()
        state.lasting.check(self.time)
        unfollowed = state.lasting.unfollowed(self.time, self.boxes)
        if unfollowed:
            state.heap.touched.update((id(box), box) for box in unfollowed)
            raise Replan
        del state.frames[len(self.frames) :]
        for (number, name), value in self.cells.items():
            self.frames[number].set(name, value)
        for box, values in self.boxes.values():
            refill(box, values)


_PLAIN = (bool, int, complex, str, bytes, range, slice, frozenset, Enum, torch.dtype, torch.device)


def equal_leaves(first: Any, second: Any) -> bool:
    """True if two leaves are the same Python value (tensors: the same object)."""
    if first is second:
        return True
    if first is UNDEFINED or second is UNDEFINED or type(first) is not type(second):
        return False
    if is_text(first):
        return False
    if isinstance(first, float):
        return repr(first) == repr(second)
    return isinstance(first, _PLAIN) and bool(first == second)


def _shown_dim(dim: Any) -> str:
    """Return a size as error messages show it, without settling it."""
    return str(dim.node) if isinstance(dim, torch.SymInt) else str(dim)


def describe(value: Any) -> str:
    """Return a description of a value for error messages."""
    if value is UNDEFINED:
        return "undefined"
    if isinstance(value, TracedTensor):
        kind = "number" if value.number is not None else "tensor"
        dims = ", ".join(map(_shown_dim, value.shape))
        return f"a {kind} {str(value.dtype).removeprefix('torch.')}[{dims}]"
    if isinstance(value, TracedList):
        return "a list"
    if is_text(value):
        return "a text"
    if isinstance(value, Either):
        return " or ".join(map(describe, value.stretto_options))
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return f"a {type(value).__name__}"


def shown_name(name: str) -> str:
    """Return the name of a variable for error messages."""
    return "the returned value" if is_internal(name) else f"'{name}'"
