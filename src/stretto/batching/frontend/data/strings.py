"""Strings that the instance decides: what they are made of, and their characters."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.batching.frontend.control.kinds import each_type
from stretto.batching.frontend.state.dispatch import apply
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import Dynamic, Static, Value
from stretto.batching.program import Literal, Operand, Variable
from stretto.batching.types import ListType, RecordType, Scalar, Type, alternatives

_PLAIN = frozenset((Scalar.STR, Scalar.INT, Scalar.BOOL, Scalar.NONE))


def is_plain(type_: Type) -> bool:
    """Whether str(x) of such a value is made within the instance."""
    return all(kind in _PLAIN for kind in alternatives(type_))


def as_text(frame: Frame, value: Value) -> Value:
    """str(x)"""
    given = frame.dynamic(value)
    if given.type is Scalar.STR:
        return given
    if is_plain(given.type):
        return frame.assign("text", Scalar.STR, given.operand)
    return each_type(frame, given, lambda one: _text_of_one(frame, one))


def _text_of_one(frame: Frame, value: Dynamic) -> Value:
    if is_plain(value.type):
        return as_text(frame, value)
    if isinstance(value.type, RecordType):
        python = frame.evaluation.info(value.type).python
        own = vars(python).get("__str__") or vars(python).get("__repr__")
        if own is not None and frame.evaluation.info(value.type).kind == "object":
            return apply(frame, Static(own), [value])
    return frame.refuse(
        f"str() of {frame.show(value.type)} of the instance",
        "make strings of ints and strings; format the rest outside",
    )


def joined(frame: Frame, parts: Sequence[str | Operand]) -> Dynamic:
    """The string of some parts that are strings and values whose text is made."""
    found: Dynamic | None = None
    for part in parts:
        given = part if isinstance(part, Variable) else Literal(str(getattr(part, "value", part)))
        type_ = given.type if isinstance(given, Variable) else Scalar.STR
        one = frame.dynamic(as_text(frame, Dynamic(given, type_)))
        found = (
            one
            if found is None
            else frame.assign("join_str", Scalar.STR, found.operand, one.operand)
        )
    return Dynamic(Literal(""), Scalar.STR) if found is None else found


def characters(frame: Frame, value: Dynamic) -> Dynamic:
    """A list of the characters of a string."""
    cell = frame.evaluation.cell(frame.site("characters"))
    frame.evaluation.grow(cell, Scalar.STR)
    return frame.assign("characters", ListType(cell), value.operand)
