"""Builders of the containers that the captured function makes: each call builds new ones from their
class and items."""

from __future__ import annotations

import functools
import itertools
import types
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.signals import CaptureSignal
from stretto.frontends.python.values.state import bare_object


@dataclass(frozen=True, slots=True)
class TupleOf:
    """Builds a tuple, a namedtuple, a range or a slice."""

    kind: type

    def __call__(self, items: Sequence[Any]) -> Any:
        if self.kind in (range, slice):
            return self.kind(*items)
        return self.kind(*items) if hasattr(self.kind, "_fields") else self.kind(items)


@dataclass(frozen=True, slots=True)
class CollectionOf:
    """Builds a list, set or deque. most: `maxlen` of a deque."""

    kind: type
    most: int | None = None

    def __call__(self, items: Sequence[Any]) -> Any:
        return deque(items, self.most) if self.kind is deque else self.kind(items)


@dataclass(frozen=True, slots=True, eq=False)
class DictOf:
    """Builds a dict, or a standard subclass of it. factory: of a defaultdict."""

    kind: type
    keys: tuple[Any, ...]
    factory: Callable[[], Any] | None = None

    def __call__(self, items: Sequence[Any]) -> Any:
        given = zip(self.keys, items, strict=True)
        pairs = {key: item for key, item in given if item is not UNDEFINED}  # not in this run
        if self.kind is defaultdict:
            return defaultdict(self.factory, pairs)
        return pairs if self.kind is dict else self.kind(pairs)


@dataclass(frozen=True, slots=True)
class RecordOf:
    """Builds an object from its attributes, without calling its class."""

    kind: type
    names: tuple[str, ...]

    def __call__(self, items: Sequence[Any]) -> Any:
        made = bare_object(self.kind)
        for name, item in zip(self.names, items, strict=True):
            object.__setattr__(made, name, item)
        return made


@dataclass(frozen=True, slots=True)
class SubclassOf:
    """Builds an object of a class derived from a built-in container, without calling its class.
    Its items are the contents, then the attributes."""

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


@dataclass(frozen=True, slots=True, eq=False)
class FunctionOf:
    """Builds a function from its cells, its defaults and its attributes. like: the one that the
    capture has made. is_in: which cells hold the function itself."""

    like: Any
    is_in: tuple[bool, ...]
    names: tuple[str, ...]

    def __call__(self, items: Sequence[Any]) -> Any:
        like, left = self.like, iter(items)
        cells = tuple(itertools.islice(left, len(self.is_in)))
        defaults = tuple(itertools.islice(left, len(like.__defaults__ or ()))) or None
        made = types.FunctionType(like.__code__, like.__globals__, like.__name__, defaults, cells)
        named = dict(zip(like.__kwdefaults__ or {}, left, strict=False))
        made.__kwdefaults__ = named or None
        made.__qualname__, made.__annotations__ = like.__qualname__, dict(like.__annotations__)
        for cell, is_here in zip(cells, self.is_in, strict=True):
            if is_here:
                cell.cell_contents = made
        return _with_attributes(made, self.names, left)


@dataclass(frozen=True, slots=True)
class PartialOf:
    """Builds a partial function from its function, arguments and attributes. keywords: the names
    of the last arguments."""

    kind: type[functools.partial[Any]]
    keywords: tuple[str, ...]
    names: tuple[str, ...]

    def __call__(self, items: Sequence[Any]) -> Any:
        count = len(items) - len(self.keywords) - len(self.names)
        left = iter(items[count:])
        named = dict(zip(self.keywords, left, strict=False))
        made = functools.partial.__new__(self.kind, *items[:count], **named)
        return _with_attributes(made, self.names, left)


def _with_attributes(made: Any, names: tuple[str, ...], values: Iterator[Any]) -> Any:
    for name, item in zip(names, values, strict=True):
        if item is not UNDEFINED:
            setattr(made, name, item)
    return made


Container = TupleOf | CollectionOf | DictOf | RecordOf | SubclassOf


class ArgumentReturned(CaptureSignal):
    """A container among the arguments is part of the result."""
