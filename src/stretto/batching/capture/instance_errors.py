"""Exceptions of the user's code that show values of an instance."""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType
from typing import Any, NoReturn

from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data import DataObject
from stretto.frontends.python.values.scalars import is_number, python_kind
from stretto.frontends.python.values.texts import Formatted, Shown, TracedText, is_text
from stretto.ir.core import Value
from stretto.ir.data import RaiseOp
from stretto.ir.types import DType

_BY_STR = (Formatted(), Formatted(ord("s")))


def raise_op(error: BaseException) -> RaiseOp:
    """Return the op that raises an exception whose message shows values of the instance."""
    if len(error.args) != 1 or not _is_made_of_arguments(error):
        _refuse()
    if is_number(error.args[0]):
        number: Any = tracer().read(error.args[0])
        kind = python_kind(DType.from_torch(error.args[0].dtype))
        return RaiseOp(OfNumber(type(error), kind), (number,))
    return RaiseOp(type(error), _message(error))


@dataclass(frozen=True, slots=True)
class OfNumber:
    """Makes an exception whose argument is a number, of the number's text."""

    error: type[BaseException]
    kind: type

    def __call__(self, text: str) -> BaseException:
        return self.error(text == "True" if self.kind is bool else self.kind(text))


def raised_class(error: BaseException) -> type[BaseException] | None:
    """Return the class of an exception that is made by calling it with at most one text, its
    argument; None if it is made in another way."""
    is_text = len(error.args) < 2 and all(type(x) is str and x for x in error.args)
    return type(error) if is_text and _is_made_of_arguments(error) else None


def _is_made_of_arguments(error: BaseException) -> bool:
    """True if a call of its class with its arguments makes such an exception."""
    made = (getattr(type(error), name) for name in ("__init__", "__new__"))
    has_more = set(vars(error)) - {"__notes__"} or error.__cause__ is not None
    return not has_more and not any(isinstance(function, FunctionType) for function in made)


def _message(error: BaseException) -> tuple[Any, ...]:
    """Return the fragments of the message, which is the only argument of an exception."""
    shown: Any = error.args[0]
    if isinstance(shown, DataObject) and shown.kind is str:
        return (shown.value,)
    if not is_text(shown):
        _refuse()
    text: Any = shown
    parts, values = list[Any](), iter(text.stretto_values)
    for piece in text.stretto_pieces:
        if isinstance(piece, str):
            parts.append(piece)
            continue
        held = [next(values) for _ in range(piece.count)]
        is_plain = piece.show in _BY_STR and is_number(held[0])
        parts.append(tracer().read(held[0]) if is_plain else _text(piece, held))
    return tuple(parts)


def _text(piece: Shown, values: list[Any]) -> Value:
    return tracer().data.text_value(TracedText((piece,), values))


def _refuse() -> NoReturn:
    fail(
        "an exception that shows values of an instance has more than one text as its arguments",
        "raise an exception of one argument, a text",
    )
