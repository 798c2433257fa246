"""Liveness of local variables: backward data flow over the statements of a function.

`note` writes what it finds on the nodes: `live_after` of a statement are the variables that may be
read after it before they are written, `live_at_jumps` those wherever it may jump to, and
`live_at_head` of a loop those where it decides whether it continues. Variables of nested functions
are in cells and are not meant.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stretto.frontends.python.source.syntax_trees import loads, stores, surely_stored

NameSet = frozenset[str]
_NONE: NameSet = frozenset()
_SEES_ALL = frozenset({"locals", "vars", "eval", "exec", "dir"})
"""Functions that read the variables of their caller."""


@dataclass(frozen=True, slots=True)
class JumpTargets:
    """The variables that are live at the places to which a statement may jump."""

    of_break: NameSet = _NONE
    of_continue: NameSet = _NONE
    of_return: NameSet = _NONE
    of_error: NameSet = _NONE

    @property
    def all(self) -> NameSet:
        return self.of_break | self.of_continue | self.of_return | self.of_error


def note(function: ast.FunctionDef) -> None:
    """Note the liveness of the variables of a function on its statements."""
    names = loads(function)
    if names & _SEES_ALL:
        return  # without a note, everything is live
    first = [*function.args.posonlyargs, *function.args.args]
    always = frozenset(a.arg for a in first[:1]) if "super" in names else _NONE
    _Liveness(always).block(function.body, _NONE, JumpTargets())


def live_before(statements: Sequence[ast.stmt], after: NameSet) -> NameSet:
    """Return what is live before some statements. after: what is live at their end, and wherever
    they jump to."""
    to = JumpTargets(after, after, after, after)
    return _Liveness(_NONE, notes=False).block(statements, after, to)


@dataclass(slots=True)
class _Liveness:
    always: NameSet
    notes: bool = True

    def block(self, statements: Sequence[ast.stmt], after: NameSet, to: JumpTargets) -> NameSet:
        """Return what is live before the statements."""
        for statement in reversed(statements):
            if self.notes:
                statement.live_after = after | self.always  # type: ignore[attr-defined]
                statement.live_at_jumps = to.all | self.always  # type: ignore[attr-defined]
            after = self.before(statement, after, to) | to.of_error
        return after

    def before(self, statement: ast.stmt, after: NameSet, to: JumpTargets) -> NameSet:
        """Return what is live before one statement."""
        match statement:
            case ast.Return():
                return loads(statement) | to.of_return
            case ast.Break():
                return to.of_break
            case ast.Continue():
                return to.of_continue
            case ast.Raise():
                return loads(statement) | to.of_error
            case ast.If(test=test, body=body, orelse=orelse):
                arms = self.block(body, after, to) | self.block(orelse, after, to)
                return loads(test) | arms
            case ast.While() | ast.For():
                return self.loop(statement, after, to)
            case ast.With(items=items, body=body):
                # the context may end an exception, and then what follows runs
                inner = replace(to, of_error=to.of_error | after)
                inside = self.block(body, after, inner)
                return inside.union(*(loads(item) for item in items))
            case ast.Try():
                return self.tried(statement, after, to)
            case ast.Match(subject=subject, cases=cases):
                found = loads(subject) | after
                for case in cases:
                    found |= loads(case.pattern) | self.block(case.body, after, to)
                    found |= loads(case.guard) if case.guard is not None else _NONE
                return found
            case ast.AugAssign() | ast.Delete():
                return after | loads(statement) | stores([statement])
            case _:
                return (after - surely_stored(statement)) | loads(statement)

    def loop(self, loop: ast.While | ast.For, after: NameSet, to: JumpTargets) -> NameSet:
        end = self.block(loop.orelse, after, to)
        test = loads(loop.test) if isinstance(loop, ast.While) else loads(loop.target)
        stored = stores([loop.target]) if isinstance(loop, ast.For) else _NONE
        head = end | test
        while True:
            inner = replace(to, of_break=after, of_continue=head)
            grown = head | (self.block(loop.body, head, inner) - stored)
            if grown == head:
                break
            head = grown
        if self.notes:
            loop.live_at_head = head | self.always  # type: ignore[attr-defined]
        return head | (loads(loop.iter) if isinstance(loop, ast.For) else _NONE)

    def tried(self, statement: ast.Try, after: NameSet, to: JumpTargets) -> NameSet:
        outer = to
        if statement.finalbody:
            final = self.block(statement.finalbody, after | to.all, to)
            after, outer = final, JumpTargets(final, final, final, final)
        caught = outer.of_error
        for handler in statement.handlers:
            caught |= self.block(handler.body, after, outer)
            caught |= loads(handler.type) if handler.type is not None else _NONE
        orelse = self.block(statement.orelse, after, outer)
        return self.block(statement.body, orelse, replace(outer, of_error=caught))
