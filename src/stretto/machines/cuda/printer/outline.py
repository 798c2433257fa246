"""Puts sections of a function into functions of their own.

Triton's passes take more than linear time in the length of a function, and registers are allotted
for a function as a whole, so a loop that keeps weights in registers is one. A section takes what is
live before it, and gives what it assigns and is live behind it. Variables get names by their order,
so that the loops of ten equal layers are one function. A section that takes more than its callers
have registers for stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from stretto.machines import statements as code
from stretto.machines.terms import call, separated, variable

KEPT = (
    *("control", "unit", "base", "ok", "polls", "tables", "task"),
    *("row", "first", "last", "stride", "count", "step"),
)
"""Names that are the same in every function."""
MOST_TAKEN = 48
"""Variables that a function takes at most: addresses are two registers each."""


@dataclass(frozen=True, slots=True)
class Outlined:
    """`takes` and `gives` are the variables outside, in order."""

    function: code.Function
    takes: tuple[str, ...]
    gives: tuple[str, ...]


def outline(body: code.Block, after: frozenset[str]) -> Outlined:
    """A function of the statements `body`, behind which the variables `after` are live."""
    order = tuple(code.mentioned(body))
    assigned = {name for statement in code.walk(body) for name in code.defines(statement)}
    gives = tuple(name for name in order if name in assigned and name in after)
    before = code.live(body, frozenset(gives))
    takes = tuple(name for name in order if name in before)
    counted = [name for name in order if name not in KEPT]
    names = {name: _short(name, place) for place, name in enumerate(counted)}
    inside = (*body, code.Return(tuple(variable(name) for name in gives)))
    parameters = tuple(variable(name) for name in takes)
    return Outlined(code.renamed(code.Function(parameters, inside), names), takes, gives)


def _short(name: str, place: int) -> str:
    return f"{name.split('_')[0].rstrip('0123456789')}{place}"


@dataclass(slots=True)
class Outliner:
    """define: names a function of the module. aligned: pointers that are multiples of 16."""

    define: Callable[[str, code.Function], str]
    aligned: frozenset[str] = frozenset()

    def outlined(self, block: code.Block, after: frozenset[str]) -> code.Block:
        """`block` with calls in the place of its long sections; `after` is live behind it."""
        found: list[code.Statement] = []
        for statement, following in zip(block, code.live_behind(block, after), strict=True):
            match statement:
                case code.Section(body, least=least):
                    # Functions take numbers and addresses only, so what is inside of a section
                    # that holds weights (least is 1) stays there.
                    body = body if least == 1 else self.outlined(body, following)
                    long = (
                        0 < least <= sum(not isinstance(s, code.Section) for s in code.walk(body))
                    )
                    piece = outline(body, following) if long else None
                    if piece is not None and (least == 1 or len(piece.takes) <= MOST_TAKEN):
                        found += self.piece(piece)
                    else:
                        found += body
                case code.If(_, then, orelse):
                    arms = self.outlined(then, following), self.outlined(orelse, following)
                    found.append(replace(statement, then=arms[0], orelse=arms[1]))
                case code.Loop(_, head, body):
                    again = code.live((statement,), following).union(code.uses(statement))
                    between = following | code.live(body, again) | again
                    head, body = self.outlined(head, between), self.outlined(body, again)
                    found.append(replace(statement, head=head, body=body))
                case _:
                    found.append(statement)
        return tuple(found)

    def piece(self, piece: Outlined) -> list[code.Statement]:
        """A call of a function of the module."""
        name = self.define("piece_main", piece.function)
        gives = [variable(name) for name in piece.gives]
        value = call(name, *(variable(name) for name in piece.takes))
        found: list[code.Statement] = [code.Assign(separated(gives), value)]
        for given in gives:
            if given.text in self.aligned:
                found.append(code.Assign(given, call("tl.multiple_of", given, 16)))
        return found
