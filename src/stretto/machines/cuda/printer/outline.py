"""Turn long sections of a function into separate functions.

Triton's passes take more than linear time in the length of a function, and registers are allotted
for a function as a whole, so a loop that holds weights in registers becomes its own function. A
section takes the variables that are live before it, and returns those that it assigns and that are
live after it. Variables are renamed by their order, so that the loops of ten equal layers share one
function. A section that takes more variables than its callers have registers for is left in place.
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
"""Maximum number of variables that a function takes: addresses are two registers each."""


@dataclass(frozen=True, slots=True)
class OutlinedSection:
    """A section as a function. `parameters` and `results` are the caller's variables that it takes
    and returns, in order."""

    function: code.FunctionDefinition
    parameters: tuple[str, ...]
    results: tuple[str, ...]


def outline(body: code.Statements, after: frozenset[str]) -> OutlinedSection:
    """Return a function of the statements `body`, after which the variables `after` are live."""
    order = tuple(code.mentioned(body))
    assigned = code.assignments(body)
    gives = tuple(name for name in order if name in assigned and name in after)
    before = code.live(body, frozenset(gives))
    takes = tuple(name for name in order if name in before)
    counted = [name for name in order if name not in KEPT]
    names = {name: _short(name, place) for place, name in enumerate(counted)}
    inside = (*body, code.Return(tuple(variable(name) for name in gives)))
    parameters = tuple(variable(name) for name in takes)
    return OutlinedSection(
        code.renamed(code.FunctionDefinition(parameters, inside), names), takes, gives
    )


def _short(name: str, place: int) -> str:
    return f"{name.split('_')[0].rstrip('0123456789')}{place}"


Address = tuple[str, int]
"""An address: the name of its origin, and the offset from it in elements."""
Distance = tuple[int, int, int]
"""A parameter whose address follows from an earlier one: its position, the position of that
earlier parameter with the same origin, and the number of elements between the two."""


def distances(takes: tuple[str, ...], addresses: Mapping[str, Address]) -> tuple[Distance, ...]:
    """Return how the addresses among a function's parameters follow from the first one of each
    origin."""
    first: dict[str, int] = {}
    found: list[Distance] = []
    for place, name in enumerate(takes):
        if name in addresses:
            origin, offset = addresses[name]
            base = first.setdefault(origin, place)
            if base != place:
                found.append((place, base, offset - addresses[takes[base]][1]))
    return tuple(found)


def with_distances(piece: OutlinedSection, known: tuple[Distance, ...]) -> OutlinedSection:
    """Return the function without parameters that it can compute from other addresses."""
    parameters, body = piece.function.parameters, piece.function.body
    dropped = {place for place, _, _ in known}
    computed = (code.Assign(parameters[p], parameters[base] + by) for p, base, by in known)
    left = [place for place in range(len(parameters)) if place not in dropped]
    function = code.FunctionDefinition(tuple(parameters[p] for p in left), (*computed, *body))
    return OutlinedSection(function, tuple(piece.parameters[p] for p in left), piece.results)


def outlined_sections(
    block: code.Statements,
    define: Callable[[str, code.FunctionDefinition], str],
    aligned: frozenset[str],
    addresses: Mapping[str, Address],
) -> code.Statements:
    """Return `block` with calls in place of its long sections. Where the addresses that a
    function takes have the same distances in all of its calls, it takes only one of them.

    define: adds a function to the module and returns its name. aligned: pointers that are
    multiples of 16. addresses: of variables that do not change.
    """
    names: dict[code.FunctionDefinition, str] = {}
    first = Outliner(lambda hint, made: names.setdefault(made, f"{hint}{len(names)}"), aligned)
    first.outlined(block, frozenset())
    calls: dict[code.FunctionDefinition, set[tuple[Distance, ...]]] = {}
    for piece in first.visited:
        if piece is not None:
            calls.setdefault(piece.function, set()).add(distances(piece.parameters, addresses))
    decisions = [
        None if piece is None else len(calls[piece.function]) == 1 for piece in first.visited
    ]
    return Outliner(define, aligned, addresses, decisions).outlined(block, frozenset())


@dataclass(slots=True)
class Outliner:
    """Replaces long sections by calls.

    define: adds a function to the module and returns its name. aligned: pointers that are multiples
    of 16. addresses: of variables that do not change. decisions: for each section None if it stays
    in place, else True if its addresses have the same distances in all calls; if `decisions` is
    None, the length of a section decides, and distances are not used. visited: the sections as
    functions, in order.
    """

    define: Callable[[str, code.FunctionDefinition], str]
    aligned: frozenset[str] = frozenset()
    addresses: Mapping[str, Address] = field(default_factory=dict[str, Address])
    decisions: Sequence[bool | None] | None = None
    visited: list[OutlinedSection | None] = field(default_factory=list[OutlinedSection | None])

    def outlined(self, block: code.Statements, after: frozenset[str]) -> code.Statements:
        """Return `block` with calls in place of its long sections; `after` is live after it."""
        found: list[code.Statement] = []
        for statement, following in zip(block, code.live_behind(block, after), strict=True):
            match statement:
                case code.Branch() | code.WhileLoop():
                    found.append(self.inside(statement, following))
                case code.Section(body, least=least):
                    # Functions take only numbers and addresses, so sections nested in one that
                    # holds weights (least is 1) stay in place.
                    body = body if least == 1 else self.outlined(body, following)
                    piece = self.piece(body, least, following)
                    found += body if piece is None else self.called(piece)
                case _:
                    found.append(statement)
        return tuple(found)

    def inside(self, statement: code.Statement, after: frozenset[str]) -> code.Statement:
        """Return a statement with its inner blocks outlined."""
        ends = iter(code.live_inside(statement, after))
        return code.with_blocks(statement, lambda block: self.outlined(block, next(ends)))

    def piece(
        self, body: code.Statements, least: int, after: frozenset[str]
    ) -> OutlinedSection | None:
        """Return a section as a function; None if it is too short or takes too many variables."""
        if self.decisions is not None:
            kind = self.decisions[len(self.visited)]
            piece = None if kind is None else outline(body, after)
            if piece is not None and kind:
                piece = with_distances(piece, distances(piece.parameters, self.addresses))
        else:
            lines = sum(not isinstance(inner, code.Section) for inner in code.walk(body))
            piece = outline(body, after) if 0 < least <= lines else None
            if piece is not None and least > 1 and len(piece.parameters) > MOST_TAKEN:
                piece = None
        self.visited.append(piece)
        return piece

    def called(self, piece: OutlinedSection) -> list[code.Statement]:
        """Return a call of the outlined function."""
        name = self.define("piece_main", piece.function)
        gives = [variable(name) for name in piece.results]
        value = call(name, *(variable(name) for name in piece.parameters))
        found: list[code.Statement] = [code.Assign(separated(gives), value)]
        for given in gives:
            if given.text in self.aligned:
                found.append(code.Assign(given, call("tl.multiple_of", given, 16)))
        return found


# ---- Sinking assignments of constants to their first uses.
#
# The entry of a large program has an address for each buffer, of which a statement needs a few.
# If all of them are assigned first, all are live in every branch: Triton makes a copy of every
# variable for each arm, and ptxas has to keep or recompute them.
#
#     before                        after
#       a = arena + 0                 b = arena + 64
#       b = arena + 64                run k_first: b
#       run k_first: b                if x:
#       if x:                             a = arena + 0
#           run k_second: a, b            run k_second: a, b
#
# An assignment that only one arm of a branch needs moves into that arm. None moves into a loop.
# Values must not depend on a variable that `block` assigns.


def sink_assignments(assignments: Sequence[code.Assign], block: code.Statements) -> code.Statements:
    """Return `block` with those of the assignments that it needs, each before its first use."""
    left = {assignment.target.text: assignment for assignment in assignments}
    needed = [[n for n in code.mentioned((statement,)) if n in left] for statement in block]
    last = {name: place for place, names in enumerate(needed) for name in names}
    found: list[code.Statement] = []
    for place, statement in enumerate(block):
        if isinstance(statement, code.Branch):
            own = {n: left[n] for n in needed[place] if n in left and last[n] == place}
            statement, inside = _into_arms(own, statement)
            left = {name: left[name] for name in left if name not in inside}
        found += [left.pop(name) for name in needed[place] if name in left]
        found.append(statement)
    return tuple(found)


def _into_arms(
    assignments: Mapping[str, code.Assign], branch: code.Branch
) -> tuple[code.Branch, frozenset[str]]:
    """Move assignments into the one arm that needs them; return the branch and their names."""
    then, orelse = code.mentioned(branch.then).keys(), code.mentioned(branch.orelse).keys()
    inside = frozenset(assignments.keys() & (then ^ orelse) - {*code.uses(branch)})
    arms = (
        sink_assignments([assignments[n] for n in assignments if n in inside & names], arm)
        for names, arm in ((then, branch.then), (orelse, branch.orelse))
    )
    return replace(branch, then=next(arms), orelse=next(arms)), inside
