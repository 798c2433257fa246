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

from collections.abc import Sequence
from typing import assert_never

from stretto.batching.instance_program import InstanceProgram, StaticBlock, inputs_of
from stretto.batching.passes.effects import why_dependent, why_not_loop
from stretto.batching.printer import print_function
from stretto.errors import VerifyError
from stretto.ir.assigned import Assigned, AssignedVariables, EnclosingBlock
from stretto.ir.core import Block, Literal, Op, Operand, Value, Variable
from stretto.ir.data import (
    PRIMITIVES,
    AssignOp,
    BreakOp,
    ContinueOp,
    ForkLoopOp,
    ForkOp,
    InstanceFunction,
    InvokeOp,
    LeaveOp,
    LoopOp,
    OperateOp,
    Operation,
    PhaseOp,
    RaiseOp,
    ReadOp,
    RecordOp,
    ReturnOp,
    ScopeOp,
)
from stretto.ir.ops import IfOp
from stretto.ir.types import (
    DataType,
    DictType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    UnionType,
    alternatives,
)

_NUMBERS = (Scalar.BOOL, Scalar.INT, Scalar.FLOAT)


def verify(program: InstanceProgram) -> None:
    """Raise VerifyError for the first rule that a program breaks."""
    for number, cell in enumerate(program.cells):
        _check_type(program, cell, f"cell {number}")
    for number, block in enumerate(program.blocks):
        _check_block(block, number)
    for function in program.functions.values():
        _FunctionVerifier(program, function).verify()


def holds(wide: DataType, narrow: DataType) -> bool:
    """Return True if every value of type `narrow` is one of type `wide`."""
    kinds = list(alternatives(wide))
    return all(any(_holds_one(kind, item) for kind in kinds) for item in alternatives(narrow))


def _holds_one(wide: DataType, narrow: DataType) -> bool:
    if isinstance(wide, TupleType) and isinstance(narrow, TupleType):
        pairs = zip(wide.items, narrow.items, strict=False)
        return len(wide.items) == len(narrow.items) and all(holds(a, b) for a, b in pairs)
    return wide == narrow


def type_of(operand: Operand) -> DataType:
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


def _check_type(program: InstanceProgram, type_: DataType, what: str) -> None:
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
            case Scalar() | TensorType() | RowsType() | UnionType():
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


def _check_operation(operation: Operation, operands: Sequence[DataType], what: str) -> None:
    for type_ in operands:
        if not isinstance(type_, TensorType | RowsType) and type_ not in _NUMBERS:
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


