"""Branches in the iterations of a loop, in two parts: what waits, and what is done with it.

    if %skip: continue                  %y = unset()
    %y = call 1 f(%item)         =>     if %skip:
    append(%list, %y)                   else: %y = call 1 f(%item)
                                        if %skip:
                                        else: append(%list, %y)

The first part may then run at the same time in all iterations, and the second in their order
(`concurrent_loops.py`). Changes: a `continue` at the end of an arm becomes the other arm; a branch
that waits ends after the last statement that waits, and what follows is a branch of its own.
Needs: nothing. Guarantees: the same statements in the same order on each way. A variable that one
part hands to the other is unset on the ways that neither assign nor read it, and is used nowhere
else.
"""

from __future__ import annotations

from collections.abc import Callable

from stretto.batching.passes.uses import (
    FunctionUses,
    all_assigned,
    assigned,
    count_uses,
    ends,
    leaves,
)
from stretto.batching.program import Assign, Body, Continue, If, Statement, Variable, walk


def without_continue(body: Body) -> Body:
    """The body of a loop, with what follows a `continue` in the arm that does not skip it."""
    for place, statement in enumerate(body):
        if not isinstance(statement, If):
            continue
        for arm, other in ((0, 1), (1, 0)):
            arms = [statement.then, statement.orelse]
            if not arms[arm] or not isinstance(arms[arm][-1], Continue):
                continue
            arms[arm] = arms[arm][:-1]
            if any(map(leaves, arms[arm])) or ends(arms[other]):
                continue
            arms[other] = (*arms[other], *without_continue(body[place + 1 :]))
            return (*body[:place], If(statement.condition, arms[0], arms[1]))
    return body


def parted(body: Body, waits: Callable[[Statement], bool], uses: FunctionUses) -> Body:
    """A body whose branches that wait are two, where that may be."""
    found: list[Statement] = []
    for statement in body:
        if isinstance(statement, If) and waits(statement) and not leaves(statement):
            arms = [parted(arm, waits, uses) for arm in (statement.then, statement.orelse)]
            inner = If(statement.condition, arms[0], arms[1])
            found += _two(inner, waits, lambda v, whole=statement: _is_inside(v, whole, uses))
        else:
            found.append(statement)
    return tuple(found)


def _is_inside(variable: Variable, whole: Statement, uses: FunctionUses) -> bool:
    """Whether a variable is read and assigned in one statement of its function alone."""
    times = sum(variable in assigned(item) for item in walk((whole,)))
    reads = count_uses((whole,))[variable]
    return uses.reads[variable] == reads and uses.assignments[variable] == times


def _two(
    branch: If, waits: Callable[[Statement], bool], is_inside: Callable[[Variable], bool]
) -> list[Statement]:
    cuts = [_cut(arm, waits) for arm in (branch.then, branch.orelse)]
    first = If(branch.condition, branch.then[: cuts[0]], branch.orelse[: cuts[1]])
    second = If(branch.condition, branch.then[cuts[0] :], branch.orelse[cuts[1] :])
    if not (second.then or second.orelse) or branch.condition in all_assigned(first):
        return [branch]
    reads, later = count_uses((*second.then, *second.orelse)), all_assigned(second)
    handed = sorted((v for v in all_assigned(first) if reads[v]), key=lambda v: v.name)
    if any(variable in later or not is_inside(variable) for variable in handed):
        return [branch]
    return [*(Assign(variable, "unset") for variable in handed), first, second]


def _cut(arm: Body, waits: Callable[[Statement], bool]) -> int:
    """The number of statements up to the last one that waits."""
    return max((number for number, item in enumerate(arm, 1) if waits(item)), default=0)
