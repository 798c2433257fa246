"""Contents of the objects that a program changes, read at each call before it runs.

Places in the user's objects that a program changes hold another value at each call. Their
contents are flattened: tensors and counters become inputs; the rest, with the information which
tensors are the same, is the *key* of the state. A program is right if the key equals that of
its capture and the tensors have the shapes it is for. Objects found on the way are numbered, so
that effects refer to them by number, whichever objects they are in this call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.values.state import contents, is_box
from stretto.frontends.python.values.stores import CellVariable, Holder

WHOLE: Any = type("Whole", (), {"__repr__": lambda _: "whole"})()
"""Used in place of a key: everything in a box."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""

_MOST_COUNTED = 2**62
_PLAIN = (bool, str, bytes, type(None), torch.dtype, torch.device, Enum)


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """Part of a key that equals this very object only; keeps it alive."""

    value: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """A place that a program changes: an entry of a box, or all of it.

    counted: entries that are Python integers and become inputs.
    """

    box: Any
    key: Any
    counted: frozenset[Any] = frozenset()

    def read(self) -> Any:
        if self.key is WHOLE:
            return self.box
        if isinstance(self.box, dict):
            return self.box.get(self.key, UNDEFINED)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return contents(self.box).get(self.key, UNDEFINED)

    def counts(self, key: Any, value: Any) -> bool:
        return key in self.counted and is_counted(value)

    @property
    def name(self) -> str:
        if isinstance(self.box, CellVariable):
            return self.box.name
        return type(self.box).__name__ if self.key is WHOLE else str(self.key)


def is_counted(value: Any) -> bool:
    """Return True if an integer may be an input."""
    return type(value) is int and -_MOST_COUNTED < value < _MOST_COUNTED


@dataclass(frozen=True, slots=True)
class Exempt:
    """State that guards leave out because the key of the state contains it.

    objects: those that were read. leaves: values found there that are guarded as usual.
    entries: keys of boxes, by `stores.anchor`.
    """

    objects: list[Any] = field(default_factory=list[Any])
    leaves: list[Any] = field(default_factory=list[Any])
    entries: dict[int, set[Any]] = field(default_factory=dict[int, set[Any]])

    def has(self, anchor: int, name: object = WHOLE) -> bool:
        found = self.entries.get(anchor, ())
        return name in found or WHOLE in found


@dataclass(slots=True)
class Reading:
    """The contents of the roots: the key, and tensors, counters and objects in the order found."""

    key: tuple[Any, ...] = ()
    tensors: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    numbers: list[int] = field(default_factory=list[int])
    counters: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    """The box and key of each of the numbers."""
    objects: list[Any] = field(default_factory=list[Any])
    leaves: list[Any] = field(default_factory=list[Any])
    """Other values. If the key is the same, they are the same objects."""
    names: list[str] = field(default_factory=list[str])
    """Names of the tensors, then of the numbers."""
    is_traced: bool = False
    """True if a tensor of a capture in progress in another thread was found."""

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        return tuple([tensor.shape for tensor in self.tensors])

    @property
    def inputs(self) -> list[torch.Tensor]:
        return [*self.tensors, *map(torch.tensor, self.numbers)]


def read_state(
    roots: Iterable[Root],
    arguments: Arguments | None,
    given: Sequence[torch.Tensor],
    fixed: Sequence[Any],
    counted: frozenset[tuple[type, Any]] = frozenset(),
) -> Reading:
    """Read `roots`, and `arguments` unless None, leaving out int arguments.

    These are in the key of the call, or are sizes. given: the tensors among the arguments.
    fixed: boxes that effects identify in another way. counted: attributes of classes whose
    integers become inputs, in whatever object they are found.
    """
    walk = _StateWalk(Reading(), counted)
    for number, tensor in enumerate(given):
        walk.memo.setdefault(id(tensor), ("argument", number))
    for number, box in enumerate(fixed):
        walk.memo[id(box)] = ("fixed", number)
    if arguments is not None:
        positional, named = arguments
        for value in (*positional, *named.values()):
            if type(value) is not int:
                walk.visit(value, "argument")
    for root in roots:
        walk.root(root)
    walk.reading.key = tuple(walk.key)
    return walk.reading


@dataclass(slots=True)
class _StateWalk:
    reading: Reading
    counted: frozenset[tuple[type, Any]]
    key: list[Any] = field(default_factory=list[Any])
    memo: dict[int, Any] = field(default_factory=dict[int, Any])

    def root(self, root: Root) -> None:
        value = root.read()
        if root.key is not WHOLE:
            self.entry(root, root.key, value)
            return
        values = self.enter(value)
        if values is not None:
            for key, item in values.items():
                self.entry(root, key, item)

    def entry(self, root: Root, key: Any, value: Any) -> None:
        if root.counts(key, value):
            self.count(root.box, key, value)
        else:
            self.visit(value, root.name)

    def count(self, box: Any, key: Any, value: int) -> None:
        self.key.append("counted")
        self.reading.numbers.append(value)
        self.reading.counters.append((box, key))

    def visit(self, value: Any, name: str) -> None:
        if isinstance(value, torch.Tensor):
            self.tensor(value, name)
        elif type(value) is int or isinstance(value, _PLAIN):
            self.key.append((type(value), value))
        elif isinstance(value, float):
            self.key.append((float, value.hex()))
        elif isinstance(value, tuple):
            items: tuple[Any, ...] = value
            self.key.append((type(items), len(items)))
            for item in items:
                self.visit(item, name)
        elif is_structural(value):
            values = self.enter(value)
            for key, item in (values or {}).items():
                if (type(value), key) in self.counted and is_counted(item):
                    self.count(value, key, item)
                else:
                    self.visit(item, name)
        else:
            self.key.append(Identity(value))
            self.reading.leaves.append(value)

    def enter(self, box: Any) -> dict[Any, Any] | None:
        """Number a container and add its structure to the key. Returns None if it was entered
        before."""
        if not self.is_new(box):
            return None
        self.reading.objects.append(box)
        values = contents(box)
        kind = type(box)
        if isinstance(box, list | deque):
            self.key.append((kind, len(values)))
        elif isinstance(box, set):
            self.key.append((kind, frozenset(values)))
            return {}
        else:
            self.key.append((kind, *values))
        return values

    def tensor(self, tensor: torch.Tensor, name: str) -> None:
        if isinstance(tensor, TracedTensor):
            self.reading.is_traced = True
        if self.is_new(tensor):
            self.reading.tensors.append(tensor)
            self.reading.names.append(name)
            self.key.append((type(tensor), tensor.dim(), tensor.dtype, tensor.device))

    def is_new(self, value: object) -> bool:
        known = self.memo.get(id(value))
        if known is None:
            self.memo[id(value)] = len(self.memo)
            return True
        self.key.append(("same", known))
        return False


def is_structural(value: Any) -> bool:
    """Return True if another object of the same content may take the place of `value`."""
    if isinstance(value, Holder | Enum):
        return False
    return is_box(value)
