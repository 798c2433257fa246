"""Lists of instances: objects of the data dialect, whose operations are ops at once.

The content of such a list is always the same `DataList`: the list itself changes when the program
runs. Nothing of it is carried by loops or joined after branches.
"""

from __future__ import annotations

from typing import Any

from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import (
    Hooks,
    Storage,
    StorageState,
    TracedTensor,
)
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.leaves import fake_of_type
from stretto.frontends.python.values.scalars import to_number
from stretto.frontends.python.values.state import TracedList
from stretto.ir.core import Literal, Operand, Value
from stretto.ir.types import ListType, Scalar, TensorType


class DataList(TracedList):
    """The content of a list of an instance."""

    __slots__ = ("stored",)

    def __init__(self, value: Value) -> None:
        super().__init__(Storage(StorageState(value), tracer().scope))
        self.stored = value

    @property
    def value(self) -> Value:
        return tracer().use(self.stored)

    @property
    def item_type(self) -> Any:
        """The type of the items. Raises UnknownResult, or IndexError, if there are none."""
        return tracer().data.item_type(self.stored.type)

    def emit(self, op: str, *args: Any) -> None:
        """Emit an op that changes the list. args: positions, or values of the Program."""
        data = tracer().data
        if op != "put":
            data.note_resized(self.stored.type)
        data.change(op, self.value, *args)

    def made(self, op: str, type: Any, *args: Any) -> Any:
        """Emit an op with a result, and return that."""
        return tracer().data.made(op, (self.value, *args), type)

    def with_items(self, op: str, *args: Any) -> DataList:
        """Emit an op that makes a new list with items of this one, and return its content."""
        return DataList(tracer().data.emit(op, (self.value, *args), self.stored.type))

    def copied(self, *, is_tuple: bool = False) -> DataList:
        own: Any = self.stored.type
        type = ListType(own.cell, is_tuple)
        return DataList(tracer().data.emit("to_list", (self.value,), type, is_tuple))

    def held(self, item: Any) -> Value:
        """Return an item to be stored, as a value of the Program."""
        return tracer().data.stored_in(self.stored.type, item)

    # -- what operations ask ----------------------------------------------------------------------

    def length(self) -> Any:
        return self.made("len", Scalar.INT)

    def at(self, index: Any) -> Any:
        return self.made("at", self.item_type, position(index))

    def repeated(self, times: Any) -> DataList:
        return self.with_items("repeat", position(times))

    def slice(self, start: Any, stop: Any, step: Any) -> DataList:
        return self.with_items("slice", *map(position, (start, stop, step)))

    def push(self, item: Any) -> None:
        self.emit("append", self.held(item))

    def put(self, index: Any, item: Any) -> None:
        self.emit("put", position(index), self.held(item))

    def insert(self, index: Any, item: Any) -> None:
        self.emit("insert", position(index), self.held(item))

    def extend(self, others: DataList) -> None:
        tracer().data.merge(self.stored.type, others.stored.type)
        self.emit("extend", others.value)

    def pop(self, *index: Any) -> Any:
        tracer().data.note_resized(self.stored.type)
        return self.made("pop", self.item_type, *map(position, index))

    def fill(self, items: Any) -> None:
        """Replace all items."""
        if items is self:
            return
        held = items if isinstance(items, DataList) else [self.held(item) for item in items]
        self.emit("clear")
        if isinstance(held, DataList):
            self.extend(held)
            return
        for item in held:
            self.emit("append", item)

    def stack(self, least: int) -> TracedTensor:
        """Return `torch.stack` of the items."""
        state, item = tracer(), self.item_type
        if not isinstance(item, TensorType):
            fail("items that are not tensors of one shape and dtype are stacked", "convert them")
        length = self.length()
        if least:
            Hooks.own(_check_stack)(length)
        lead = state.dim(state.new_symbol(state.read(length), low=least))
        type = TensorType(item.dtype, (lead, *item.shape))
        value = state.data.emit("rows", (self.value,), type)
        return state.fresh(value, fake_of_type(type))


def _check_stack(length: Any) -> None:
    if length == 0:
        raise RuntimeError("stack expects a non-empty TensorList")


def position(index: Any) -> Operand | Value:
    """Return a position, or a bound of a slice, as an operand."""
    if isinstance(index, TracedTensor):
        number: Any = to_number(index)
        return tracer().read(number)
    return Literal(index)
