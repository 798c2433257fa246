"""Effects of statements besides assigning variables: memory they touch, waits, exceptions, phases.

Two calls may run concurrently only if neither changes what the other one touches. Memory is
distinguished by *cells* (`types.py`): the items of lists created in one place, or a field of a
class. A callee that builds a list and appends to it changes a cell, yet no other code sees that
object: an object created within a part of the program can be reached from outside of the part
only through what the part assigns or stores elsewhere, and both are effects themselves. So
accesses to objects that a part has created are not effects of the part. The object that a
variable holds is found from its assignments, regardless of their order; an object loaded from
memory may have any origin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from stretto.batching.instance_program import Body, InstanceProgram, walk
from stretto.batching.passes.recurrences import CellNode, DataFlowGraph
from stretto.batching.passes.uses import FunctionUses, all_assigned, all_used, assigned, ends
from stretto.ir.assigned import exposed
from stretto.ir.core import Literal, Op, Operand, Variable
from stretto.ir.data import (
    AssignOp,
    ContinueOp,
    ForkLoopOp,
    ForkOp,
    InstanceFunction,
    InvokeOp,
    PhaseOp,
    RaiseOp,
    ReadOp,
    ReturnOp,
    body_of,
)
from stretto.ir.data_effects import CHANGING, DEEP, MAKING, SAFE, SAFE_ON_NUMBERS, SAME
from stretto.ir.types import DataType, Scalar, TensorType, alternatives

Root = int | str | Variable
"""Origin of an object: the number of a parameter; the variable to which a statement outside of the
part, but in its function, assigned a new object; or `MADE` or `OTHER`."""
MADE, OTHER = "made here", "anywhere"
Access = tuple[Root, CellNode]


def may_alias(first: Access, second: Access) -> bool:
    """Return True if two accesses may touch the same memory."""
    (root, cell), (other, same) = first, second
    if cell != same:
        return False
    if isinstance(root, Variable) or isinstance(other, Variable):
        # A new object differs from those of other statements and from those that existed before.
        return root is other or OTHER in (root, other)
    return True


_SMALL = 1 << 20


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of a part of a program.

    reads, writes: accesses to objects that the part has not created. waits: it may wait for the
    value of a tensor. fails: it may raise. phases: it may begin a phase.
    """

    reads: frozenset[Access] = frozenset()
    writes: frozenset[Access] = frozenset()
    waits: bool = False
    fails: bool = False
    phases: bool = False

    def conflicts_with(self, other: Effects) -> bool:
        """Return True if one of the two changes memory that the other one touches."""
        mine, theirs = self.reads | self.writes, other.reads | other.writes
        pairs = (*product(self.writes, theirs), *product(other.writes, mine))
        return any(may_alias(*pair) for pair in pairs)

    @staticmethod
    def join(several: Iterable[Effects]) -> Effects:
        """Return the combined effects of several parts."""
        found = list(several)
        return Effects(
            frozenset[Access]().union(*(item.reads for item in found)),
            frozenset[Access]().union(*(item.writes for item in found)),
            any(item.waits for item in found),
            any(item.fails for item in found),
            any(item.phases for item in found),
        )


@dataclass(slots=True)
class _Summary:
    """The effects of a call of a function: touched cells, each with the root of its object."""

    reads: set[tuple[Root, CellNode]] = field(default_factory=set["tuple[Root, CellNode]"])
    writes: set[tuple[Root, CellNode]] = field(default_factory=set["tuple[Root, CellNode]"])
    results: set[Root] = field(default_factory=set["Root"])
    waits: bool = False
    fails: bool = False
    phases: bool = False

    def size(self) -> tuple[int, ...]:
        sets = (self.reads, self.writes, self.results)
        return (*map(len, sets), self.waits, self.fails, self.phases)


class AllEffects:
    """The effects of all parts of a program; those of calls are computed once, to a fixpoint."""

    def __init__(self, program: InstanceProgram) -> None:
        self._program = program
        self._flow = DataFlowGraph(program)
        self._summaries = {name: _Summary() for name in program.functions}
        changed = True
        while changed:
            changed = False
            for name, function in program.functions.items():
                before = self._summaries[name].size()
                self._summarise(name, function)
                changed = changed or self._summaries[name].size() != before

    def of(self, part: Body, around: Body, function: FunctionObjects) -> Effects:
        """Return the effects of some statements of a function, as seen from outside of them. If
        `around`, a body that contains them, is not empty, as seen from outside of that body."""
        found = _Part(self._program, self._flow, self._summaries, _Summary(), function.roots)
        found.find_roots(around or part, function.assignments)
        found.add(part)
        made = found.summary
        return Effects(
            frozenset(made.reads),
            frozenset(made.writes),
            made.waits,
            made.fails,
            made.phases,
        )

    def objects(self, function: InstanceFunction) -> FunctionObjects:
        """Return what `of` needs to know of the function that a part is in."""
        part = _Part(self._program, self._flow, self._summaries, _Summary())
        part.find_roots(function.body.ops, {}, sites=True)
        return FunctionObjects(part.roots, FunctionUses.of(function).assignments)

    def _summarise(self, name: str, function: InstanceFunction) -> None:
        parameters: _Roots = {v: {place} for place, v in enumerate(function.parameters)}
        summaries = self._summaries
        part = _Part(self._program, self._flow, summaries, summaries[name], parameters)
        part.find_roots(function.body.ops, {})
        part.add(function.body.ops)


