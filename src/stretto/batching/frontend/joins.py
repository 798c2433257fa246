"""Joins of paths through a function: after branches, and at the ends of inlined functions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch

from stretto.batching.frontend.dispatch import impossible
from stretto.batching.frontend.frame import Exit, Frame
from stretto.batching.frontend.function_builder import Draft, Gap, PathEnds, if_op
from stretto.batching.frontend.python_library import MODULE
from stretto.batching.frontend.values import (
    ChoiceValue,
    Closure,
    Composed,
    Dynamic,
    IterableValue,
    Method,
    Native,
    SliceValue,
    Static,
    Text,
    TupleValue,
    Unbound,
    Value,
    is_data,
    same,
)
from stretto.ir.core import Literal, Operand, Variable
from stretto.ir.data import AssignOp, LeaveOp, ReturnOp
from stretto.ir.types import (
    NEVER,
    DataType,
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

# ---- Values that are one of several, depending on the path taken, some of which are no data.
#
# A local variable may hold one of two modules, or be assigned on some paths only. Then the number
# of its value is data, and each use of the variable is a branch.


DATA = -1
"""The number of the option that is data."""


_DEFAULTS: dict[DataType, bool | int | float] = {
    Scalar.BOOL: False,
    Scalar.INT: 0,
    Scalar.FLOAT: 0.0,
}


def numbered(
    frame: Frame, value: Value, options: list[Value]
) -> tuple[Operand, Dynamic | None, DataType]:
    """Return the number of a value among some options, its data or None, and the type of the data
    where that is chosen. New options are added to `options`."""
    if not isinstance(value, ChoiceValue):
        if not is_data(value):
            return Literal(_position(options, value)), None, NEVER
        made = frame.dynamic(value)
        return Literal(DATA), made, made.type
    numbers = [
        (number, DATA if number == DATA else _position(options, option))
        for number, option in value.options
    ]
    index = value.index.operand
    if any(mine != theirs for mine, theirs in numbers):
        renumbered = frame.builder.variable("choice", Scalar.INT)
        frame.builder.emit(AssignOp("copy", (index,), results=(renumbered,)))
        for mine, theirs in numbers:
            test = frame.assign("eq", Scalar.BOOL, index, Literal(mine))
            then = (AssignOp("copy", (Literal(theirs),), results=(renumbered,)),)
            frame.builder.emit(if_op(test.operand, then, ()))
        index = renumbered
    data = next((option for number, option in value.options if number == DATA), None)
    assert data is None or isinstance(data, Dynamic)
    return index, data, value.known


def _position(options: list[Value], value: Value) -> int:
    for number, option in enumerate(options):
        if same(option, value):
            return number
    options.append(value)
    return len(options) - 1


def default_data(held: DataType) -> tuple[Literal, DataType]:
    """Return the value of the data's variable where another option is chosen, and its type
    including that."""
    if held in _DEFAULTS:
        return Literal(_DEFAULTS[held]), held
    return Literal(None), union((held, Scalar.NONE))


def choice_of(
    index: Variable, options: list[Value], data: Variable | None, known: DataType
) -> ChoiceValue:
    """Return a choice whose number and data are in variables."""
    found = list(enumerate(options))
    if data is not None:
        found.append((DATA, Dynamic(data, data.type)))
    return ChoiceValue(tuple(found), Dynamic(index, Scalar.INT), known)


def join_choices(
    frame: Frame, gaps: Sequence[Gap], values: Sequence[Value], name: str
) -> ChoiceValue:
    """Return the join of several values, some of which are no data."""
    index = frame.builder.variable(f"{name}_choice", Scalar.INT)
    data = frame.builder.variable(name, NEVER)
    options: list[Value] = []
    known: DataType = NEVER
    without: list[Gap] = []
    for gap, value in zip(gaps, values, strict=True):
        with frame.builder.into(gap.statements):
            number, held, type_ = numbered(frame, value, options)
            frame.builder.emit(AssignOp("copy", (number,), results=(index,)))
            if held is None:
                without.append(gap)
                continue
            frame.builder.emit(AssignOp("copy", (held.operand,), results=(data,)))
            known = union((known, type_))
            data.type = union((data.type, held.type))
    if known == NEVER:
        return choice_of(index, options, None, NEVER)
    if without:
        default, data.type = default_data(data.type)
        for gap in without:
            gap.statements.append(AssignOp("copy", (default,), results=(data,)))
    frame.evaluation.settle(data.type)
    return choice_of(index, options, data, known)


def merge(frame: Frame, exits: Sequence[Exit]) -> Value | None:
    """Continue where the paths join: set the frame's locals, and return the joined value of the
    exits, or None if they have none. Raises PathEnds if no path arrives."""
    if not exits:
        raise PathEnds
    names = dict.fromkeys(name for item in exits for name in item.locals)
    gaps = [item.gap for item in exits]
    frame.locals = {
        name: join(frame, gaps, [item.locals.get(name, Unbound()) for item in exits], name)
        for name in names
    }
    values = [item.value for item in exits if item.value is not None]
    return join(frame, gaps, values, "result") if len(values) == len(exits) else None


def join(frame: Frame, gaps: Sequence[Gap], values: Sequence[Value], name: str) -> Value:
    """Return one value for several, depending on the path; the assignment of each is added to its
    gap."""
    first = values[0]
    if all(same(first, value) for value in values[1:]):
        return first
    if all(isinstance(value, TupleValue) for value in values):
        tuples = [value for value in values if isinstance(value, TupleValue)]
        if len({(len(value.items), value.is_list) for value in tuples}) == 1:
            columns = zip(*(value.items for value in tuples), strict=True)
            items = tuple(join(frame, gaps, column, name) for column in columns)
            return TupleValue(items, tuples[0].is_list)
    unpacked = _unpacked(frame, gaps, values)
    if unpacked is not None:
        return join(frame, gaps, unpacked, name)
    if not all(map(is_data, values)):
        return join_choices(frame, gaps, values, name)
    target = frame.builder.variable(name, NEVER)
    for gap, value in zip(gaps, values, strict=True):
        draft: Draft = gap.statements
        with frame.builder.into(draft):
            made = frame.dynamic(value)
            target.type = union((target.type, made.type))
            frame.builder.emit(AssignOp("copy", (made.operand,), results=(target,)))
    frame.evaluation.settle(target.type)
    return Dynamic(target, target.type)


def _unpacked(frame: Frame, gaps: Sequence[Gap], values: Sequence[Value]) -> list[Value] | None:
    """Unpack tuples in variables that join tuples of separate items of the same length; None for
    other values."""
    lengths = {
        len(value.items)
        if isinstance(value, TupleValue) and not value.is_list
        else len(value.type.items)
        if isinstance(value, Dynamic) and isinstance(value.type, TupleType)
        else -1
        for value in values
    }
    if len(lengths) != 1 or -1 in lengths:
        return None
    if not any(isinstance(value, TupleValue) for value in values):
        return None
    found: list[Value] = []
    for gap, value in zip(gaps, values, strict=True):
        if isinstance(value, Dynamic):
            assert isinstance(value.type, TupleType)
            with frame.builder.into(gap.statements):
                value = TupleValue(
                    tuple(
                        frame.assign("item", type_, value.operand, detail=position)
                        for position, type_ in enumerate(value.type.items)
                    )
                )
        found.append(value)
    return found


def branch(
    frame: Frame, condition: Operand, arms: Sequence[Callable[[], Value | None]]
) -> Value | None:
    """Evaluate both arms, and continue where they join; one arm if the condition is known. Return
    the joined value of the arms; None if they are statements."""
    if isinstance(condition, Literal):
        return arms[0 if condition.value else 1]()
    before = frame.locals
    exits: list[Exit] = []
    drafts: list[Draft] = []
    for arm in arms:
        frame.locals = dict(before)
        draft: Draft = []
        drafts.append(draft)
        with frame.builder.into(draft):
            try:
                value = arm()
                exits.append(Exit(frame.builder.gap(), frame.locals, value))
            except PathEnds:
                pass
    frame.locals = before
    frame.builder.pend(lambda then, orelse: (if_op(condition, then, orelse),), *drafts)
    return merge(frame, exits)


def leave(frame: Frame, value: Value) -> None:
    """End a function with a value."""
    if frame.return_label is None:
        made = frame.dynamic(value)
        frame.builder.emit(ReturnOp(made.operand))
        frame.returned(made.type)
    else:
        # A function that is returned still reads the variables of this frame.
        kept = {} if is_data(value) else frame.locals
        frame.returns.append(Exit(frame.builder.gap(), kept, value))
        frame.builder.emit(LeaveOp(frame.return_label))
    raise PathEnds


def either(
    frame: Frame, condition: Operand, then: Callable[[], Value], orelse: Callable[[], Value]
) -> Value:
    """Return the value of a branch both of whose arms have a value."""
    found = branch(frame, condition, (then, orelse))
    assert found is not None
    return found


def stop_where(
    frame: Frame, condition: Operand, exception: type[BaseException], *parts: str | Operand
) -> None:
    """End the instance with an exception if the condition holds."""
    branch(frame, condition, (lambda: frame.stop(exception, *parts), lambda: None))


def stop_outside(
    frame: Frame,
    position: Operand,
    length: Operand,
    exception: type[BaseException],
    *parts: str | Operand,
) -> None:
    """End the instance with an exception if there is no item at a position; negative ones count
    from the end."""
    least = frame.assign("neg", Scalar.INT, length)
    above = frame.assign("ge", Scalar.BOOL, position, least.operand)
    below = frame.assign("lt", Scalar.BOOL, position, length)
    inside = frame.assign("and", Scalar.BOOL, above.operand, below.operand)
    outside = frame.assign("not", Scalar.BOOL, inside.operand)
    stop_where(frame, outside.operand, exception, *parts)


# ---- Values that may have one of several types: their classes, and branches on the type.


def switch(
    frame: Frame,
    value: Dynamic,
    groups: Sequence[Sequence[DataType]],
    handler: Callable[[Dynamic], Value],
) -> Value:
    """Return the result of `handler`, evaluated for each group of types that a value may have."""
    first, *rest = groups
    if not rest:
        return handler(frame.cast(value, union(first)))
    test = frame.assign("has_type", Scalar.BOOL, value.operand, detail=tuple(first))
    return either(
        frame,
        test.operand,
        lambda: handler(frame.cast(value, union(first))),
        lambda: switch(frame, value, rest, handler),
    )


def each_type(frame: Frame, value: Value, handler: Callable[[Dynamic], Value]) -> Value:
    """Return the result of `handler` for a value of one type; evaluated for each type that the
    value may have."""
    given = frame.dynamic(value)
    impossible(frame, given.type)
    kinds = sorted(alternatives(given.type), key=str)
    return switch(frame, given, [[kind] for kind in kinds], handler)


def unpacked(frame: Frame, value: Dynamic, type_: TupleType) -> tuple[Dynamic, ...]:
    """Return the items of a tuple of known length, each in a variable."""
    return tuple(
        frame.assign("item", item, value.operand, detail=position)
        for position, item in enumerate(type_.items)
    )


_PYTHON: dict[Scalar, type] = {
    Scalar.NONE: type(None),
    Scalar.BOOL: bool,
    Scalar.INT: int,
    Scalar.FLOAT: float,
    Scalar.STR: str,
}


def python_class(frame: Frame, kind: DataType) -> type:
    """Return the Python class of the values of a type that is no union."""

    match kind:
        case Scalar():
            return _PYTHON[kind]
        case RecordType():
            return frame.evaluation.info(kind).python
        case ListType(_, is_tuple):
            return tuple if is_tuple else list
        case TupleType():
            return tuple
        case DictType():
            return dict
        case TensorType() | RowsType():
            return torch.Tensor
        case _:
            raise TypeError(kind)


def class_of(frame: Frame, kind: DataType) -> type:
    """type() of a value of a type that is no union: Python's own class, where `library` has what
    stands for it."""
    order = python_class(frame, kind).__mro__
    return next(python for python in order if python.__module__ != MODULE)


def is_instance(frame: Frame, kind: DataType, classes: Any) -> bool:
    """Return isinstance of a value of a type that is no union."""
    return issubclass(class_of(frame, kind), classes)


def static_class(frame: Frame, value: Value) -> type:
    """type() of a value that is no data."""
    match value:
        case Static(item):
            return type(item)
        case TupleValue(_, is_list) if not value.names:
            return list if is_list else tuple
        case Closure():
            return FunctionType
        case Method(function) if not isinstance(function, str):
            return MethodType
        case Text():
            return str
        case SliceValue():
            return slice
        case Composed():
            return torch.Tensor
        case IterableValue(_, python) | Native(_, _, python) if python is not None:
            return python
        case _:
            return frame.refuse("the class of such a value is asked for")


def has_type(frame: Frame, value: Value, types: tuple[DataType, ...]) -> Value:
    """Return a bool value that is true if a value is of one of some types."""
    if not isinstance(value, Dynamic):
        type_ = frame.type_of(value)
        return Static(type_ in types)
    kinds = set(alternatives(value.type))
    inside = kinds & set(types)
    if not inside:
        return Static(False)
    if inside == kinds:
        return Static(True)
    return frame.assign(
        "has_type", Scalar.BOOL, value.operand, detail=tuple(sorted(inside, key=str))
    )


# ---- Uses of a choice: each is a branch.


def chosen(frame: Frame, value: Value, use: Callable[[Value], Value]) -> Value:
    """Return the result of `use` for a value; evaluated for each option of a choice."""
    if not isinstance(value, ChoiceValue):
        return use(value)
    return _chosen(frame, value, value.options, use)


def _chosen(
    frame: Frame,
    value: ChoiceValue,
    options: Sequence[tuple[int, Value]],
    use: Callable[[Value], Value],
) -> Value:
    ordered = sorted(options, key=lambda pair: pair[0])
    uses = [(number, lambda x=x: use(option_of(frame, value, x))) for number, x in ordered]
    return selected(frame, value.index.operand, uses)


def selected(
    frame: Frame, number: Operand, uses: Sequence[tuple[int, Callable[[], Value]]]
) -> Value:
    """Call the function that has a number, at run time, and return its result. One of them has it;
    they are in the order of their numbers."""
    if len(uses) == 1:
        return uses[0][1]()
    half = 1 if len(uses) <= FEW else len(uses) // 2
    is_first = ("eq", uses[0][0]) if half == 1 else ("lt", uses[half][0])
    test = frame.assign(is_first[0], Scalar.BOOL, number, Literal(is_first[1]))
    return either(
        frame,
        test.operand,
        lambda: selected(frame, number, uses[:half]),
        lambda: selected(frame, number, uses[half:]),
    )


FEW = 16
"""Options up to this many are compared one after another; more of them by halves, because branches
within branches must not become too deep."""


def option_of(frame: Frame, value: ChoiceValue, option: Value) -> Value:
    """Return an option, with its known type, where it is chosen."""
    return frame.cast(option, value.known) if isinstance(option, Dynamic) else option


def bound(frame: Frame, value: ChoiceValue, fails: Callable[[], None]) -> Value:
    """Return a choice without its `Unbound` option; `fails` ends the paths on which that is
    chosen."""
    missing = [number for number, option in value.options if isinstance(option, Unbound)]
    if not missing:
        return value
    test = frame.assign("eq", Scalar.BOOL, value.index.operand, Literal(missing[0]))
    branch(frame, test.operand, (fails, lambda: None))
    rest = tuple(pair for pair in value.options if not isinstance(pair[1], Unbound))
    if len(rest) == 1:
        return option_of(frame, value, rest[0][1])
    return ChoiceValue(rest, value.index, value.known)


def over_choices(
    frame: Frame,
    args: list[Value],
    kwargs: dict[str, Value],
    use: Callable[[list[Value], dict[str, Value]], Value],
) -> Value:
    """Return the result of `use` for arguments none of which is a choice, evaluated for all
    options."""
    several = next((v for v in (*args, *kwargs.values()) if isinstance(v, ChoiceValue)), None)
    if several is None:
        return use(args, kwargs)

    def once(one: Value) -> Value:
        given = [one if value is several else value for value in args]
        named = {name: one if v is several else v for name, v in kwargs.items()}
        return over_choices(frame, given, named, use)

    return chosen(frame, several, once)


# ---- Tuples whose length depends on the path: they become tuples of any length.


def as_list(frame: Frame, value: Value, site: Hashable) -> Value:
    """Return a tuple of known length as one of any length; other values unchanged."""
    known = known_items(frame, value)
    if known is None:
        return value
    cell = frame.evaluation.cell(site)
    items = [frame.dynamic(item) for item in known]
    for item in items:
        frame.evaluation.grow(cell, item.type)
    type_ = ListType(frame.evaluation.cell(site), is_tuple=True)
    return frame.assign("list", type_, *(item.operand for item in items), detail=True)


def known_items(frame: Frame, value: Value) -> tuple[Value, ...] | None:
    """Return the items of a tuple of known length; None for any other value."""
    match value:
        case Static(item) if type(item) is tuple:
            return tuple(map(Static, item))
        case TupleValue(items, is_list) if not is_list:
            return items
        case Dynamic(_, TupleType() as kind):
            return unpacked(frame, value, kind)
        case _:
            return None


def is_tuple(value: Value) -> bool:
    """Return True if a value is certainly a tuple."""
    match value:
        case TupleValue(_, is_list):
            return not is_list
        case Static(item):
            return type(item) is tuple
        case Dynamic(_, type_):
            return all(
                isinstance(kind, TupleType) or (isinstance(kind, ListType) and kind.is_tuple)
                for kind in alternatives(type_)
            )
        case _:
            return False
