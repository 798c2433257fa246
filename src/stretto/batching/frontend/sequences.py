"""Built-in functions that create, measure, combine and iterate over sequences."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from stretto.batching.frontend import python_library
from stretto.batching.frontend.attributes import attribute, new_dict, read_field
from stretto.batching.frontend.comparisons import all_of, any_of, compare, negated
from stretto.batching.frontend.dispatch import apply
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.functions import (
    BUILTINS,
    as_int,
    builtin,
    known_int,
    natively,
)
from stretto.batching.frontend.guards import note_class
from stretto.batching.frontend.items import set_item, subscript
from stretto.batching.frontend.joins import branch, each_type, either, has_type, stop_where
from stretto.batching.frontend.loops import dynamic_loop, nothing
from stretto.batching.frontend.operators import binary, smallest
from stretto.batching.frontend.tensor_results import is_tensor_like
from stretto.batching.frontend.truth import append, as_text, new_list, read_number, truth
from stretto.batching.frontend.values import (
    FALSE,
    NONE,
    ZERO,
    Dynamic,
    IterableValue,
    Static,
    TupleValue,
    Value,
    constant,
)
from stretto.batching.frontend.walks import (
    EnumeratedPlan,
    ItemsPlan,
    IterationPlan,
    KnownPlan,
    MappedPlan,
    RangePlan,
    ReversedPlan,
    ZippedPlan,
    folded,
    iterate,
    members,
    plan_of,
)
from stretto.batching.instances.types import ABSENT
from stretto.ir.core import Operand
from stretto.ir.types import (
    DictType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    alternatives,
    union,
)


@builtin(len)
def _len(frame: Frame, value: Value, /) -> Value:
    if isinstance(value, TupleValue):
        return Static(len(value.items))
    if isinstance(value, Static):
        return natively(frame, len, [value], {})
    if isinstance(value, IterableValue):
        return _length_of_view(frame, value)
    return each_type(frame, value, lambda one: _length(frame, one))


def _length_of_view(frame: Frame, value: IterableValue) -> Value:
    """How many items a range has, or keys(), values() or items() of a dict."""
    plan = plan_of(frame, value)
    if not hasattr(value.python, "__len__"):
        shown = getattr(value.python, "__name__", "iterator")
        frame.stop(TypeError, f"object of type '{shown}' has no len()")
    while isinstance(plan, MappedPlan):
        plan = plan.inner
    if plan.known is not None:
        return Static(len(plan.known))
    if isinstance(plan, RangePlan):
        plan.begin(frame)
        return plan.trips
    assert isinstance(plan, ItemsPlan)
    return frame.assign("len", Scalar.INT, plan.source.operand)


def _length(frame: Frame, value: Dynamic) -> Value:
    match value.type:
        case TupleType(items):
            return Static(len(items))
        case TensorType(_, shape) if shape:
            return Static(shape[0])
        case RecordType() as kind:
            info = frame.evaluation.info(kind)
            if info.kind == "dict":
                return Static(len(info.fields))
            if info.kind == "namedtuple":
                return Static(len(info.python._fields))  # type: ignore[attr-defined]
            if note_class(frame.evaluation, info.python, "__len__") is ABSENT:
                frame.stop(TypeError, f"object of type '{info.python.__name__}' has no len()")
            return apply(frame, attribute(frame, value, "__len__"), [])
        case ListType() | DictType() | RowsType() | Scalar.STR:
            return frame.assign("len", Scalar.INT, value.operand)
        case _:
            shown = frame.show(value.type)
            frame.stop(TypeError, f"object of type '{shown}' has no len()")


@builtin(range, known=True)
def _range(frame: Frame, first: Value, /, *others: Value) -> Value:
    if len(others) > 2:
        frame.refuse(f"range is called with {len(others) + 1} arguments")
    parts = [as_int(frame, value) for value in (first, *others)]
    start, stop, step = (*parts, Static(1))[:3] if others else (Static(0), *parts, Static(1))
    return IterableValue(RangePlan(start, stop, step), range)


@builtin(enumerate)
def _enumerate(frame: Frame, /, iterable: Value, start: Value = ZERO) -> Value:
    first = as_int(frame, start)
    return IterableValue(EnumeratedPlan(plan_of(frame, iterable), first), enumerate)


@builtin(zip)
def _zip(frame: Frame, /, *sources: Value, strict: Value = FALSE) -> Value:
    is_strict = truth(frame, strict)
    if not isinstance(is_strict, bool):
        frame.refuse("zip with a `strict` that the instance decides")
    plans = [plan_of(frame, value) for value in sources]
    if is_strict:
        if any(plan.known is None for plan in plans):
            return _strict_zip(frame, plans)
        if len({len(plan.known or ()) for plan in plans}) > 1:
            frame.stop(ValueError, "zip() arguments have different lengths")
    return IterableValue(ZippedPlan(plans), zip)


def _strict_zip(frame: Frame, plans: list[IterationPlan]) -> Value:
    sources = [plan.source for plan in plans if isinstance(plan, ItemsPlan)]
    if len(sources) < len(plans):
        frame.refuse("zip(strict=True) is supported for lists only")
    lengths = [frame.assign("len", Scalar.INT, item.operand) for item in sources]
    for length in lengths[1:]:
        wrong = frame.assign("ne", Scalar.BOOL, lengths[0].operand, length.operand)
        message = "zip() arguments have different lengths"
        stop_where(frame, wrong.operand, ValueError, message)
    return IterableValue(ZippedPlan(plans), zip)


@builtin(reversed)
def _reversed(frame: Frame, sequence: Value, /) -> Value:
    if isinstance(sequence, IterableValue) and not hasattr(sequence.python, "__reversed__"):
        shown = getattr(sequence.python, "__name__", "iterator")
        frame.stop(TypeError, f"'{shown}' object is not reversible")
    plan = plan_of(frame, sequence)
    if plan.known is not None:
        return IterableValue(KnownPlan(plan.known[::-1]), None)
    if isinstance(plan, ItemsPlan):
        length = frame.assign("len", Scalar.INT, plan.source.operand)
        return IterableValue(ReversedPlan(plan, length), None)
    if isinstance(plan, RangePlan):
        plan.begin(frame)
        return IterableValue(ReversedPlan(plan, plan.trips), None)
    return frame.refuse("reversed() of this value is not supported", "make a list of it")


@builtin(map)
def _map(frame: Frame, function: Value, first: Value, /, *others: Value) -> Value:
    plans = [plan_of(frame, value) for value in (first, *others)]
    if len(plans) == 1:
        return IterableValue(MappedPlan(plans[0], lambda f, item: apply(f, function, [item])), map)

    def spread(inner: Frame, item: Value) -> Value:
        assert isinstance(item, TupleValue)
        return apply(inner, function, item.items)

    return IterableValue(MappedPlan(ZippedPlan(plans), spread), map)


_EMPTY = Static(())


def _to_list(is_tuple: bool) -> Callable[..., Value]:
    def make(frame: Frame, iterable: Value = _EMPTY, /) -> Value:
        plan = plan_of(frame, iterable)
        if plan.known is not None:
            if is_tuple:
                return TupleValue(plan.known)
            return new_list(frame, frame.evaluation.cell(frame.site("list")), plan.known)
        made = new_list(frame, frame.evaluation.cell(frame.site("list")), ())
        iterate(frame, plan, lambda item: append(frame, made, item))
        if not is_tuple:
            return made
        assert isinstance(made.type, ListType)
        type_ = ListType(made.type.cell, is_tuple=True)
        return frame.assign("to_list", type_, made.operand, detail=True)

    return make


builtin(list)(_to_list(False))
builtin(tuple)(_to_list(True))


@builtin(dict)
def _dict(frame: Frame, /, *args: Value, **kwargs: Value) -> Value:
    if len(args) + bool(kwargs) > 1:
        frame.refuse("dict() of a value and keywords is not supported", "store items afterwards")
    if args:
        return (
            each_type(frame, args[0], lambda one: _dict_of(frame, one))
            if isinstance(args[0], Dynamic)
            else _dict_of(frame, args[0])
        )
    if kwargs:
        return new_dict(frame, tuple(kwargs), list(kwargs.values()))
    cell = frame.evaluation.cell(frame.site("dict"))
    return frame.assign("dict", frame.evaluation.dict_type(cell))


def _dict_of(frame: Frame, value: Value) -> Value:
    """Return dict(x) of a dict, or of pairs."""
    kind = value.type if isinstance(value, Dynamic) else None
    if isinstance(kind, RecordType):
        info = frame.evaluation.info(kind)
        if info.kind == "dict":
            return new_dict(
                frame, info.fields, [subscript(frame, value, Static(n)) for n in info.fields]
            )
        if issubclass(info.python, dict):
            assert isinstance(value, Dynamic)
            return _dict_of(frame, read_field(frame, value, [kind], "held"))
    if isinstance(kind, DictType):
        value = apply(frame, attribute(frame, value, "items"), [])
    cell = frame.evaluation.cell(frame.site("dict of"))
    made = frame.assign("dict", frame.evaluation.dict_type(cell))

    def store(pair: Value) -> None:
        items = plan_of(frame, pair).known
        if items is None or len(items) != 2:
            frame.refuse("dict() is supported for pairs only")
        set_item(frame, made, *items)

    iterate(frame, plan_of(frame, value), store)
    return made


@builtin(filter)
def _filter(frame: Frame, function: Value, source: Value, /) -> Value:
    """Return the items for which a function holds; the result is computed at once."""
    made = new_list(frame, frame.evaluation.cell(frame.site("filter")), ())

    def keep(item: Value) -> None:
        test = item if constant(function) is None else apply(frame, function, [item])
        condition = truth(frame, test)
        if condition is True:
            append(frame, made, item)
        elif condition is not False:
            branch(frame, condition, (lambda: append(frame, made, item), lambda: None))

    iterate(frame, plan_of(frame, source), keep)
    return IterableValue(ItemsPlan(made), filter)


@builtin(iter)
def _iter(frame: Frame, iterable: Value, /) -> Value:
    return IterableValue(plan_of(frame, iterable), None)


@builtin(ord, known=True)
def _ord(frame: Frame, character: Value, /) -> Value:
    given = frame.expect(character, (Scalar.STR,), "ord() expected string of length 1")
    return frame.assign("ord", Scalar.INT, given.operand)


@builtin(str, known=True)
def _str(frame: Frame, /, object: Value) -> Value:
    return as_text(frame, object)


# ---- Built-in functions that combine the items of a sequence: min, max, sum, any, all.


def _extreme(name: str) -> Callable[..., Value]:
    def find(
        frame: Frame, first: Value, /, *others: Value, key: Value = NONE, **default: Value
    ) -> Value:
        args = [first, *others]
        if default and (others or set(default) != {"default"}):
            frame.refuse(f"{name}() of several values with {min(default)}")
        if constant(key) is not None:
            return _extreme_by_key(frame, name, args, default | {"key": key})
        if others:
            return smallest(frame, name, [_as_number(frame, value) for value in args])
        plan = plan_of(frame, members(frame, first))
        if plan.known is not None:
            if not plan.known:
                return _empty(frame, name, default)
            return smallest(frame, name, [_as_number(frame, value) for value in plan.known])
        return _extreme_of_list(frame, name, plan, default)

    return find


def _as_number(frame: Frame, value: Value) -> Value:
    return read_number(frame, value, object) if is_tensor_like(value) else value


def _empty(frame: Frame, name: str, kwargs: dict[str, Value]) -> Value:
    if "default" in kwargs:
        return kwargs["default"]
    try:
        (min if name == "min" else max)([])
    except ValueError as error:  # the text depends on the version of Python
        frame.stop(ValueError, str(error))
    raise AssertionError("min and max of nothing raise ValueError")


def _extreme_of_list(
    frame: Frame, name: str, plan: IterationPlan, kwargs: dict[str, Value]
) -> Value:
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
    """Return min or max with a key, of a list whose length the instance decides."""
    listed = frame.dynamic(BUILTINS[list](frame, [items], {}))
    is_some = frame.assign("truth", Scalar.BOOL, listed.operand)
    source = python_library.smallest if name == "min" else python_library.largest
    return either(
        frame,
        is_some.operand,
        lambda: apply(frame, Static(source), [listed, kwargs["key"]]),
        lambda: _empty(frame, name, kwargs),
    )


def binary_less(frame: Frame, left: Value, right: Value, name: str) -> Any:

    op = ast.Lt() if name == "min" else ast.Gt()
    return truth(frame, compare(frame, op, left, right))


builtin(min, known=True)(_extreme("min"))
builtin(max, known=True)(_extreme("max"))


@builtin(sum, known=True)
def _sum(frame: Frame, iterable: Value, /, start: Value = ZERO) -> Value:
    if Scalar.STR in alternatives(frame.type_of(start)):
        frame.stop(TypeError, "sum() can't sum strings [use ''.join(seq) instead]")
    plan = plan_of(frame, members(frame, iterable))

    def add(total: Value, item: Value) -> Value:
        return binary(frame, "add", operator.add, total, item)

    if plan.known is not None:
        total = start
        for item in plan.known:
            total = add(total, item)
        return total
    return folded(frame, plan, start, lambda total, item: _add(frame, total, item))


def _add(frame: Frame, total: Value, item: Value) -> Value:
    """Return total + item, where the total begins as a number and may become a tensor."""
    if isinstance(total, Dynamic) and is_tensor_like(total) and is_tensor_like(item):
        return each_type(frame, total, lambda one: binary(frame, "add", operator.add, one, item))
    return binary(frame, "add", operator.add, total, item)


def _quantifier(is_all: bool) -> Callable[..., Value]:
    def find(frame: Frame, iterable: Value, /) -> Value:
        plan = plan_of(frame, iterable)
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


builtin(any)(_quantifier(False))
builtin(all)(_quantifier(True))


# ---- sorted()


@builtin(sorted, known=True)
def _sorted(
    frame: Frame, iterable: Value, /, *, key: Value = NONE, reverse: Value = FALSE
) -> Value:
    backwards = known_int(frame, reverse, "sorted with a `reverse`")
    given = members(frame, iterable) if constant(key) is None else iterable
    made = frame.dynamic(BUILTINS[list](frame, [given], {}))
    assert isinstance(made.type, ListType)
    plain = constant(key) is None and not backwards
    if plain and frame.evaluation.item_type(made.type) is Scalar.INT:
        return frame.assign("sorted_ints", made.type, made.operand)
    return _inserted(frame, made, key, bool(backwards))


def _inserted(frame: Frame, items: Dynamic, key: Value, reverse: bool) -> Value:
    """Return a list sorted stably by insertion, with Python's comparisons."""
    found = new_list(frame, frame.evaluation.cell(frame.site("sorted")), ())
    keys = new_list(frame, frame.evaluation.cell(frame.site("keys")), ())
    position = ".position"
    outer = frame.locals.get(position)

    def insert(item: Value) -> None:
        mine = item if constant(key) is None else apply(frame, key, [item])
        frame.locals[position] = frame.assign("len", Scalar.INT, keys.operand)

        def before() -> Value:
            return binary(frame, "sub", operator.sub, frame.locals[position], Static(1))

        def head() -> bool | Operand:
            def other() -> Value:
                theirs = subscript(frame, keys, before())
                pair = (theirs, mine) if reverse else (mine, theirs)
                return compare(frame, ast.Lt(), *pair)

            some = compare(frame, ast.Gt(), frame.locals[position], Static(0))
            return truth(frame, all_of(frame, [lambda: some, other]))

        def step() -> None:
            frame.locals[position] = before()

        dynamic_loop(frame, frozenset((position,)), head, step, nothing)
        place = frame.operand(frame.locals[position])
        for target, value in ((keys, mine), (found, item)):
            given = frame.dynamic(value)
            assert isinstance(target.type, ListType)
            frame.evaluation.grow(target.type.cell, given.type)
            frame.do("insert", target.operand, place, given.operand)

    iterate(frame, plan_of(frame, items), insert, frozenset((position,)))
    frame.locals.pop(position, None)
    if outer is not None:
        frame.locals[position] = outer
    return found
