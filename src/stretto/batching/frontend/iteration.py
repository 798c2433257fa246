"""What loops go through: plans, which say for each index whether there is an item, and which."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from stretto.batching.frontend.data import item_type, subscript
from stretto.batching.frontend.frame import Frame, constant
from stretto.batching.frontend.guards import note_items
from stretto.batching.frontend.kinds import unpacked
from stretto.batching.frontend.loops import dynamic_loop, nothing, unrolled
from stretto.batching.frontend.operators import getitem, is_static, python_of
from stretto.batching.frontend.values import (
    Dynamic,
    Iterator_,
    Static,
    TupleValue,
    Value,
)
from stretto.batching.program import Operand
from stretto.batching.types import (
    NEVER,
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

MOST_UNROLLED = 256
"""A `range` of more iterations stays a loop, where its bounds are known."""


class Plan(ABC):
    """How a loop goes through something."""

    known: tuple[Value, ...] | None = None
    """The items, where they are known one by one."""
    bound: int | None = None
    """At most as many items, where that is known."""

    def begin(self, frame: Frame) -> None:  # noqa: B027
        """Emits what is computed before the first iteration, if anything is."""

    @abstractmethod
    def test(self, frame: Frame, index: Value) -> bool | Operand:
        """Whether there is an item for an index, the indices before which had one."""

    @abstractmethod
    def item(self, frame: Frame, index: Value) -> Value: ...

    def __str__(self) -> str:
        return "an iterator"


class Known(Plan):
    def __init__(self, items: Sequence[Value]) -> None:
        self.known = tuple(items)
        self.bound = len(self.known)

    def test(self, frame: Frame, index: Value) -> bool | Operand:
        return constant(index) < len(self.known or ())

    def item(self, frame: Frame, index: Value) -> Value:
        assert self.known is not None
        return self.known[constant(index)]


class Range(Plan):
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
            from stretto.batching.frontend.arithmetic import binary, smallest

            stride = constant(step)
            if stride is ... or stride == 0:
                frame.refuse("a range whose step the instance decides")
            import operator as o

            length = binary(frame, "sub", o.sub, stop, start)
            if stride != 1:
                negative = binary(frame, "sub", o.sub, start, stop)
                length = binary(frame, "floordiv", o.floordiv, negative, Static(stride))
                length = binary(frame, "sub", o.sub, Static(0), length)
            self.trips = smallest(frame, "max", [length, Static(0)])

    def test(self, frame: Frame, index: Value) -> bool | Operand:
        return _less(frame, index, self.trips)

    def item(self, frame: Frame, index: Value) -> Value:
        import operator as o

        from stretto.batching.frontend.arithmetic import binary

        start, _, step = self.parts
        scaled = index
        if constant(step) != 1:
            scaled = binary(frame, "mul", o.mul, index, step)
        if constant(start) == 0:
            return scaled
        return binary(frame, "add", o.add, start, scaled)


def _less(frame: Frame, index: Value, limit: Value) -> bool | Operand:
    if is_static(index) and is_static(limit):
        return constant(index) < constant(limit)
    return frame.assign("lt", Scalar.BOOL, frame.operand(index), frame.operand(limit)).operand


class Items(Plan):
    """The items of a list, which may change while the loop goes through it; or of rows."""

    def __init__(self, source: Dynamic) -> None:
        self.source = source

    def test(self, frame: Frame, index: Value) -> bool | Operand:
        return _less(frame, index, frame.assign("len", Scalar.INT, self.source.operand))

    def item(self, frame: Frame, index: Value) -> Value:
        from stretto.batching.frontend.dispatch import impossible

        types = [item_type(frame, kind) for kind in alternatives(self.source.type)]
        type_ = union(types)
        found = frame.assign("at", type_, self.source.operand, frame.operand(index), name="item")
        impossible(frame, type_)
        return found


class Reversed(Plan):
    def __init__(self, inner: Plan, length: Value) -> None:
        self.inner = inner
        self.length = length
        if inner.known is not None:
            self.known = inner.known[::-1]
            self.bound = len(self.known)

    def begin(self, frame: Frame) -> None:
        self.inner.begin(frame)

    def test(self, frame: Frame, index: Value) -> bool | Operand:
        if self.known is not None:
            return constant(index) < len(self.known)
        return _less(frame, index, self.length)

    def item(self, frame: Frame, index: Value) -> Value:
        if self.known is not None:
            return self.known[constant(index)]
        import operator as o

        from stretto.batching.frontend.arithmetic import binary

        last = binary(frame, "sub", o.sub, self.length, Static(1))
        return self.inner.item(frame, binary(frame, "sub", o.sub, last, index))


class Enumerated(Plan):
    def __init__(self, inner: Plan, start: Value) -> None:
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
        import operator as o

        from stretto.batching.frontend.arithmetic import binary

        number = binary(frame, "add", o.add, self.start, index)
        return TupleValue((number, self.inner.item(frame, index)))


class Zipped(Plan):
    def __init__(self, inner: Sequence[Plan]) -> None:
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
        from stretto.batching.frontend.arithmetic import all_of

        def value(plan: Plan) -> Value:
            found = plan.test(frame, index)
            return Static(found) if isinstance(found, bool) else Dynamic(found, Scalar.BOOL)

        found = all_of(frame, [lambda p=p: value(p) for p in self.inner])
        return bool(found.value) if isinstance(found, Static) else frame.operand(found)

    def item(self, frame: Frame, index: Value) -> Value:
        return TupleValue(tuple(plan.item(frame, index) for plan in self.inner))


class Mapped(Plan):
    """What a function makes of the items."""

    def __init__(self, inner: Plan, function: Callable[[Frame, Value], Value]) -> None:
        self.inner = inner
        self.function = function
        self.bound = inner.bound

    def begin(self, frame: Frame) -> None:
        self.inner.begin(frame)

    def test(self, frame: Frame, index: Value) -> bool | Operand:
        return self.inner.test(frame, index)

    def item(self, frame: Frame, index: Value) -> Value:
        return self.function(frame, self.inner.item(frame, index))


def plan_of(frame: Frame, value: Value) -> Plan:
    """How a loop goes through a value."""
    match value:
        case Iterator_(plan):
            assert isinstance(plan, Plan)
            return plan
        case TupleValue(items):
            return Known(items)
        case Static(item):
            return _static_plan(frame, item)
        case Dynamic(_, type_):
            return _dynamic_plan(frame, value, type_)
        case _:
            return frame.refuse("this value cannot be iterated over")


def _static_plan(frame: Frame, item: Any) -> Plan:
    if isinstance(item, range):
        return Range(Static(item.start), Static(item.stop), Static(item.step))
    try:
        items = list(item)
    except TypeError as error:
        frame.fail(TypeError, str(error))
        from stretto.batching.frontend.builder import PathEnds

        raise PathEnds from None
    note_items(frame.evaluation, item)
    return Known([Static(part) for part in items])


def _dynamic_plan(frame: Frame, value: Dynamic, type_: Any) -> Plan:
    kinds = list(alternatives(type_))
    if type_ == NEVER:
        from stretto.batching.frontend.dispatch import impossible

        impossible(frame, type_)
    if all(isinstance(kind, ListType | RowsType) for kind in kinds):
        return Items(value)
    match type_:
        case TupleType():
            return Known(unpacked(frame, value, type_))
        case TensorType(_, shape) if shape:
            return Known([getitem(frame, value, Static(i)) for i in range(shape[0])])
        case DictType(key, _):
            cell = frame.evaluation.cell(frame.site("keys"))
            frame.evaluation.grow(cell, key)
            return Items(frame.assign("keys", ListType(cell), value.operand))
        case RecordType() as kind:
            return _record_plan(frame, value, kind)
        case UnionType():
            wanted = [kind for kind in kinds if isinstance(kind, ListType | RowsType)]
            if wanted and len(wanted) < len(kinds):
                message = "'NoneType' object is not iterable"
                known = union(wanted)
                return Items(frame.assign("expect", known, value.operand, detail=(known, message)))
            return frame.refuse(f"a loop goes through {frame.show(type_)}")
        case _:
            return frame.refuse(f"a loop goes through {frame.show(type_)}")


def _record_plan(frame: Frame, value: Dynamic, kind: RecordType) -> Plan:
    info = frame.evaluation.info(kind)
    if info.kind == "dict":
        return Known([Static(name) for name in info.fields])
    if info.kind == "namedtuple":
        names = range(len(info.python._fields))  # type: ignore[attr-defined]
        return Known([subscript(frame, value, Static(i)) for i in names])
    return frame.refuse(
        f"a loop goes through an object of class {info.python.__name__}",
        "give it a method that returns a list",
    )


def iterate(
    frame: Frame,
    plan: Plan,
    step: Callable[[Value], None],
    stored: frozenset[str] = frozenset(),
) -> None:
    """A loop without break and continue. stored: local variables that `step` may assign."""
    loop_over(frame, plan, stored, step, nothing)


def loop_over(
    frame: Frame,
    plan: Plan,
    stored: frozenset[str],
    step: Callable[[Value], None],
    orelse: Callable[[], None],
) -> None:
    """Goes through a plan. stored: names of local variables that `step` may assign. orelse: what
    runs when the items are exhausted."""
    plan.begin(frame)
    if plan.bound is not None and plan.bound <= MOST_UNROLLED:
        unrolled(frame, plan, step, orelse)
        return
    zero = frame.assign("copy", Scalar.INT, frame.operand(Static(0)), name="index")

    def head() -> bool | Operand:
        return plan.test(frame, zero)

    def body() -> None:
        current = frame.assign("copy", Scalar.INT, zero.operand, name="i")
        from stretto.batching.program import Assign, Literal, Variable

        assert isinstance(zero.operand, Variable)
        frame.builder.emit(Assign(zero.operand, "add", (current.operand, Literal(1))))
        step(plan.item(frame, current))

    dynamic_loop(frame, stored, head, body, orelse)
