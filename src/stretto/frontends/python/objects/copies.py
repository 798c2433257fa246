"""Copies that stand for one of several objects, and that nobody may tell from it.

Objects that a branch or loop leaves behind are joined to a copy, item by item. That is right as
long as neither the copy nor an object that it stands for is changed while both can be seen.
Otherwise the capture is tried again with the objects kept apart (`Either`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.frontends.python.objects.held_lists import check_replaced
from stretto.frontends.python.tracing.signals import KeepApart, fail
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.state import Snapshot, TracedList


def note_copy(made: Any, originals: Sequence[Any]) -> None:
    """`made` stands for one of `originals`, and for what these stand for."""
    copies = tracer().copies
    known = [copies[id(item)][1] for item in originals if id(item) in copies]
    copies[id(made)] = made, [*originals, *(item for items in known for item in items)]


def note_twins(first: Any, second: Any) -> None:
    """Both are copies of one object."""
    for one, other in ((first, second), (second, first)):
        tracer().twins.setdefault(id(one), (one, []))[1].append(other)


def check_change(holder: Any) -> None:
    """Called before `holder` is changed."""
    check_replaced(holder)
    state = tracer()
    for other in state.twins.get(id(holder), (None, []))[1]:
        if _is_visible(other):
            fail(
                f"a {type(holder).__name__} is changed that two variables share behind a loop",
                "use one variable for it, or make a new one in place of changing it",
            )
    if not state.copies or state.keeps_apart:
        return
    others = list[Any]()
    for made, originals in state.copies.values():
        if made is holder:
            others += originals
        elif any(item is holder for item in originals):
            others.append(made)
    if others and any(_is_visible(other) for other in others if other is not holder):
        raise KeepApart


def check_kept(value: Any) -> None:
    """Called where a value is returned, or kept in an object: the caller may know another one that
    it stands for."""
    state = tracer()
    originals = [] if state.keeps_apart else state.copies.get(id(value), (None, []))[1]
    if any(map(state.heap.knows, originals)):
        raise KeepApart


def _is_visible(box: Any) -> bool:
    """Whether the user's code, or the caller of the function, can still see a container."""
    if tracer().heap.knows(box):
        return True
    snapshot = Snapshot.take()
    if not isinstance(box, TracedList):
        return id(box) in snapshot.boxes
    held = [*snapshot.cells.values()]
    held += [item for _, values in snapshot.boxes.values() for item in values.values()]
    return any(item is box for item in held)
