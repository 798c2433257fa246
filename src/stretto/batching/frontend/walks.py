"""Plans, which describe how a loop iterates over a value, and loops over them."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stretto.batching.frontend.attributes import method_of, read_field
from stretto.batching.frontend.comparisons import all_of
from stretto.batching.frontend.dispatch import apply, impossible
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.guards import note_items
from stretto.batching.frontend.items import subscript
from stretto.batching.frontend.joins import (
    chosen,
    each_type,
    either,
    has_type,
    python_class,
    unpacked,
)
from stretto.batching.frontend.loops import dynamic_loop, nothing, unrolled
from stretto.batching.frontend.operators import binary, smallest
from stretto.batching.frontend.tensor_operators import getitem
from stretto.batching.frontend.truth import append, characters, item_type, new_list
from stretto.batching.frontend.values import (
    ChoiceValue,
    Dynamic,
    IterableValue,
    Static,
    TupleValue,
    Value,
    constant,
    is_data,
    is_static,
    python_of,
)
from stretto.ir.core import Literal, Operand, Variable
from stretto.ir.data import AssignOp
from stretto.ir.types import (
    DataType,
    DictType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    UnionType,
    alternatives,
    union,
)

# ---- Plans: for each index a test if there is an item, and the item.


class IterationPlan(ABC):
    """A description of how a loop iterates over a value."""

    known: tuple[Value, ...] | None = None
    """The items, if they are separate values known during evaluation."""
    bound: int | None = None
    """At most as many items, where a loop is unrolled."""

    def begin(self, frame: Frame) -> None:  # noqa: B027
        """Emit the code before the first iteration, if any."""

    @abstractmethod
    def test(self, frame: Frame, index: Value) -> bool | Operand:
        """Return True or a condition if there is an item for an index. All smaller indices have
        one."""

    @abstractmethod
    def item(self, frame: Frame, index: Value) -> Value: ...


class KnownPlan(IterationPlan):
    """Items that are known one by one. Many of them become a list, if they are data."""

    def __init__(self, items: Sequence[Value]) -> None:
        self.known = tuple(items)
        if len(self.known) <= MOST_UNROLLED or not all(map(is_data, self.known)):
            self.bound = len(self.known)

    def begin(self, frame: Frame) -> None:
        if self.bound is None:
            cell = frame.evaluation.cell(frame.site("known", len(self.known or ())))
            self.data = new_list(frame, cell, self.known or ())

    def test(self, frame: Frame, index: Value) -> bool | Operand:
        return _less(frame, index, Static(len(self.known or ())))

    def item(self, frame: Frame, index: Value) -> Value:
        if is_static(index):
            assert self.known is not None
            return self.known[constant(index)]
        return ItemsPlan(self.data).item(frame, index)


class EndlessPlan(IterationPlan):
    """Items without an end: a function gives the one at an index."""

    def __init__(self, function: Callable[[Frame, Value], Value]) -> None:
        self.function = function

    def test(self, frame: Frame, index: Value) -> bool | Operand:
        return True

    def item(self, frame: Frame, index: Value) -> Value:
        return self.function(frame, index)


class RangePlan(IterationPlan):
    def __init__(self, start: Value, stop: Value, step: Value) -> None:
        self.parts = start, stop, step
        self.trips: Value = Static(0)
        if all(map(is_static, self.parts)):
            found = range(*map(python_of, self.parts))
            if len(found) <= MOST_UNROLLED:
                self.bound = len(found)
                self.known = tuple(map(Static, found))

    def begin(self, frame: Frame) -> None:
        start, stop, step = self.parts
        if all(map(is_static, self.parts)):
            self.trips = Static(len(range(*map(python_of, self.parts))))
        else:
            stride = constant(step)
            if stride is ... or stride == 0:
                frame.refuse("a range whose step the instance decides")

            length = binary(frame, "sub", operator.sub, stop, start)
            if stride != 1:
                negative = binary(frame, "sub", operator.sub, start, stop)
                length = binary(frame, "floordiv", operator.floordiv, negative, Static(stride))
                length = binary(frame, "sub", operator.sub, Static(0), length)
            self.trips = smallest(frame, "max", [length, Static(0)])

    def test(self, frame: Frame, index: Value) -> bool | Operand:
        return _less(frame, index, self.trips)

    def item(self, frame: Frame, index: Value) -> Value:

        start, _, step = self.parts
        scaled = index
        if constant(step) != 1:
            scaled = binary(frame, "mul", operator.mul, index, step)
        if constant(start) == 0:
            return scaled
        return binary(frame, "add", operator.add, start, scaled)


def _less(frame: Frame, index: Value, limit: Value) -> bool | Operand:
    if is_static(index) and is_static(limit):
        return constant(index) < constant(limit)
    return frame.assign("lt", Scalar.BOOL, frame.operand(index), frame.operand(limit)).operand


class ItemsPlan(IterationPlan):
    """The items of a list, which the loop may change, or of rows."""

    def __init__(self, source: Dynamic) -> None:
        self.source = source

    def test(self, frame: Frame, index: Value) -> bool | Operand:
        return _less(frame, index, frame.assign("len", Scalar.INT, self.source.operand))

    def item(self, frame: Frame, index: Value) -> Value:

        types = [item_type(frame, kind) for kind in alternatives(self.source.type)]
        type_ = union(types)
        found = frame.assign("at", type_, self.source.operand, frame.operand(index), name="item")
        impossible(frame, type_)
        return found


class ReversedPlan(IterationPlan):
    def __init__(self, inner: IterationPlan, length: Value) -> None:
        self.inner = inner
        self.length = length

    def begin(self, frame: Frame) -> None:
        self.inner.begin(frame)

    def test(self, frame: Frame, index: Value) -> bool | Operand:
        return _less(frame, index, self.length)

    def item(self, frame: Frame, index: Value) -> Value:
        last = binary(frame, "sub", operator.sub, self.length, Static(1))
        return self.inner.item(frame, binary(frame, "sub", operator.sub, last, index))


class EnumeratedPlan(IterationPlan):
    def __init__(self, inner: IterationPlan, start: Value) -> None:
        self.inner = inner
        self.start = start
        self.bound = inner.bound
        if inner.known is not None and is_static(start):
            first = constant(start)
            self.known = tuple(
                TupleValue((Static(first + i), item)) for i, item in enumerate(inner.known)
            )

    def begin(self, frame: Frame) -> None:
        self.inner.begin(frame)

    def test(self, frame: Frame, index: Value) -> bool | Operand:
        return self.inner.test(frame, index)

    def item(self, frame: Frame, index: Value) -> Value:

        number = binary(frame, "add", operator.add, self.start, index)
        return TupleValue((number, self.inner.item(frame, index)))


class ZippedPlan(IterationPlan):
    def __init__(self, inner: Sequence[IterationPlan]) -> None:
        self.inner = inner
        bounds = [plan.bound for plan in inner if plan.bound is not None]
        self.bound = min(bounds) if bounds else None
        if all(plan.known is not None for plan in inner):
            columns = [plan.known or () for plan in inner]
            self.known = tuple(TupleValue(items) for items in zip(*columns, strict=False))

    def begin(self, frame: Frame) -> None:
        for plan in self.inner:
            plan.begin(frame)

    def test(self, frame: Frame, index: Value) -> bool | Operand:

        def value(plan: IterationPlan) -> Value:
            found = plan.test(frame, index)
            return Static(found) if isinstance(found, bool) else Dynamic(found, Scalar.BOOL)

        found = all_of(frame, [lambda p=p: value(p) for p in self.inner])
        return bool(found.value) if isinstance(found, Static) else frame.operand(found)

    def item(self, frame: Frame, index: Value) -> Value:
        return TupleValue(tuple(plan.item(frame, index) for plan in self.inner))


class MappedPlan(IterationPlan):
    """The results of a function for the items of another plan."""

    def __init__(self, inner: IterationPlan, function: Callable[[Frame, Value], Value]) -> None:
        self.inner = inner
        self.function = function
        self.bound = inner.bound

    def begin(self, frame: Frame) -> None:
        self.inner.begin(frame)

    def test(self, frame: Frame, index: Value) -> bool | Operand:
        return self.inner.test(frame, index)

    def item(self, frame: Frame, index: Value) -> Value:
        return self.function(frame, self.inner.item(frame, index))


MOST_UNROLLED = 256
"""More iterations over a known `range`, or over known items that are data, stay a loop."""


def iterate(
    frame: Frame,
    plan: IterationPlan,
    step: Callable[[Value], None],
    stored: frozenset[str] = frozenset(),
) -> None:
    """Emit a loop without break and continue. stored: local variables that `step` may assign."""
    loop_over(frame, plan, stored, step, nothing)


def loop_over(
    frame: Frame,
    plan: IterationPlan,
    stored: frozenset[str],
    step: Callable[[Value], None],
    orelse: Callable[[], None],
) -> None:
    """Emit a loop over a plan, unrolled if it is short. stored: names of local variables that
    `step` may assign. orelse: runs when the items are exhausted."""
    plan.begin(frame)
    if plan.bound is not None:
        unrolled(frame, plan, step, orelse)
        return
    zero = frame.assign("copy", Scalar.INT, frame.operand(Static(0)), name="index")

    def head() -> bool | Operand:
        return plan.test(frame, zero)

    def body() -> None:
        current = frame.assign("copy", Scalar.INT, zero.operand, name="i")

        assert isinstance(zero.operand, Variable)
        frame.builder.emit(AssignOp("add", (current.operand, Literal(1)), results=(zero.operand,)))
        step(plan.item(frame, current))

    dynamic_loop(frame, stored, head, body, orelse)


def folded(
    frame: Frame,
    plan: IterationPlan,
    start: Value | None,
    combine: Callable[[Value, Value], Value],
) -> Value:
    """Combine the items from left to right, beginning with `start`, or with the first item if it
    is None; a static None for no items and no start."""

    name = ".folded"
    outer = frame.locals.get(name)
    frame.locals[name] = Static(None) if start is None else start

    def step(item: Value) -> None:
        before = frame.locals[name]
        if start is not None:
            frame.locals[name] = combine(before, item)
            return
        test = has_type(frame, before, (Scalar.NONE,))
        if isinstance(test, Static):
            frame.locals[name] = item if test.value else combine(before, item)
            return
        given = frame.dynamic(before)
        rest = union(kind for kind in alternatives(given.type) if kind is not Scalar.NONE)
        found = either(
            frame, frame.operand(test), lambda: item, lambda: combine(frame.cast(given, rest), item)
        )
        frame.locals[name] = found

    loop_over(frame, plan, frozenset((name,)), step, nothing)
    result = frame.locals.pop(name)
    if outer is not None:
        frame.locals[name] = outer
    return result


# ---- The plan of a value.


def plan_of(frame: Frame, value: Value) -> IterationPlan:
    """Return the plan of a value; refuse a value that cannot be iterated over."""
    match value:
        case IterableValue(plan, _):
            found = plan if isinstance(plan, IterationPlan) else plan(frame)
            assert isinstance(found, IterationPlan)
            return found
        case TupleValue(items):
            return KnownPlan(items)
        case Static(item):
            return _static_plan(frame, item)
        case ChoiceValue():
            return plan_of(frame, chosen(frame, value, lambda one: _gathered(frame, one)))
        case Dynamic(_, type_):
            return _dynamic_plan(frame, value, type_)
        case _:
            return frame.refuse("this value cannot be iterated over")


def _gathered(frame: Frame, value: Value) -> Value:
    """Return a list of the items of an iterator that is one of several, depending on the path
    taken."""
    plan = plan_of(frame, value)
    made = new_list(frame, frame.evaluation.cell(frame.site("gathered")), ())
    iterate(frame, plan, lambda item: append(frame, made, item))
    return made


def _static_plan(frame: Frame, item: Any) -> IterationPlan:
    if isinstance(item, range):
        return RangePlan(Static(item.start), Static(item.stop), Static(item.step))
    if isinstance(item, Iterator):
        frame.refuse(
            "an iterator that all instances share is consumed", "make a list of it outside"
        )
    try:
        items = list(item)
    except TypeError as error:
        frame.stop(TypeError, str(error))
    note_items(frame.evaluation, item)
    return KnownPlan([Static(part) for part in items])


def _dynamic_plan(frame: Frame, value: Dynamic, type_: DataType) -> IterationPlan:
    impossible(frame, type_)
    if all(isinstance(kind, ListType | RowsType) for kind in alternatives(type_)):
        return ItemsPlan(value)
    match type_:
        case TupleType():
            return KnownPlan(unpacked(frame, value, type_))
        case TensorType() as kind if kind.shape:
            length = kind.static_shape()[0]
            return KnownPlan([getitem(frame, value, Static(i)) for i in range(length)])
        case TensorType():
            frame.stop(TypeError, "iteration over a 0-d tensor")
        case DictType(key, _):
            cell = frame.evaluation.cell(frame.site("keys"))
            frame.evaluation.grow(cell, key)
            return ItemsPlan(frame.assign("keys", ListType(cell), value.operand))
        case RecordType() as kind:
            return _record_plan(frame, value, kind)
        case UnionType():
            made = each_type(frame, value, lambda one: _as_items(frame, one))
            return plan_of(frame, made)
        case Scalar.STR:
            return ItemsPlan(characters(frame, value))
        case _:
            name = python_class(frame, type_).__name__
            frame.stop(TypeError, f"'{name}' object is not iterable")


def members(frame: Frame, value: Value) -> Value:
    """Return the members of a set in the order of insertion, for uses that do not depend on the
    order; any other value unchanged."""
    kind = value.type if isinstance(value, Dynamic) else None
    if isinstance(kind, RecordType) and issubclass(frame.evaluation.info(kind).python, set):
        assert isinstance(value, Dynamic)
        held = read_field(frame, value, [kind], "held")
        assert isinstance(held.type, DictType)
        return IterableValue(_dynamic_plan(frame, held, held.type), None)
    return value


def _as_items(frame: Frame, value: Dynamic) -> Dynamic:
    """Return a list or rows with the items of a value of one type."""
    plan = _dynamic_plan(frame, value, value.type)
    if isinstance(plan, ItemsPlan):
        return plan.source
    assert plan.known is not None
    cell = frame.evaluation.cell(frame.site("items", str(value.type)))
    return new_list(frame, cell, plan.known)


def _record_plan(frame: Frame, value: Dynamic, kind: RecordType) -> IterationPlan:
    info = frame.evaluation.info(kind)
    if info.kind == "dict":
        return KnownPlan([Static(name) for name in info.fields])
    if info.kind == "namedtuple":
        names = range(len(info.python._fields))  # type: ignore[attr-defined]
        return KnownPlan([subscript(frame, value, Static(i)) for i in names])
    name = info.python.__name__
    if issubclass(info.python, set):
        frame.refuse("a loop iterates over a set, which has no order", "iterate over sorted(...)")
    own = method_of(frame, kind, "__iter__")
    if own is not None:
        found = apply(frame, Static(own), [value])
        if isinstance(found, IterableValue):
            return plan_of(frame, found)
    if not any(hasattr(info.python, method) for method in ("__iter__", "__getitem__")):
        frame.stop(TypeError, f"'{name}' object is not iterable")
    return frame.refuse(
        f"a loop iterates over an object of class {name}", "add a method that returns a list"
    )


# ---- Lists built from parts, each a value or a plan.


def known_parts(parts: list[Value | IterationPlan]) -> tuple[Value, ...] | None:
    """Return the items; None if the instance decides their number."""
    found: list[Value] = []
    for part in parts:
        if not isinstance(part, IterationPlan):
            found.append(part)
        elif part.known is None:
            return None
        else:
            found.extend(part.known)
    return tuple(found)


def listed(frame: Frame, parts: list[Value | IterationPlan]) -> Dynamic:
    """Return a new list of the parts."""
    cell = frame.evaluation.cell(frame.site("list"))
    items = known_parts(parts)
    if items is not None:
        return new_list(frame, cell, items)
    made = new_list(frame, cell, ())
    for part in parts:
        if isinstance(part, IterationPlan):
            iterate(frame, part, lambda item: append(frame, made, item))
        else:
            append(frame, made, part)
    return made


def cell_of(value: Dynamic) -> int:
    assert isinstance(value.type, ListType)
    return value.type.cell


def extend(frame: Frame, target: Dynamic, items: Value) -> None:
    """Add all items to a list; `items` may be the list itself."""
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
