"""Which fields of instances a program never looks at: they may hold anything, or be missing."""

from __future__ import annotations

import dataclasses

from stretto.batching.program import Assign, ClassInfo, InstanceProgram, walk

UNREAD = -1
"""The type of a field that is not read."""

_COMPARING = frozenset(("eq", "ne", "contains", "index"))


def unread_fields(program: InstanceProgram) -> list[frozenset[str]]:
    """Of each class, the fields that no statement gets, sets or compares. A named tuple is a tuple,
    whose items may be read by their positions, so it has none."""
    statements = [item for function in program.functions for item in walk(function.body)]
    assigned = [item for item in statements if isinstance(item, Assign)]
    read = program.tested | {item.detail for item in assigned if item.op in ("get", "set")}
    compares = any(item.op in _COMPARING for item in assigned)
    return [
        frozenset()
        if info.kind == "namedtuple" or (compares and is_by_value(info))
        else frozenset(info.fields) - read
        for info in program.classes
    ]


def is_by_value(info: ClassInfo) -> bool:
    """Whether == of two objects compares all their fields: named tuples, dicts, and dataclasses
    whose own == does."""
    if info.kind != "object":
        return True
    if not dataclasses.is_dataclass(info.python):
        return False
    params = getattr(info.python, "__dataclass_params__", None)
    fields = dataclasses.fields(info.python)
    return bool(params and params.eq) and tuple(x.name for x in fields if x.compare) == info.fields


def may_lack(info: ClassInfo, name: str) -> bool:
    """Whether an object of a class may be without a field that others have: Python assigns fields
    one by one, but `hasattr` takes those that a dataclass assigns when it is made for granted."""
    if info.kind != "object":
        return False
    own = dataclasses.fields(info.python) if dataclasses.is_dataclass(info.python) else ()
    return name not in {item.name for item in own if item.init}
