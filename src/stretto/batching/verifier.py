"""The rules of InstancePrograms, checked after the front end and after every pass.

- Every variable is assigned before its use, on every path to it. Exception: in an arm of a
  branch on the number of a choice (`frontend/joins.py`) a variable may be used that only some
  paths to the branch have assigned, namely those on which that number was chosen.
- Break and Continue are in a loop, Leave in the scope that it names, and neither these nor a
  Return leaves a body of a Fork.
- Operands of operators and blocks are tensors, rows and numbers, of the types that the
  operators and blocks take; the types of targets, parameters and results include those of the
  values that they get.
- The variables, functions, blocks, classes and fields that are named exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from stretto.batching.instance_program import (
    PRIMITIVES,
    AssignStatement,
    Body,
    BreakStatement,
    CallStatement,
    ContinueStatement,
    ForkLoopStatement,
    ForkStatement,
    IfStatement,
    InstanceFunction,
    InstanceProgram,
    LeaveStatement,
    Literal,
    LoopStatement,
    Operand,
    OperateStatement,
    Operation,
    PhaseStatement,
    RaiseStatement,
    ReadStatement,
    RecordStatement,
    ReturnStatement,
    ScopeStatement,
    Statement,
    StaticBlock,
    Variable,
    inputs_of,
)
from stretto.batching.passes.effects import why_dependent, why_not_loop
from stretto.batching.printer import print_function
from stretto.batching.types import (
    DictType,
    InstanceTensorType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TupleType,
    Type,
    UnionType,
    alternatives,
)
from stretto.errors import VerifyError

_NUMBERS = (Scalar.BOOL, Scalar.INT, Scalar.FLOAT)


def verify(program: InstanceProgram) -> None:
    """Raise VerifyError for the first rule that a program breaks."""
    for number, cell in enumerate(program.cells):
        _check_type(program, cell, f"cell {number}")
    for number, block in enumerate(program.blocks):
        _check_block(block, number)
    for number, function in enumerate(program.functions):
        _FunctionVerifier(program, number, function).verify()


def holds(wide: Type, narrow: Type) -> bool:
    """Return True if every value of type `narrow` is one of type `wide`."""
    kinds = list(alternatives(wide))
    return all(any(_holds_one(kind, item) for kind in kinds) for item in alternatives(narrow))


def _holds_one(wide: Type, narrow: Type) -> bool:
    if isinstance(wide, TupleType) and isinstance(narrow, TupleType):
        pairs = zip(wide.items, narrow.items, strict=False)
        return len(wide.items) == len(narrow.items) and all(holds(a, b) for a, b in pairs)
    return wide == narrow


def type_of(operand: Operand) -> Type:
    """Return the type of an operand."""
    if isinstance(operand, Variable):
        return operand.type
    match operand.value:
        case None:
            return Scalar.NONE
        case bool():
            return Scalar.BOOL
        case int():
            return Scalar.INT
        case float():
            return Scalar.FLOAT
        case str():
            return Scalar.STR
        case _:
            assert_never(operand.value)


def _check_type(program: InstanceProgram, type_: Type, what: str) -> None:
    for item in alternatives(type_):
        match item:
            case RecordType(number):
                ok = number < len(program.classes)
            case ListType(cell) | DictType(_, cell):
                ok = cell < len(program.cells)
            case TupleType(items):
                for part in items:
                    _check_type(program, part, what)
                ok = True
            case Scalar() | InstanceTensorType() | RowsType() | UnionType():
                ok = True
            case _:
                assert_never(item)
        if not ok:
            raise VerifyError(f"{what} has type {item}, which the program does not have")


def _check_block(block: StaticBlock, number: int) -> None:
    what = f"block {number} {block.name}"
    types = block.types
    known = len(block.inputs)
    for step in block.steps:
        for operand in step.operands:
            if not 0 <= operand < known:
                raise VerifyError(f"{what} uses value {operand} before it is made")
        _check_operation(step.operation, [types[n] for n in step.operands], what)
        known += len(step.operation.results)
    for output in block.outputs:
        if not len(block.inputs) <= output < known:
            raise VerifyError(f"{what} returns value {output}, which no step of it makes")
    if len(set(block.outputs)) != len(block.outputs):
        raise VerifyError(f"{what} returns a value twice")


def _check_operation(operation: Operation, operands: Sequence[Type], what: str) -> None:
    for type_ in operands:
        if not isinstance(type_, InstanceTensorType | RowsType) and type_ not in _NUMBERS:
            raise VerifyError(
                f"{what}: an operand has type {type_}, not a tensor or a number",
                location=operation.location,
            )
    places = set(inputs_of((*operation.args, *(value for _, value in operation.kwargs))))
    if not places <= set(range(len(operands))):
        raise VerifyError(
            f"{what}: an operator has places for operands {sorted(places)}, and {len(operands)} "
            "operands",
            location=operation.location,
        )


_Assigned = frozenset[Variable]


def _meet(ways: Iterable[_Assigned | None]) -> _Assigned | None:
    """Return the variables assigned where several paths join; None is a path that does not arrive
    here."""
    arriving = [way for way in ways if way is not None]
    return frozenset.intersection(*arriving) if arriving else None


@dataclass(slots=True)
class _Around:
    """An enclosing loop, scope or fork. ends: the variables assigned at each jump out of it."""

    kind: str
    label: int | None = None
    ends: list[_Assigned | None] = field(default_factory=list["_Assigned | None"])


class _FunctionVerifier:
    def __init__(self, program: InstanceProgram, number: int, function: InstanceFunction) -> None:
        self._program = program
        self._number = number
        self._function = function
        self._around: list[_Around] = []
        self._seen: set[Variable] = set(function.parameters)
        """Variables that any statement so far has assigned."""
        self._tests: set[Variable] = set()
        """Variables that compare a number with that of an option of a choice."""
        self._choices = 0
        """Number of enclosing branches on such tests."""

    def verify(self) -> None:
        for parameter in self._function.parameters:
            _check_type(self._program, parameter.type, f"parameter {parameter.name}")
        assigned: _Assigned | None = frozenset(self._function.parameters)
        assigned = self._body(self._function.body, assigned)
        if assigned is not None and not holds(self._function.result, Scalar.NONE):
            raise self._error("a path reaches the end of the function without a Return")

    def _error(self, message: str, statement: Statement | None = None) -> VerifyError:
        name = f"function {self._number} {self._function.name}"
        return VerifyError(
            f"{name}: {message}",
            location=getattr(statement, "location", None),
            op=print_function(self._program, self._number),
        )

    def _body(self, body: Body, assigned: _Assigned | None) -> _Assigned | None:
        """Return the variables assigned at the end of a body; None if no path reaches its end."""
        for statement in body:
            if assigned is not None:
                assigned = self._statement(statement, assigned)
        return assigned

    def _statement(self, statement: Statement, assigned: _Assigned) -> _Assigned | None:
        match statement:
            case IfStatement(condition, then, orelse):
                self._use((condition,), assigned, statement)
                self._scalar(condition, (Scalar.BOOL,), statement)
                chooses = condition in self._tests
                self._choices += chooses
                ends = [self._body(then, assigned), self._body(orelse, assigned)]
                self._choices -= chooses
                return _meet(ends)
            case LoopStatement(inner):
                around = _Around("loop")
                self._within(around, inner, assigned)
                return _meet(around.ends)
            case ScopeStatement(label, inner):
                around = _Around("scope", label)
                return _meet([self._within(around, inner, assigned), *around.ends])
            case ForkStatement(several):
                ends = [self._within(_Around("fork"), inner, assigned) for inner in several]
                if any(end is None for end in ends):
                    raise self._error("a body of a fork does not reach its end", statement)
                self._keeps_apart(why_dependent(several), statement)
                return assigned.union(*(end for end in ends if end is not None))
            case ForkLoopStatement():
                return self._fork_loop(statement, assigned)
            case BreakStatement() | ContinueStatement() | LeaveStatement():
                self._jump(statement, assigned)
                return None
            case ReturnStatement(value):
                self._use((value,), assigned, statement)
                if any(around.kind == "fork" for around in self._around):
                    raise self._error("Return leaves a body of a fork", statement)
                self._fits(self._function.result, type_of(value), "the result", statement)
                return None
            case RaiseStatement(_, parts):
                self._use((p for p in parts if not isinstance(p, str)), assigned, statement)
                return None
            case PhaseStatement():
                return assigned
            case (
                AssignStatement()
                | OperateStatement()
                | RecordStatement()
                | CallStatement()
                | ReadStatement()
            ):
                return self._simple(statement, assigned)
            case _:
                assert_never(statement)

    def _fork_loop(self, statement: ForkLoopStatement, assigned: _Assigned) -> _Assigned | None:
        private = frozenset(statement.private)
        around = _Around("loop")
        end: _Assigned | None = self._within(around, statement.head, assigned - private)
        for part in (statement.body, statement.tail):
            if end is not None:
                end = self._within(_Around("fork"), part, end)
        if end is None:
            raise self._error("an iteration of a concurrent loop does not reach its end")
        self._keeps_apart(why_not_loop(statement), statement)
        found = _meet(around.ends)
        return None if found is None else found - private

    def _keeps_apart(self, reason: str | None, statement: Statement) -> None:
        if reason is not None:
            raise self._error(f"bodies of a fork are not independent: {reason}", statement)

    def _within(self, around: _Around, body: Body, assigned: _Assigned) -> _Assigned | None:
        self._around.append(around)
        end = self._body(body, assigned)
        self._around.pop()
        return end

    def _jump(
        self, statement: BreakStatement | ContinueStatement | LeaveStatement, assigned: _Assigned
    ) -> None:
        for around in reversed(self._around):
            if around.kind == "fork":
                raise self._error(
                    f"{type(statement).__name__.removesuffix('Statement')} leaves a body of a fork"
                )
            if isinstance(statement, LeaveStatement):
                if around.kind == "scope" and around.label == statement.label:
                    around.ends.append(assigned)
                    return
            elif around.kind == "loop":
                if isinstance(statement, BreakStatement):
                    around.ends.append(assigned)
                return
        shown = f" {statement.label}" if isinstance(statement, LeaveStatement) else ""
        raise self._error(
            f"{type(statement).__name__.removesuffix('Statement')}{shown} is not inside "
            "of what it ends"
        )

    def _simple(
        self,
        statement: AssignStatement
        | OperateStatement
        | RecordStatement
        | CallStatement
        | ReadStatement,
        assigned: _Assigned,
    ) -> _Assigned:
        match statement:
            case AssignStatement(target, op, args):
                if op not in PRIMITIVES:
                    raise self._error(f"{op!r} is not a primitive", statement)
                self._use(args, assigned, statement)
                if op == "copy" and target is not None:
                    self._fits(target.type, type_of(args[0]), target.name, statement)
                targets = () if target is None else (target,)
            case OperateStatement(targets, operation, operands):
                self._use(operands, assigned, statement)
                types = [type_of(operand) for operand in operands]
                _check_operation(operation, types, f"function {self._number}")
                self._results(targets, operation.results, statement)
            case RecordStatement(targets, number, operands, after=after):
                self._use((*operands, *after), assigned, statement)
                if any(type_of(ghost) is not Scalar.INT for ghost in after):
                    raise self._error("an operand of `after` of a block is not an int", statement)
                if not 0 <= number < len(self._program.blocks):
                    raise self._error(f"there is no block {number}", statement)
                block = self._program.blocks[number]
                self._operands(block, operands, statement)
                types = block.types
                self._results(targets, [types[n] for n in block.outputs], statement)
            case CallStatement(target, number, args):
                self._use(args, assigned, statement)
                if not 0 <= number < len(self._program.functions):
                    raise self._error(f"there is no function {number}", statement)
                called = self._program.functions[number]
                if len(args) != len(called.parameters):
                    raise self._error(f"{called.name} is called with {len(args)} arguments")
                for parameter, arg in zip(called.parameters, args, strict=True):
                    self._fits(parameter.type, type_of(arg), parameter.name, statement)
                targets = () if target is None else (target,)
                if target is not None:
                    self._fits(target.type, called.result, target.name, statement)
            case ReadStatement(target, tensor):
                self._use((tensor,), assigned, statement)
                self._scalar(target, _NUMBERS, statement)
                type_ = type_of(tensor)
                if not isinstance(type_, InstanceTensorType) or any(
                    dim != 1 for dim in type_.shape
                ):
                    raise self._error(f"read of {type_}, not of one element", statement)
                targets = (target,)
            case _:
                assert_never(statement)
        self._seen.update(targets)
        match statement:
            case AssignStatement(Variable() as test, "eq" | "lt", (_, Literal(int()))):
                self._tests.add(test)
            case _:
                pass
        return assigned.union(targets)

    # ---- rules

    def _use(self, operands: Iterable[Operand], assigned: _Assigned, statement: Statement) -> None:
        for operand in operands:
            if not isinstance(operand, Variable) or operand in assigned:
                continue
            if not (self._choices and operand in self._seen):
                raise self._error(
                    f"%{operand.name} is used on a path where it is not assigned", statement
                )

    def _scalar(self, operand: Operand, kinds: Sequence[Scalar], statement: Statement) -> None:
        type_ = type_of(operand)
        if type_ not in kinds:
            wanted = " or ".join(kind.value for kind in kinds)
            raise self._error(f"{wanted} is needed, not {type_}", statement)

    def _fits(self, wide: Type, narrow: Type, what: str, statement: Statement) -> None:
        """Check that at least one alternative of `narrow` fits in `wide`: earlier decisions may
        exclude the others."""
        kinds = list(alternatives(narrow))
        if kinds and not any(holds(wide, kind) for kind in kinds):
            raise self._error(f"{what} of type {wide} gets {narrow}", statement)

    def _results(
        self, targets: Sequence[Variable], types: Sequence[Type], statement: Statement
    ) -> None:
        if len(targets) != len(types):
            raise self._error(f"{len(targets)} targets for {len(types)} results", statement)
        for target, type_ in zip(targets, types, strict=True):
            self._fits(target.type, type_, target.name, statement)

    def _operands(
        self, block: StaticBlock, operands: Sequence[Operand], statement: Statement
    ) -> None:
        if len(operands) != len(block.inputs):
            raise self._error(f"{len(operands)} operands for {block.name}", statement)
        for wanted, operand in zip(block.inputs, operands, strict=True):
            if type_of(operand) != wanted:
                found = type_of(operand)
                raise self._error(f"an operand of {block.name} is {found}, not {wanted}", statement)
