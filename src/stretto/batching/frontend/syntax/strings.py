"""Strings with values in them."""

from __future__ import annotations

import ast
from typing import Any

from stretto.batching.frontend.data.strings import is_plain, joined
from stretto.batching.frontend.state.dispatch import evaluate, evaluates
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.statics import constant
from stretto.batching.frontend.state.values import Static, Text, Value
from stretto.batching.program import Literal, Operand
from stretto.batching.types import Scalar


def text_parts(frame: Frame, value: Value) -> tuple[Any, ...]:
    """A value as parts of a message."""
    match value:
        case Text(parts):
            return parts
        case Static(item):
            return (str(item),)
        case _:
            return (frame.operand(value),)


@evaluates(ast.JoinedStr)
def _joined(frame: Frame, node: ast.JoinedStr) -> Value:
    parts: list[str | Operand] = []
    for item in node.values:
        if isinstance(item, ast.Constant):
            parts.append(str(item.value))
            continue
        assert isinstance(item, ast.FormattedValue)
        value = evaluate(frame, item.value)
        if isinstance(value, Static):
            parts.append(_formatted(frame, item, value))
        elif item.format_spec is None and item.conversion == 114:
            parts.append(_shown(frame, value))
        elif item.format_spec is None and item.conversion in (-1, 115):
            parts.extend(text_parts(frame, value))
        else:
            frame.refuse("a value of an instance is formatted with a specification")
    if all(isinstance(part, str) for part in parts):
        return Static("".join(part for part in parts if isinstance(part, str)))
    if all(isinstance(part, str | Literal) or is_plain(part.type) for part in parts):
        return joined(frame, parts)
    return Text(tuple(parts))


def _shown(frame: Frame, value: Value) -> Operand:
    """repr(x)"""
    given = frame.dynamic(value)
    if not is_plain(given.type):
        frame.refuse("repr of a value of an instance that is no int and no string")
    return frame.assign("repr", Scalar.STR, given.operand).operand


def _formatted(frame: Frame, item: ast.FormattedValue, value: Static) -> str:
    spec = "" if item.format_spec is None else constant(evaluate(frame, item.format_spec))
    shown: Any = value.value
    if item.conversion != -1:
        shown = {115: str, 114: repr, 97: ascii}[item.conversion](shown)
    return format(shown, spec)
