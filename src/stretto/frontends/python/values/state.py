"""The user's Python state: all local variables of active frames and what they contain.

`Snapshot` copies it shallowly per container, so that a branch or a loop body can be traced more
than once from the same state. Containers keep their identity: they are restored in place.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from operator import is_
from types import FunctionType
from typing import Any

import torch
from torch import nn

from stretto.frontends.python.tracing.frames import UNDEFINED, CallFrame, is_internal
from stretto.frontends.python.tracing.tensor import Hooks, Storage, TracedTensor
from stretto.frontends.python.tracing.tracer import Tracer, active, tracer
from stretto.frontends.python.values.either import NONE, Either
from stretto.frontends.python.values.stores import Holder
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


TracedList.__name__ = "list"  # so that errors of Python name what the user has


def _operator(symbol: str) -> Callable[[TracedList, Any], Any]:
    return lambda items, operand: Hooks.list_operator(items, symbol, operand)


for _name, _symbol in {"add": "+", "radd": "r+", "mul": "*", "rmul": "*", "imul": "*="}.items():
    setattr(TracedList, f"__{_name}__", _operator(_symbol))
for _name, _symbol in {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    setattr(TracedList, f"__{_name}__", _operator(_symbol))


def is_box(value: Any) -> bool:
    """Whether `value` is a mutable container whose contents are part of the state."""
    known = _box_class(type(value))
    if known is not None:
        return known
    if isinstance(value, nn.Module):
        state = active()  # modules of the user are followed by the heap
        return state is not None and not state.heap.knows(value)
    return hasattr(value, "__dict__")


@cache
def _box_class(kind: type) -> bool | None:
    """Whether all values of a class are such containers; None where it depends on the value."""
    if issubclass(kind, list | dict | set | deque | Holder):
        return True
    if issubclass(kind, nn.Module):
        return None
    # Members of an enumeration are compared by identity.
    if issubclass(kind, type | Enum | torch.Tensor | TracedList | FunctionType | Either):
        return False
    return None if _is_record_class(kind) else False


def _is_record_class(kind: type) -> bool:
    """A user's class of objects: a dataclass, or anything with a plain `__dict__`."""
    if dataclasses.is_dataclass(kind):
        return True
    module = getattr(kind, "__module__", "")
    if module.split(".")[0] in (
        "builtins",
        "torch",
        "stretto",
        "numpy",
        "functools",
        "collections",
    ):
        return False
    is_callable = any("__call__" in base.__dict__ for base in kind.__mro__)
    return "__setattr__" not in kind.__dict__ and not is_callable


CONTAINERS: tuple[type[Any], ...] = (OrderedDict, dict, list, tuple, set, frozenset, deque)


def container_of(value: Any) -> type[Any] | None:
    """The built-in container that an object is. Its methods are used to read the object: those that
    a class of the user overrides may do anything, such as import a package or read a file."""
    return _container_class(type(value))


@cache
def _container_class(kind: type) -> type[Any] | None:
    return next((base for base in CONTAINERS if issubclass(kind, base)), None)


def stored_keys(value: dict[Any, Any]) -> list[Any]:
    """The keys of a dict."""
    kind: Any = container_of(value)
    return [*kind.keys(value)]


def stored_items(value: Any) -> list[Any]:
    """The items of a container; of a dict, the values."""
    kind: Any = container_of(value)
    return [*(kind.values(value) if issubclass(kind, dict) else kind.__iter__(value))]


def contents(box: Any) -> dict[Any, Any]:
    """A copy of a container's contents by key."""
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
            return dict(vars(box))


def refill(box: Any, values: dict[Any, Any]) -> None:
    """Put contents back, in place. Methods that a class of the user overrides are not called."""
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
        case _:
            _refill_table(box if isinstance(box, dict) else vars(box), values)


def _refill_table(table: dict[Any, Any], values: dict[Any, Any]) -> None:
    """Changes as few entries as possible, so that other threads find the rest at all times."""
    kind = OrderedDict if isinstance(table, OrderedDict) else dict
    for key in [key for key in table if key not in values]:
        kind.__delitem__(table, key)  # type: ignore[arg-type]
    if not all(map(is_, table, values)):  # the keys are not the first ones, in their order
        kind.clear(table)  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in table or table[key] is not value:
            kind.__setitem__(table, key, value)  # type: ignore[arg-type]


def is_same(first: dict[Any, Any], second: dict[Any, Any]) -> bool:
    """Whether contents have the same objects under the same keys, in the same order."""
    return (
        len(first) == len(second)
        and all(map(is_, first.values(), second.values()))
        and all(map(is_, first, second))
    )


