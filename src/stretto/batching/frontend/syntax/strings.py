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
from stretto.batching.types import Scalar, alternatives


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
        elif item.format_spec is None and _is_shown(frame, value, item.conversion):
            parts.extend(text_parts(frame, value))
        else:
            frame.refuse("a value of an instance is formatted with a specification")
    if all(isinstance(part, str) for part in parts):
        return Static("".join(part for part in parts if isinstance(part, str)))
    if all(isinstance(part, str | Literal) or is_plain(part.type) for part in parts):
        return joined(frame, parts)
    return Text(tuple(parts))


def _is_shown(frame: Frame, value: Value, conversion: int) -> bool:
    """Whether a value is formatted as str() gives it."""
    if conversion != 114:
        return conversion in (-1, 115)
    return Scalar.STR not in alternatives(frame.type_of(value)) and not isinstance(value, Text)


def _formatted(frame: Frame, item: ast.FormattedValue, value: Static) -> str:
    spec = "" if item.format_spec is None else constant(evaluate(frame, item.format_spec))
    shown: Any = value.value
    if item.conversion != -1:
        shown = {115: str, 114: repr, 97: ascii}[item.conversion](shown)
    return format(shown, spec)
