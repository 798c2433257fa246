"""Uses of a value that is one of several by the way that the instance took: each is a branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stretto.batching.frontend.control.joins import branch, either
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import Choice, Dynamic, Unbound, Value
from stretto.batching.program import Literal
from stretto.batching.types import Scalar


def chosen(frame: Frame, value: Value, use: Callable[[Value], Value]) -> Value:
    """What `use` makes of a value; evaluated for each option of a choice."""
    if not isinstance(value, Choice):
        return use(value)
    return _chosen(frame, value, value.options, use)


def _chosen(
    frame: Frame,
    value: Choice,
    options: Sequence[tuple[int, Value]],
    use: Callable[[Value], Value],
) -> Value:
    (number, option), *rest = options

    def one() -> Value:
        return use(option_of(frame, value, option))

    if not rest:
        return one()
    test = frame.assign("eq", Scalar.BOOL, value.index.operand, Literal(number))
    return either(frame, test.operand, one, lambda: _chosen(frame, value, rest, use))


def option_of(frame: Frame, value: Choice, option: Value) -> Value:
    """An option where it is chosen."""
    return frame.cast(option, value.known) if isinstance(option, Dynamic) else option


def bound(frame: Frame, value: Choice, fails: Callable[[], None]) -> Value:
    """A choice where it is surely not `Unbound`; `fails` ends the other way."""
    missing = [number for number, option in value.options if isinstance(option, Unbound)]
    if not missing:
        return value
    test = frame.assign("eq", Scalar.BOOL, value.index.operand, Literal(missing[0]))
    branch(frame, test.operand, (fails, lambda: None))
    rest = tuple(pair for pair in value.options if not isinstance(pair[1], Unbound))
    if len(rest) == 1:
        return option_of(frame, value, rest[0][1])
    return Choice(rest, value.index, value.known)


def over_choices(
    frame: Frame,
    args: list[Value],
    kwargs: dict[str, Value],
    use: Callable[[list[Value], dict[str, Value]], Value],
) -> Value:
    """What `use` makes of arguments none of which is a choice."""
    several = next((v for v in (*args, *kwargs.values()) if isinstance(v, Choice)), None)
    if several is None:
        return use(args, kwargs)

    def once(one: Value) -> Value:
        given = [one if value is several else value for value in args]
        named = {name: one if v is several else v for name, v in kwargs.items()}
        return over_choices(frame, given, named, use)

    return chosen(frame, several, once)
