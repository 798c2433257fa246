"""One of several static objects, by a position or a key that the instance decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stretto.batching.frontend.control.joins import either
from stretto.batching.frontend.state.dispatch import apply
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.statics import is_data
from stretto.batching.frontend.state.values import Dynamic, Native, Static, Value, scalar_type
from stretto.batching.types import Scalar, UnionType


def check_one_kind(frame: Frame, key: Dynamic) -> None:
    """Refuses a key that may be of several types."""
    if isinstance(key.type, UnionType):
        frame.refuse(
            f"a key that may be {frame.show(key.type)}",
            "tell the kinds apart with isinstance before it is used",
        )


def selected(
    frame: Frame, options: list[tuple[Any, Any]], index: Value, error: type, length: int
) -> Value:
    """One of several static objects that cannot be data, as modules: a call of it is a branch."""
    given = frame.dynamic(index)
    check_one_kind(frame, given)
    if length:
        negative = frame.assign("lt", Scalar.BOOL, given.operand, frame.operand(Static(0)))
        wrapped = either(
            frame,
            negative.operand,
            lambda: frame.assign("add", Scalar.INT, given.operand, frame.operand(Static(length))),
            lambda: given,
        )
        given = frame.dynamic(wrapped)

    def call(inner: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return choose(inner, options, given, error, lambda item: apply(inner, item, args, kwargs))

    if all(isinstance(item, torch.Tensor) or scalar_type(item) for _, item in options):
        return choose(frame, options, given, error, lambda item: item)
    return Native("choice", call)


def selected_or(frame: Frame, options: list[tuple[Any, Any]], key: Value, default: Value) -> Value:
    """dict.get of a static dict by a key that the instance decides."""
    given = frame.dynamic(key)
    check_one_kind(frame, given)
    fitting = [pair for pair in options if scalar_type(pair[0]) is given.type]
    if all(is_data(Static(item)) for _, item in fitting) and is_data(default):
        return choose(frame, fitting, given, KeyError, lambda item: item, lambda: default)

    def call(inner: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
        def use(item: Value) -> Value:
            return apply(inner, item, args, kwargs)

        return choose(inner, fitting, given, KeyError, use, lambda: use(default))

    return Native("choice", call)


def choose(
    frame: Frame,
    options: Sequence[tuple[Any, Any]],
    index: Dynamic,
    error: type,
    use: Callable[[Value], Value],
    missing: Callable[[], Value] | None = None,
) -> Value:
    """What `use` makes of the option whose key the instance gives; `missing` where it has none."""
    if not options and missing is not None:
        return missing()
    if not options:
        frame.stop(error, *(("index out of range",) if error is IndexError else (index.operand,)))
    (key, item), *rest = options
    test = frame.assign("eq", Scalar.BOOL, index.operand, frame.operand(Static(key)))
    return either(
        frame,
        test.operand,
        lambda: use(Static(item)),
        lambda: choose(frame, rest, index, error, use, missing),
    )
