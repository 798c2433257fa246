"""Special methods of the user's classes: what `+`, `<`, `==` and `in` do with their objects."""

from __future__ import annotations

import dataclasses
import enum
from types import FunctionType
from typing import Any

from stretto.batching.frontend.control.kinds import python_class
from stretto.batching.frontend.state.dispatch import apply
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.guards import ABSENT, note_class
from stretto.batching.frontend.state.values import Choice, Dynamic, Static, Value
from stretto.batching.types import (
    DictType,
    ListType,
    RecordType,
    TupleType,
    Type,
    alternatives,
)

_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def method_of(frame: Frame, type_: Type, name: str) -> Any:
    """A special method of the class of an object of the instance; None where it has none that is
    written in Python."""
    if not isinstance(type_, RecordType) or frame.evaluation.info(type_).kind == "dict":
        return None
    python = frame.evaluation.info(type_).python
    found = note_class(frame.evaluation, python, name)
    if found is ABSENT or found is None or not isinstance(found, FunctionType):
        return None
    return None if _is_generated(python, found) else found


def _is_generated(python: type, found: FunctionType) -> bool:
    """Whether a method was made by `dataclass`, and does what a dataclass does."""
    return dataclasses.is_dataclass(python) and found.__code__.co_filename == "<string>"


def by_method(frame: Frame, owner: Dynamic, name: str, *args: Value) -> Value | None:
    """What a special method of an object gives; None where there is none, or it declines."""
    found = method_of(frame, owner.type, name)
    if found is None:
        return None
    result = apply(frame, Static(found), [owner, *args])
    if isinstance(result, Static) and result.value is NotImplemented:
        return None
    if isinstance(result, Choice):
        for _, option in result.options:
            if isinstance(option, Static) and option.value is NotImplemented:
                frame.refuse(
                    f"the instance decides whether {name} returns NotImplemented",
                    "decide it by isinstance",
                )
    return result


def operated(frame: Frame, name: str, left: Dynamic, right: Dynamic) -> Value | None:
    """An operator on two values of one type each, by a special method of one of them."""
    mirrored = _MIRRORED.get(name)
    own = f"__{name}__"
    other = f"__{mirrored}__" if mirrored else f"__r{name}__"
    tries = [(left, own, right), (right, other, left)]
    if not mirrored and left.type == right.type:
        tries.pop()  # Python does not ask the same class twice
    elif _is_derived(frame, right, left):
        tries.reverse()
    for owner, method, argument in tries:
        found = by_method(frame, owner, method, argument)
        if found is not None:
            return found
    return None


def _is_derived(frame: Frame, one: Dynamic, other: Dynamic) -> bool:
    classes = python_class(frame, one.type), python_class(frame, other.type)
    return classes[0] is not classes[1] and issubclass(*classes)


def compared_fields(frame: Frame, type_: RecordType) -> tuple[str, ...] | None:
    """The fields that == of a dataclass compares, where these are not all that its objects have;
    None where the class is none, or == compares identity or all fields."""
    info = frame.evaluation.info(type_)
    params = getattr(info.python, "__dataclass_params__", None)
    if info.kind != "object" or params is None or not params.eq:
        return None
    fields = dataclasses.fields(info.python)
    names = tuple(item.name for item in fields if item.compare)
    return None if names == info.fields else names


def ordered_fields(frame: Frame, type_: Type) -> tuple[str, ...] | None:
    """The fields by which objects of a dataclass are ordered; None where it has no order."""
    if not isinstance(type_, RecordType):
        return None
    python = frame.evaluation.info(type_).python
    params = getattr(python, "__dataclass_params__", None)
    if params is None or not params.order:
        return None
    fields = dataclasses.fields(python)
    return tuple(item.name for item in fields if item.compare)


def check_equality(frame: Frame, type_: Type) -> None:
    """Refuses == where something within the value has an == of its own, which the comparison of the
    whole does not call."""
    pending, seen = [type_], set[Type]()
    while pending:
        for kind in alternatives(pending.pop()):
            if kind in seen:
                continue
            seen.add(kind)
            match kind:
                case RecordType():
                    pending += _compared_parts(frame, kind)
                case TupleType(items):
                    pending += items
                case ListType(cell) | DictType(_, cell):
                    pending.append(frame.evaluation.cells[cell])
                case _:
                    pass


def _compared_parts(frame: Frame, kind: RecordType) -> list[Type]:
    info = frame.evaluation.info(kind)
    name = info.python.__name__
    if issubclass(info.python, enum.Enum):
        frame.refuse(
            f"a value with a member of {name} in it is compared", "compare the members one by one"
        )
    if method_of(frame, kind, "__eq__") is not None:
        frame.refuse(
            f"a value with a {name} in it is compared, which defines == itself",
            "compare the objects one by one",
        )
    if compared_fields(frame, kind) is not None:
        frame.refuse(
            f"a value with a {name} in it is compared, which does not compare all its fields",
            "compare the objects one by one",
        )
    params = getattr(info.python, "__dataclass_params__", None)
    if info.kind == "object" and (params is None or not params.eq):
        return []  # by identity
    return [frame.evaluation.cells[cell] for cell in info.cells]