class _FunctionVerifier(AssignedVariables):
    def __init__(self, program: InstanceProgram, function: InstanceFunction) -> None:
        super().__init__()
        self._program = program
        self._function = function
        self._seen: set[Value] = set(function.parameters)
        """Variables that any op so far has assigned."""
        self._tests: set[Value] = set()
        """Variables that compare a number with that of an option of a choice."""
        self._choices = 0
        """Number of enclosing branches on such tests."""

    def verify(self) -> None:
        for parameter in self._function.parameters:
            _check_type(self._program, parameter.type, f"parameter {parameter.name}")
        end = self.body(self._function.body.ops, frozenset(self._function.parameters))
        if end is not None and not holds(self._function.result, Scalar.NONE):
            raise self._error("a path reaches the end of the function without a Return")

    def _error(self, message: str, op: Op | None = None) -> VerifyError:
        return VerifyError(
            f"function {self._function.name}: {message}",
            location=None if op is None else op.location,
            op=print_function(self._function),
        )

    def visit(self, op: Op, assigned: Assigned) -> None:
        for value in op.operands:
            if value not in assigned and not (self._choices and value in self._seen):
                raise self._error(f"%{value.hint} is used on a path where it is not assigned", op)
        match op:
            case IfOp(Variable() as condition):
                self._scalar(condition, (Scalar.BOOL,), op)
            case BreakOp() | ContinueOp() | LeaveOp():
                self._jump(op)
            case ReturnOp(value):
                if any(around.kind == "fork" for around in self.around):
                    raise self._error("Return leaves a body of a fork", op)
                self._fits(self._function.result, type_of(value), "the result", op)
            case LoopOp() | ScopeOp() | ForkOp() | ForkLoopOp() | RaiseOp() | PhaseOp():
                pass
            case AssignOp() | OperateOp() | RecordOp() | InvokeOp() | ReadOp():
                self._simple(op)
            case _:
                raise self._error(f"`{op.name}` is not an op on data", op)

    def after(self, op: Op, assigned: Assigned) -> Assigned | None:
        chooses = isinstance(op, IfOp) and op.condition in self._tests
        self._choices += chooses
        found = super().after(op, assigned)
        self._choices -= chooses
        match op:
            case ForkOp(several):
                self._keeps_apart(why_dependent([body.ops for body in several]), op)
            case ForkLoopOp():
                self._keeps_apart(why_not_loop(op), op)
            case _:
                pass
        return found

    def within(self, around: EnclosingBlock, block: Block, assigned: Assigned) -> Assigned | None:
        end = super().within(around, block, assigned)
        if end is None and around.kind in ("fork", "head"):
            what = "a body of a fork" if around.kind == "fork" else "a concurrent loop's head"
            raise self._error(f"{what} does not reach its end")
        return end

    def _keeps_apart(self, reason: str | None, op: Op) -> None:
        if reason is not None:
            raise self._error(f"bodies of a fork are not independent: {reason}", op)

    def _jump(self, op: BreakOp | ContinueOp | LeaveOp) -> None:
        name = type(op).__name__.removesuffix("Op")
        around = self.target(op)
        if around is None:
            shown = f" {op.label}" if isinstance(op, LeaveOp) else ""
            raise self._error(f"{name}{shown} is not inside of what it ends")
        if around.kind == "fork":
            raise self._error(f"{name} leaves a body of a fork")

    def _simple(self, statement: AssignOp | OperateOp | RecordOp | InvokeOp | ReadOp) -> None:
        match statement:
            case AssignOp(target, op, args):
                if op not in PRIMITIVES:
                    raise self._error(f"{op!r} is not a primitive", statement)
                if op == "copy" and target is not None:
                    self._fits(target.type, type_of(args[0]), target.name, statement)
            case OperateOp(targets, operation, operands):
                types = [type_of(operand) for operand in operands]
                _check_operation(operation, types, f"function {self._function.name}")
                self._results(targets, operation.results, statement)
            case RecordOp(targets, number, operands, after=after):
                if any(type_of(ghost) is not Scalar.INT for ghost in after):
                    raise self._error("an operand of `after` of a block is not an int", statement)
                if not 0 <= number < len(self._program.blocks):
                    raise self._error(f"there is no block {number}", statement)
                block = self._program.blocks[number]
                self._operands(block, operands, statement)
                types = block.types
                self._results(targets, [types[n] for n in block.outputs], statement)
            case InvokeOp(target, name, args):
                if name not in self._program.functions:
                    raise self._error(f"there is no function {name}", statement)
                called = self._program.functions[name]
                if len(args) != len(called.parameters):
                    raise self._error(f"{called.name} is called with {len(args)} arguments")
                for parameter, arg in zip(called.parameters, args, strict=True):
                    self._fits(parameter.type, type_of(arg), parameter.name, statement)
                if target is not None:
                    self._fits(target.type, called.result, target.name, statement)
            case ReadOp(target, tensor):
                self._scalar(target, _NUMBERS, statement)
                type_ = type_of(tensor)
                if not isinstance(type_, TensorType) or any(dim != 1 for dim in type_.shape):
                    raise self._error(f"read of {type_}, not of one element", statement)
            case _:
                assert_never(statement)
        self._seen.update(statement.results)
        match statement:
            case AssignOp(Variable() as test, "eq" | "lt", (_, Literal(int()))):
                self._tests.add(test)
            case _:
                pass

    # ---- rules

    def _scalar(self, operand: Operand, kinds: Sequence[Scalar], statement: Op) -> None:
        type_ = type_of(operand)
        if type_ not in kinds:
            wanted = " or ".join(kind.value for kind in kinds)
            raise self._error(f"{wanted} is needed, not {type_}", statement)

    def _fits(self, wide: DataType, narrow: DataType, what: str, statement: Op) -> None:
        """Check that at least one alternative of `narrow` fits in `wide`: earlier decisions may
        exclude the others."""
        kinds = list(alternatives(narrow))
        if kinds and not any(holds(wide, kind) for kind in kinds):
            raise self._error(f"{what} of type {wide} gets {narrow}", statement)

    def _results(
        self, targets: Sequence[Variable], types: Sequence[DataType], statement: Op
    ) -> None:
        if len(targets) != len(types):
            raise self._error(f"{len(targets)} targets for {len(types)} results", statement)
        for target, type_ in zip(targets, types, strict=True):
            self._fits(target.type, type_, target.name, statement)

    def _operands(self, block: StaticBlock, operands: Sequence[Operand], statement: Op) -> None:
        if len(operands) != len(block.inputs):
            raise self._error(f"{len(operands)} operands for {block.name}", statement)
        for wanted, operand in zip(block.inputs, operands, strict=True):
            if type_of(operand) != wanted:
                found = type_of(operand)
                raise self._error(f"an operand of {block.name} is {found}, not {wanted}", statement)
