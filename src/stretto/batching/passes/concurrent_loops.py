"""Concurrent loops: the iterations of a loop wait at the same time.

    loop:                                   fork loop:
      %more = lt(%index, %n)                  %more = lt(%index, %n)
      if not %more: break                     if not %more: break
      %i = copy(%index)                       %i = copy(%index)
      %index = add(%index, 1)       =>        %index = add(%index, 1)
      %item = at(%items, %i)                fork:
      %y = invoke @f(%item)                   %item = at(%items, %i)
      append(%list, %y)                       %y = invoke @f(%item)
                                            then:
                                              append(%list, %y)

The *head* decides if there is another iteration, the *tail* holds what iterations do one after the
other; everything else is the *body*. Changes: a `LoopOp` whose bodies wait and do not depend
on each other becomes a `ForkLoopOp`. Needs: nothing. Guarantees: the same values and
effects. Of several exceptions that of the first iteration is raised; within an iteration, `raise`
statements and calls in the tail keep their order, and only a primitive that fails there, as in
`counts[i] += 1`, may be superseded by an exception of body statements that follow it in the
program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from stretto.batching.instance_program import Body, PassRemark, first_location, walk
from stretto.batching.passes.effects import Effects, TouchedVariables, why_not_loop
from stretto.batching.passes.uses import (
    FunctionUses,
    all_assigned,
    assigned,
    count_uses,
    ends,
    leaves,
    renamed,
)
from stretto.ir.assigned import exposed
from stretto.ir.core import Op, Variable
from stretto.ir.data import (
    AssignOp,
    ContinueOp,
    ForkLoopOp,
    InvokeOp,
    LoopOp,
    RaiseOp,
    ReturnOp,
    body_of,
)
from stretto.ir.ops import IfOp

_HEAD, _BODY, _TAIL = range(3)


@dataclass(eq=False)
class StatementEffects:
    """A statement of a body, with its effects."""

    statement: Op
    effects: Effects

    @cached_property
    def touched(self) -> TouchedVariables:
        return TouchedVariables.of((self.statement,))

    def why_before(self, other: StatementEffects) -> str | None:
        """Return why a later statement has to stay after this one, or None if it need not."""
        for variable in self.touched.assigned & other.touched.all:
            return f"the second needs %{variable.name} of the first"
        if other.touched.assigned & self.touched.all:
            return "the second assigns what the first uses"
        if self.effects.conflicts_with(other.effects):
            return "one changes a list or an object that the other one uses"
        return None

    @cached_property
    def stays(self) -> bool:
        """True if it cannot be part of a fork."""
        if isinstance(self.statement, ReturnOp | RaiseOp) or leaves(self.statement):
            return True
        if ends((self.statement,)) or self.effects.phases:
            return True
        return any(isinstance(item, ReturnOp) for item in walk((self.statement,)))


def concurrent_loop(
    loop: LoopOp,
    parts: Sequence[StatementEffects],
    within: Sequence[Effects],
    later: Set[Variable],
) -> LoopOp | ForkLoopOp | PassRemark:
    """Return the loop with concurrent iterations; the loop itself if there is no gain; a remark if
    something prevents it.

    parts: the statements of its body. within: the effects of each statement as seen from
    outside of its iteration. later: variables that are read outside of the loop.
    """
    if not any(part.effects.waits for part in parts):
        return loop
    made = _Split(parts, within, later).made()
    if isinstance(made, ForkLoopOp):
        return made
    if not any(isinstance(item, InvokeOp | LoopOp) for item in loop.body.walk()):
        return loop  # a decision in each step, as in a search: no user expects concurrency
    return PassRemark(
        "iterations of a loop, one after the other", made, first_location(loop.body.ops)
    )


@dataclass(slots=True)
class _Split:
    parts: Sequence[StatementEffects]
    within: Sequence[Effects]
    later: Set[Variable]

    def made(self) -> ForkLoopOp | str:
        """Return the concurrent loop, or the reason why there is none."""
        statements = tuple(part.statement for part in self.parts)
        if any(isinstance(item, ReturnOp) for item in walk(statements)):
            return "a `return` is in it"
        if ends(statements):
            return "no iteration comes to its end"
        if any(part.effects.phases for part in self.parts):
            return "a phase begins in it"
        head = self._head()
        tail = self._tail(head)
        places = [
            _HEAD if n in head else _TAIL if n in tail else _BODY for n in range(len(statements))
        ]
        reason = self._why_not(places)
        if reason is not None:
            return reason
        split = [
            tuple(s for s, at in zip(statements, places, strict=True) if at == place)
            for place in (_HEAD, _BODY, _TAIL)
        ]
        return self._loop(*split)

    def _head(self) -> set[int]:
        """Return the statements that decide if there is an iteration, those that they need, and
        those that must come before either."""
        found = {n for n, part in enumerate(self.parts) if leaves(part.statement)}
        return self._closed(
            found,
            set(range(len(self.parts))) - found,
            lambda n, head: (
                bool(self._assigned(n) & self._touched(head))
                or (n < head and self.parts[n].why_before(self.parts[head]) is not None)
            ),
        )

    def _tail(self, head: set[int]) -> set[int]:
        """Return the statements that need what an earlier iteration assigned or changed, and all
        that depend on them."""
        carried = exposed(tuple(part.statement for part in self.parts))
        rest = set(range(len(self.parts))) - head
        kept = carried | self.later
        found = {n for n in rest if kept & self._assigned(n) or self.within[n].writes}
        changing = frozenset(v for n in found for v in self._assigned(n)) & carried
        found |= {n for n in rest if self._touched(n) & changing}
        return self._closed(
            found,
            rest - found,
            lambda n, tail: (
                self.within[n].conflicts_with(self.within[tail])
                or (n > tail and self.parts[tail].why_before(self.parts[n]) is not None)
            ),
        )

    def _assigned(self, number: int) -> frozenset[Variable]:
        return self.parts[number].touched.assigned

    def _touched(self, number: int) -> frozenset[Variable]:
        return self.parts[number].touched.all

    @staticmethod
    def _closed(found: set[int], rest: set[int], follows: Callable[[int, int], bool]) -> set[int]:
        """Return `found` with the statements of `rest` that transitively follow from it."""
        changed = True
        while changed:
            new = {n for n in rest if any(follows(n, m) for m in found)}
            found, rest, changed = found | new, rest - new, bool(new)
        return found

    def _why_not(self, places: list[int]) -> str | None:
        effects = [
            Effects.join(e for e, at in zip(self.within, places, strict=True) if at == place)
            for place in (_HEAD, _BODY, _TAIL)
        ]
        head, body, tail = effects
        if head.waits:
            return "whether there is another iteration depends on a tensor"
        if any(effects.waits and effects.writes for effects in self.within):
            return "an iteration changes a list or an object that others may use"
        if tail.waits or not body.waits:
            return "an iteration that waits needs what the one before it has made"
        if (
            body.writes
            or body.conflicts_with(tail)
            or head.conflicts_with(Effects.join((body, tail)))
        ):
            return "an iteration changes a list or an object that another one uses"
        for n, part in enumerate(self.parts):
            for m in range(n):
                if places[m] <= places[n]:
                    continue
                if self.parts[m].why_before(part) is not None:
                    return "what the iterations do one after the other stands before what waits"
                if part.effects.fails and self._raises(m):
                    return "what the iterations do one after the other may raise before what waits"
        return None

    def _raises(self, number: int) -> bool:
        """Return True if a statement may raise by a `raise` or a call: it guards the statements
        after it, so it must not be delayed after them."""
        part = self.parts[number]
        guards = any(isinstance(item, RaiseOp | InvokeOp) for item in walk((part.statement,)))
        return part.effects.fails and guards

    def _loop(self, head: Body, body: Body, tail: Body) -> ForkLoopOp | str:
        """Build the loop, with a private variable for each value that the head passes to body or
        tail. Return a reason if that is not possible."""
        handed = TouchedVariables.of(head).assigned & (
            TouchedVariables.of(body).all | TouchedVariables.of(tail).all
        )
        if handed & (TouchedVariables.of(body).assigned | TouchedVariables.of(tail).assigned):
            return "an iteration assigns what decides whether there is another one"
        names = {v: Variable(f"{v.name}'own", v.type) for v in sorted(handed, key=lambda v: v.name)}
        head = (*head, *(AssignOp("copy", (v,), results=(own,)) for v, own in names.items()))
        body, tail = renamed(body, names), renamed(tail, names)
        carried = exposed((*body, *tail))
        private = list(names.values())
        for variable in sorted(TouchedVariables.of(body).assigned, key=lambda v: v.name):
            if variable in carried or variable in self.later:
                return f"%{variable.name} is used after the iteration that assigns it"
            private.append(variable)
        made = ForkLoopOp(body_of(head), body_of(body), body_of(tail), private=tuple(private))
        return why_not_loop(made) or made


# ---- Splitting branches in a loop into a part that waits and a part that uses its results.
#
#     if %skip: continue                  %y = unset()
#     %y = invoke @f(%item)        =>     if %skip:
#     append(%list, %y)                   else: %y = invoke @f(%item)
#                                         if %skip:
#                                         else: append(%list, %y)
#
# The first part may then run at the same time in all iterations, and the second in their order.
# Changes: the statements after a `continue` at the end of an arm move into the other arm; a branch
# that waits ends after the last statement that waits, and the rest becomes a separate branch.
# Needs: nothing. Guarantees: the same statements in the same order on each path. A variable that
# one part passes to the other is unset on the paths that neither assign nor read it, and is used
# nowhere else.


def without_continue(body: Body) -> Body:
    """Return the body of a loop with the statements after a `continue` moved into the arm that
    does not skip them."""
    for place, statement in enumerate(body):
        if not isinstance(statement, IfOp):
            continue
        for arm, other in ((0, 1), (1, 0)):
            arms: list[Body] = [statement.then.ops, statement.orelse.ops]
            if not arms[arm] or not isinstance(arms[arm][-1], ContinueOp):
                continue
            arms[arm] = arms[arm][:-1]
            if any(map(leaves, arms[arm])) or ends(arms[other]):
                continue
            arms[other] = (*arms[other], *without_continue(body[place + 1 :]))
            return (*body[:place], IfOp(statement.condition, body_of(arms[0]), body_of(arms[1])))
    return body


def with_split_branches(body: Body, waits: Callable[[Op], bool], uses: FunctionUses) -> Body:
    """Return a body in which branches that wait are split in two, where possible."""
    found: list[Op] = []
    for statement in body:
        if isinstance(statement, IfOp) and waits(statement) and not leaves(statement):
            arms = [
                with_split_branches(arm, waits, uses)
                for arm in (statement.then.ops, statement.orelse.ops)
            ]
            inner = IfOp(statement.condition, body_of(arms[0]), body_of(arms[1]))
            found += _two(inner, waits, lambda v, whole=statement: _is_inside(v, whole, uses))
        else:
            found.append(statement)
    return tuple(found)


def _is_inside(variable: Variable, whole: Op, uses: FunctionUses) -> bool:
    """Return True if a variable is read and assigned only in one statement of its function."""
    times = sum(variable in assigned(item) for item in walk((whole,)))
    reads = count_uses((whole,))[variable]
    return uses.reads[variable] == reads and uses.assignments[variable] == times


def _two(
    branch: IfOp, waits: Callable[[Op], bool], is_inside: Callable[[Variable], bool]
) -> list[Op]:
    cuts = [_cut(arm, waits) for arm in (branch.then.ops, branch.orelse.ops)]
    first = IfOp(
        branch.condition, body_of(branch.then.ops[: cuts[0]]), body_of(branch.orelse.ops[: cuts[1]])
    )
    second = IfOp(
        branch.condition, body_of(branch.then.ops[cuts[0] :]), body_of(branch.orelse.ops[cuts[1] :])
    )
    if not (second.then.ops or second.orelse.ops) or branch.condition in all_assigned(first):
        return [branch]
    reads, later = count_uses((*second.then.ops, *second.orelse.ops)), all_assigned(second)
    handed = sorted((v for v in all_assigned(first) if reads[v]), key=lambda v: v.name)
    if any(variable in later or not is_inside(variable) for variable in handed):
        return [branch]
    return [*(AssignOp("unset", results=(variable,)) for variable in handed), first, second]


def _cut(arm: Body, waits: Callable[[Op], bool]) -> int:
    """Return the number of statements up to and including the last one that waits."""
    return max((number for number, item in enumerate(arm, 1) if waits(item)), default=0)
