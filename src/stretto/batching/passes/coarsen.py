"""Grain-size coarsening: neighbouring tensor operators become one static block.

    %a = tanh(%x)                      %c = Record block0(%x, %y)
    %b = mul(%a, %y)            =>         block0: tanh, mul, add
    %c = add(%b, %x)

Changes: every `Operate` becomes part of a `Record`; equal blocks are one. Needs: operators are
pure, which the front end sees to. Guarantees: the same values; operators move over primitives
that they do not depend on. (ACRoBat, section B.2.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stretto.batching.program import (
    Assign,
    Block,
    Body,
    Call,
    Fork,
    If,
    Input,
    InstanceProgram,
    Literal,
    Loop,
    Operand,
    Operate,
    Operation,
    Raise,
    Read,
    Record,
    Return,
    Scope,
    Statement,
    Step,
    Variable,
    walk,
)
from stretto.batching.types import RowsType, Scalar, TensorType


@dataclass(frozen=True, slots=True)
class Coarsen:
    """`joins`: whether neighbours become one block; otherwise each operator is one."""

    joins: bool = True
    name: ClassVar[str] = "coarsen"

    def apply(self, program: InstanceProgram) -> None:
        blocks = _Blocks(program.blocks)
        for function in program.functions:
            uses = Counter(id(v) for item in walk(function.body) for v in used(item))
            function.body = _Former(blocks, uses, self.joins).body(function.body)


def used(statement: Statement) -> Iterator[Variable]:
    """The variables that a statement itself reads, without what is inside of it."""
    operands: tuple[object, ...] = ()
    match statement:
        case Assign(args=args) | Call(args=args):
            operands = args
        case Operate(operands=given) | Record(operands=given):
            operands = given
        case Read(tensor=tensor):
            operands = (tensor,)
        case If(condition=condition):
            operands = (condition,)
        case Return(value):
            operands = (value,)
        case Raise(parts=parts):
            operands = parts
        case _:
            pass
    yield from (item for item in operands if isinstance(item, Variable))


def assigned(statement: Statement) -> tuple[Variable, ...]:
    """The variables that a statement itself assigns."""
    match statement:
        case Operate(targets=targets) | Record(targets=targets):
            return targets
        case Assign(target=target) | Call(target=target):
            return () if target is None else (target,)
        case Read(target=target):
            return (target,)
        case _:
            return ()


class _Blocks:
    """The blocks of a program, each once."""

    def __init__(self, blocks: list[Block]) -> None:
        self._blocks = blocks
        self._numbers: dict[Hashable, int] = {}
        self._kept: list[Any] = []

    def number(
        self,
        inputs: tuple[TensorType | RowsType | Scalar, ...],
        steps: tuple[Step, ...],
        outputs: tuple[int, ...],
    ) -> int:
        content = tuple((self._operation(step.operation), step.operands) for step in steps)
        key = (inputs, content, outputs)
        if key not in self._numbers:
            self._numbers[key] = len(self._blocks)
            last = steps[-1].operation.function
            name = getattr(last, "__name__", type(last).__name__).strip("_").lower()
            self._blocks.append(Block(f"{name}{len(self._blocks)}", inputs, steps, outputs))
        return self._numbers[key]

    def _operation(self, operation: Operation) -> Hashable:
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
            case Input() | bool() | int() | float() | str() | None:
                return (type(item), item, str(item))
            case _:
                self._kept.append(item)
                return id(item)


@dataclass(slots=True)
class _Group:
    """Operators that will be one block, and the primitives between them that need them not."""

    operates: list[Operate] = field(default_factory=list[Operate])
    made: set[int] = field(default_factory=set[int])
    read: set[int] = field(default_factory=set[int])

    def add(self, statement: Operate) -> None:
        self.operates.append(statement)
        self.made.update(id(variable) for variable in statement.targets)
        self.read.update(id(variable) for variable in used(statement))


class _Former:
    """Forms the blocks of one function."""

    def __init__(self, blocks: _Blocks, uses: Counter[int], joins: bool) -> None:
        self._blocks = blocks
        self._uses = uses
        self._joins = joins

    def body(self, body: Body) -> Body:
        found: list[Statement] = []
        group = _Group()

        def close() -> None:
            nonlocal group
            if group.operates:
                found.append(self._record(group))
            group = _Group()

        for statement in body:
            if isinstance(statement, Operate):
                targets = {id(variable) for variable in statement.targets}
                if targets & (group.made | group.read):
                    close()
                group.add(statement)
                if not self._joins:
                    close()
                continue
            if not self._passes(statement, group):
                close()
            found.append(self._inner(statement))
        close()
        return tuple(found)

    def _passes(self, statement: Statement, group: _Group) -> bool:
        """Whether a statement may come before operators that stand before it."""
        if not isinstance(statement, Assign):
            return False
        reads = {id(variable) for variable in used(statement)}
        writes = {id(variable) for variable in assigned(statement)}
        return not (reads & group.made or writes & (group.made | group.read))

    def _inner(self, statement: Statement) -> Statement:
        match statement:
            case If(condition, then, orelse):
                return If(condition, self.body(then), self.body(orelse))
            case Loop(body):
                return Loop(self.body(body))
            case Scope(label, body):
                return Scope(label, self.body(body))
            case Fork(several):
                return Fork(tuple(map(self.body, several)))
            case _:
                return statement

    def _record(self, group: _Group) -> Record:
        inputs: list[Operand] = []
        types: list[TensorType | RowsType | Scalar] = []
        numbers: dict[object, int] = {}
        for item in group.operates:
            for operand in item.operands:
                key = _operand_key(operand)
                if id(operand) in group.made or key in numbers:
                    continue
                numbers[key] = len(inputs)
                inputs.append(operand)
                types.append(_operand_type(operand))
        steps: list[Step] = []
        inside: Counter[int] = Counter()
        for item in group.operates:
            wired = tuple(numbers[_operand_key(operand)] for operand in item.operands)
            inside.update(id(variable) for variable in used(item))
            steps.append(Step(item.operation, wired))
            for target in item.targets:
                numbers[_operand_key(target)] = len(numbers)
        targets = [
            target
            for item in group.operates
            for target in item.targets
            if self._uses[id(target)] > inside[id(target)]
        ]
        outputs = tuple(numbers[_operand_key(target)] for target in targets)
        block = self._blocks.number(tuple(types), tuple(steps), outputs)
        location = group.operates[0].operation.location
        return Record(tuple(targets), block, tuple(inputs), location)


def _operand_key(operand: Operand) -> object:
    if isinstance(operand, Literal):
        return (type(operand.value), repr(operand.value))
    return id(operand)


def _operand_type(operand: Operand) -> TensorType | RowsType | Scalar:
    if isinstance(operand, Literal):
        kinds = {bool: Scalar.BOOL, int: Scalar.INT, float: Scalar.FLOAT}
        return kinds[type(operand.value)]  # type: ignore[index]
    kind = operand.type
    assert isinstance(kind, TensorType | RowsType | Scalar), kind
    return kind
