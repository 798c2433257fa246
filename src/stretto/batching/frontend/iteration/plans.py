"""Plans: they say for each index whether there is an item, and which."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from stretto.batching.frontend.arithmetic.comparisons import all_of
from stretto.batching.frontend.arithmetic.numbers import binary, smallest
from stretto.batching.frontend.data.lists import item_type
from stretto.batching.frontend.state.dispatch import impossible
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.statics import constant, is_static, python_of
from stretto.batching.frontend.state.values import Dynamic, Static, TupleValue, Value
from stretto.batching.program import Operand
from stretto.batching.types import Scalar, alternatives, union


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


class Items(Plan):
    """The items of a list, which may change while the loop goes through it; or of rows."""

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

        last = binary(frame, "sub", operator.sub, self.length, Static(1))
        return self.inner.item(frame, binary(frame, "sub", operator.sub, last, index))


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

        number = binary(frame, "add", operator.add, self.start, index)
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


MOST_UNROLLED = 256
"""A `range` of more iterations stays a loop, where its bounds are known."""
