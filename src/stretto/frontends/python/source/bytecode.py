"""Names that a function reads, taken from its bytecode."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
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


_VALUE_SHIFT = 1 if sys.version_info >= (3, 12) else 0
"""Of the argument of LOAD_ATTR: its lowest bit says whether a method is called."""
_SHIFTS = {
    "LOAD_GLOBAL": 1,
    "LOAD_NAME": 0,
    "LOAD_ATTR": _VALUE_SHIFT,
    "LOAD_METHOD": 0,
    "LOAD_SUPER_ATTR": 2,
    "STORE_GLOBAL": 0,
    "DELETE_GLOBAL": 0,
}
"""How many bits of an instruction's argument stand before the number of a name."""
_NAMED = {dis.opmap[name]: (name, shift) for name, shift in _SHIFTS.items() if name in dis.opmap}


def named_instructions(code: CodeType) -> Iterator[tuple[str, str, int]]:
    """Operation, name and argument of the instructions that read or store a name that is not a
    variable of the function. `dis` takes forty times as long, and there are thousands of functions.
    """
    content, extended = code.co_code, 0
    for operation, low in zip(content[::2], content[1::2], strict=True):
        if operation == dis.EXTENDED_ARG:
            extended = (extended | low) << 8
            continue
        argument, extended = extended | low, 0
        if operation in _NAMED:
            name, shift = _NAMED[operation]
            yield name, code.co_names[argument >> shift], argument


@cache
def names_read(code: CodeType) -> NamesRead:
    variables, attributes, values, stored = set[str](), set[str](), set[str](), set[str]()
    for operation, name, argument in named_instructions(code):
        if operation in ("LOAD_GLOBAL", "LOAD_NAME"):
            variables.add(name)
            if operation == "LOAD_NAME" or not argument & 1:
                values.add(name)  # not called on the spot
        elif operation in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            stored.add(name)
        else:
            attributes.add(name)
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
