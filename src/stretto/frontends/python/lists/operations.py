"""Operations on lists whose length may depend on the run."""

from __future__ import annotations

from collections.abc import Callable
from operator import ge, gt, le, lt
from operator import index as index_of
from typing import Any

import torch

from stretto.errors import OnlyInPython
from stretto.frontends.python.aliasing.aliases import link
from stretto.frontends.python.lists import methods
from stretto.frontends.python.lists.data_lists import DataList
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import SIZE_BITS, Hooks, ListLength, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data_dependent_sizes import is_decided
from stretto.frontends.python.values.leaves import (
    fake_of_type,
    kind_of,
    materialize,
    to_traced_list,
    wrap,
)
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.scalars import (
    LeafKind,
    as_numbers,
    cast_number,
    concrete,
    number_kind,
    unify,
)
from stretto.frontends.python.values.state import TracedList, describe
from stretto.ir.core import Op, Value
from stretto.ir.ops import (
    ListExtendOp,
    ListGetOp,
    ListNewOp,
    ListPopOp,
    ListPushOp,
    ListSetOp,
    ListStackOp,
)
from stretto.ir.types import INDEX, Dim, TensorListType, TensorType, Type


def element_kind(items: TracedList) -> LeafKind:
    """Return the kind of the items of a list."""
    if isinstance(items, DataList):
        return tracer().data.leaf_kind(items.item_type)
    base = items.memory.state.base
    assert isinstance(base, Value)
    return LeafKind(base.list.element, items.numbers)


def numbers(tensor: TracedTensor) -> Any:
    """Return `tensor.tolist()` for a tensor of one dim of data-dependent size; else
    NotImplemented."""
    if tensor.dim() != 1 or not is_decided(tensor.shape[0]):
        return NotImplemented
    state = tracer()
    rows = state.read(as_numbers(tensor))
    kind = LeafKind(TensorListType(TensorType(rows.tensor.dtype)), True)
    (empty,) = state.emit(ListNewOp(()), (kind.type,))
    (made,) = state.emit(ListExtendOp(empty, rows), (kind.type,))
    return wrap(made, kind, device=tensor.device)


def _length(items: TracedList) -> ListLength:
    return items.memory.state.length or ListLength(object(), 0)


def traced_length(items: TracedList) -> Any:
    """Return `len(items)`: an int or a size if it is known, else a traced number."""
    if isinstance(items, DataList):
        return items.length()
    length, state = _length(items), tracer()
    if length.static is not None:
        return length.static
    if length.size is not None:
        return state.symbolic_dim(length.size)
    return state.number(state.list_length(state.current(items.memory)), bits=SIZE_BITS)


def bounded(items: TracedList, position: Any) -> Any:
    """Return a bound of a part of a list as a position between the ends."""
    return _method(methods.bounded, items, position, 1)


def is_resized(items: TracedList) -> bool:
    """True if the number of items may change while a loop goes through them."""
    return isinstance(items, DataList) and tracer().data.is_resized(items.stored.type)


def known_length(items: TracedList) -> int:
    """Return the length as a Python int."""
    length = traced_length(items)
    return int(concrete(length, "int") if isinstance(length, TracedTensor) else length)


def _item_value(items: TracedList, item: Any) -> Value:
    kind, wanted = kind_of(item), element_kind(items)
    if kind is None or unify(wanted, kind) != wanted:
        fail(
            f"{describe(item)} is put into a list of {wanted.type}",
            "give all items of a list that grows in a traced loop one shape and dtype",
        )
    return materialize(item, wanted)


def push(items: TracedList, item: Any) -> None:
    """Append an item. Raises Abort if its kind differs from that of the list."""
    if isinstance(items, DataList):
        items.push(item)
        return
    value, length = _item_value(items, item), _length(items)
    _change(items, lambda now: ListPushOp(now, value), length.plus(1))
    link(items, [item])


def _change(
    items: TracedList, op_on: Callable[[Value], Op], length: ListLength | None, *others: Type
) -> tuple[Value, ...]:
    """Emit an op that replaces the value of `items`. Returns its further results, of types
    `others`."""
    state = tracer()
    current = state.current(items.memory)
    made, *rest = state.emit(op_on(current), (current.type, *others))
    state.write(items.memory, made, length)
    return tuple(rest)


