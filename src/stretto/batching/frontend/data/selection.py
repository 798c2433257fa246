"""One of several objects that are no data, by a position or a key that the instance decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stretto.batching.frontend.control.joins import either, stop_outside
from stretto.batching.frontend.data.members import enumeration, name_of
from stretto.batching.frontend.data.numbers import read_number
from stretto.batching.frontend.state.dispatch import apply
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.statics import is_data
from stretto.batching.frontend.state.values import (
    Choice,
    Dynamic,
    Native,
    Static,
    Value,
    scalar_type,
)
from stretto.batching.frontend.tensors.operands import is_tensor_like
from stretto.batching.program import Literal
from stretto.batching.types import NEVER, Scalar, UnionType

Options = Sequence[tuple[Any, Value]]


def check_one_kind(frame: Frame, key: Dynamic) -> None:
    """Refuses a key that may be of several types."""
    if isinstance(key.type, UnionType):
        frame.refuse(
            f"a key that may be {frame.show(key.type)}",
            "tell the kinds apart with isinstance before it is used",
        )


def at_position(frame: Frame, items: Sequence[Value], position: Value, kind: str = "list") -> Value:
    """One of several objects that are no data, as modules, by a position that the instance
    decides: each use of it is a branch."""
    if is_tensor_like(position):
        position = read_number(frame, position, int)
    given = frame.expect(position, (Scalar.INT, Scalar.BOOL), "a position must be an int")
    length = Literal(len(items))
    parts = (f"{kind} index out of range",)
    if kind == "module":
        parts = ("index ", given.operand, " is out of range")
    stop_outside(frame, given.operand, length, IndexError, *parts)
    negative = frame.assign("lt", Scalar.BOOL, given.operand, Literal(0))
    found = either(
        frame,
        negative.operand,
        lambda: frame.assign("add", Scalar.INT, given.operand, length),
        lambda: frame.assign("to_int", Scalar.INT, given.operand),
    )
    if all(map(is_data, items)):
        return choose(frame, list(enumerate(items)), frame.dynamic(found), IndexError, _itself)
    return Choice(tuple(enumerate(items)), frame.dynamic(found), NEVER)


def _itself(value: Value) -> Value:
    return value


def by_key(frame: Frame, options: Options, key: Value) -> Value:
    """One of several objects by a key that the instance decides: a call of it is a branch."""
    given, options = _by_name(frame, frame.dynamic(key), options)
    check_one_kind(frame, given)
    if all(is_data(item) for _, item in options):
        return choose(frame, options, given, KeyError, _itself)
    # The variable of a loop may hold another key when the object is called.
    given = frame.assign("copy", given.type, given.operand, name="chosen")

    def call(inner: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return choose(
            inner, options, given, KeyError, lambda item: apply(inner, item, args, kwargs)
        )

    return Native("choice", call)


def _by_name(frame: Frame, key: Dynamic, options: Options) -> tuple[Dynamic, Options]:
    """A member of an enumeration as its name, and the options with such keys by their names."""
    python = enumeration(frame, key.type)
    if python is None:
        return key, options
    found = [(option.name, item) for option, item in options if type(option) is python]
    return name_of(frame, key), found


def selected_or(frame: Frame, options: Options, key: Value, default: Value) -> Value:
    """dict.get of a static dict by a key that the instance decides."""
    given, options = _by_name(frame, frame.dynamic(key), options)
    check_one_kind(frame, given)
    fitting = [pair for pair in options if scalar_type(pair[0]) is given.type]
    if all(is_data(item) for _, item in fitting) and is_data(default):
        return choose(frame, fitting, given, KeyError, lambda item: item, lambda: default)
    given = frame.assign("copy", given.type, given.operand, name="chosen")

    def call(inner: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        def use(item: Value) -> Value:
            return apply(inner, item, args, kwargs)

        return choose(inner, fitting, given, KeyError, use, lambda: use(default))

    return Native("choice", call)


def choose(
    frame: Frame,
    options: Options,
    index: Dynamic,
    error: type,
    use: Callable[[Value], Value],
    missing: Callable[[], Value] | None = None,
) -> Value:
    """What `use` makes of the option whose key the instance gives; `missing` where it has none."""
    if not options and missing is not None:
        return missing()
    if not options:
        frame.stop(error, index.operand)
    (key, item), *rest = options
    test = frame.assign("eq", Scalar.BOOL, index.operand, frame.operand(Static(key)))
    return either(
        frame,
        test.operand,
        lambda: use(item),
        lambda: choose(frame, rest, index, error, use, missing),
    )
