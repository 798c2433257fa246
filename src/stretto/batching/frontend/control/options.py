"""Values that are one of several by the way that the instance took, where these are no data.

A local variable may hold one of two modules, or it is assigned on some ways only. The number of
what it holds is data then, and each use of it is a branch.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.batching.frontend.state.builder import Gap
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.sameness import same
from stretto.batching.frontend.state.statics import is_data
from stretto.batching.frontend.state.values import Choice, Dynamic, Value
from stretto.batching.program import Assign, If, Literal, Operand, Variable
from stretto.batching.types import NEVER, Scalar, Type, union

DATA = -1
"""The number of the option that is data."""


_DEFAULTS: dict[Type, bool | int | float] = {
    Scalar.BOOL: False,
    Scalar.INT: 0,
    Scalar.FLOAT: 0.0,
}


def numbered(
    frame: Frame, value: Value, options: list[Value]
) -> tuple[Operand, Dynamic | None, Type]:
    """The number of a value among some options, its data if it has any, and the type of the data
    where that is chosen. Options that are new are added."""
    if not isinstance(value, Choice):
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
        frame.builder.emit(Assign(renumbered, "copy", (index,)))
        for mine, theirs in numbers:
            test = frame.assign("eq", Scalar.BOOL, index, Literal(mine))
            then = (Assign(renumbered, "copy", (Literal(theirs),)),)
            frame.builder.emit(If(test.operand, then, ()))
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


def without_data(held: Type) -> tuple[Literal, Type]:
    """What the variable of the data has where another option is chosen, and its type with that."""
    if held in _DEFAULTS:
        return Literal(_DEFAULTS[held]), held
    return Literal(None), union((held, Scalar.NONE))


def choice_of(index: Variable, options: list[Value], data: Variable | None, known: Type) -> Choice:
    """A choice whose number and data are in variables."""
    found = list(enumerate(options))
    if data is not None:
        found.append((DATA, Dynamic(data, data.type)))
    return Choice(tuple(found), Dynamic(index, Scalar.INT), known)


def join_choices(frame: Frame, gaps: Sequence[Gap], values: Sequence[Value], name: str) -> Choice:
    """What is one of several values, of which some are no data."""
    index = frame.builder.variable(f"{name}_choice", Scalar.INT)
    data = frame.builder.variable(name, NEVER)
    options: list[Value] = []
    known: Type = NEVER
    without: list[Gap] = []
    for gap, value in zip(gaps, values, strict=True):
        with frame.builder.into(gap.statements):
            number, held, type_ = numbered(frame, value, options)
            frame.builder.emit(Assign(index, "copy", (number,)))
            if held is None:
                without.append(gap)
                continue
            frame.builder.emit(Assign(data, "copy", (held.operand,)))
            known = union((known, type_))
            data.type = union((data.type, held.type))
    if known == NEVER:
        return choice_of(index, options, None, NEVER)
    if without:
        default, data.type = without_data(data.type)
        for gap in without:
            gap.statements.append(Assign(data, "copy", (default,)))
    frame.evaluation.settle(data.type)
    return choice_of(index, options, data, known)