def extend(items: TracedList, others: Any) -> None:
    if isinstance(items, DataList) and isinstance(others, DataList):
        items.extend(others)
        return
    if isinstance(others, TracedList):
        _method(methods.extend, items, others)
        return
    for item in others:
        push(items, item)


def _method(function: Any, items: Any, *args: Any) -> Any:
    return Hooks.own(function)(items, *args)


_NO_INDEX = "list indices must be integers or slices, not {}"
_NO_INTEGER = "'{}' object cannot be interpreted as an integer"


def _check_position(index: Any, message: str = _NO_INDEX) -> None:
    """Raise Python's error for a bad position in a list."""
    if isinstance(index, torch.Tensor) and number_kind(index) is None:
        if index.numel() != 1 or index.dtype.is_floating_point or index.dtype.is_complex:
            raise TypeError("only integer tensors of a single element can be converted to an index")
    elif number_kind(index) is float or not hasattr(index, "__index__"):
        kind = "float" if number_kind(index) is float else type(index).__name__
        raise TypeError(message.format(kind))


def _position(items: TracedList, index: Any) -> Value:
    _check_position(index)
    if isinstance(index, TracedTensor):
        wide: Any = index if index.dtype == torch.int64 else index.to(torch.int64)
        return tracer().read(wide)
    static = _length(items).static
    if static is not None and not -static <= index < static:
        raise IndexError("list index out of range")
    return tracer().literal(int(index), INDEX.dtype)


def get_item(items: TracedList, index: Any) -> Any:
    """Return `items[index]`, for an index or a slice."""
    if isinstance(index, slice):
        return _slice(items, index)
    if isinstance(items, DataList):
        _check_position(index)
        return items.at(index)
    state = tracer()
    kind = element_kind(items)
    op = ListGetOp(state.current(items.memory), _position(items, index))
    return _taken(items, wrap(state.emit(op, (kind.type,))[0], kind, device=_device(items)))


def _taken(items: TracedList, item: Any) -> Any:
    """Record that an item shares memory with its list, and return it."""
    if not items.numbers:
        link(item, [items])
    return item


_MOST_ITEMS = 64
"""Maximum number of items of a slice that are read one by one instead of in a loop."""


def bounds_of(index: slice) -> tuple[Any, Any, Any]:
    """Return start, stop and step of a list's slice as numbers."""
    start, stop, step = map(_bound, (index.start, index.stop, index.step))
    return start, stop, step


def _bound(bound: Any) -> Any:
    found = checked_bound(bound)
    if isinstance(found, torch.SymInt):
        return tracer().number_of_dim(found)
    return found if found is None or isinstance(found, TracedTensor) else index_of(found)


def checked_bound(bound: Any) -> Any:
    """Return a slice bound, with a traced bool converted to an int. Raises TypeError for non-
    integers."""
    is_traced = isinstance(bound, TracedTensor)
    is_float = isinstance(bound, torch.SymFloat) or (
        is_traced and (bound.dtype.is_floating_point or bound.dtype.is_complex)
    )
    if is_float or not (bound is None or hasattr(bound, "__index__")):
        raise TypeError("slice indices must be integers or None or have an __index__ method")
    return cast_number(bound, int) if is_traced and bound.dtype == torch.bool else bound


def _slice(items: TracedList, index: slice) -> Any:
    static, parts = _length(items).static, bounds_of(index)
    if isinstance(items, DataList):
        return items.slice(*parts)
    index = slice(*parts)
    if static is not None and not any(isinstance(part, TracedTensor) for part in parts):
        places = range(static)[index]
        if len(places) <= _MOST_ITEMS:
            return [get_item(items, position) for position in places]
    step = 1 if index.step is None else index.step
    if not isinstance(step, int):
        fail("the step of a slice is a traced value", "use a Python int as step")
    if step == 0:
        raise ValueError("slice step cannot be zero")
    made = _without_items(items)
    _method(methods.part, items, *extent(items, index.start, index.stop, step), step, made)
    return made


def extent(items: Any, start: Any, stop: Any, step: int) -> tuple[Any, Any]:
    """Return the first position and the length of `items[start:stop:step]`."""
    first, last = (0, Hooks.call(len, items)) if step > 0 else (Hooks.call(len, items) - 1, -1)
    first = first if start is None else _method(methods.bounded, items, start, step)
    last = last if stop is None else _method(methods.bounded, items, stop, step)
    return first, _method(methods.trips, first, last, step)