def parts_of(value: Any) -> Sequence[Any] | None:
    """What an immutable composite consists of: a tuple, a text that shows values, or a value that
    is one of several."""
    if is_text(value):
        return value.stretto_values
    if isinstance(value, Either):
        pairs = zip(value.stretto_flags, value.stretto_options, strict=True)
        return [part for pair in pairs for part in pair]
    return value if isinstance(value, tuple) else None  # pyright: ignore[reportUnknownVariableType]


def rebuild_tuple(old: Any, items: list[Any]) -> Any:
    """A composite of the same class (also named tuples) with other parts."""
    if is_text(old):
        return TracedText(old.stretto_pieces, items)
    if isinstance(old, Either):
        return Either(items[::2], items[1::2])
    if hasattr(old, "_fields"):
        return type(old)(*items)
    try:
        return type(old)(items)
    except TypeError:
        return tuple(items)


def with_part(whole: Any, path: Sequence[Any], part: Any, *, in_boxes: bool = False) -> Any:
    """A composite with another part. A container on the way is changed itself (in_boxes), or makes
    the result NONE."""
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
    """Whether parts of two immutable composites correspond to each other."""
    parts, others = parts_of(first), parts_of(second)
    if parts is None or others is None or type(first) is not type(second):
        return False
    if is_text(first):
        return first.stretto_pieces == second.stretto_pieces
    return len(parts) == len(others)


def have_same_parts(first: Any, second: Any) -> bool:
    """Whether two tuples have the same length, two texts the same pieces, or two containers of one
    class the same keys."""
    if type(first) is not type(second):
        return False
    if isinstance(first, tuple) or is_text(first):
        return are_of_one_form(first, second)
    return is_box(first) and contents(first).keys() == contents(second).keys()


def children(value: Any) -> Iterator[Any]:
    """What a tuple or container directly holds."""
    parts = parts_of(value)
    if parts is not None:
        yield from parts
    elif is_box(value):
        yield from contents(value).values()


CellKey = tuple[int, str]


@dataclass(eq=False)
class Snapshot:
    """Variables by (frame number, name), and the contents of every reachable container."""

    frames: list[CallFrame]
    cells: dict[CellKey, Any] = field(default_factory=dict[CellKey, Any])
    boxes: dict[int, tuple[Any, dict[Any, Any]]] = field(
        default_factory=dict[int, tuple[Any, dict[Any, Any]]]
    )

    @staticmethod
    def take(extra: tuple[Any, ...] = ()) -> Snapshot:
        """The state now; `extra` are further values to follow."""
        frames = list(tracer().frames)
        snapshot = Snapshot(frames)
        pending = [*extra, *tracer().tracked.values()]
        for number, frame in enumerate(frames):
            for name, cell in frame.cells.items():
                if id(cell) in tracer().tracked_cells:
                    continue
                value = frame.get(name)
                snapshot.cells[number, name] = value
                pending.append(value)
        while pending:
            value = pending.pop()
            held = parts_of(value)
            if is_box(value):
                if id(value) in snapshot.boxes:
                    continue
                inside = contents(value)
                snapshot.boxes[id(value)] = (value, inside)
                held = inside.values() if held is None else held
            if held is not None:
                pending.extend(held)
        return snapshot

    def is_now(self) -> bool:
        """Whether variables and containers still have the objects they had."""
        return all(
            self.frames[number].get(name) is value for (number, name), value in self.cells.items()
        ) and all(is_same(contents(box), values) for box, values in self.boxes.values())

    def values(self) -> Iterator[Any]:
        """What variables and containers hold."""
        yield from self.cells.values()
        for _, values in self.boxes.values():
            yield from values.values()

    def knows(self, box: Any) -> bool:
        """Whether an object existed at the time of the snapshot."""
        return id(box) in self.boxes or tracer().heap.knows(box)

    def restore(self) -> None:
        """Make the state what it was."""
        state: Tracer = tracer()
        del state.frames[len(self.frames) :]
        for (number, name), value in self.cells.items():
            self.frames[number].set(name, value)
        for box, values in self.boxes.values():
            refill(box, values)


_PLAIN = (bool, int, complex, str, bytes, range, slice, frozenset, Enum, torch.dtype, torch.device)


def equal_leaves(first: Any, second: Any) -> bool:
    """Whether two leaves are the same Python value (tensors: the same object)."""
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
    """A size as an error message shows it. Showing one settles nothing."""
    return str(dim.node) if isinstance(dim, torch.SymInt) else str(dim)


def describe(value: Any) -> str:
    """A value as an error message shows it."""
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
    """A variable as an error message names it."""
    return "the returned value" if is_internal(name) else f"'{name}'"
