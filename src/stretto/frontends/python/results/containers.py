"""How a container that the captured function makes is made anew by each call: from its class and
its items."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TupleOf:
    """A tuple, a named one, a range or a slice."""

    kind: type

    def __call__(self, items: Sequence[Any]) -> Any:
        if self.kind in (range, slice):
            return self.kind(*items)
        return self.kind(*items) if hasattr(self.kind, "_fields") else self.kind(items)


@dataclass(frozen=True, slots=True)
class CollectionOf:
    """A list, set or deque. most: how many items a deque keeps."""

    kind: type
    most: int | None = None

    def __call__(self, items: Sequence[Any]) -> Any:
        return deque(items, self.most) if self.kind is deque else self.kind(items)


@dataclass(frozen=True, slots=True, eq=False)
class DictOf:
    """A dict, or a ready-made kind of it. factory: of a defaultdict."""

    kind: type
    keys: tuple[Any, ...]
    factory: Callable[[], Any] | None = None

    def __call__(self, items: Sequence[Any]) -> Any:
        pairs = dict(zip(self.keys, items, strict=True))
        if self.kind is defaultdict:
            return defaultdict(self.factory, pairs)
        return pairs if self.kind is dict else self.kind(pairs)


@dataclass(frozen=True, slots=True)
class RecordOf:
    """An object, rebuilt without calling its class."""

    kind: type
    names: tuple[str, ...]

    def __call__(self, items: Sequence[Any]) -> Any:
        made = object.__new__(self.kind)
        for name, item in zip(self.names, items, strict=True):
            object.__setattr__(made, name, item)
        return made


@dataclass(frozen=True, slots=True)
class SubclassOf:
    """An object of a class that derives from a built-in container: what that holds, then
    attributes. It is rebuilt without calling its class."""

    kind: type
    base: type
    keys: tuple[Any, ...]
    names: tuple[str, ...]
    options: tuple[Any, ...] = ()

    def __call__(self, items: Sequence[Any]) -> Any:
        count = len(items) - len(self.names)
        held: Any = dict(zip(self.keys, items, strict=False)) if self.keys else items[:count]
        made: Any = self.base.__new__(self.kind, *([held] if self.base is frozenset else ()))
        if self.base is not frozenset:
            self.base.__init__(made, *self.options, held)  # type: ignore[call-arg]
        for name, item in zip(self.names, items[count:], strict=True):
            object.__setattr__(made, name, item)
        return made


Container = TupleOf | CollectionOf | DictOf | RecordOf | SubclassOf
