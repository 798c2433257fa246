"""Conversion of the leaves of the state to IR values and back: tensors, Python numbers, growing
lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from stretto.frontends.python.tracing.fakes import contiguous_strides, fake_of_layout
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import (
    UNKNOWN_BITS,
    Hooks,
    ListLength,
    NumberMark,
    Storage,
    StorageState,
    TracedTensor,
)
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data import DataObject, DataUnion
from stretto.frontends.python.values.data_dependent_sizes import is_decided, plain
from stretto.frontends.python.values.either import Either, options_of
from stretto.frontends.python.values.scalars import (
    COUNTER_BITS,
    LeafKind,
    cast_value,
    python_dtype,
    unify,
)
from stretto.frontends.python.values.state import (
    TracedList,
)
from stretto.frontends.python.values.texts import is_text
from stretto.ir.core import Value
from stretto.ir.data import AssignOp
from stretto.ir.ops import ListExtendOp, ListNewOp, ListStackOp, TensorOp
from stretto.ir.types import Dim, TensorListType, TensorType


def kind_of(value: Any) -> LeafKind | None:
    """Return the kind of `value` in a Program, or None if it cannot be represented."""
    kind = type(value)
    if kind is TracedTensor:
        return LeafKind(tracer().type_of(value), value.number is not None)
    if is_decided(value):  # its symbol may be known only in the arm that it comes from
        return LeafKind(TensorType(python_dtype(value.node.pytype)), True)
    if issubclass(kind, torch.Tensor):
        return LeafKind(tracer().type_of(value), False)
    if issubclass(kind, (int, float)) and not issubclass(kind, Enum):
        return LeafKind(TensorType(python_dtype(type(value))), True)
    if issubclass(kind, DataObject | DataUnion):
        return LeafKind(value.stored.type, False) if value.is_leaf else None
    if is_text(value):
        data = tracer().data
        return None if data is None else data.kind_of_text(value)
    return list_kind(value) if issubclass(kind, TracedList) else None


def kind_beside(value: Any, other: LeafKind | None) -> LeafKind | None:
    """Return the kind of a value that is joined with a leaf: beside data of an instance, other
    values can become data too."""
    kind = kind_of(value)
    if kind is None and other is not None and is_data(other):
        return tracer().data.kind_in_data(value)
    return kind


def is_data(kind: LeafKind) -> bool:
    """True for a leaf that is data of an instance, neither a tensor nor a list of the Program."""
    return type(kind.type) not in (TensorType, TensorListType)


def list_kind(value: TracedList) -> LeafKind:
    """Return the kind of a Program list."""
    base = value.memory.state.base
    assert isinstance(base, Value)
    return LeafKind(base.type, value.numbers)


def items_kind(items: Sequence[Any]) -> LeafKind | None:
    """Return the kind that all items of a Python list have, or None if they differ."""
    kinds = [kind_of(item) for item in items]
    found = kinds[0] if kinds else None
    for kind in kinds[1:]:
        found = unify(found, kind) if found and kind else None
    return None if found is None or isinstance(found.type, TensorListType) else found


def materialize(leaf: Any, kind: LeafKind) -> Value:
    """Return `leaf` as a value of `kind` in the current scope."""
    state = tracer()
    leaf = plain(leaf)
    if isinstance(leaf, list):
        return _new_list(leaf, kind)
    if isinstance(leaf, TracedList):
        return state.current(leaf.memory)
    if is_data(kind):
        return state.data.value_at(leaf, kind.type)
    if kind.rows is not None:
        return _rows(leaf, kind, kind.rows)
    assert isinstance(kind.type, TensorType)
    if isinstance(leaf, bool | int | float):
        return state.literal(leaf, kind.type.dtype)
    traced = leaf if isinstance(leaf, TracedTensor) else state.promote(leaf)
    return cast_value(state.read(traced), kind.type.dtype)


def _new_list(items: list[Any], kind: LeafKind) -> Value:
    assert isinstance(kind.type, TensorListType)
    element = LeafKind(kind.type.element, kind.number)
    values = tuple(materialize(item, element) for item in items)
    return tracer().emit(ListNewOp(values), (kind.type,))[0]


def _rows(leaf: Any, kind: LeafKind, dim: int) -> Value:
    """Return the slices of a tensor along a dim as a list."""
    state = tracer()
    if isinstance(leaf, Either):
        plain_list = LeafKind(kind.type, False)
        made = Hooks.use(leaf, lambda option: wrap(_rows(option, kind, dim), plain_list))
        return state.current(made.memory)
    traced = leaf if isinstance(leaf, TracedTensor) else state.promote(leaf)
    with state.mode:
        moved: Any = traced.movedim(dim, 0)
    (empty,) = state.emit(ListNewOp(()), (kind.type,))
    return state.emit(ListExtendOp(empty, state.read(moved)), (kind.type,))[0]


def rows_sizes(leaf: Any, dim: int) -> tuple[Dim | None, ...]:
    """Return the size of a tensor in a dim, for each option of the leaf; None for options that are
    no tensor."""
    shapes = (one.shape if isinstance(one, torch.Tensor) else None for one in options_of(leaf))
    return tuple(None if one is None else tracer().dim(one[dim]) for one in shapes)


def of_rows(
    value: Value,
    dim: int,
    device: torch.device | None,
    sizes: dict[Any, Any],
    key: Any,
    least: int = 0,
) -> Any:
    """Return a list of slices as the tensor that they form along a dim. Tensors with one `key`
    have one size of at least `least`, which is added to `sizes`. The sizes of the slices are
    settled by guards."""
    state, element = tracer(), value.list.element
    for size in element.shape:
        int(state.symbolic_dim(size))
    if key not in sizes:
        sizes[key] = state.dim(state.new_symbol(state.list_length(value), least))
    lead = sizes[key]
    type = TensorType(element.dtype, (lead, *element.shape))
    made = state.fresh(state.emit(ListStackOp(value), (type,))[0], fake_of_type(type, device))
    with state.mode:
        return made.movedim(0, dim) if dim else made


def placeholder(kind: LeafKind) -> Value:
    """Return a value of `kind` that is never read."""
    state = tracer()
    if isinstance(kind.type, TensorListType):
        return state.emit(ListNewOp(()), (kind.type,))[0]
    if is_data(kind) or (state.data is not None and not kind.number):
        return state.emit(AssignOp("unset"), (kind.type,))[0]
    dtype = kind.type.dtype
    if kind.type.is_scalar:
        return state.literal(0, dtype)
    zero = False if dtype.torch is torch.bool else 0.0 if dtype.is_float else 0
    op = TensorOp("aten.full.default", (kind.type.shape, zero), (("dtype", dtype.torch),))
    return state.emit(op, (kind.type,))[0]


def fake_of_type(
    type: TensorType,
    device: torch.device | None = None,
    strides: tuple[int, ...] | None = None,
) -> torch.Tensor:
    """Return a fake tensor of `type`, contiguous if no strides are given."""
    state = tracer()
    if type.is_static:
        shape: list[Any] = [*type.shape]
        where = device or torch.get_default_device()
        strides = contiguous_strides(shape) if strides is None else strides
        return fake_of_layout(state.fake_mode, shape, strides, type.dtype.torch, where)
    shape = [state.symbolic_dim(dim) for dim in type.shape]
    with state.faking():
        if strides is not None:
            return torch.empty_strided(shape, strides, dtype=type.dtype.torch, device=device)
        return torch.empty(shape, dtype=type.dtype.torch, device=device)


def layout_of(*leaves: Any) -> tuple[int, ...] | None:
    """Return the strides that all leaves have, or None if they differ or are not known.

    Numbers and leaves without a value have none. Strides of dims of one element do not matter.
    """
    found = None
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
            continue
        shape: list[Any] = list(leaf.shape)
        if isinstance(leaf, TracedTensor) and leaf.memory.any_layout:
            return None
        if any(isinstance(dim, torch.SymInt) for dim in shape):
            return None
        strides = tuple(
            1 if size == 1 else step for size, step in zip(shape, leaf.stride(), strict=True)
        )
        if 0 in strides or (found is not None and found != strides):
            return None
        found = strides
    return found


def wrap(
    value: Value,
    kind: LeafKind,
    *,
    device: torch.device | None = None,
    loops: frozenset[int] = frozenset(),
    length: ListLength | None = None,
    layout: tuple[int, ...] | None = None,
    bits: int = UNKNOWN_BITS,
) -> Any:
    """Return a Python object that represents `value`. `layout`: its strides, None if not known.
    `bits`: for an int, an upper bound on its bits."""
    state = tracer()
    if kind.rows is not None:
        return of_rows(value, kind.rows, device, {}, None)
    if isinstance(kind.type, TensorListType):
        storage = Storage(StorageState(value, length or ListLength(object(), 0)), state.scope)
        element = kind.type.element
        fake = None if is_data(LeafKind(element, False)) else fake_of_type(element, device)
        if kind.number and state.data is not None:
            state.data.numbers.add(value)
        return TracedList(storage, kind.number, fake)
    if is_data(kind):
        return state.data.wrap(value, kind.type)
    if kind.number:
        if state.data is not None:
            state.data.numbers.add(value)
        return state.number(value, loops=loops, bits=bits)
    made = state.fresh(value, fake_of_type(kind.type, device, layout))
    made.memory.any_layout = layout is None and bool(kind.type.shape)
    if state.data is not None:
        state.data.kept_as_it_is.add(made.memory)
    return made


def loops_of(*leaves: Any) -> frozenset[int]:
    """Return the loops whose unrolling would make the leaves known."""
    numbers = [leaf.number for leaf in leaves if isinstance(leaf, TracedTensor)]
    return frozenset[int]().union(*(n.loops for n in numbers if isinstance(n, NumberMark)))


def device_of(*leaves: Any) -> torch.device | None:
    """Return the device of the first tensor among the leaves, or None."""
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            return leaf.device
        if isinstance(leaf, TracedList) and leaf.fake is not None:
            return leaf.fake.device
        if isinstance(leaf, list) and leaf:
            return device_of(*leaf)
    return None


def to_traced_list(items: list[Any]) -> TracedList:
    """Return a Python list as an IR list of known length. Raises Abort if its items differ in
    kind."""
    data = tracer().data
    if data is not None:
        return data.new_content(items)
    kind = items_kind(items)
    if kind is None:
        fail(
            "a list with items of different types (or none) is indexed by a traced value",
            "give all items the same shape and dtype, or index it with a Python int",
        )
    assert not isinstance(kind.type, TensorListType)
    value = _new_list(items, LeafKind(TensorListType(kind.type), kind.number))
    made = wrap(
        value,
        LeafKind(TensorListType(kind.type), kind.number),
        device=device_of(*items),
        length=ListLength(None, len(items)),
    )
    assert isinstance(made, TracedList)
    return made


Slot = tuple[Any, ...]
"""A variable or an item of a container, with a path through tuples."""


@dataclass(eq=False, slots=True)
class Carried:
    """A carried value: its kind, its value before the region, and its value at the end of the body.

    `box`: a Python list that becomes a list of the Program; then `init` has its items. `group`: for
    tensors whose sizes change; tensors of one group keep the same difference in size in every
    iteration.
    """

    kind: LeafKind
    init: Any
    end: Any = None
    layout: tuple[int, ...] | None = None
    box: list[Any] | None = None
    group: Any = None
    counts: bool = True
    """True if an iteration only adds small values to an int, or subtracts them."""
    size: Dim | None = None
    """For a tensor whose size changes: its size at the start of an iteration."""
    least: int = 0
    """Lower bound of such a size before each iteration and after the last one: its size before the
    loop, unless an iteration may leave less."""

    @property
    def bits(self) -> int:
        return COUNTER_BITS if self.counts else UNKNOWN_BITS


# ---- Splitting values into leaves and a structure: arguments and results of recursive functions.
