"""Places of the state that a loop, or a recursive function, carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stretto.frontends.python.values.leaves import layout_of
from stretto.frontends.python.values.scalars import Kind

Slot = tuple[Any, ...]
"""A variable or an item of a container, with a path through tuples."""


@dataclass(eq=False, slots=True)
class Leaf:
    """A carried slot: its kind, its value before the region, and that at the end of the body."""

    kind: Kind
    init: Any
    end: Any = None
    layout: tuple[int, ...] | None = None

    def learn_layout(self) -> bool:
        """Whether the strides at the end of a round are others than were assumed."""
        before, self.layout = self.layout, layout_of(self.init, self.end)
        return before != self.layout


@dataclass(eq=False, slots=True)
class Grown:
    """A Python list that becomes an IR list: identity `box`, contents before the region."""

    box: list[Any]
    items: list[Any]
    kind: Kind | None = None
    end: Any = None
