"""Lowers a text and looks at what came out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from stretto.device.forms import LeafItem, Lowered
from stretto.device.operator import Operator
from stretto.device.tree import Node, leaves, walk
from stretto.lowering.lower_program import lower
from tests.support import program_of

T = TypeVar("T")


def lowered(text: str) -> Lowered:
    return lower(program_of(text))


def items_of(result: Lowered, function: str = "main") -> list[LeafItem]:
    """Everything in the leaves of a function, in order."""
    return [item for leaf in leaves(result.tree.function(function).body) for item in leaf]


def operators(result: Lowered, function: str = "main") -> list[str]:
    """The names of the operators of a function, without numbers."""
    return [item.name for item in items_of(result, function) if isinstance(item, Operator)]


def nodes(result: Lowered, kind: type[T], function: str = "main") -> list[T]:
    """The control nodes of one class."""
    return list(_of(kind, walk(result.tree.function(function).body)))


def _of(kind: type[T], found: Iterator[Node[tuple[LeafItem, ...]]]) -> Iterator[T]:
    yield from (node for node in found if isinstance(node, kind))
