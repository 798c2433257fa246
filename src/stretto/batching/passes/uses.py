"""Queries that passes make before they move a statement: what statements read, assign and end.

Operators are pure, so a statement may move over another one unless one of them reads or assigns
what the other one assigns, or the other one may end the body before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stretto.batching.instance_program import (
    AssignStatement,
    BlockStep,
    Body,
    BreakStatement,
    CallStatement,
    ContinueStatement,
    ForkLoopStatement,
    ForkStatement,
    IfStatement,
    InstanceFunction,
    LeaveStatement,
    Literal,
    LoopStatement,
    Operand,
    OperandPlaceholder,
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
    bodies,
    walk,
)
from stretto.batching.types import InstanceTensorType, RowsType, Scalar


def operands(statement: Statement) -> Iterator[Operand]:
    """Yield the operands of a statement itself, without nested bodies."""
    match statement:
        case AssignStatement(args=args) | CallStatement(args=args):
            yield from args
        case OperateStatement(operands=given):
            yield from given
        case RecordStatement(operands=given, after=after):
            yield from given
            yield from after
        case ReadStatement(tensor=tensor):
            yield tensor
        case IfStatement(condition=condition):
            yield condition
        case ReturnStatement(value):
            yield value
        case RaiseStatement(parts=parts):
            yield from (part for part in parts if not isinstance(part, str))
        case (
            LoopStatement()
            | ScopeStatement()
            | LeaveStatement()
            | BreakStatement()
            | ContinueStatement()
            | ForkStatement()
            | ForkLoopStatement()
            | PhaseStatement()
        ):
            pass


def used(statement: Statement) -> Iterator[Variable]:
    """Yield the variables that a statement itself reads, without nested bodies."""
    yield from (item for item in operands(statement) if isinstance(item, Variable))


def assigned(statement: Statement) -> tuple[Variable, ...]:
    """Return the variables that a statement itself assigns."""
    match statement:
        case OperateStatement(targets=targets) | RecordStatement(targets=targets):
            return targets
        case AssignStatement(target=target) | CallStatement(target=target):
            return () if target is None else (target,)
        case ReadStatement(target=target):
            return (target,)
        case _:
            return ()


def all_used(statement: Statement) -> set[Variable]:
    """Return the variables that a statement reads, nested bodies included."""
    return {variable for item in walk((statement,)) for variable in used(item)}


def all_assigned(statement: Statement) -> set[Variable]:
    """Return the variables that a statement assigns, nested bodies included."""
    return {variable for item in walk((statement,)) for variable in assigned(item)}


def count_uses(body: Body) -> Counter[Variable]:
    """Count the reads of each variable in a body."""
    return Counter(variable for item in walk(body) for variable in used(item))


@dataclass(frozen=True, slots=True)
class FunctionUses:
    """Number of reads and of assignments of each variable of a function (parameters are assigned
    once)."""

    reads: Counter[Variable]
    assignments: Counter[Variable]

    @staticmethod
    def of(function: InstanceFunction) -> FunctionUses:
        assignments = Counter(function.parameters)
        assignments.update(v for item in walk(function.body) for v in assigned(item))
        return FunctionUses(count_uses(function.body), assignments)

    def is_single(self, operand: Operand) -> bool:
        """Return True if an operand has one value: a literal, or a variable assigned once."""
        return not isinstance(operand, Variable) or self.assignments[operand] == 1


def leaves(statement: Statement, loops: int = 0, labels: frozenset[int] = frozenset()) -> bool:
    """Return True if a statement may jump out of an enclosing loop or scope, or to a loop's next
    iteration. loops, labels: the loops and scopes already entered."""
    match statement:
        case BreakStatement() | ContinueStatement():
            return loops == 0
        case LeaveStatement(label):
            return label not in labels
        case LoopStatement() | ForkLoopStatement():
            loops += 1
        case ScopeStatement(label):
            labels = labels | {label}
        case _:
            pass
    return any(leaves(item, loops, labels) for body in bodies(statement) for item in body)


def ends(body: Body) -> bool:
    """Return True if no path reaches the end of a body, judging by its last statement."""
    if not body:
        return False
    match body[-1]:
        case (
            ReturnStatement()
            | RaiseStatement()
            | BreakStatement()
            | ContinueStatement()
            | LeaveStatement()
        ):
            return True
        case IfStatement(_, then, orelse):
            return ends(then) and ends(orelse)
        case _:
            return False


def with_bodies(statement: Statement, change: Callable[[Body], Body]) -> Statement:
    """Return a statement with each of its bodies replaced by `change(body)`."""
    match statement:
        case IfStatement(condition, then, orelse):
            return IfStatement(condition, change(then), change(orelse))
        case LoopStatement(body):
            return LoopStatement(change(body))
        case ScopeStatement(label, body):
            return ScopeStatement(label, change(body))
        case ForkStatement(several):
            return ForkStatement(tuple(map(change, several)))
        case ForkLoopStatement(head, body, tail, private):
            return ForkLoopStatement(change(head), change(body), change(tail), private)
        case _:
            return statement


def with_operands(statement: Statement, change: Callable[[Operand], Operand]) -> Statement:
    """Return a statement with its own operands, not those of nested bodies, replaced by
    `change(operand)`."""
    match statement:
        case AssignStatement(args=args) | CallStatement(args=args):
            return replace(statement, args=tuple(map(change, args)))
        case OperateStatement(operands=given):
            return replace(statement, operands=tuple(map(change, given)))
        case RecordStatement(operands=given, after=after):
            changed = tuple(map(change, given))
            return replace(statement, operands=changed, after=tuple(map(change, after)))
        case ReadStatement(tensor=tensor):
            return replace(statement, tensor=change(tensor))
        case IfStatement(condition=condition):
            return replace(statement, condition=change(condition))
        case ReturnStatement(value):
            return ReturnStatement(change(value))
        case RaiseStatement(parts=parts):
            changed = tuple(part if isinstance(part, str) else change(part) for part in parts)
            return replace(statement, parts=changed)
        case _:
            return statement


def with_targets(statement: Statement, change: Callable[[Variable], Variable]) -> Statement:
    """Return a statement with its targets replaced by `change(target)`."""
    match statement:
        case OperateStatement(targets=targets) | RecordStatement(targets=targets):
            return replace(statement, targets=tuple(map(change, targets)))
        case (
            AssignStatement(target=Variable() as target)
            | CallStatement(target=Variable() as target)
        ):
            return replace(statement, target=change(target))
        case ReadStatement(target=target):
            return replace(statement, target=change(target))
        case _:
            return statement


def renamed(body: Body, names: Mapping[Variable, Variable]) -> Body:
    """Return a body with variables renamed where they are read and where they are assigned."""

    def operand(item: Operand) -> Operand:
        return names.get(item, item) if isinstance(item, Variable) else item

    def target(item: Variable) -> Variable:
        return names.get(item, item)

    return tuple(
        with_bodies(
            with_targets(with_operands(statement, operand), target),
            lambda inner: renamed(inner, names),
        )
        for statement in body
    )


class FreshNames:
    """Generator of variables whose names are new in a function."""

    def __init__(self, function: InstanceFunction) -> None:
        self._taken = Counter(v.name for item in walk(function.body) for v in assigned(item))

    def like(self, variable: Variable) -> Variable:
        self._taken[variable.name] += 1
        return Variable(f"{variable.name}'{self._taken[variable.name] - 1}", variable.type)


# ---- Equality of operators and blocks: by content, static objects by identity.


@dataclass(slots=True)
class OperationKeys:
    """Keys of the functions and arguments of operators. Objects in a key are kept alive, so that
    no other object gets their identity."""

    _kept: list[Any] = field(default_factory=list[Any])

    def operation(self, operation: Operation) -> Hashable:
        parts = (operation.function, operation.args, operation.kwargs)
        return (*map(self._key, parts), operation.results)

    def _key(self, item: Any) -> Hashable:
        match item:
            case tuple() | list():
                return (type(item), *map(self._key, item))
            case dict():
                return (dict, *((key, self._key(value)) for key, value in item.items()))
            case slice():
                return (slice, *map(self._key, (item.start, item.stop, item.step)))
            case OperandPlaceholder() | bool() | int() | float() | str() | None:
                return (type(item), item, str(item))
            case _:
                self._kept.append(item)
                return id(item)


def operand_key(operand: Operand) -> Hashable:
    """Return a variable itself (identity), or the type and text of a literal (1 is not 1.0, 0.0 is
    not -0.0)."""
    if isinstance(operand, Literal):
        return (type(operand.value), repr(operand.value))
    return operand


class Blocks:
    """The blocks of a program, deduplicated by content."""

    def __init__(self, blocks: list[StaticBlock]) -> None:
        self._blocks = blocks
        self._contents = OperationKeys()
        self._numbers: dict[Hashable, int] = {}
        for number, block in enumerate(blocks):
            key = self._key(block.inputs, block.steps, block.outputs)
            self._numbers.setdefault(key, number)

    def number(
        self,
        inputs: tuple[InstanceTensorType | RowsType | Scalar, ...],
        steps: tuple[BlockStep, ...],
        outputs: tuple[int, ...],
    ) -> int:
        """Return the number of the block with this content; add the block if it is new."""
        key = self._key(inputs, steps, outputs)
        if key not in self._numbers:
            self._numbers[key] = len(self._blocks)
            last = steps[-1].operation.function
            name = getattr(last, "__name__", type(last).__name__).strip("_").lower()
            self._blocks.append(StaticBlock(f"{name}{len(self._blocks)}", inputs, steps, outputs))
        return self._numbers[key]

    def _key(
        self,
        inputs: tuple[InstanceTensorType | RowsType | Scalar, ...],
        steps: tuple[BlockStep, ...],
        outputs: tuple[int, ...],
    ) -> Hashable:
        content = tuple((self._contents.operation(step.operation), step.operands) for step in steps)
        return (inputs, content, outputs)
