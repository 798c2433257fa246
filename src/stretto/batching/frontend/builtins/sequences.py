"""Functions of Python that make, measure and go through sequences."""

from __future__ import annotations

from stretto.batching.frontend.builtins.table import (
    BUILTINS,
    Builtin,
    all_static,
    builtin,
    count_arguments,
    natively,
)
from stretto.batching.frontend.control.joins import branch, stop_where
from stretto.batching.frontend.control.kinds import each_type
from stretto.batching.frontend.data.attributes import attribute
from stretto.batching.frontend.data.items import subscript
from stretto.batching.frontend.data.lists import append, new_list
from stretto.batching.frontend.data.numbers import read_number
from stretto.batching.frontend.data.records import new_dict
from stretto.batching.frontend.data.storing import set_item
from stretto.batching.frontend.data.strings import as_text
from stretto.batching.frontend.data.truth import truth
from stretto.batching.frontend.iteration.plans import (
    Enumerated,
    Items,
    Known,
    Mapped,
    Plan,
    Range,
    Reversed,
    Zipped,
)
from stretto.batching.frontend.iteration.sources import plan_of
from stretto.batching.frontend.iteration.walks import iterate
from stretto.batching.frontend.state.dispatch import apply
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.statics import constant, is_static
from stretto.batching.frontend.state.values import Dynamic, Iterator_, Static, TupleValue, Value
from stretto.batching.frontend.tensors.operands import is_tensor_like
from stretto.batching.types import (
    DictType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
)


@builtin(len)
def _len(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    count_arguments(frame, "len", args, 1, 1)
    (value,) = args
    if isinstance(value, TupleValue):
        return Static(len(value.items))
    if isinstance(value, Static):
        return natively(frame, len, args, {})
    return each_type(frame, value, lambda one: _length(frame, one))


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
            return apply(frame, attribute(frame, value, "__len__"), [])
        case ListType() | DictType() | RowsType() | Scalar.STR:
            return frame.assign("len", Scalar.INT, value.operand)
        case _:
            shown = frame.show(value.type)
            frame.stop(TypeError, f"object of type '{shown}' has no len()")


@builtin(range)
def _range(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    count_arguments(frame, "range", args, 1, 3)
    if all_static(args, kwargs):
        return natively(frame, range, args, kwargs)
    given = [_int(frame, value) for value in args]
    start, stop, step = Static(0), given[0], Static(1)
    if len(given) > 1:
        start, stop = given[0], given[1]
    if len(given) > 2:
        step = given[2]
    return Iterator_(Range(start, stop, step))


def _int(frame: Frame, value: Value) -> Value:
    if is_static(value):
        return value
    if is_tensor_like(value):
        return read_number(frame, value, int)
    return frame.expect(value, (Scalar.INT, Scalar.BOOL), "an integer is needed here")


@builtin(enumerate)
def _enumerate(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    start = kwargs.get("start", args[1] if len(args) > 1 else Static(0))
    return Iterator_(Enumerated(plan_of(frame, args[0]), start))


@builtin(zip)
def _zip(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs and constant(kwargs.get("strict", Static(True))) is not False:
        plans = [plan_of(frame, value) for value in args]
        if any(plan.known is None for plan in plans):
            return _strict_zip(frame, plans)
        if len({len(plan.known or ()) for plan in plans}) > 1:
            frame.stop(ValueError, "zip() arguments have different lengths")
        return Iterator_(Zipped(plans))
    return Iterator_(Zipped([plan_of(frame, value) for value in args]))


def _strict_zip(frame: Frame, plans: list[Plan]) -> Value:
    sources = [plan.source for plan in plans if isinstance(plan, Items)]
    if len(sources) < len(plans):
        frame.refuse("zip(strict=True) of something else than lists")
    lengths = [frame.assign("len", Scalar.INT, item.operand) for item in sources]
    for length in lengths[1:]:
        wrong = frame.assign("ne", Scalar.BOOL, lengths[0].operand, length.operand)
        message = "zip() arguments have different lengths"
        stop_where(frame, wrong.operand, ValueError, message)
    return Iterator_(Zipped(plans))


@builtin(reversed)
def _reversed(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    plan = plan_of(frame, args[0])
    if plan.known is not None:
        return Iterator_(Known(plan.known[::-1]))
    if isinstance(plan, Items):
        length = frame.assign("len", Scalar.INT, plan.source.operand)
        return Iterator_(Reversed(plan, length))
    if isinstance(plan, Range):
        plan.begin(frame)
        return Iterator_(Reversed(plan, plan.trips))
    return frame.refuse("reversed() of this value", "make a list of it")


@builtin(map)
def _map(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function, *sources = args
    plans = [plan_of(frame, value) for value in sources]
    if len(plans) == 1:
        return Iterator_(Mapped(plans[0], lambda f, item: apply(f, function, [item])))

    def spread(inner: Frame, item: Value) -> Value:
        assert isinstance(item, TupleValue)
        return apply(inner, function, item.items)

    return Iterator_(Mapped(Zipped(plans), spread))


def _to_list(is_tuple: bool) -> Builtin:
    def make(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not args:
            if is_tuple:
                return Static(())
            return new_list(frame, frame.evaluation.cell(frame.site("list")), ())
        (value,) = args
        plan = plan_of(frame, value)
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


BUILTINS[list] = _to_list(False)

BUILTINS[tuple] = _to_list(True)


@builtin(dict)
def _dict(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:

    if args and kwargs:
        frame.refuse("dict() of a value and of names", "store in the dict afterwards")
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
    """dict(x) of a dict, or of pairs."""
    kind = value.type if isinstance(value, Dynamic) else None
    if isinstance(kind, RecordType):
        info = frame.evaluation.info(kind)
        if info.kind == "dict":
            return new_dict(
                frame, info.fields, [subscript(frame, value, Static(n)) for n in info.fields]
            )
        if issubclass(info.python, dict):
            return _dict_of(frame, attribute(frame, value, "held"))
    if isinstance(kind, DictType):
        value = apply(frame, attribute(frame, value, "items"), [])
    cell = frame.evaluation.cell(frame.site("dict of"))
    made = frame.assign("dict", frame.evaluation.dict_type(cell))

    def store(pair: Value) -> None:
        items = plan_of(frame, pair).known
        if items is None or len(items) != 2:
            frame.refuse("dict() of something else than pairs")
        set_item(frame, made, *items)

    iterate(frame, plan_of(frame, value), store)
    return made


@builtin(filter)
def _filter(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The items for which a function holds, found at once."""
    function, source = args
    made = new_list(frame, frame.evaluation.cell(frame.site("filter")), ())

    def keep(item: Value) -> None:
        test = item if constant(function) is None else apply(frame, function, [item])
        condition = truth(frame, test)
        if condition is True:
            append(frame, made, item)
        elif condition is not False:
            branch(frame, condition, (lambda: append(frame, made, item), lambda: None))

    iterate(frame, plan_of(frame, source), keep)
    return Iterator_(Items(made))


@builtin(iter)
def _iter(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    count_arguments(frame, "iter", args, 1, 1)
    return Iterator_(plan_of(frame, args[0]))


@builtin(ord)
def _ord(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if all_static(args, kwargs):
        return natively(frame, ord, args, kwargs)
    given = frame.expect(args[0], (Scalar.STR,), "ord() expected string of length 1")
    return frame.assign("ord", Scalar.INT, given.operand)


@builtin(str)
def _str(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if all_static(args, kwargs):
        return natively(frame, str, args, kwargs)
    return as_text(frame, args[0])