_Roots = dict[Variable, set[Root]]


@dataclass(frozen=True, slots=True)
class FunctionObjects:
    """The roots of the objects that a function's variables hold, and the number of assignments of
    each variable."""

    roots: _Roots
    assignments: Mapping[Variable, int]


@dataclass(slots=True)
class _Part:
    """A part of a program, whose effects are collected in `summary`. outside: roots of variables
    that are assigned outside of the part."""

    program: InstanceProgram
    flow: DataFlowGraph
    summaries: dict[str, _Summary]
    summary: _Summary
    outside: _Roots = field(default_factory=_Roots)
    roots: _Roots = field(default_factory=_Roots)

    def add(self, part: Body) -> None:
        for statement in walk(part):
            self._statement(statement)

    def find_roots(
        self, part: Body, assignments: Mapping[Variable, int], sites: bool = False
    ) -> None:
        """Find the roots of the variables assigned in the part, by a fixpoint. assignments: number
        of assignments of variables in the whole function; not needed if none is assigned outside
        the part. sites: give each statement's new objects a root of their own instead of `MADE`."""
        statements = list(walk(part))
        carried = exposed(part)
        inside = Counter(variable for item in statements for variable in assigned(item))
        for variable, count in inside.items():
            elsewhere = variable in carried or assignments.get(variable, 0) > count
            self.roots[variable] = set(self._elsewhere(variable)) if elsewhere else set()
        changed = True
        while changed:
            changed = False
            for statement in statements:
                for variable in assigned(statement):
                    before = len(self.roots[variable])
                    made = self._made(statement)
                    if sites and MADE in made:
                        made = made - {MADE} | {variable}
                    self.roots[variable] |= made
                    changed = changed or len(self.roots[variable]) != before

    def _elsewhere(self, variable: Variable) -> set[Root]:
        return self.outside.get(variable, {OTHER})

    def _made(self, statement: Op) -> set[Root]:
        """Return the roots of what a statement assigns."""
        match statement:
            case AssignOp(op=op, args=args):
                if op in MAKING:
                    return {MADE}
                return self._roots(args[0]) if op in SAME else {OTHER}
            case InvokeOp(function=number, args=args):
                return self._translated(self.summaries[number].results, args)
            case _:
                return {MADE}  # tensors and numbers are immutable

    def _roots(self, operand: Operand) -> set[Root]:
        if isinstance(operand, Literal):
            return set()
        return self.roots[operand] if operand in self.roots else self._elsewhere(operand)

    def _translated(self, roots: Iterable[Root], args: tuple[Operand, ...]) -> set[Root]:
        """Translate roots of a callee into roots of the caller."""
        found: set[Root] = set()
        for root in roots:
            found |= self._roots(args[root]) if isinstance(root, int) else {root}
        return found

    def _statement(self, statement: Op) -> None:
        summary = self.summary
        match statement:
            case AssignOp():
                self._assign(statement)
            case InvokeOp(function=number, args=args):
                callee = self.summaries[number]
                for mine, theirs in (
                    (summary.reads, callee.reads),
                    (summary.writes, callee.writes),
                ):
                    for root, cell in list(theirs):
                        mine |= {(r, cell) for r in self._translated([root], args) if r != MADE}
                summary.waits |= callee.waits
                summary.fails |= callee.fails
                summary.phases |= callee.phases
            case ReadOp(target, tensor):
                summary.waits = True
                summary.fails |= _read_fails(target.type, tensor)
            case RaiseOp(message=parts):
                summary.fails = True
                for part in parts:
                    if not isinstance(part, str):
                        self._touch(part, summary.reads, deep=True)
            case ReturnOp(value):
                summary.results |= self._roots(value)
            case PhaseOp():
                summary.phases = True
            case _:
                pass

    def _assign(self, statement: AssignOp) -> None:
        op, args = statement.op, statement.args
        summary = self.summary
        summary.fails |= may_raise(statement)
        if op in ("get", "has", "set"):
            cells = self.flow.fields(args[0], statement.detail)
            into = summary.writes if op == "set" else summary.reads
            into |= {(r, c) for r in self._roots(args[0]) if r != MADE for c in cells}
            return
        if op in SAME or op in ("tuple", "list", "record", "dict", "item", "is", "has_type"):
            return
        for place, arg in enumerate(args):
            if op in CHANGING and place == 0:
                self._touch(arg, summary.writes, deep=False)
            elif op in CHANGING and op != "extend":
                continue
            else:
                self._touch(arg, summary.reads, deep=op in DEEP)

    def _touch(self, operand: Operand, into: set[tuple[Root, CellNode]], deep: bool) -> None:
        if not isinstance(operand, Variable):
            return
        if deep:
            # Objects stored in an object of this part may come from outside of it.
            into |= {(OTHER, cell) for cell in self.flow.reachable_cells(operand.type)}
            return
        cells = self.flow.cells(operand)
        into |= {(r, c) for r in self._roots(operand) if r != MADE for c in cells}


