"""Lists that are made of parts, each a value or a plan."""

from __future__ import annotations

from stretto.batching.frontend.data.lists import append, new_list
from stretto.batching.frontend.iteration.plans import Plan
from stretto.batching.frontend.iteration.sources import plan_of
from stretto.batching.frontend.iteration.walks import iterate
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import Dynamic, Value
from stretto.batching.types import ListType, alternatives


def known_parts(parts: list[Value | Plan]) -> tuple[Value, ...] | None:
    """The items; None where the instance decides how many there are."""
    found: list[Value] = []
    for part in parts:
        if not isinstance(part, Plan):
            found.append(part)
        elif part.known is None:
            return None
        else:
            found.extend(part.known)
    return tuple(found)


def listed(frame: Frame, parts: list[Value | Plan]) -> Dynamic:
    """A new list."""
    cell = frame.evaluation.cell(frame.site("list"))
    items = known_parts(parts)
    if items is not None:
        return new_list(frame, cell, items)
    made = new_list(frame, cell, ())
    for part in parts:
        if isinstance(part, Plan):
            iterate(frame, part, lambda item: append(frame, made, item))
        else:
            append(frame, made, part)
    return made


def cell_of(value: Dynamic) -> int:
    assert isinstance(value.type, ListType)
    return value.type.cell


def extend(frame: Frame, target: Dynamic, items: Value) -> None:
    """Adds all items to a list, which may be the list itself."""
    kinds = list(alternatives(items.type)) if isinstance(items, Dynamic) else []
    if not kinds or not all(isinstance(kind, ListType) for kind in kinds):
        iterate(frame, plan_of(frame, items), lambda item: append(frame, target, item))
        return
    assert isinstance(items, Dynamic)
    for mine in alternatives(target.type):
        for theirs in kinds:
            assert isinstance(mine, ListType) and isinstance(theirs, ListType)
            frame.evaluation.grow(mine.cell, frame.evaluation.item_type(theirs))
    frame.do("extend", target.operand, items.operand)
