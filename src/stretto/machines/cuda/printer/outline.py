"""Puts sections of a function into functions of their own.

Triton's passes take more than linear time in the length of a function, and registers are allotted
for a function as a whole, so a loop that keeps weights in registers is one. A section takes what is
live before it, and gives what it assigns and is live behind it. Variables get names by their order,
so that the loops of ten equal layers are one function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from stretto.machines.statements import (
    Assign,
    Block,
    Function,
    If,
    Loop,
    Return,
    Section,
    Statement,
    call,
    defines,
    live,
    live_behind,
    mentioned,
    renamed,
    separated,
    uses,
    variable,
    walk,
)

KEPT = (
    *("control", "unit", "base", "ok", "polls", "tables", "task"),
    *("row", "first", "last", "stride", "count", "step"),
)
"""Names that are the same in every function."""


@dataclass(frozen=True, slots=True)
class Outlined:
    """`takes` and `gives` are the variables outside, in order."""

    function: Function
    takes: tuple[str, ...]
    gives: tuple[str, ...]


def outline(body: Block, after: frozenset[str]) -> Outlined:
    """A function of the statements `body`, behind which the variables `after` are live."""
    order = tuple(mentioned(body))
    assigned = {name for statement in walk(body) for name in defines(statement)}
    gives = tuple(name for name in order if name in assigned and name in after)
    before = live(body, frozenset(gives))
    takes = tuple(name for name in order if name in before)
    counted = [name for name in order if name not in KEPT]
    names = {name: _short(name, place) for place, name in enumerate(counted)}
    inside = (*body, Return(tuple(variable(name) for name in gives)))
    parameters = tuple(variable(name) for name in takes)
    return Outlined(renamed(Function(parameters, inside), names), takes, gives)


def _short(name: str, place: int) -> str:
    return f"{name.split('_')[0].rstrip('0123456789')}{place}"


@dataclass(slots=True)
class Outliner:
    """define: names a function of the module. aligned: pointers that are multiples of 16."""

    define: Callable[[str, Function], str]
    aligned: frozenset[str] = frozenset()

    def outlined(self, block: Block, after: frozenset[str]) -> Block:
        """`block` with calls in the place of its long sections; `after` is live behind it."""
        found: list[Statement] = []
        for statement, following in zip(block, live_behind(block, after), strict=True):
            match statement:
                case Section(body, least=least):
                    # Functions take numbers and addresses only, so what is inside of a section
                    # that holds weights (least is 1) stays there.
                    body = body if least == 1 else self.outlined(body, following)
                    long = 0 < least <= sum(not isinstance(s, Section) for s in walk(body))
                    found += self.piece(body, following) if long else body
                case If(_, then, orelse):
                    arms = self.outlined(then, following), self.outlined(orelse, following)
                    found.append(replace(statement, then=arms[0], orelse=arms[1]))
                case Loop(_, head, body):
                    again = live((statement,), following).union(uses(statement))
                    between = following | live(body, again) | again
                    head, body = self.outlined(head, between), self.outlined(body, again)
                    found.append(replace(statement, head=head, body=body))
                case _:
                    found.append(statement)
        return tuple(found)

    def piece(self, body: Block, after: frozenset[str]) -> list[Statement]:
        """A call of a function with this body."""
        piece = outline(body, after)
        name = self.define("piece_main", piece.function)
        gives = [variable(name) for name in piece.gives]
        value = call(name, *(variable(name) for name in piece.takes))
        found: list[Statement] = [Assign(separated(gives), value)]
        for given in gives:
            if given.text in self.aligned:
                found.append(Assign(given, call("tl.multiple_of", given, 16)))
        return found
