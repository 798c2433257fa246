"""Names that a function reads, taken from its bytecode."""

from __future__ import annotations

import dis
from dataclasses import dataclass
from functools import cache
from types import CodeType


@dataclass(frozen=True, slots=True)
class NamesRead:
    """Names that a code object, with those nested in it, reads.

    `by_path`: it also reads attributes whose names are not in its text, in a way that tracing does
    not see. `by_name`: it calls `getattr` or `hasattr`, which tracing sees.
    """

    globals: frozenset[str]
    attributes: frozenset[str]
    by_path: bool
    by_name: bool
    stored: frozenset[str]
    """Globals that it assigns or deletes."""


_PATHS = frozenset({"vars", "attrgetter", "methodcaller", "__dict__", "__getattribute__", "dir"})
_BY_NAME = frozenset({"getattr", "hasattr"})


@cache
def names_read(code: CodeType) -> NamesRead:
    variables, attributes, values, stored = set[str](), set[str](), set[str](), set[str]()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            variables.add(instruction.argval)
            if instruction.opname == "LOAD_NAME" or not (instruction.arg or 0) & 1:
                values.add(instruction.argval)  # not called on the spot
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            attributes.add(instruction.argval)
        elif instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            stored.add(instruction.argval)
    by_path = bool(_PATHS & (variables | attributes) or _BY_NAME & values)
    by_name = bool(_BY_NAME & variables)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = names_read(constant)
            variables |= inner.globals
            attributes |= inner.attributes
            stored |= inner.stored
            by_path |= inner.by_path
            by_name |= inner.by_name
        elif isinstance(constant, str) and constant.isidentifier():
            attributes.add(constant)  # for getattr
    names = (frozenset(variables), frozenset(attributes))
    return NamesRead(*names, by_path, by_name, frozenset(stored))
