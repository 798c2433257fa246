"""Lowering of the ops on lists.

A list value is a buffer and a length (`ListView`), from the base of the activation on. Several
list values may share one buffer, such as a list before and after a push. An op changes the
buffer in place if no other list in it is read later; otherwise it changes a copy.
"""

from __future__ import annotations

from collections.abc import Iterator

from stretto.device.expr import (
    Access,
    Apply,
    Buffer,
    Const,
    Extent,
    Index,
    Load,
    Position,
    Reg,
)
from stretto.device.tree import CheckCode
from stretto.errors import CodegenError, NotLowered
from stretto.ir.core import Op, Value
from stretto.ir.failure import Failure
from stretto.ir.ops import (
    ListExtendOp,
    ListGetOp,
    ListLengthOp,
    ListNewOp,
    ListPopOp,
    ListPushOp,
    ListSetOp,
    ListStackOp,
)
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size
from stretto.ir.types import DType
from stretto.lowering.lazy import Lazy, cast, variables
from stretto.lowering.lower_function import ListView, Lowering

_OUT_OF_RANGE = Failure("IndexError", "list index out of range")
_SET_OUT_OF_RANGE = Failure("IndexError", "list assignment index out of range")
_EMPTY_POP = Failure("IndexError", "pop from empty list")
_EMPTY_STACK = Failure("RuntimeError", "stack expects a non-empty TensorList")


def _wrong_length(number: Extent) -> Failure:
    return Failure("RuntimeError", f"stack of {{}} items where {number} are expected")


def lower_list_op(low: Lowering, op: Op) -> None:
    """Lower an op on lists."""
    match op:
        case ListNewOp():
            _new(low, op)
        case ListPushOp():
            low.env[op.result] = push(low, op.list, op.item)
        case ListExtendOp():
            low.env[op.result] = _extended(low, op)
        case ListGetOp():
            view = low.list(op.list)
            place = _item_position(low, view, op.index, _OUT_OF_RANGE)
            low.env[op.result] = _item(low, view, place)
        case ListSetOp():
            _set(low, op)
        case ListPopOp():
            _pop(low, op)
        case ListLengthOp():
            low.env[op.result] = Lazy(DType.I64, (), Position(low.list(op.list).length))
        case ListStackOp():
            _stack(low, op)
        case _:
            raise CodegenError(f"no lowering for {op.name}", location=op.location)


# ---- buffers ---------------------------------------------------------------------------------


def new_list_buffer(low: Lowering, value: Value) -> Buffer:
    """Return memory for a list of the group of `value`; any other list of the group also fits."""
    element = value.list.element
    item = low.extents(element.shape)
    shape = low.room(item)
    is_result = low.lists.is_returned(value) and low.function is low.program.main
    if shape is None or (is_result and shape != item):
        raise NotLowered(
            "a list of tensors whose size is known only at run time",
            location=low.location,
            remedy="give its items a size that the call knows, as a part of a tensor has one: "
            "`x[:n]` instead of `torch.zeros(n)`",
        )
    capacity = low.lists.capacity(value)
    if capacity is None or (is_result and isinstance(capacity, Size)):
        return low.new_list(element.dtype, (Reg("capacity"), *shape))
    rows = max(capacity, 1) if isinstance(capacity, int) else low.extent(capacity)
    if is_result:
        return low.new_growing("list", element.dtype, (rows, *shape))
    return low.new_buffer("list", element.dtype, (rows, *shape), "items")


def first_list_buffer(low: Lowering, value: Value) -> Buffer:
    """Return memory for a new list: its final place if no live list is there, else a new buffer."""
    for buffer in low.slots.wanted.get(low.lists.roots[value], ()):
        if not any(list_values(low, buffer)):
            low.protect(buffer)
            return buffer
    return new_list_buffer(low, value)


def list_values(low: Lowering, buffer: Buffer) -> Iterator[Value]:
    """Iterate over the lists in `buffer` that are read later."""
    for value, binding in low.env.items():
        if isinstance(binding, ListView) and binding.buffer == buffer and low.uses.is_needed(value):
            yield value


def others_need(low: Lowering, buffer: Buffer, value: Value) -> bool:
    """True if `value` or another list in `buffer` is read later."""
    return low.uses.is_needed(value) or any(list_values(low, buffer))


def _owned(low: Lowering, value: Value) -> ListView:
    """Return the list for changing it: a copy if its buffer must stay unchanged."""
    view = low.list(value)
    return copied(low, value, view) if others_need(low, view.buffer, value) else view


def copied(low: Lowering, value: Value, view: ListView) -> ListView:
    """Return a copy of the list in a new buffer."""
    buffer = new_list_buffer(low, value)
    copy_items(low, view, buffer)
    return ListView(buffer, view.length, view.item)


