"""Code motion around branches, so that each path through them has as few blocks as possible.

    %x = getitem(table, %word)                 if %leaf:
    if %leaf:                                    %x = getitem(table, %word)
      %a = tanh(%x)                              %a = tanh(%x)
      %c = copy(%a)                              %h = sigmoid(%a)
    else:                               =>       return %h
      %b = invoke @f(%x)                       else:
      %c = copy(%b)                              %x' = getitem(table, %word)
    %h = sigmoid(%c)                             %b = invoke @f(%x')
    return %h                                    %h' = sigmoid(%b)
                                                 return %h'

Changes: operators before a branch that only its arms use move into these arms; a short tail of a
body that uses results of the arms moves to the end of each arm. Needs: `tidy` runs afterwards and
propagates copies. Guarantees: the same values, and no path computes more than before: an operator
moves into an arm only where its operands still have the same values, and one that may raise an
exception only if each path uses it. The program grows by at most
`MOST_TAIL` statements per branch. (ACRoBat has no such pass: its blocks end at a branch.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.batching.instance_program import Body, InstanceProgram, walk
from stretto.batching.passes.uses import (
    FreshNames,
    FunctionUses,
    all_assigned,
    all_used,
    assigned,
    count_uses,
    ends,
    renamed,
    used,
    with_bodies,
)
from stretto.ir.core import Op, Variable
from stretto.ir.data import AssignOp, InstanceFunction, OperateOp, PhaseOp, ReturnOp, body_of
from stretto.ir.ops import IfOp

MOST_TAIL = 24
"""Largest number of statements that are copied into the arms of a branch."""


@dataclass(frozen=True, slots=True)
class MoveAroundBranches:
    name: ClassVar[str] = "tails"

    def apply(self, program: InstanceProgram) -> None:
        for function in program.functions.values():
            function.body.ops = list(_Tails(function).body(function.body.ops))
            function.body.ops = list(_Sinker(function).body(function.body.ops))


# ---- tails


def why_no_tail(branch: IfOp, tail: Body) -> str | None:
    """Return why the statements after a branch stay there, or None if they may move to the end of
    each arm."""
    if not any(isinstance(item, OperateOp) for item in tail):
        return "no operator follows the branch"
    if len(tail) > MOST_TAIL:
        return f"more than {MOST_TAIL} statements follow the branch"
    if not all(isinstance(item, AssignOp | OperateOp | ReturnOp) for item in tail):
        return "control or a call follows the branch"
    wanted = {
        variable
        for item in tail
        if isinstance(item, OperateOp) or (isinstance(item, AssignOp) and item.op == "copy")
        for variable in used(item)
    }
    if wanted.isdisjoint(all_assigned(branch)):
        return "no arm makes what the operators behind the branch use"
    return None


class _Tails:
    def __init__(self, function: InstanceFunction) -> None:
        self._uses = FunctionUses.of(function)
        self._names = FreshNames(function)

    def body(self, body: Body) -> Body:
        found: list[Op] = []
        for place, statement in enumerate(body):
            statement = with_bodies(statement, self.body)
            tail = body[place + 1 :]
            if isinstance(statement, IfOp) and why_no_tail(statement, tail) is None:
                then, orelse = statement.then.ops, statement.orelse.ops
                if not ends(orelse):
                    copied = tail if ends(then) else self._copied(tail)
                    orelse = self.body((*orelse, *copied))
                if not ends(then):
                    then = self.body((*then, *tail))
                return (*found, IfOp(statement.condition, body_of(then), body_of(orelse)))
            found.append(statement)
        return tuple(found)

    def _copied(self, tail: Body) -> Body:
        """Return a copy of a tail, with new variables for those that only the tail uses."""
        reads, inside = self._uses.reads, count_uses(tail)
        made = {variable for item in tail for variable in assigned(item)}
        own = [v for v in made if self._uses.is_single(v) and reads[v] == inside[v]]
        names = {variable: self._names.like(variable) for variable in own}
        copy = renamed(tail, names)
        reads.update(count_uses(copy))
        self._uses.assignments.update(v for item in copy for v in assigned(item))
        return copy


# ---- operators before a branch


def why_not_into(operate: OperateOp, branch: IfOp, rest: Body, uses: FunctionUses) -> str | None:
    """Return why an operator stays before a branch, or None if it may move into the arms that use
    it. rest: the statements after the branch in its body."""
    if not all(map(uses.is_single, operate.targets)):
        return "its result is assigned in several places"
    if branch.condition in operate.targets:
        return "the condition uses it"
    arms = [count_uses(branch.then.ops), count_uses(branch.orelse.ops)]
    later = count_uses(rest)
    for target in operate.targets:
        if arms[0][target] + arms[1][target] + later[target] != uses.reads[target]:
            return "it is used outside of the arms of the branch"
    users = [any(arm[target] for target in operate.targets) for arm in arms]
    if not any(users):
        return "no arm uses it"
    bodies = (branch.then.ops, branch.orelse.ops)
    is_later = any(later[target] for target in operate.targets)
    if operate.may_raise and not all(
        uses_it or (is_later and not ends(arm)) for arm, uses_it in zip(bodies, users, strict=True)
    ):
        return "it may raise an exception, and a path does not use it"
    if is_later:
        if not all_assigned(branch).isdisjoint(used(operate)):
            return "an arm assigns what it uses"
        for arm, uses_it in zip(bodies, users, strict=True):
            if uses_it and not ends(arm):
                return "an arm and what follows it use it"
    if not any(_has_operators(arm, operate) for arm in bodies):
        return "no operator of an arm uses it"
    return None


def _has_operators(arm: Body, operate: OperateOp) -> bool:
    """Return True if operators in an arm use a result of an operator."""
    return any(
        isinstance(item, OperateOp) and not set(operate.targets).isdisjoint(used(item))
        for item in walk(arm)
    )


class _Sinker:
    def __init__(self, function: InstanceFunction) -> None:
        self._uses = FunctionUses.of(function)
        self._names = FreshNames(function)

    def body(self, body: Body) -> Body:
        found: list[Op] = []
        rest = body
        while rest:
            statement, rest = rest[0], rest[1:]
            if isinstance(statement, IfOp):
                sinking = _Sinking(self._uses, self._names, statement, rest)
                found = sinking.sink(found)
                statement, rest = sinking.branch, sinking.rest
            found.append(with_bodies(statement, self.body))
        return tuple(found)


@dataclass(slots=True)
class _Sinking:
    """A branch and the statements after it, while operators move into its arms."""

    uses: FunctionUses
    names: FreshNames
    branch: IfOp
    rest: Body

    def sink(self, before: list[Op]) -> list[Op]:
        """Move operators into the arms; return the statements that stay before the branch."""
        kept: list[Op] = []
        reads: set[Variable] = set()
        writes: set[Variable] = set()
        same_phase = True
        for statement in reversed(before):
            same_phase = same_phase and not isinstance(statement, PhaseOp)
            if (
                isinstance(statement, OperateOp)
                and same_phase
                and reads.isdisjoint(statement.targets)
                and writes.isdisjoint(used(statement))
                and why_not_into(statement, self.branch, self.rest, self.uses) is None
            ):
                self._move(statement)
                continue
            kept.insert(0, statement)
            reads |= all_used(statement)
            writes |= all_assigned(statement)
        return kept

    def _move(self, operate: OperateOp) -> None:
        """Put an operator before each body that uses it: the operator itself before the first one,
        copies with new variables before the others."""
        parts = [self.branch.then.ops, self.branch.orelse.ops, self.rest]
        first = True
        for place, part in enumerate(parts):
            inside = count_uses(part)
            if not any(inside[target] for target in operate.targets):
                continue
            moved: Body = (operate, *part)
            if not first:
                names = {target: self.names.like(target) for target in operate.targets}
                moved = renamed(moved, names)
                for old, new in names.items():
                    self.uses.reads[new] = inside[old]
                    self.uses.reads[old] -= inside[old]
                    self.uses.assignments[new] = 1
                self.uses.reads.update(used(operate))
            first = False
            parts[place] = moved
        self.branch = IfOp(self.branch.condition, body_of(parts[0]), body_of(parts[1]))
        self.rest = parts[2]
