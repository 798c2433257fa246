"""Program lists that replace Python lists, and copies that represent one of several objects.

While a list that outlives the call grows in traced branches or loops, a list of the Program
replaces it in all variables and objects that refer to it. A variable in a separate frame
refers to it until the end, so that its final contents are known. They are copied to the
Python list after each run.

Objects that leave a branch or loop are joined to a copy, item by item. That is correct as
long as neither the copy nor an object that it represents is changed while both are
reachable. Otherwise the capture is repeated with the objects kept apart (`Either`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import CellType
from typing import Any

from stretto.frontends.python.objects.heap import Heap
from stretto.frontends.python.tracing.frames import CallFrame
from stretto.frontends.python.tracing.signals import KeepApart, Replan, fail, fail_length_change
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.state import Snapshot, TracedList

_FRAME = "lists"


def enter_lists(boxes: Iterable[Any]) -> None:
    """Create variables for the lists among the objects that a capture changes."""
    lists = dict[str, Any]()
    for box in boxes:
        if type(box) is list:
            name = _name(box)
            lists[f"{name} ({len(lists) + 1})" if name in lists else name] = box
    tracer().held_lists = {id(box): (box, name) for name, box in lists.items()}
    cells = {name: CellType(box) for name, box in lists.items()}
    tracer().frames.append(CallFrame(_FRAME, cells))


def _name(box: list[Any]) -> str:
    """Return a name for the list: that of an entry that refers to it."""
    heap: Heap = tracer().heap
    for holder in heap.holders(box):
        for key, value in heap.before_of(holder).items():
            if value is box and isinstance(key, str):
                return key
    return "of the arguments"


def check_growth(box: Any) -> None:
    """Check that a list may change its length in a region.

    A list that is the default of a function may not: Abort is raised. If the list outlives the
    call, everything that refers to it has to be part of the state; otherwise Replan is raised.
    """
    state = tracer()
    heap: Heap = state.heap
    if not heap.owns(box):
        if id(box) in Snapshot.take().fixed:
            fail_length_change(box)
        return
    if type(box) is not list or heap.is_held_by_others(box):
        fail_length_change(box)
    heap.enter_globals({id(box): box})
    missing = {id(b): b for b in (box, *heap.holders(box)) if id(b) not in state.tracked}
    if missing:
        heap.touched.update(missing)
        raise Replan


def note_origin(made: Any, origin: int) -> None:
    """Record that the Program list `made` replaces the Python list with this id."""
    tracer().list_origins[id(made)] = origin
    tracer().kept_alive.append(made)


def stand_ins() -> dict[int, tuple[list[Any], TracedList]]:
    """Return the Python lists that outlive the call with the Program lists that replace them, by
    the id of the latter."""
    state = tracer()
    frame = next(frame for frame in state.frames if frame.name == _FRAME)
    found = ((box, frame.get(name)) for box, name in state.held_lists.values())
    return {id(made): (box, made) for box, made in found if isinstance(made, TracedList)}


def replacement(box: Any) -> TracedList | None:
    """Return the Program list that has replaced a Python list, or None. An expression may still
    hold the old Python list."""
    if not isinstance(box, list) or id(box) not in tracer().replaced_lists:  # pyright: ignore[reportUnknownArgumentType]
        return None
    origins = tracer().list_origins
    lists = (value for value in Snapshot.take().values() if isinstance(value, TracedList))
    return next((value for value in lists if origins.get(id(value)) == id(box)), None)  # pyright: ignore[reportUnknownArgumentType]


def check_replaced(box: Any) -> None:
    """Raise Abort if a Python list is changed that a Program list has replaced."""
    if replacement(box) is not None:
        fail(
            "an item of a list is set, and the list grew in a traced branch or loop while the "
            "value was computed",
            "assign the value to a variable first",
        )


def note_copy(made: Any, originals: Sequence[Any]) -> None:
    """Record that `made` represents one of `originals`, and everything that these represent."""
    copies = tracer().copies
    known = [copies[id(item)][1] for item in originals if id(item) in copies]
    copies[id(made)] = made, [*originals, *(item for items in known for item in items)]


def note_copies_of_one(first: Any, second: Any) -> None:
    """Record that both are copies of one object."""
    for one, other in ((first, second), (second, first)):
        tracer().twins.setdefault(id(one), (one, []))[1].append(other)


def check_change(holder: Any) -> None:
    """Check a change of `holder` before it happens. Raises KeepApart or Abort if a copy that
    shares its identity is still visible."""
    check_replaced(holder)
    state = tracer()
    for other in state.twins.get(id(holder), (None, []))[1]:
        if _is_visible(other):
            fail(
                f"a {type(holder).__name__} that two variables share after a loop is changed",
                "use one variable for it, or make a new one instead of changing it",
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
    """Check a value that is returned or stored in an object: raises KeepApart if the caller may
    know another object that it represents."""
    state = tracer()
    originals = [] if state.keeps_apart else state.copies.get(id(value), (None, []))[1]
    if any(map(state.heap.knows, originals)):
        raise KeepApart


def _is_visible(box: Any) -> bool:
    """True if the user's code or the function's caller can still access a container."""
    if tracer().heap.knows(box):
        return True
    snapshot = Snapshot.take()
    if not isinstance(box, TracedList):
        return id(box) in snapshot.boxes
    return any(item is box for item in snapshot.values())
