"""Rules for lists: items, lengths and stacks that the ops which build a list already tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stretto.ir.core import Op, Value
from stretto.ir.ops import (
    ListExtendOp,
    ListGetOp,
    ListLengthOp,
    ListNewOp,
    ListPopOp,
    ListPushOp,
    ListSetOp,
    ListStackOp,
    TensorOp,
)
from stretto.ir.rewrite import Definitions, Replacement
from stretto.ir.size_bounds import at_most
from stretto.ir.types import Dim
from stretto.ops.arguments import argument, int_argument
from stretto.ops.infer import size_op, tensor_op
from stretto.passes.analyses.list_lengths import ListLengths
from stretto.passes.simplifications.algebra import number


@dataclass(frozen=True, slots=True)
class KnownItems:
    """The last items of a list, and whether they are all of it."""

    items: tuple[Value, ...]
    is_all: bool

    def get(self, index: int) -> Value | None:
        if index < 0:
            return self.items[index] if -index <= len(self.items) else None
        return self.items[index] if self.is_all and index < len(self.items) else None


def known_items(value: Value, definitions: Definitions) -> KnownItems:
    """What the ops that make the list say about its items."""
    pushed: list[Value] = []
    while isinstance(maker := definitions.get(value), ListPushOp):
        pushed.append(maker.item)
        value = maker.list
    before = _known_before_pushes(maker, definitions)
    return KnownItems((*before.items, *reversed(pushed)), before.is_all)


def _known_before_pushes(maker: Op | None, definitions: Definitions) -> KnownItems:
    match maker:
        case ListNewOp():
            return KnownItems(maker.items, True)
        case ListSetOp():
            before, index = known_items(maker.list, definitions), maker.index
            place = _literal(index, definitions)
            if place is None or before.get(place) is None:
                return KnownItems((), False)
            items = [*before.items]
            items[place] = maker.item
            return KnownItems(tuple(items), before.is_all)
        case _:
            return KnownItems((), False)


def get_known(op: ListGetOp, definitions: Definitions) -> Replacement | None:
    index = _literal(op.index, definitions)
    item = known_items(op.list, definitions).get(index) if index is not None else None
    return None if item is None else ([], (item,))


def pop_pushed(op: ListPopOp, definitions: Definitions) -> Replacement | None:
    maker = definitions.get(op.list)
    if isinstance(maker, ListPushOp):
        return [], (maker.list, maker.item)
    if isinstance(maker, ListNewOp) and maker.items:
        shorter = ListNewOp(
            maker.items[:-1], results=(Value(op.list.type, op.list.hint),), location=op.location
        )
        return [shorter], (shorter.result, maker.items[-1])
    return None


def length_known(op: ListLengthOp, definitions: Definitions) -> Replacement | None:
    length = _length(op.list, definitions)
    if length is None:
        return None
    known = size_op(length)
    known.location, known.result.hint = op.location, op.result.hint
    return [known], (known.result,)


def stack_known(op: ListStackOp, definitions: Definitions) -> Replacement | None:
    """A stack of items that are all known reads them without a list."""
    known = known_items(op.list, definitions)
    if not known.is_all or op.result.tensor.shape[0] != len(known.items) or not known.items:
        return None
    stack = tensor_op("aten.stack.default", known.items, 0)
    stack.location, stack.result.hint = op.location, op.result.hint
    return [stack], (stack.result,)


def list_of_parts(op: Op, definitions: Definitions) -> Replacement | None:
    """A stack of all items of a list, got one by one, is a stack of the list."""
    if not isinstance(op, TensorOp) or op.target != "aten.stack.default":
        return None
    parts = argument(op, "tensors")
    if int_argument(op, "dim") != 0 or not isinstance(parts, tuple):
        return None
    gets = [definitions.get(part) for part in parts if isinstance(part, Value)]
    lists = {get.list for get in gets if isinstance(get, ListGetOp)}
    places = [_literal(get.index, definitions) for get in gets if isinstance(get, ListGetOp)]
    if len(lists) != 1 or places != [*range(len(parts))]:
        return None
    (whole,) = lists
    if _length(whole, definitions) != len(parts):
        return None
    result = Value(op.result.type, op.result.hint)
    return [ListStackOp(whole, results=(result,), location=op.location)], (result,)


def extend_with_stack(op: ListExtendOp, definitions: Definitions) -> Replacement | None:
    """The rows of a stack, in a list of their own, are the list that was stacked."""
    before, maker = definitions.get(op.list), definitions.get(op.rows)
    is_empty = isinstance(before, ListNewOp) and not before.items
    if not is_empty or not isinstance(maker, ListStackOp):
        return None
    return None if at_most(1, op.rows.tensor.shape[0]) else ([], (maker.list,))


def _length(value: Value, definitions: Definitions) -> Dim | None:
    length = ListLengths(definitions).length(value)
    if length is None or length.loop is not None or not at_most(0, length.items):
        return None
    return length.items


def _literal(value: Value, definitions: Definitions) -> int | None:
    known = number(value, definitions)
    return None if known is None else int(known)


# Each takes its own op class, which a dict cannot say.
LIST_RULES: dict[type[Op], Callable[[Any, Definitions], Replacement | None]] = {
    ListGetOp: get_known,
    ListExtendOp: extend_with_stack,
    ListPopOp: pop_pushed,
    ListLengthOp: length_known,
    ListStackOp: stack_known,
}