def may_raise(statement: AssignOp) -> bool:
    """Return True if a primitive may raise, judging by the types of its operands."""
    op, args = statement.op, statement.args
    if op in SAFE:
        return False
    if op in SAFE_ON_NUMBERS:
        return not all(_is_number(arg) for arg in args)
    if op == "len":
        return not isinstance(args[0], Variable) or len(list(alternatives(args[0].type))) != 1
    if op in ("add", "sub", "mul") and all(_is_kind(arg, Scalar.FLOAT) for arg in args):
        return False
    if op in ("add", "sub") and _is_kind(args[0], Scalar.INT):
        # A counter with small steps never reaches the limit of 64 bits in practice.
        step = args[1].value if isinstance(args[1], Literal) else None
        return not (isinstance(step, int) and abs(step) < _SMALL)
    return True


def _is_number(operand: Operand) -> bool:
    return any(_is_kind(operand, kind) for kind in (Scalar.BOOL, Scalar.INT, Scalar.FLOAT))


def _is_kind(operand: Operand, kind: Scalar) -> bool:
    if isinstance(operand, Variable):
        return operand.type == kind
    names = {Scalar.BOOL: bool, Scalar.INT: int, Scalar.FLOAT: float}
    return type(operand.value) is names[kind]


def _read_fails(type_: DataType, tensor: Operand) -> bool:
    """Return True if a Read may raise: an int read from a float tensor may be infinite or NaN."""
    given = tensor.type if isinstance(tensor, Variable) else None
    return type_ == Scalar.INT and not (
        isinstance(given, TensorType) and not given.dtype.torch.is_floating_point
    )


# ---- Independence of concurrent bodies: none touches a variable that another one assigns.
#
# This is about variables; the verifier checks it too. Memory (lists and objects) is checked by the
# creator of a fork: `passes/concurrent.py`, or the user who calls `stretto.concurrent`.


@dataclass(frozen=True, slots=True)
class TouchedVariables:
    """The variables that a body assigns, and all variables that it reads or assigns."""

    assigned: frozenset[Variable]
    all: frozenset[Variable]

    @staticmethod
    def of(body: Body) -> TouchedVariables:
        assigned = frozenset(v for item in body for v in all_assigned(item))
        return TouchedVariables(assigned, assigned.union(*map(all_used, body)))


def why_dependent(several: Sequence[Body]) -> str | None:
    """Return why bodies cannot run concurrently, or None if they can."""
    parts = [TouchedVariables.of(body) for body in several]
    for place, part in enumerate(parts):
        for other in parts[:place]:
            for variable in (part.assigned & other.all) | (other.assigned & part.all):
                return f"%{variable.name} is assigned in one of them and used in another"
    return None


def why_not_loop(loop: ForkLoopOp) -> str | None:
    """Return why the iterations of a loop cannot run concurrently, or None if they can."""
    private = frozenset(loop.private)
    head, body, tail = map(TouchedVariables.of, (loop.head.ops, loop.body.ops, loop.tail.ops))
    if any(isinstance(item, ContinueOp) for item in loop.head.walk()):
        return "an iteration may end in the head"
    if body.assigned - private:
        return "a body assigns what is not private to an iteration"
    if (head.assigned - private) & (body.all | tail.all):
        return "an iteration uses what a later head assigns"
    if (tail.assigned - private) & (head.all | body.all):
        return "an iteration uses what an earlier tail assigns"
    return None


def forked(several: Sequence[Body]) -> Body:
    """Return a fork of the bodies, or their sequence if they are not independent or one never
    reaches its end."""
    several = [body for body in several if body]
    if len(several) < 2 or any(map(ends, several)) or why_dependent(several) is not None:
        return tuple(statement for body in several for statement in body)
    return (ForkOp(tuple(map(body_of, tuple(several)))),)