def _check_no_slice(index: Any) -> None:
    if isinstance(index, slice):
        fail(
            "a slice of a list that grows in a traced branch or loop is set or deleted",
            "set or delete single items, or make a new list",
        )


def set_item(items: TracedList, index: Any, item: Any) -> None:
    _check_no_slice(index)
    if isinstance(items, DataList):
        _check_position(index)
        items.put(index, item)
        return
    value, place = _item_value(items, item), _position(items, index)
    _change(items, lambda now: ListSetOp(now, place, value), items.memory.state.length)
    link(items, [item])


def delete_item(items: TracedList, index: Any) -> None:
    _check_no_slice(index)
    _check_position(index)
    message = "list assignment index out of range"
    if isinstance(items, DataList):
        _method(methods.check_position, items, index, message)
        items.pop(index)
        return
    _method(methods.delete, items, index, message)


def insert(items: TracedList, index: Any, item: Any) -> None:
    _check_position(index, _NO_INTEGER)
    if isinstance(items, DataList):
        items.insert(index, item)
        return
    _method(methods.insert, items, index, item)


def reverse(items: TracedList) -> None:
    if isinstance(items, DataList):
        items.emit("reverse")
        return
    _method(methods.reverse, items)


def pop(items: TracedList, index: Any = -1) -> Any:
    """Perform `items.pop(index)` and return the item."""
    if isinstance(items, DataList):
        _check_position(index, _NO_INTEGER)
        return items.pop() if isinstance(index, int) and index == -1 else items.pop(index)
    if isinstance(index, torch.Tensor) or index != -1:
        _check_position(index, _NO_INTEGER)
        item = _method(methods.item_to_pop, items, index)
        _method(methods.delete, items, index, "pop index out of range")
        return item
    kind, length = element_kind(items), _length(items)
    after = length.plus(-1)
    (item,) = _change(items, ListPopOp, after, kind.type)
    return _taken(items, wrap(item, kind, device=_device(items)))


def clear(items: TracedList) -> None:
    if isinstance(items, DataList):
        items.emit("clear")
        return
    _change(items, lambda _: ListNewOp(()), ListLength(None, 0))


def copied(items: TracedList) -> TracedList:
    """Return a new list with the same items."""
    if isinstance(items, DataList):
        return items.copied()
    state = tracer()
    base = state.current(items.memory)
    made = wrap(base, LeafKind(base.type, items.numbers), length=items.memory.state.length)
    made.fake = items.fake
    return made


def contains(items: TracedList, item: Any) -> Any:
    """Return `item in items`."""
    return _may_have(items, item) and _method(methods.contains, items, item)


def count(items: TracedList, item: Any) -> Any:
    """Return `items.count(item)`."""
    return _method(methods.count, items, item) if _may_have(items, item) else 0


def index(items: TracedList, item: Any, start: Any = 0, stop: Any = None) -> Any:
    """Return `items.index(item, start, stop)`."""
    if not _may_have(items, item):
        raise ValueError(f"{item!r} is not in list")
    stop = traced_length(items) if stop is None else _method(methods.bounded, items, stop, 1)
    return _method(methods.index, items, item, _method(methods.bounded, items, start, 1), stop)


def _may_have(items: TracedList, item: Any) -> bool:
    """True if an item is a number, which may be in the list; other items are not in a list of
    numbers. Raises Abort for tensors and lists."""
    kind = number_kind(item)
    if kind is float:
        check_nan(item)
    is_tensor = kind is None and _is_tensor(item)
    if is_tensor or (kind is not None and not items.numbers):
        fail(
            "a list that grows in a traced branch or loop is searched for a tensor or list",
            "keep numbers in the list, or compare what you need in a loop",
        )
    return kind is not None


def check_nan(number: Any) -> None:
    """Make a run continue in Python if NaN is searched, as Python finds it only by identity.
    Raises Abort for a Python NaN."""
    if isinstance(number, TracedTensor):
        check(number == number, OnlyInPython.__name__, "NaN is looked for by its identity")
    elif number != number:
        fail(
            "NaN is looked for in a list that grows in a traced branch or loop",
            "compare with math.isnan()",
        )


