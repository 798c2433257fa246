"""Puts sections of a function into functions of their own.

Triton's passes take more than linear time in the length of a function, and registers are allotted
for a function as a whole, so a loop that keeps weights in registers is one. A section takes what is
live before it, and gives what it assigns and is live behind it. Variables get names by their order,
so that the loops of ten equal layers are one function. A section that takes more than its callers
have registers for stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

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


Address = tuple[str, int]
"""What an address is counted from, and how many elements behind it."""
Distance = tuple[int, int, int]
"""Of a parameter that is an address: its place, that of an earlier one which is counted from the
same, and how many elements lie between the two."""


def distances(takes: tuple[str, ...], addresses: Mapping[str, Address]) -> tuple[Distance, ...]:
    """How the addresses among what a function takes follow from the first of them."""
    first: dict[str, int] = {}
    found: list[Distance] = []
    for place, name in enumerate(takes):
        if name in addresses:
            origin, offset = addresses[name]
            base = first.setdefault(origin, place)
            if base != place:
                found.append((place, base, offset - addresses[takes[base]][1]))
    return tuple(found)


def with_distances(piece: Outlined, known: tuple[Distance, ...]) -> Outlined:
    """A function that is given fewer addresses, and computes the others from them."""
    parameters, body = piece.function.parameters, piece.function.body
    dropped = {place for place, _, _ in known}
    computed = (code.Assign(parameters[p], parameters[base] + by) for p, base, by in known)
    left = [place for place in range(len(parameters)) if place not in dropped]
    function = code.Function(tuple(parameters[p] for p in left), (*computed, *body))
    return Outlined(function, tuple(piece.takes[p] for p in left), piece.gives)


def outlined_sections(
    block: code.Block,
    define: Callable[[str, code.Function], str],
    aligned: frozenset[str],
    addresses: Mapping[str, Address],
) -> code.Block:
    """`block` with calls in the place of its long sections. Where the addresses that a function
    takes have the same distances in all of its calls, it takes one of them.

    define: names a function of the module. aligned: pointers that are multiples of 16. addresses:
    those that do not change.
    """
    names: dict[code.Function, str] = {}
    first = Outliner(lambda hint, made: names.setdefault(made, f"{hint}{len(names)}"), aligned)
    first.outlined(block, frozenset())
    calls: dict[code.Function, set[tuple[Distance, ...]]] = {}
    for piece in first.visited:
        if piece is not None:
            calls.setdefault(piece.function, set()).add(distances(piece.takes, addresses))
    kinds = [None if piece is None else len(calls[piece.function]) == 1 for piece in first.visited]
    return Outliner(define, aligned, addresses, kinds).outlined(block, frozenset())


@dataclass(slots=True)
class Outliner:
    """define: names a function of the module. aligned: pointers that are multiples of 16.
    addresses: those that do not change. kinds: for each section None where it is no function, else
    whether its addresses have the same distances in all calls; where it is not given, the length of
    a section decides, and distances are not used. visited: what the sections are as functions."""

    define: Callable[[str, code.Function], str]
    aligned: frozenset[str] = frozenset()
    addresses: Mapping[str, Address] = field(default_factory=dict[str, Address])
    kinds: Sequence[bool | None] | None = None
    visited: list[Outlined | None] = field(default_factory=list[Outlined | None])

    def outlined(self, block: code.Block, after: frozenset[str]) -> code.Block:
        """`block` with calls in the place of its long sections; `after` is live behind it."""
        found: list[code.Statement] = []
        for statement, following in zip(block, code.live_behind(block, after), strict=True):
            match statement:
                case code.Section(body, least=least):
                    # Functions take numbers and addresses only, so what is inside of a section
                    # that holds weights (least is 1) stays there.
                    body = body if least == 1 else self.outlined(body, following)
                    piece = self.piece(body, least, following)
                    found += body if piece is None else self.called(piece)
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

    def piece(self, body: code.Block, least: int, after: frozenset[str]) -> Outlined | None:
        """A section as a function, where it is long enough and does not take too much."""
        if self.kinds is not None:
            kind = self.kinds[len(self.visited)]
            piece = None if kind is None else outline(body, after)
            if piece is not None and kind:
                piece = with_distances(piece, distances(piece.takes, self.addresses))
        else:
            lines = sum(not isinstance(inner, code.Section) for inner in code.walk(body))
            piece = outline(body, after) if 0 < least <= lines else None
            if piece is not None and least > 1 and len(piece.takes) > MOST_TAKEN:
                piece = None
        self.visited.append(piece)
        return piece

    def called(self, piece: Outlined) -> list[code.Statement]:
        """A call of a function of the module."""
        name = self.define("piece_main", piece.function)
        gives = [variable(name) for name in piece.gives]
        value = call(name, *(variable(name) for name in piece.takes))
        found: list[code.Statement] = [code.Assign(separated(gives), value)]
        for given in gives:
            if given.text in self.aligned:
                found.append(code.Assign(given, call("tl.multiple_of", given, 16)))
        return found


# ---- Moves assignments of constants to where they are needed first.
#
# The entry of a large program has an address for each buffer, of which a statement needs a few.
# Where all of them are assigned first, each branch is compiled with all of them at hand: Triton
# makes a copy of every variable for each arm, and ptxas has to keep them or make them again.
#
#     before                        after
#       a = arena + 0                 b = arena + 64
#       b = arena + 64                run k_first: b
#       run k_first: b                if x:
#       if x:                             a = arena + 0
#           run k_second: a, b            run k_second: a, b
#
# An assignment that one arm of a branch needs goes into that arm. None goes into a loop. Values
# must not depend on a variable that `block` assigns.


def sunk(assignments: Sequence[code.Assign], block: code.Block) -> code.Block:
    """`block` with those of the assignments that it needs, each before the first statement that
    reads it."""
    left = {assignment.target.text: assignment for assignment in assignments}
    needed = [[n for n in code.mentioned((statement,)) if n in left] for statement in block]
    last = {name: place for place, names in enumerate(needed) for name in names}
    found: list[code.Statement] = []
    for place, statement in enumerate(block):
        if isinstance(statement, code.If):
            own = {n: left[n] for n in needed[place] if n in left and last[n] == place}
            statement, inside = _into_arms(own, statement)
            left = {name: left[name] for name in left if name not in inside}
        found += [left.pop(name) for name in needed[place] if name in left]
        found.append(statement)
    return tuple(found)


def _into_arms(
    assignments: Mapping[str, code.Assign], branch: code.If
) -> tuple[code.If, frozenset[str]]:
    """A branch with those assignments in its arms that one arm alone needs, and their names."""
    then, orelse = code.mentioned(branch.then).keys(), code.mentioned(branch.orelse).keys()
    inside = frozenset(assignments.keys() & (then ^ orelse) - {*code.uses(branch)})
    arms = (
        sunk([assignments[n] for n in assignments if n in inside & names], arm)
        for names, arm in ((then, branch.then), (orelse, branch.orelse))
    )
    return replace(branch, then=next(arms), orelse=next(arms)), inside
