"""Where several ways through a function meet: branches, and the ends of inlined functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stretto.batching.frontend.control.options import join_choices
from stretto.batching.frontend.state.builder import Draft, Gap, PathEnds
from stretto.batching.frontend.state.frame import Exit, Frame
from stretto.batching.frontend.state.sameness import same
from stretto.batching.frontend.state.statics import is_data
from stretto.batching.frontend.state.values import Dynamic, TupleValue, Unbound, Value
from stretto.batching.program import Assign, If, Leave, Operand, Return
from stretto.batching.types import NEVER, Scalar, TupleType, union


def merge(frame: Frame, exits: Sequence[Exit]) -> Value | None:
    """Goes on where the ways meet: sets the frame's locals, and returns the joined value of the
    exits, if they have one. Raises PathEnds where no way comes here."""
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
    """What is one of several values, by the way that was taken; each gap assigns its own."""
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
            frame.builder.emit(Assign(target, "copy", (made.operand,)))
    frame.evaluation.settle(target.type)
    return Dynamic(target, target.type)


def _unpacked(frame: Frame, gaps: Sequence[Gap], values: Sequence[Value]) -> list[Value] | None:
    """Where tuples that are known item by item meet such of data: the latter item by item."""
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
    """Evaluates both arms, and goes on where they meet. An arm returns the value that the branch
    has in it; statements have none."""
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
    frame.builder.pend(lambda then, orelse: (If(condition, then, orelse),), *drafts)
    return merge(frame, exits)


def leave(frame: Frame, value: Value) -> None:
    """Ends a function with a value."""
    if frame.return_label is None:
        made = frame.dynamic(value)
        frame.builder.emit(Return(made.operand))
        frame.returned(made.type)
    else:
        # A function that is returned goes on reading the variables around it.
        kept = {} if is_data(value) else frame.locals
        frame.returns.append(Exit(frame.builder.gap(), kept, value))
        frame.builder.emit(Leave(frame.return_label))
    raise PathEnds


def either(
    frame: Frame, condition: Operand, then: Callable[[], Value], orelse: Callable[[], Value]
) -> Value:
    """The value of a branch with two arms that both have one."""
    found = branch(frame, condition, (then, orelse))
    assert found is not None
    return found


def stop_where(
    frame: Frame, condition: Operand, exception: type[BaseException], *parts: str | Operand
) -> None:
    """Ends the instance with an exception where the condition holds."""
    branch(frame, condition, (lambda: frame.stop(exception, *parts), lambda: None))


def stop_outside(
    frame: Frame,
    position: Operand,
    length: Operand,
    exception: type[BaseException],
    *parts: str | Operand,
) -> None:
    """Ends the instance with an exception where there is no item at a position, which may count
    from the end."""
    least = frame.assign("neg", Scalar.INT, length)
    above = frame.assign("ge", Scalar.BOOL, position, least.operand)
    below = frame.assign("lt", Scalar.BOOL, position, length)
    inside = frame.assign("and", Scalar.BOOL, above.operand, below.operand)
    outside = frame.assign("not", Scalar.BOOL, inside.operand)
    stop_where(frame, outside.operand, exception, *parts)
