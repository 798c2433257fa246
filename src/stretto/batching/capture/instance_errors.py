"""Exceptions of the user's code that show values of an instance."""

from __future__ import annotations

from types import FunctionType
from typing import Any, NoReturn

from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data import DataObject
from stretto.frontends.python.values.scalars import is_number
from stretto.frontends.python.values.texts import Formatted, Shown, TracedText, is_text
from stretto.ir.core import Operand
from stretto.ir.data import RaiseOp

_BY_STR = (Formatted(), Formatted(ord("s")))


def raise_op(error: BaseException) -> RaiseOp:
    """Return the op that raises an exception whose message shows values of the instance."""
    kind = type(error)
    makes_itself = any(isinstance(getattr(kind, x), FunctionType) for x in ("__init__", "__new__"))
    if makes_itself or len(error.args) != 1 or set(vars(error)) - {"__notes__"}:
        _refuse()
    return RaiseOp(kind, _message(error))


def _message(error: BaseException) -> tuple[str | Operand, ...]:
    """Return the fragments of the message, which is the only argument of an exception."""
    (shown,) = error.args
    if not is_text(shown) and not (isinstance(shown, DataObject) and shown.kind is str):
        if not is_number(shown) or isinstance(error, KeyError):  # its text has the number's repr
            _refuse()
        return (tracer().read(shown),)
    if not is_text(shown):
        return (shown.value,)
    parts, values = list[str | Operand](), iter(shown.stretto_values)
    for piece in shown.stretto_pieces:
        if isinstance(piece, str):
            parts.append(piece)
            continue
        held = [next(values) for _ in range(piece.count)]
        is_plain = piece.show in _BY_STR and is_number(held[0])
        parts.append(tracer().read(held[0]) if is_plain else _text(piece, held))
    return tuple(parts)


def _text(piece: Shown, values: list[Any]) -> Operand:
    return tracer().data.text_value(TracedText((piece,), values))


def _refuse() -> NoReturn:
    fail(
        "an exception that shows values of an instance has more than one text as its arguments",
        "raise an exception of one argument, a text",
    )
