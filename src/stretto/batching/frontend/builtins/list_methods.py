"""Methods of lists and tuples."""

from __future__ import annotations

import operator
from typing import Any

from stretto.batching.frontend.arithmetic.comparisons import contains, equal
from stretto.batching.frontend.arithmetic.numbers import binary
from stretto.batching.frontend.control.joins import branch, either
from stretto.batching.frontend.data.lists import append
from stretto.batching.frontend.data.special import check_equality
from stretto.batching.frontend.iteration.lists import extend
from stretto.batching.frontend.iteration.sources import plan_of
from stretto.batching.frontend.iteration.walks import iterate
from stretto.batching.frontend.state.dispatch import apply, impossible
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import NONE, Dynamic, Static, Value
from stretto.batching.types import ListType, Scalar


def list_method(
    frame: Frame, name: str, owner: Dynamic, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    kind = owner.type
    assert isinstance(kind, ListType)
    if kind.is_tuple and name not in ("index", "count"):
        frame.stop(AttributeError, f"'tuple' object has no attribute '{name}'")
    item = frame.evaluation.cells[kind.cell]
    match name:
        case "append":
            append(frame, owner, args[0])
        case "pop":
            found = frame.assign("pop", item, owner.operand, *(_ints(frame, args)))
            impossible(frame, item)
            return found
        case "insert":
            given = frame.dynamic(args[1])
            frame.evaluation.grow(kind.cell, given.type)
            frame.do("insert", owner.operand, frame.operand(args[0]), given.operand)
        case "extend":
            extend(frame, owner, args[0])
        case "reverse":
            frame.do("reverse", owner.operand)
        case "clear":
            frame.do("clear", owner.operand)
        case "copy":
            cell = frame.evaluation.cell(frame.site("copy"))
            frame.evaluation.grow(cell, item)
            return frame.assign("to_list", ListType(cell), owner.operand, detail=False)
        case "sort":
            found = frame.dynamic(apply(frame, Static(sorted), [owner], kwargs))
            frame.do("clear", owner.operand)
            extend(frame, owner, found)
        case "remove":
            _remove(frame, owner, args[0])
        case "count":
            return _count(frame, owner, args[0])
        case "index":
            check_equality(frame, item)
            return frame.assign("index", Scalar.INT, owner.operand, frame.operand(args[0]))
        case _:
            frame.refuse(f"the method {name} of a list")
    return NONE


def _remove(frame: Frame, owner: Dynamic, value: Value) -> None:
    found = contains(frame, owner, value)

    def present() -> None:
        position = frame.assign("index", Scalar.INT, owner.operand, frame.operand(value))
        frame.do("pop", owner.operand, position.operand)

    def missing() -> None:
        frame.stop(ValueError, "list.remove(x): x not in list")

    branch(frame, frame.operand(found), (present, missing))


def _count(frame: Frame, owner: Dynamic, value: Value) -> Value:
    name = ".count"
    frame.locals[name] = Static(0)

    def step(item: Value) -> None:
        before = frame.locals[name]

        def one() -> Value:
            return binary(frame, "add", operator.add, before, Static(1))

        made = either(frame, frame.operand(equal(frame, item, value)), one, lambda: before)
        frame.locals[name] = made

    iterate(frame, plan_of(frame, owner), step, frozenset((name,)))
    return frame.locals.pop(name)


def _ints(frame: Frame, args: list[Value]) -> list[Any]:
    return [frame.expect(a, (Scalar.INT,), "a position must be an int").operand for a in args]


def tuple_method(frame: Frame, name: str, items: tuple[Value, ...], args: list[Value]) -> Value:
    if name == "count":
        return frame.refuse("tuple.count")
    if name != "index":
        frame.stop(AttributeError, f"'tuple' object has no attribute '{name}'")

    def find(rest: list[tuple[int, Value]]) -> Value:
        if not rest:
            frame.stop(ValueError, "tuple.index(x): x not in tuple")
        (number, item), *others = rest
        test = equal(frame, item, args[0])
        if isinstance(test, Static):
            return Static(number) if test.value else find(others)
        return either(frame, frame.operand(test), lambda: Static(number), lambda: find(others))

    return find(list(enumerate(items)))
