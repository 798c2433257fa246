"""Takes values apart into leaves and a structure: arguments and results of recursive functions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from operator import is_
from typing import Any

from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.leaves import kind_of
from stretto.frontends.python.values.scalars import Kind, left_by_function, unify
from stretto.frontends.python.values.state import (
    TracedList,
    children,
    contents,
    equal_leaves,
    is_same,
    parts_of,
    rebuild_tuple,
    refill,
)
from stretto.frontends.python.values.texts import is_text

NOTHING: Mapping[int, Hashable] = {}


_COMPARED = (type(None), bool, int, str)
"""Classes of which equal objects are the same. Those of their subclasses may have attributes."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A Python number in a result that has been the same in every path so far."""

    value: bool | int | float


@dataclass(eq=False, slots=True)
class ResultTemplate:
    """The structure of a result: its leaves, and how to rebuild it from them."""

    leaves: list[Kind | Fixed]
    build: Callable[[list[Any], list[Any]], Any]
    """Makes the result from the leaves that are not fixed and the containers of the arguments."""
    shape: Hashable

    @property
    def kinds(self) -> list[Kind]:
        """Kinds of the leaves that the IR function yields."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Kind)]


def merge(known: Kind | Fixed, leaf: Any) -> Kind | Fixed | None:
    """The leaf that can hold both a known leaf of a result and the value of another path."""
    if isinstance(known, Fixed) and equal_leaves(known.value, leaf):
        return known
    first = kind_of(known.value) if isinstance(known, Fixed) else known
    second = kind_of(leaf)
    return None if first is None or second is None else unify(first, left_by_function(second))


def is_result_leaf(value: Any) -> bool:
    return isinstance(value, TracedTensor | bool | int | float)


def is_mixed_number(value: Any) -> bool:
    """Whether a value is one of several numbers and tensors without dims."""
    return isinstance(value, Either) and all(
        is_result_leaf(option) and not getattr(option, "shape", ())
        for option in value.stretto_options
    )


def is_traced_leaf(value: Any) -> bool:
    return isinstance(value, TracedTensor)


@dataclass(frozen=True, slots=True)
class ValueWalk:
    """How values are taken apart: what is a leaf, and whether lists are taken apart too."""

    is_leaf: Callable[[Any], bool]
    by_content: bool

    def flatten(
        self, value: Any, leaves: list[Any], known: Mapping[int, Hashable] = NOTHING
    ) -> Hashable:
        """Collects the leaves of a value and returns its structure. `known` has the structure of
        some objects, by their ids."""
        if self.is_leaf(value):
            leaves.append(value)
            return "leaf"
        if id(value) in known:
            return known[id(value)]
        match value:
            case tuple():
                return (type(value), *(self.flatten(item, leaves, known) for item in value))
            case _ if is_text(value):
                items = (self.flatten(item, leaves, known) for item in parts_of(value) or ())
                return (value.stretto_pieces, *items)
            case Either() if is_mixed_number(value):
                parts = parts_of(value) or ()
                return (Either, *(self.flatten(part, leaves, known) for part in parts))
            case list() if self.by_content and type(value) is list:  # pyright: ignore[reportUnknownArgumentType]
                return (list, *(self.flatten(item, leaves, known) for item in value))
            case dict() if self.by_content and type(value) is dict:  # pyright: ignore[reportUnknownArgumentType]
                return (dict, *((k, self.flatten(v, leaves, known)) for k, v in value.items()))
            case float() if type(value) is float:
                return (float, value.hex())
            case None | bool() | int() | str() if type(value) in _COMPARED:
                return (type(value), value)
            case _:
                return ("object", id(value))

    def rebuild(self, value: Any, supply: list[Any], replaced: dict[Any, Any]) -> Any:
        """`value` with leaves from `supply`, in order; `replaced` maps ids of containers."""
        if self.is_leaf(value):
            return supply.pop(0)
        if isinstance(value, list | dict | TracedList) and id(value) in replaced:
            return replaced[id(value)]
        match value:
            case _ if (parts := parts_of(value)) is not None:
                items = [self.rebuild(item, supply, replaced) for item in parts]
                return rebuild_tuple(value, items)
            case list() if self.by_content and type(value) is list:  # pyright: ignore[reportUnknownArgumentType]
                return [self.rebuild(item, supply, replaced) for item in value]
            case dict() if self.by_content and type(value) is dict:  # pyright: ignore[reportUnknownArgumentType]
                return {k: self.rebuild(v, supply, replaced) for k, v in value.items()}
            case _:
                return value

    def update(self, value: Any, supply: list[Any]) -> Any:
        """`value` with leaves from `supply`, in order, put into the containers themselves."""
        if self.is_leaf(value):
            return supply.pop(0)
        parts = None if isinstance(value, Either) else parts_of(value)
        if parts is not None:
            items = [self.update(item, supply) for item in parts]
            same = all(map(is_, items, parts))
            return value if same else rebuild_tuple(value, items)
        if isinstance(value, list | dict) and self.by_content:
            before = contents(value)
            after = {key: self.update(item, supply) for key, item in before.items()}
            if not is_same(before, after):
                refill(value, after)
        return value

    def containers(self, value: Any) -> Iterator[Any]:
        """The lists and dicts in a value; those inside of others only where lists are taken
        apart."""
        if isinstance(value, list | dict | TracedList):
            yield value
        if isinstance(value, tuple) or (isinstance(value, list | dict) and self.by_content):
            for item in children(value):
                yield from self.containers(item)


RESULT = ValueWalk(is_result_leaf, by_content=True)