def copy_items(
    low: Lowering,
    view: ListView,
    buffer: Buffer,
    *,
    start: Index | None = None,
    to: Index | None = None,
) -> None:
    """Copy all items of a list that begins at `start` into another buffer from `to` on.

    Both default to the base of the activation.
    """
    start = low.base(view.buffer) if start is None else start
    to = low.base(buffer) if to is None else to
    low.check_room(buffer, to + view.length)
    known = view.length.const if view.length.is_const else None
    count = low.let(Position(view.length), "length") if known is None else known
    dims: tuple[Extent, ...] = (count, *view.item)
    first, *others = variables(dims)
    source = Load(Access(view.buffer, view.buffer.shape, (start + first, *others)))
    out = Access(buffer, buffer.shape, (to + first, *others))
    low.write("copy", dims, source, out)


# ---- ops -------------------------------------------------------------------------------------


def _new(low: Lowering, op: ListNewOp) -> None:
    item_shape = low.extents(op.result.list.element.shape)
    view = ListView(first_list_buffer(low, op.result), Index(), item_shape)
    for item in op.items:
        view = _append(low, view, low.tensor(item))
    low.env[op.result] = view


def push(low: Lowering, value: Value, item: Value) -> ListView:
    """Append an item to a list, in place or in a copy; return the new list."""
    view = _owned(low, value)
    if low.lists.is_popped(value):
        low.protect(view.buffer)
    return _append(low, view, low.tensor(item))


def _extended(low: Lowering, op: ListExtendOp) -> ListView:
    view = _owned(low, op.list)
    if low.lists.is_popped(op.list):
        low.protect(view.buffer)
    rows = low.tensor(op.rows)
    to = low.base(view.buffer) + view.length
    low.check_room(view.buffer, to + rows.shape[0])
    first, *others = variables(rows.shape)
    out = Access(view.buffer, view.buffer.shape, (to + first, *others))
    low.write("extend", rows.shape, cast(rows.expr, view.buffer.dtype), out)
    return ListView(view.buffer, view.length + rows.shape[0], view.item)


def _append(low: Lowering, view: ListView, item: Lazy) -> ListView:
    end = low.base(view.buffer) + view.length
    low.check_room(view.buffer, end + 1)
    _store_item(low, view.buffer, end, item)
    return ListView(view.buffer, view.length + 1, view.item)


def _store_item(low: Lowering, buffer: Buffer, place: Index, item: Lazy) -> None:
    out = Access(buffer, buffer.shape, (place, *variables(item.shape)))
    low.write("push", item.shape, cast(item.expr, buffer.dtype), out)


def _item(low: Lowering, view: ListView, place: Index) -> Lazy:
    access = (low.base(view.buffer) + place, *variables(view.item))
    buffer = view.buffer
    return Lazy(buffer.dtype, view.item, Load(Access(buffer, buffer.shape, access)))


def _item_position(low: Lowering, view: ListView, index: Value, failure: Failure) -> Index:
    if view.length.is_const:
        return low.position(index, view.length.const, failure)
    length = low.let(Position(view.length), "length")
    low.ranges[length] = (0, None)
    return low.position(index, length, failure)


def _set(low: Lowering, op: ListSetOp) -> None:
    view = _owned(low, op.list)
    place = _item_position(low, view, op.index, _SET_OUT_OF_RANGE)
    low.protect(view.buffer)
    _store_item(low, view.buffer, low.base(view.buffer) + place, low.tensor(op.item))
    low.env[op.result] = view


def _pop(low: Lowering, op: ListPopOp) -> None:
    view = low.list(op.list)
    rest, item = op.results
    length = low.let(Position(view.length + -1), "length")
    not_empty = Apply("ge", (Position(Index.of(length)), Const(0, DType.I64)), DType.BOOL)
    low.check(not_empty, CheckCode.INDEX, low.stop(_EMPTY_POP))
    low.ranges[length] = (0, None)
    last = _item(low, view, Index.of(length))
    low.env[item] = low.store(last, low.output(item), "pop")
    low.env[rest] = ListView(view.buffer, Index.of(length), view.item)


def _stack(low: Lowering, op: ListStackOp) -> None:
    view = low.list(op.list)
    lead = op.result.tensor.shape[0]
    extent: Extent
    own = lead.symbol if isinstance(lead, Size) and lead not in low.symbols else None
    if own is not None and own not in low.own_symbols:
        extent = low.let(Position(view.length), "length")
        least = 1 if at_most(1, lead) else 0
        low.ranges[extent] = (least, None)
        low.symbols[lead] = extent
        if least:
            _check_length(low, "ge", Index.of(extent), 1)
    else:
        extent = low.extent(lead)
        _check_length(low, "eq", view.length, extent)
    shape: tuple[Extent, ...] = (extent, *view.item)
    first, *others = variables(shape)
    first = low.base(view.buffer) + first
    access = Access(view.buffer, view.buffer.shape, (first, *others))
    low.env[op.result] = Lazy(view.buffer.dtype, shape, Load(access))


def _check_length(low: Lowering, comparison: str, length: Index, wanted: Extent) -> None:
    if length != Index.of(wanted):
        number = wanted if isinstance(wanted, int) else None
        limit = Position(Index.of(wanted)) if number is None else Const(number, DType.I64)
        holds = Apply(comparison, (Position(length), limit), DType.BOOL)
        failure = _EMPTY_STACK if comparison == "ge" else _wrong_length(wanted)
        low.check(holds, CheckCode.INDEX, low.stop(failure), Position(length))
