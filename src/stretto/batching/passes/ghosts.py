"""Ghost operators: the code after a branch runs at one depth, whichever arm an instance has taken.

                                       %g = copy(0)
    if %long:                          if %long:
      %x = record 0(%x)                  %x = record 0(%x)
                             =>        else:
                                         %g = ready(%x) + 1
    %y = record 1(%x)                  %y = record 1(%x) after %g
    %n = invoke @f(%y)                 %n = invoke @f(%y)

Without ghosts `block 1` runs at one depth for the instances that took `block 0`, and at another one
for the rest: two steps of fewer rows each. A ghost operator computes nothing; it makes the shorter
path as deep as the longer one. Rule: a tensor that the paths through a branch (or through a scope:
the cases of a `match`, an inlined function) leave at different depths is aligned where a block of
the same function reads it, unless an instance may wait for a value in between. Instances that took
the longest path need these depths anyway, and a depth without rows has no step, so waiting costs
nothing if no instance took it. Changes: `RecordOp.after`, and new variables that hold
depths. Needs:
blocks (`coarsen`). The depth of paths with calls, loops or waits is not known statically: their
branches are left as they are. Guarantees: the same values. (ACRoBat, section B.3.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from stretto.batching.instance_program import Body, InstanceProgram, PassRemark, walk
from stretto.batching.passes.recurrences import reads_tensors
from stretto.batching.passes.uses import all_assigned, count_uses, with_bodies
from stretto.ir.core import Literal, Op, Variable
from stretto.ir.data import (
    AssignOp,
    BreakOp,
    ContinueOp,
    ForkLoopOp,
    InvokeOp,
    LeaveOp,
    RaiseOp,
    ReadOp,
    RecordOp,
    ReturnOp,
    ScopeOp,
    body_of,
)
from stretto.ir.ops import IfOp
from stretto.ir.types import Scalar, TensorType

_WAITS = "a block waits behind a branch"
_WHY = "so that it is one step, whichever way an instance has taken (a ghost operator)"
_SAME = frozenset(("copy", "cast"))
"""Primitives that return their argument."""
_Depths = dict[Variable, int]
"""Number of consecutive blocks after the start of a branch that a variable needs; 0 for variables
not in it."""
_Ghosts = dict[Variable, tuple[Variable, ...]]
"""For each variable the ghosts that its readers must wait for."""


@dataclass(frozen=True, slots=True)
class AlignArms:
    name: ClassVar[str] = "ghosts"

    def apply(self, program: InstanceProgram) -> None:
        named = program.functions.items()
        waiting = {name for name, f in named if reads_tensors(program, f.body.ops)}
        for function in program.functions.values():
            aligner = _Aligner(waiting)
            body = aligner.body(_distinct(function.body.ops), {})
            function.body.ops = list(_without(body, aligner.made - count_uses(body).keys()))
            for item in function.body.walk():
                if isinstance(item, RecordOp) and item.after:
                    program.notes.append(PassRemark(_WAITS, _WHY, item.location, is_done=True))


# ---- depths


@dataclass(frozen=True, slots=True)
class Path:
    """A path through a statement that reaches its end: the arm of an `IfOp` (0 or 1), or the
    `LeaveOp` of a `ScopeOp` (None: the end of the scope's body), with the depths
    there."""

    end: int | LeaveOp | None
    depths: _Depths


def paths_through(branch: IfOp | ScopeOp) -> list[Path] | None:
    """Return the paths through a statement; None if a depth depends on the instance."""
    ways = _Paths()
    found = ways.through(branch, {})
    return found if ways.known else None


@dataclass(slots=True)
class _Paths:
    leaving: dict[int, list[Path]] = field(default_factory=dict[int, "list[Path]"])
    """The paths that leave each enclosing scope, by label."""
    known: bool = True

    def through(self, branch: IfOp | ScopeOp, depths: _Depths) -> list[Path]:
        if isinstance(branch, IfOp):
            arms = enumerate((branch.then.ops, branch.orelse.ops))
            ends = [(n, self.end(arm, dict(depths))) for n, arm in arms]
            return [Path(n, end) for n, end in ends if end is not None]
        leaving = self.leaving[branch.label] = []
        end = self.end(branch.body.ops, dict(depths))
        return leaving if end is None else [Path(None, end), *leaving]

    def end(self, body: Body, depths: _Depths) -> _Depths | None:
        """Return the depths at the end of a body, from those at its start; None if it does not
        reach its end."""
        for statement in body:
            match statement:
                case RecordOp(targets, _, operands):
                    given = (depths.get(v, 0) for v in operands if isinstance(v, Variable))
                    depths.update(dict.fromkeys(targets, 1 + max(given, default=0)))
                case AssignOp(Variable() as target):
                    source = _source(statement)
                    depths[target] = 0 if source is None else depths.get(source, 0)
                case AssignOp():
                    pass
                case IfOp() | ScopeOp():
                    ways = self.through(statement, depths)
                    if not ways:
                        return None
                    depths = _deepest(ways)
                case LeaveOp(label):
                    if label in self.leaving:
                        self.leaving[label].append(Path(statement, depths))
                    return None
                case ReturnOp() | RaiseOp() | BreakOp() | ContinueOp():
                    return None
                case _:
                    self.known = False
                    return None
        return depths


def _deepest(ways: Sequence[Path]) -> _Depths:
    every = {variable: None for way in ways for variable in way.depths}
    return {variable: max(way.depths.get(variable, 0) for way in ways) for variable in every}


def _source(statement: AssignOp) -> Variable | None:
    """Return the variable whose value an Assign copies; None if it is no copy."""
    source = statement.args[0] if statement.op in _SAME else None
    return source if isinstance(source, Variable) else None


# ---- insertion of ghosts


@dataclass(slots=True)
class _Aligner:
    waiting: set[str]
    """Functions in which an instance may wait for a value."""
    made: set[Variable] = field(default_factory=set[Variable])
    before: dict[int, Body] = field(default_factory=dict[int, Body])
    """Statements to add before each `LeaveOp`, by its id."""
    leaving: dict[int, list[_Ghosts]] = field(default_factory=dict[int, "list[_Ghosts]"])
    """The ghosts at each `LeaveOp` of the enclosing scopes, by label."""

    def body(self, body: Body, ghosts: _Ghosts) -> Body:
        """Return the body with ghosts. `ghosts` are those of the variables at its start; updated
        in place."""
        return tuple(found for item in body for found in self.statement(item, ghosts))

    def statement(self, statement: Op, ghosts: _Ghosts) -> Sequence[Op]:
        match statement:
            case RecordOp(targets, _, operands):
                read = (ghosts.get(item, ()) for item in operands if isinstance(item, Variable))
                after = tuple(dict.fromkeys(ghost for item in read for ghost in item))
                _forget(ghosts, targets)
                return [replace(statement, after=after)]
            case AssignOp(Variable() as target):
                source = _source(statement)
                ghosts[target] = () if source is None else ghosts.get(source, ())
                return [statement]
            case LeaveOp(label):
                self.leaving[label].append(dict(ghosts))
                return [*self.before.get(id(statement), ()), statement]
            case IfOp() | ScopeOp():
                return self.branch(statement, ghosts)
            case _:
                self.passed(statement, ghosts)
                known = set(self.made)
                inner = with_bodies(statement, lambda part: self.body(part, dict(ghosts)))
                if isinstance(inner, ForkLoopOp):
                    own = sorted(self.made - known, key=lambda item: item.name)
                    inner = replace(inner, private=(*inner.private, *own))
                return [inner]

    def passed(self, statement: Op, ghosts: _Ghosts) -> None:
        """Remove from `ghosts` those that do not hold after a statement."""
        items = tuple(walk((statement,)))
        if any(
            isinstance(item, ReadOp)
            or (isinstance(item, InvokeOp) and item.function in self.waiting)
            for item in items
        ):
            ghosts.clear()  # depths start again after a launch
        _forget(ghosts, all_assigned(statement))

    def branch(self, branch: IfOp | ScopeOp, ghosts: _Ghosts) -> list[Op]:
        ways = paths_through(branch) or []
        added, aligned = self.added(ways)
        inside: list[_Ghosts]
        if isinstance(branch, IfOp):
            inside = [dict(ghosts), dict(ghosts)]
            then = (*self.body(branch.then.ops, inside[0]), *added.get(0, ()))
            orelse = (*self.body(branch.orelse.ops, inside[1]), *added.get(1, ()))
            result: Op = IfOp(branch.condition, body_of(then), body_of(orelse))
        else:
            inside = self.leaving[branch.label] = []
            self.before.update({key: body for key, body in added.items() if key is not None})
            last = dict(ghosts)
            body = (*self.body(branch.body.ops, last), *added.get(None, ()))
            inside.append(last)
            result = ScopeOp(branch.label, body_of(body))
        for variable in _deepest(ways):
            known = (ghost for state in inside for ghost in state.get(variable, ()))
            aligned[variable] = tuple(dict.fromkeys((*known, *aligned.get(variable, ()))))
        outside = {ghost for known in ghosts.values() for ghost in known}
        new = {ghost: None for known in aligned.values() for ghost in known}
        begin = [AssignOp("copy", (Literal(0),), results=(g,)) for g in new if g not in outside]
        self.passed(branch, ghosts)
        ghosts.update(aligned)
        return [*begin, result]

    def added(self, ways: Sequence[Path]) -> tuple[dict[int | None, Body], _Ghosts]:
        """Return the statements to add at the end of each path (by arm, or id of the
        `LeaveOp`), and the ghosts."""
        added: dict[int | None, Body] = {}
        aligned: _Ghosts = {}
        for variable, depth in _deepest(ways).items():
            missing = [depth - way.depths.get(variable, 0) for way in ways]
            if not any(missing) or not isinstance(variable.type, TensorType):
                continue
            ghost = Variable(f"ghost{len(self.made)}", Scalar.INT)
            self.made.add(ghost)
            aligned[variable] = (ghost,)
            for way, more in zip(ways, missing, strict=True):
                if more:
                    key = id(way.end) if isinstance(way.end, LeaveOp) else way.end
                    wait = AssignOp("ready", (variable,), more, results=(ghost,))
                    added[key] = (*added.get(key, ()), wait)
        return added, aligned


def _forget(ghosts: _Ghosts, variables: Iterable[Variable]) -> None:
    for variable in variables:
        ghosts.pop(variable, None)


def _distinct(body: Body) -> Body:
    """Return a body in which each `LeaveOp` is a separate object."""
    return tuple(
        LeaveOp(item.label) if isinstance(item, LeaveOp) else with_bodies(item, _distinct)
        for item in body
    )


def _without(body: Body, unread: set[Variable]) -> Body:
    """Return a body without the assignments of unread variables."""
    found: list[Op] = []
    for item in body:
        if isinstance(item, AssignOp) and item.target in unread:
            continue
        inner = with_bodies(item, lambda part: _without(part, unread))
        if isinstance(inner, ForkLoopOp):
            inner = replace(inner, private=tuple(v for v in inner.private if v not in unread))
        found.append(inner)
    return tuple(found)
