"""Moves assignments of constants to where they are needed first.

The entry of a large program has an address for each buffer, of which a statement needs a few. Where
all of them are assigned first, each branch is compiled with all of them at hand: Triton makes a
copy of every variable for each arm, and ptxas has to keep them or make them again.

    before                        after
      a = arena + 0                 b = arena + 64
      b = arena + 64                run k_first: b
      run k_first: b                if x:
      if x:                             a = arena + 0
          run k_second: a, b            run k_second: a, b

An assignment that one arm of a branch needs goes into that arm. None goes into a loop. Values must
not depend on a variable that `block` assigns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stretto.machines import statements as code


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
