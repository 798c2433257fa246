"""Members of enumerations that belong to the instances: they are told apart by their names."""

from __future__ import annotations

import enum
from typing import Any

from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import Dynamic
from stretto.batching.program import Literal
from stretto.batching.types import RecordType, Scalar, Type, alternatives

NAME, VALUE = "_name_", "_value_"
FIELDS = {"name": NAME, "value": VALUE}


def enumeration(frame: Frame, type_: Type) -> type[enum.Enum] | None:
    """The enumeration that a value is a member of; None for any other value."""
    if not isinstance(type_, RecordType):
        return None
    python = frame.evaluation.info(type_).python
    return python if issubclass(python, enum.Enum) else None


def may_be_member(frame: Frame, value: Dynamic) -> bool:
    return any(enumeration(frame, kind) is not None for kind in alternatives(value.type))


def name_of(frame: Frame, member: Dynamic) -> Dynamic:
    """The name of a member, as data."""
    return frame.assign("get", Scalar.STR, member.operand, detail=NAME, name="name")


def is_member(frame: Frame, value: Dynamic, member: Any) -> Dynamic:
    """Whether a value of an enumeration is one member of it."""
    name = name_of(frame, value).operand
    return frame.assign("eq", Scalar.BOOL, name, Literal(member.name))
