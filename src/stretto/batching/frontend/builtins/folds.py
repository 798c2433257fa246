"""Functions of Python that combine the items of a sequence: min, max, sum, any, all."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from stretto.batching.frontend.arithmetic.comparisons import any_of, compare, negated
from stretto.batching.frontend.arithmetic.numbers import binary, smallest
from stretto.batching.frontend.builtins.table import (
    BUILTINS,
    Builtin,
    all_static,
    builtin,
    natively,
)
from stretto.batching.frontend.control.joins import either
from stretto.batching.frontend.control.kinds import each_type, has_type
from stretto.batching.frontend.data.numbers import read_number
from stretto.batching.frontend.data.truth import truth
from stretto.batching.frontend.iteration.plans import Plan
from stretto.batching.frontend.iteration.sources import members, plan_of
from stretto.batching.frontend.iteration.walks import folded
from stretto.batching.frontend.state import library
from stretto.batching.frontend.state.dispatch import apply
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import Dynamic, Static, TupleValue, Value
from stretto.batching.frontend.tensors.operands import is_tensor_like
from stretto.batching.types import Scalar, alternatives, union


def _extreme(name: str, function: Callable[..., Any]) -> Builtin:
    def find(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if all_static(args, kwargs):
            return natively(frame, function, args, kwargs)
        if "key" in kwargs:
            return _extreme_by_key(frame, name, args, kwargs)
        if len(args) > 1:
            return smallest(frame, name, [_as_number(frame, value) for value in args])
        plan = plan_of(frame, members(frame, args[0]))
        if plan.known is not None:
            if not plan.known:
                return _empty(frame, name, kwargs)
            return smallest(frame, name, [_as_number(frame, value) for value in plan.known])
        return _extreme_of_list(frame, name, plan, kwargs)

    return find


def _as_number(frame: Frame, value: Value) -> Value:
    return read_number(frame, value, object) if is_tensor_like(value) else value


def _empty(frame: Frame, name: str, kwargs: dict[str, Value]) -> Value:
    if "default" in kwargs:
        return kwargs["default"]
    try:
        (min if name == "min" else max)([])
    except ValueError as error:  # its text depends on the version of Python
        frame.stop(ValueError, str(error))
    raise AssertionError("min and max of nothing raise ValueError")


def _extreme_of_list(frame: Frame, name: str, plan: Plan, kwargs: dict[str, Value]) -> Value:
    found = folded(frame, plan, None, lambda best, item: smallest(frame, name, [best, item]))

    def missing() -> Value:
        return _empty(frame, name, kwargs)

    return _unless_none(frame, found, missing)


def _unless_none(frame: Frame, value: Value, missing: Callable[[], Value]) -> Value:
    test = has_type(frame, value, (Scalar.NONE,))
    if isinstance(test, Static):
        return missing() if test.value else value
    given = frame.dynamic(value)
    rest = union(kind for kind in alternatives(given.type) if kind is not Scalar.NONE)
    return either(frame, frame.operand(test), missing, lambda: frame.cast(given, rest))


def _extreme_by_key(frame: Frame, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    key = kwargs["key"]
    plan = plan_of(frame, args[0] if len(args) == 1 else TupleValue(tuple(args)))

    def combine(best: Value, item: Value) -> Value:
        assert isinstance(best, TupleValue)
        mine, score = best.items
        other = apply(frame, key, [item])
        better = binary_less(frame, other, score, name)
        if isinstance(better, bool):
            return TupleValue((item, other)) if better else best
        found = either(frame, better, lambda: TupleValue((item, other)), lambda: best)
        del mine
        return found

    if plan.known is None:
        return _extreme_of_many(frame, name, args[0], kwargs)
    if not plan.known:
        return _empty(frame, name, kwargs)
    first, *rest = plan.known
    best: Value = TupleValue((first, apply(frame, key, [first])))
    for item in rest:
        best = combine(best, item)
    assert isinstance(best, TupleValue)
    return best.items[0]


def _extreme_of_many(frame: Frame, name: str, items: Value, kwargs: dict[str, Value]) -> Value:
    """min or max with a key, of a list whose length the instance decides."""
    listed = frame.dynamic(BUILTINS[list](frame, [items], {}))
    is_some = frame.assign("truth", Scalar.BOOL, listed.operand)
    source = library.smallest if name == "min" else library.largest
    return either(
        frame,
        is_some.operand,
        lambda: apply(frame, Static(source), [listed, kwargs["key"]]),
        lambda: _empty(frame, name, kwargs),
    )


def binary_less(frame: Frame, left: Value, right: Value, name: str) -> Any:

    op = ast.Lt() if name == "min" else ast.Gt()
    return truth(frame, compare(frame, op, left, right))


BUILTINS[min] = _extreme("min", min)

BUILTINS[max] = _extreme("max", max)


@builtin(sum)
def _sum(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if all_static(args, kwargs):
        return natively(frame, sum, args, kwargs)
    start = kwargs.get("start", args[1] if len(args) > 1 else Static(0))
    plan = plan_of(frame, members(frame, args[0]))

    def add(total: Value, item: Value) -> Value:
        return binary(frame, "add", operator.add, total, item)

    if plan.known is not None:
        total = start
        for item in plan.known:
            total = add(total, item)
        return total
    return folded(frame, plan, start, lambda total, item: _add(frame, total, item))


def _add(frame: Frame, total: Value, item: Value) -> Value:
    """total + item, where the total is a number at first and may be a tensor later."""
    if isinstance(total, Dynamic) and is_tensor_like(total) and is_tensor_like(item):
        return each_type(frame, total, lambda one: binary(frame, "add", operator.add, one, item))
    return binary(frame, "add", operator.add, total, item)


def _quantifier(is_all: bool) -> Builtin:
    def find(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        plan = plan_of(frame, args[0])
        if plan.known is not None:
            conditions = [lambda x=x: _condition(frame, x, is_all) for x in plan.known]
            found = any_of(frame, conditions)
            return negated(frame, found) if is_all else found

        def combine(before: Value, item: Value) -> Value:
            return any_of(frame, [lambda: before, lambda: _condition(frame, item, is_all)])

        found = folded(frame, plan, Static(False), combine)
        return negated(frame, found) if is_all else found

    return find


def _condition(frame: Frame, value: Value, is_all: bool) -> Value:
    found = truth(frame, value)
    made: Value = Static(found) if isinstance(found, bool) else Dynamic(found, Scalar.BOOL)
    return negated(frame, made) if is_all else made


BUILTINS[any] = _quantifier(False)

BUILTINS[all] = _quantifier(True)
