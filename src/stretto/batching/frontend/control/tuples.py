"""Tuples whose length differs from way to way: they become tuples of any length."""

from __future__ import annotations

from collections.abc import Hashable

from stretto.batching.frontend.control.kinds import unpacked
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import Dynamic, Static, TupleValue, Value
from stretto.batching.types import ListType, TupleType, alternatives


def as_list(frame: Frame, value: Value, site: Hashable) -> Value:
    """A tuple of known length as one of any length; other values as they are."""
    known = known_items(frame, value)
    if known is None:
        return value
    cell = frame.evaluation.cell(site)
    items = [frame.dynamic(item) for item in known]
    for item in items:
        frame.evaluation.grow(cell, item.type)
    type_ = ListType(frame.evaluation.cell(site), is_tuple=True)
    return frame.assign("list", type_, *(item.operand for item in items), detail=True)


def known_items(frame: Frame, value: Value) -> tuple[Value, ...] | None:
    """The items of a tuple of known length; None for any other value."""
    match value:
        case Static(item) if type(item) is tuple:
            return tuple(map(Static, item))
        case TupleValue(items, is_list) if not is_list:
            return items
        case Dynamic(_, TupleType() as kind):
            return unpacked(frame, value, kind)
        case _:
            return None


def is_tuple(value: Value) -> bool:
    """Whether a value is surely a tuple."""
    match value:
        case TupleValue(_, is_list):
            return not is_list
        case Static(item):
            return type(item) is tuple
        case Dynamic(_, type_):
            return all(
                isinstance(kind, TupleType) or (isinstance(kind, ListType) and kind.is_tuple)
                for kind in alternatives(type_)
            )
        case _:
            return False
