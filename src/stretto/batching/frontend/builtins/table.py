"""The table in which functions of Python are registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.statics import is_static, python_of
from stretto.batching.frontend.state.values import Value
from stretto.batching.frontend.tensors.purity import call_static

Builtin = Callable[[Frame, list[Value], dict[str, Value]], Value]


BUILTINS: dict[Any, Builtin] = {}


def builtin(*functions: Any) -> Callable[[Builtin], Builtin]:
    """Registers what is done for functions of Python."""

    def register(handler: Builtin) -> Builtin:
        BUILTINS.update(dict.fromkeys(functions, handler))
        return handler

    return register


def all_static(args: list[Value], kwargs: dict[str, Value]) -> bool:
    return all(map(is_static, (*args, *kwargs.values())))


def natively(
    frame: Frame, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]
) -> Value:
    named = {name: python_of(value) for name, value in kwargs.items()}
    return call_static(frame, function, [python_of(value) for value in args], named)


def count_arguments(frame: Frame, function: str, args: list[Value], least: int, most: int) -> None:
    if not least <= len(args) <= most:
        frame.refuse(f"{function} is called with {len(args)} arguments")
