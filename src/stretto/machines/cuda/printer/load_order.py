"""Moves the loads of a task ahead of what does not have to come before them, each once.

A printed task loads where it uses. Between a wait and its end a task of a recurrent model has some
microseconds of dependent steps; all of its loads can be under way at once if they stand ahead of
the first use:

    a = load x                     a = load x
    s = sum(a)             ->      b = load y
    b = load y                     s = sum(a)
    c = s + b                      c = s + b

A load stays behind what defines its address, behind barriers, and behind stores that may change
what it reads. What is loaded or computed again, as the input of a layer for each of its gates, has
one name.

Where rows are dealt to warps, what is read for each row stays behind what is read along the depth.
Triton's layouts spread from loads, of several that meet from the last one; so pointwise stages get
the layout in which each lane computes a result once, not the one of vectors along the depth.
"""

from __future__ import annotations

from collections import Counter
from math import prod

from stretto.device.expr import Buffer
from stretto.machines import statements as code
from stretto.machines.terms import Term

MOST_BYTES = 32 << 10
"""What the loads that are moved may hold in registers at once: half of what 128 threads have."""
SMALL = 2 << 10
"""A load of so many bytes, at most four registers of a thread, moves in any case."""


def loads_first(body: code.Block) -> code.Block:
    """The statements of a task, with the loads among them as early as they may stand."""
    assignments = Counter(name for statement in code.walk(body) for name in code.defines(statement))
    return _ahead(_once(body, assignments), assignments)


def _once(body: code.Block, assignments: Counter[str]) -> code.Block:
    """Without statements that name a value which has a name."""
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


def _ahead(body: code.Block, assignments: Counter[str]) -> code.Block:
    """With loads as early as they may stand."""
    behind: dict[str, int] = {}  # the statement that a variable, or its address, stands behind
    loaded: set[str] = set()
    keys: list[tuple[int, int]] = []
    room = MOST_BYTES
    deep = [-1, -1]  # the lanes of the blocks read along a depth so far, and the last one's slot
    for place, statement in enumerate(body):
        slot = place
        defined = {name for inner in code.walk((statement,)) for name in code.defines(inner)}
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
    """Does it only name a value, for good?"""
    if statement.value.effect or statement.operator != "=":
        return False
    return all(assignments[name] == 1 for name in statement.target.names)


def _last_change(before: code.Block, reads: tuple[Buffer, ...]) -> int:
    """The place of the last statement that a load of these buffers may not pass; -1 for none."""
    found = (n for n in range(len(before) - 1, -1, -1) if _changes(before[n], reads))
    return next(found, -1)


def _changes(statement: code.Statement, reads: tuple[Buffer, ...]) -> bool:
    return any(_may_change(inner, reads) for inner in code.walk((statement,)))


def _may_change(statement: code.Statement, reads: tuple[Buffer, ...]) -> bool:
    match statement:
        case code.Assign() | code.If() | code.For() | code.Section():
            return False
        case code.Store(buffer) if buffer is not None:
            return any(_same_memory(buffer, read) for read in reads)
        case _:
            return True


def _same_memory(written: Buffer, read: Buffer) -> bool:
    """A tensor that a function is given may be any."""
    if "param" in (written.kind, read.kind) and read.kind != "constant":
        return True
    return written == read
