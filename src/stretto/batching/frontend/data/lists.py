"""New lists, and what is in them."""

from __future__ import annotations

from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import Dynamic, SliceValue, Value
from stretto.batching.types import ListType, RowsType, Type, alternatives


def item_type(frame: Frame, type_: Type) -> Type:
    """The type of the items of a list or of rows."""
    match type_:
        case RowsType(row):
            return row
        case ListType(cell):
            return frame.evaluation.cells[cell]
        case _:
            return frame.refuse(f"{frame.show(type_)} has no items")


def slice_parts(index: SliceValue) -> tuple[Value, Value, Value]:
    return index.start, index.stop, index.step


def sliced(frame: Frame, value: Dynamic, index: SliceValue) -> Dynamic:
    """A slice of a list is a list of its own: it may come to hold other types."""
    parts = [frame.operand(part) for part in slice_parts(index)]
    type_ = value.type
    if isinstance(type_, ListType) and not type_.is_tuple:
        cell = frame.evaluation.cell(frame.site("slice"))
        frame.evaluation.grow(cell, item_type(frame, type_))
        type_ = ListType(cell)
    return frame.assign("slice", type_, value.operand, *parts)


def new_list(frame: Frame, cell: int, items: tuple[Value, ...]) -> Dynamic:
    given = [frame.dynamic(item) for item in items]
    for item in given:
        frame.evaluation.grow(cell, item.type)
    return frame.assign("list", ListType(cell), *(v.operand for v in given), detail=False)


def append(frame: Frame, target: Dynamic, item: Value) -> None:
    given = frame.dynamic(item)
    for kind in alternatives(target.type):
        assert isinstance(kind, ListType)
        frame.evaluation.grow(kind.cell, given.type)
    frame.do("append", target.operand, given.operand)
