"""Move the loads of a task as early as possible, and drop repeated ones.

A printed task loads at each use. Between a wait and its end, a task of a recurrent model has some
microseconds of dependent steps; all of its loads can be in flight at once if they come before the
first use:

    a = load x                     a = load x
    s = sum(a)             ->      b = load y
    b = load y                     s = sum(a)
    c = s + b                      c = s + b

A load stays after the definition of its address, after barriers, and after stores that may change
what it reads. A value that is loaded or computed again, such as the input of a layer for each of
its gates, gets one name.

Where rows are divided among warps, loads per row stay after loads along the depth. Triton's layouts
spread from loads; where several meet, from the last one. So pointwise stages get the layout in
which each lane computes a result once, not the layout of vectors along the depth.
"""

from __future__ import annotations

from collections import Counter
from math import prod

from stretto.device.expr import Buffer
from stretto.machines import statements as code
from stretto.machines.terms import Term

MOST_BYTES = 32 << 10
"""Bytes of registers that moved loads may hold at once: half of what 128 threads have."""
SMALL = 2 << 10
"""Bytes up to which a load always moves: at most four registers of a thread."""


def loads_first(body: code.Statements) -> code.Statements:
    """Return the statements of a task with their loads as early as possible."""
    assignments = code.assignments(body)
    return _ahead(_once(body, assignments), assignments)


def _once(body: code.Statements, assignments: Counter[str]) -> code.Statements:
    """Drop statements that compute a value which already has a name."""
    names: dict[str, str] = {}
    known: dict[Term, tuple[str, int]] = {}
    found: list[code.Statement] = []
    for statement in body:
        made = code.renamed(statement, names) if names else statement
        if isinstance(made, code.Assign) and _is_pure(made, assignments) and made.target.is_name:
            value, reads = made.value, made.value.reads
            settled = all(assignments[name] <= 1 for name in value.names)
            name, place = known.get(value, ("", -1))
            if name and settled and (not reads or _last_change(tuple(found), reads) < place):
                names[made.target.text] = name
                continue
            known[value] = made.target.text, len(found)
        found.append(made)
    return tuple(found)


def _ahead(body: code.Statements, assignments: Counter[str]) -> code.Statements:
    """Move loads as early as possible."""
    behind: dict[str, int] = {}  # by variable: the statement after which its definition is placed
    loaded: set[str] = set()
    keys: list[tuple[int, int]] = []
    room = MOST_BYTES
    deep = [-1, -1]  # most lanes of the blocks read along a depth so far, and the last one's slot
    for place, statement in enumerate(body):
        slot = place
        defined = code.assignments((statement,)).keys()
        if isinstance(statement, code.Assign) and _is_pure(statement, assignments):
            used, reads = statement.value.names, statement.value.reads
            slot = max((behind.get(name, -1) for name in used), default=-1)
            if reads:
                slot = max(slot, _last_change(body[:place], reads))
                if len(statement.shape) == 3 and statement.shape[0] < deep[0]:
                    slot = max(slot, deep[1])
                nbytes = prod(statement.shape) * 4
                passes = any(key == (n, 0) for n, key in enumerate(keys[slot + 1 :], slot + 1))
                if passes and nbytes > SMALL:
                    slot = place if nbytes > room else slot
                    room -= nbytes if slot != place else 0
                if len(statement.shape) == 3 and statement.shape[0] >= deep[0]:
                    deep = [statement.shape[0], max(deep[1], slot)]
            elif not loaded.isdisjoint(used):
                slot = place
            if reads or slot == place:
                loaded |= defined
        else:
            loaded |= defined
        keys.append((slot, int(slot != place)))
        behind |= dict.fromkeys(defined, slot)
    order = sorted(range(len(body)), key=lambda n: (*keys[n], n))
    return tuple(body[n] for n in order)


def _is_pure(statement: code.Assign, assignments: Counter[str]) -> bool:
    """Return True if an assignment has no effect and its targets are assigned only once."""
    if statement.value.effect or statement.operator != "=":
        return False
    return all(assignments[name] == 1 for name in statement.target.names)


def _last_change(before: code.Statements, reads: tuple[Buffer, ...]) -> int:
    """Return the position of the last statement that a load of these buffers may not pass; -1 if
    none."""
    found = (n for n in range(len(before) - 1, -1, -1) if _changes(before[n], reads))
    return next(found, -1)


def _changes(statement: code.Statement, reads: tuple[Buffer, ...]) -> bool:
    return any(_may_change(inner, reads) for inner in code.walk((statement,)))


def _may_change(statement: code.Statement, reads: tuple[Buffer, ...]) -> bool:
    if isinstance(
        statement, code.Assign | code.Branch | code.CountedLoop | code.Section | code.Store
    ):
        written = code.writes(statement)
        return any(one is None or _same_memory(one, read) for one in written for read in reads)
    return True


def _same_memory(written: Buffer, read: Buffer) -> bool:
    """Return True if two buffers may share memory: a tensor param may be any buffer but a
    constant."""
    if "param" in (written.kind, read.kind) and read.kind != "constant":
        return True
    return written == read