def _is_tensor(item: Any) -> bool:
    return isinstance(item, torch.Tensor | TracedList)


def repeated(items: TracedList, times: Any) -> TracedList:
    """Return `items * times` for an integer."""
    if isinstance(items, DataList):
        return items.repeated(times)
    made = copied(items)
    _method(methods.repeat, made, times, items)
    return made


_ORDERS = {"<": lt, "<=": le, ">": gt, ">=": ge}


def compared(items: TracedList, symbol: str, others: Any) -> Any:
    """Return a comparison of two lists of integers or flags."""
    if symbol == "!=":
        return Hooks.python.not_(compared(items, "==", others))
    if isinstance(others, list):
        kinds = {*map(number_kind, others)}  # pyright: ignore[reportUnknownArgumentType]
        if None in kinds and symbol == "==" and items.numbers and not any(map(_is_tensor, others)):  # pyright: ignore[reportUnknownArgumentType]
            return False
        if len(kinds) > 1 and not kinds & {None, float}:
            others = [Hooks.call(int, one) for one in others]  # pyright: ignore[reportUnknownVariableType]
        others = to_traced_list(others) if others else _without_items(items)
    if not (_is_of_integers(items) and _is_of_integers(others)):
        fail(
            "a list that grows in a traced branch or loop is compared with another one, and not "
            "all items are integers or flags",
            "compare their lengths, and their items in a loop",
        )
    if symbol == "==":
        return _method(methods.equal, items, others)
    return _method(methods.compared, items, others, _ORDERS[symbol])


def _is_of_integers(items: TracedList) -> bool:
    """True if the items are numbers that always equal themselves."""
    type = element_kind(items).type
    return items.numbers and isinstance(type, TensorType) and not type.dtype.is_float


def _without_items(items: TracedList) -> TracedList:
    """Return an empty list of the same kind."""
    made = copied(items)
    clear(made)
    return made


def stack(items: TracedList, dim: int = 0, *, least: int = 1) -> Any:
    """Return `torch.stack(items, dim)`; the leading dim is a symbol if the length is not known.
    least: 0 if there may be no items, for which torch.stack raises."""
    if isinstance(items, DataList):
        made = items.stack(least)
        return made if dim == 0 else made.movedim(0, dim)
    state = tracer()
    element = element_kind(items).type
    assert isinstance(element, TensorType)
    current = state.current(items.memory)
    length = _length(items)
    lead: Dim
    if length.base is not None:
        lead = state.dim(state.new_symbol(state.list_length(current), low=least))
    else:
        lead = length.offset
        if least and state.symbolic_dim(lead) < 1:
            raise RuntimeError("stack expects a non-empty TensorList")
    type = TensorType(element.dtype, (lead, *element.shape))
    value = state.emit(ListStackOp(current), (type,))[0]
    made = state.fresh(value, fake_of_type(type, _device(items)))
    return made if dim == 0 else made.movedim(0, dim)


def concatenate(items: TracedList, dim: int = 0) -> Any:
    """Return `torch.cat(items, dim)` as a stack and a reshape."""
    stacked = stack(items)
    dim %= stacked.dim() - 1
    moved = stacked.movedim(0, dim)
    shape = list(moved.shape)
    size = shape[dim + 1]
    lead = shape[dim]
    is_free = isinstance(items, DataList) and dim == 0  # rows of any number
    if not is_free and not isinstance(lead, int) and _length(items).base is not None and size != 1:
        fail(
            "torch.cat of a list whose length depends on a tensor, along a dim that is not 1",
            "use torch.stack, or items of size 1 along that dim",
        )
    joint = lead if size == 1 else lead * size
    return moved.reshape([*shape[:dim], joint, *shape[dim + 2 :]])


def to_python(items: TracedList) -> list[Any]:
    """Return the items of a list of known length. Raises Abort if the length is not known."""
    if _length(items).base is not None:
        fail(
            "a list whose length depends on a tensor is passed to a function that needs its items",
            "use torch.stack(list), len(list), indexing or a for loop",
        )
    return [get_item(items, index) for index in range(known_length(items))]


def _device(items: TracedList) -> torch.device | None:
    return items.fake.device if items.fake is not None else None
