"""Takes a piece of the entry's text out into a function of its own.

Triton's passes take more than linear time in the length of a function, and registers are allotted
for a function as a whole, so a loop that keeps weights in registers is one. In the text every name
stands for one variable, so what the piece takes and gives back can be read off it. Variables get
names by their order, so that the loops of ten equal layers are one function.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?!\w*\s*\()(?![\w\"])")
_ASSIGNED = re.compile(r"^\s*((?:[A-Za-z_]\w*, )*[A-Za-z_]\w*) [+-]?= ", re.MULTILINE)
_LOOP = re.compile(r"^\s*for ([A-Za-z_]\w*) in ", re.MULTILINE)
_NO_VARIABLES = {*keyword.kwlist, "tl", "range", "mask", "other", "float"}
TEMPORARIES = frozenset(("task", "row", "first", "last", "stride", "count", "step"))
"""Names that are always assigned just before they are used."""
KEPT = frozenset(("control", "unit", "base", "ok", "polls", "tables"))
"""Names that are the same in every function."""


@dataclass(frozen=True, slots=True)
class Outlined:
    """`text` from the parameter list on; `takes` and `gives` are the variables, in order."""

    text: str
    takes: tuple[str, ...]
    gives: tuple[str, ...]


def assigned(text: str) -> set[str]:
    """The names that a piece of text assigns."""
    found = {name for names in _ASSIGNED.findall(text) for name in names.split(", ")}
    return (found | set(_LOOP.findall(text))) - TEMPORARIES


def outline(text: str, outside: set[str]) -> Outlined:
    """A function of the lines `text`. outside: the names that were assigned before them."""
    order = dict.fromkeys(
        name for name in _WORD.findall(text) if name not in _NO_VARIABLES | TEMPORARIES
    )
    inside = assigned(text)
    gives = [name for name in order if name in inside & outside]
    takes = [name for name in order if name not in inside or name in outside]
    names = {name: _short(name, place) for place, name in enumerate(order)}
    lines = [f"({', '.join(names[name] for name in takes)}):"]
    body = _WORD.sub(lambda word: names.get(word.group(), word.group()), text.rstrip("\n"))
    lines += [f"    {line}" if line else "" for line in body.split("\n")]
    lines.append(f"    return {', '.join(names[name] for name in gives)}")
    return Outlined("\n".join(lines) + "\n", tuple(takes), tuple(gives))


def _short(name: str, place: int) -> str:
    return name if name in KEPT else f"{name.split('_')[0].rstrip('0123456789')}{place}"
