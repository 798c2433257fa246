"""Grain-size coarsening: join the tensor operators between decisions into one static block.

    %a = tanh(%x)                      %n = len(%list)
    %n = len(%list)                    %c = record 0(%x, %y)     # tanh, mul, add
    %b = mul(%a, %y)            =>
    %c = add(%b, %x)

Changes: every `OperateOp` becomes part of a `RecordOp`; equal blocks become one.
Needs: pure operators, which the front end ensures. Guarantees: the same values; operators move over
statements that they do not depend on, calls and loops among them, and operators whose results
are not used and that cannot raise are removed. (ACRoBat, section B.2.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar

from stretto.batching.instance_program import (
    BlockStep,
    Body,
    InstanceProgram,
    PassRemark,
    first_location,
    walk,
)
from stretto.batching.passes.uses import (
    Blocks,
    FunctionUses,
    all_assigned,
    all_used,
    count_uses,
    leaves,
    used,
    with_bodies,
)
from stretto.ir.core import Literal, Op, Operand, Variable
from stretto.ir.data import (
    AssignOp,
    ForkLoopOp,
    ForkOp,
    InvokeOp,
    LoopOp,
    OperateOp,
    PhaseOp,
    ReadOp,
    RecordOp,
    ReturnOp,
    ScopeOp,
    operand_key,
)
from stretto.ir.ops import IfOp
from stretto.ir.types import RowsType, Scalar, TensorType

# ---- Joining the operators of a body into one `RecordOp`.
#
# Operators are collected from the top of the body, and recorded as late as possible: before the
# first statement that reads their results, assigns their operands or results, or may leave the body
# while their results are used after it.


@dataclass(slots=True)
class _Group:
    """Operators that will be one block, with the variables that they assign and read."""

    operates: list[OperateOp] = field(default_factory=list[OperateOp])
    made: set[Variable] = field(default_factory=set[Variable])
    read: set[Variable] = field(default_factory=set[Variable])

    def add(self, statement: OperateOp) -> None:
        self.operates.append(statement)
        self.made.update(statement.targets)
        self.read.update(used(statement))


@dataclass(frozen=True, slots=True)
class Former:
    """Builder of the blocks of one function's operators."""

    blocks: Blocks
    uses: FunctionUses
    alone: bool = False
    """True if each operator is a separate block."""
    remarks: list[PassRemark] = field(default_factory=list[PassRemark])
    """Reasons why operators of one body are not one block."""

    def body(self, body: Body) -> Body:
        """Return the body with records in place of operators, nested bodies included."""
        found: list[Op] = []
        group = _Group()
        after = count_uses(body)
        """Reads from here to the end of the body."""
        between: str | None = None
        """The reason why the next operator is not in the block of the operators before it."""

        def close() -> None:
            nonlocal group
            found.extend(self.record(group.operates))
            group = _Group()

        for statement in body:
            if isinstance(statement, OperateOp):
                if group.made.intersection(statement.targets) or group.read.intersection(
                    statement.targets
                ):
                    close()
                self._remark(between, (statement,))
                between = None
                group.add(statement)
                if self.alone:
                    close()
            else:
                inside = tuple(item for item in walk((statement,)) if isinstance(item, OperateOp))
                if inside:
                    self._remark(between, inside)
                    between = None
                if group.operates:
                    reason = self.why_not_passing(statement, group, after)
                    if reason is not None:
                        between = reason
                        close()
                found.append(with_bodies(statement, self.body))
            after.subtract(count_uses((statement,)))
        close()
        return tuple(found)

    def _remark(self, between: str | None, second: Body) -> None:
        if between is not None:
            self.remarks.append(PassRemark("two blocks, not one", between, first_location(second)))

    def why_not_passing(self, statement: Op, group: _Group, after: Counter[Variable]) -> str | None:
        """Return why a statement that follows the operators of a group cannot move before them, or
        None if it can. after: reads from the statement to the end of the body."""
        if isinstance(statement, PhaseOp):
            return "a phase begins between them"
        if all_used(statement) & group.made:
            return f"{_kind(statement)} between them needs what the first makes"
        if all_assigned(statement) & (group.made | group.read):
            return f"{_kind(statement)} between them changes a variable of the first"
        inside = Counter(variable for item in group.operates for variable in used(item))
        seen_here = all(self.uses.reads[made] == after[made] + inside[made] for made in group.made)
        must_run = any(item.may_raise for item in group.operates)
        if must_run and isinstance(statement, ReturnOp):
            return "the function ends between them"
        if (must_run or not seen_here) and leaves(statement):
            return "a `break`, `continue` or end of a branch between them may skip the second"
        return None

    def record(self, operates: list[OperateOp]) -> list[RecordOp]:
        """Return the record of some operators, in their order; an empty list if their results are
        not used and none of them may raise."""
        inside = Counter(variable for item in operates for variable in used(item))
        made = [target for item in operates for target in item.targets]
        targets = tuple(v for v in made if self.uses.reads[v] > inside[v])
        if not targets:
            targets = tuple(v for item in operates if item.may_raise for v in item.targets)
        if not targets:
            return []
        inputs: dict[Hashable, Operand] = {}
        for item in operates:
            given = (operand for operand in item.inputs if operand not in made)
            inputs.update((operand_key(operand), operand) for operand in given)
        numbers = {key: number for number, key in enumerate(inputs)}
        steps: list[BlockStep] = []
        for item in operates:
            wired = tuple(numbers[operand_key(operand)] for operand in item.inputs)
            steps.append(BlockStep(item.operation, wired))
            for target in item.targets:
                numbers[target] = len(numbers)
        outputs = tuple(numbers[target] for target in targets)
        types = tuple(map(_operand_type, inputs.values()))
        block = self.blocks.number(types, tuple(steps), outputs)
        location = operates[0].operation.location
        return [RecordOp(block, tuple(inputs.values()), results=targets, location=location)]


def _kind(statement: Op) -> str:
    match statement:
        case ReadOp():
            return "a decision on a tensor"
        case InvokeOp():
            return "a call"
        case LoopOp() | ForkLoopOp():
            return "a loop"
        case IfOp() | ScopeOp():
            return "a branch"
        case ForkOp():
            return "one of several concurrent calls"
        case AssignOp(op="append" | "put" | "insert" | "extend" | "store" | "set"):
            return "a list or an object"
        case _:
            return "a value of the instance"


def _operand_type(operand: Operand) -> TensorType | RowsType | Scalar:
    if isinstance(operand, Literal):
        kinds: dict[type, Scalar] = {bool: Scalar.BOOL, int: Scalar.INT, float: Scalar.FLOAT}
        return kinds[type(operand.value)]
    kind = operand.type
    assert isinstance(kind, TensorType | RowsType | Scalar), kind
    return kind


@dataclass(frozen=True, slots=True)
class Coarsen:
    """joins: if False, each operator becomes a separate block."""

    joins: bool = True
    name: ClassVar[str] = "coarsen"

    def apply(self, program: InstanceProgram) -> None:
        blocks = Blocks(program.blocks)
        for function in program.functions.values():
            uses = FunctionUses.of(function)
            former = Former(blocks, uses, alone=not self.joins)
            function.body.ops = list(former.body(function.body.ops))
            program.notes += former.remarks
