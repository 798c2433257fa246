"""Operations on lists whose length may depend on the run."""

from __future__ import annotations

from typing import Any

import torch

from stretto.capture.aliases import link
from stretto.capture.copies import check_change
from stretto.capture.leaves import fake_of_type, kind_of, materialize, wrap
from stretto.capture.scalars import Kind, unify
from stretto.capture.signals import fail
from stretto.capture.state import TracedList, describe
from stretto.capture.tensor import Length, TracedTensor
from stretto.capture.tracer import tracer
from stretto.ir.core import Value
from stretto.ir.ops import (
    ListGetOp,
    ListNewOp,
    ListPopOp,
    ListPushOp,
    ListSetOp,
    ListStackOp,
)
from stretto.ir.types import INDEX, Symbol, TensorType


def element_kind(items: TracedList) -> Kind:
    base = items.memory.state.base
    assert isinstance(base, Value)
    return Kind(base.list.element, items.numbers)


def _length(items: TracedList) -> Length:
    return items.memory.state.length or Length(object(), 0)


def traced_length(items: TracedList) -> Any:
    """`len(items)`: an int where it is known, else a traced number."""
    static = _length(items).static
    if static is not None:
        return static
    state = tracer()
    return state.number(state.list_length(state.current(items.memory)))


def _item_value(items: TracedList, item: Any) -> Value:
    kind, wanted = kind_of(item), element_kind(items)
    if kind is None or unify(wanted, kind, promote=False) != wanted:
        fail(
            f"{describe(item)} is put into a list of {wanted.type}",
            "give all items of a list that grows in a traced loop one shape and dtype",
        )
    return materialize(item, wanted)


def push(items: TracedList, item: Any) -> None:
    check_change(items)
    state = tracer()
    value = _item_value(items, item)
    current = state.current(items.memory)
    length = _length(items)
    pushed = state.emit(ListPushOp(current, value), (current.type,))[0]
    state.write(items.memory, pushed, Length(length.base, length.offset + 1))
    link(items, [item])


def extend(items: TracedList, others: Any) -> None:
    for item in others:
        push(items, item)


def _position(items: TracedList, index: Any) -> Value:
    if isinstance(index, TracedTensor):
        wide: Any = index if index.dtype == torch.int64 else index.to(torch.int64)
        return tracer().read(wide)
    static = _length(items).static
    if static is not None and not -static <= index < static:
        raise IndexError("list index out of range")
    return tracer().literal(int(index), INDEX.dtype)


def get_item(items: TracedList, index: Any) -> Any:
    if isinstance(index, slice):
        return _slice(items, index)
    state = tracer()
    kind = element_kind(items)
    op = ListGetOp(state.current(items.memory), _position(items, index))
    return _taken(items, wrap(state.emit(op, (kind.type,))[0], kind, device=_device(items)))


def _taken(items: TracedList, item: Any) -> Any:
    """An item shares memory with its list."""
    if not items.numbers:
        link(item, [items])
    return item


def _slice(items: TracedList, index: slice) -> list[Any]:
    static = _length(items).static
    if static is None:
        fail(
            "a slice of a list whose length depends on a tensor",
            "stack the list and use masks, or loop over its items",
        )
    return [get_item(items, position) for position in range(static)[index]]


def set_item(items: TracedList, index: Any, item: Any) -> None:
    check_change(items)
    state = tracer()
    value = _item_value(items, item)
    current = state.current(items.memory)
    op = ListSetOp(current, _position(items, index), value)
    state.write(items.memory, state.emit(op, (current.type,))[0], items.memory.state.length)
    link(items, [item])


def pop(items: TracedList, index: Any = -1) -> Any:
    if index != -1:
        fail("pop() of a position other than the last", "pop the last item, or use a tensor")
    check_change(items)
    state = tracer()
    kind = element_kind(items)
    current = state.current(items.memory)
    length = _length(items)
    rest, item = state.emit(ListPopOp(current), (current.type, kind.type))
    state.write(items.memory, rest, Length(length.base, length.offset - 1))
    return _taken(items, wrap(item, kind, device=_device(items)))


def clear(items: TracedList) -> None:
    check_change(items)
    state = tracer()
    current = state.current(items.memory)
    state.write(items.memory, state.emit(ListNewOp(()), (current.type,))[0], Length(None, 0))


def copied(items: TracedList) -> TracedList:
    state = tracer()
    base = state.current(items.memory)
    made = wrap(base, Kind(base.type, items.numbers), length=items.memory.state.length)
    made.fake = items.fake
    return made


def stack(items: TracedList, dim: int = 0) -> Any:
    """`torch.stack(items, dim)`; the leading dim is a symbol when the length is not known."""
    state = tracer()
    element = element_kind(items).type
    assert isinstance(element, TensorType)
    current = state.current(items.memory)
    static = _length(items).static
    if static is None:
        symbol = state.new_symbol(state.list_length(current))
        lead = Symbol(str(symbol.node.expr))
    else:
        lead = static
    type = TensorType(element.dtype, (lead, *element.shape))
    value = state.emit(ListStackOp(current), (type,))[0]
    made = state.fresh(value, fake_of_type(type, _device(items)))
    return made if dim == 0 else made.movedim(0, dim)


def concatenate(items: TracedList, dim: int = 0) -> Any:
    """`torch.cat(items, dim)` as a stack and a reshape."""
    stacked = stack(items)
    dim %= stacked.dim() - 1
    moved = stacked.movedim(0, dim)
    shape = list(moved.shape)
    size = shape[dim + 1]
    lead = shape[dim]
    if not isinstance(lead, int) and size != 1:
        fail(
            "torch.cat of a list whose length depends on a tensor, along a dim that is not 1",
            "use torch.stack, or items of size 1 along that dim",
        )
    joint = lead if size == 1 else lead * size
    return moved.reshape([*shape[:dim], joint, *shape[dim + 2 :]])


def to_python(items: TracedList) -> list[Any]:
    """The items of a list of known length."""
    static = _length(items).static
    if static is None:
        fail(
            "a list whose length depends on a tensor is passed to a function that needs its items",
            "use torch.stack(list), len(list), indexing or a for loop",
        )
    return [get_item(items, index) for index in range(static)]


def _device(items: TracedList) -> torch.device | None:
    return items.fake.device if items.fake is not None else None
