"""Queries that passes make before they move a statement: what statements read, assign and end.

Operators are pure, so a statement may move over another one unless one of them reads or assigns
what the other one assigns, or the other one may end the body before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stretto.batching.instance_program import BlockStep, Body, StaticBlock, walk
from stretto.ir.core import Block, Op, Operand, Variable, block_fields
from stretto.ir.data import (
    BreakOp,
    ContinueOp,
    ForkLoopOp,
    InstanceFunction,
    LeaveOp,
    LoopOp,
    RaiseOp,
    ReturnOp,
    ScopeOp,
    body_of,
    operation_key,
)
from stretto.ir.ops import IfOp
from stretto.ir.types import RowsType, Scalar, TensorType


def used(op: Op) -> tuple[Variable, ...]:
    """Return the variables that an op itself reads, without nested bodies."""
    return op.operands  # pyright: ignore[reportReturnType]


def assigned(op: Op) -> tuple[Variable, ...]:
    """Return the variables that an op itself assigns."""
    return op.results  # pyright: ignore[reportReturnType]


def all_used(op: Op) -> set[Variable]:
    """Return the variables that an op reads, nested bodies included."""
    return {variable for item in op.walk() for variable in used(item)}


def all_assigned(op: Op) -> set[Variable]:
    """Return the variables that an op assigns, nested bodies included."""
    return {variable for item in op.walk() for variable in assigned(item)}


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
        assignments.update(v for item in function.body.walk() for v in assigned(item))
        return FunctionUses(count_uses(function.body.ops), assignments)

    def is_single(self, operand: Operand) -> bool:
        """Return True if an operand has one value: a literal, or a variable assigned once."""
        return not isinstance(operand, Variable) or self.assignments[operand] == 1


def leaves(op: Op, loops: int = 0, labels: frozenset[int] = frozenset()) -> bool:
    """Return True if an op may jump out of an enclosing loop or scope, or to a loop's next
    iteration. loops, labels: the loops and scopes already entered."""
    match op:
        case BreakOp() | ContinueOp():
            return loops == 0
        case LeaveOp(label):
            return label not in labels
        case LoopOp() | ForkLoopOp():
            loops += 1
        case ScopeOp(label):
            labels = labels | {label}
        case _:
            pass
    return any(leaves(item, loops, labels) for block in op.blocks for item in block.ops)


def ends(body: Body) -> bool:
    """Return True if no path reaches the end of a body, judging by its last statement."""
    if not body:
        return False
    match body[-1]:
        case ReturnOp() | RaiseOp() | BreakOp() | ContinueOp() | LeaveOp():
            return True
        case IfOp(_, then, orelse):
            return ends(then.ops) and ends(orelse.ops)
        case _:
            return False


def with_bodies(op: Op, change: Callable[[Body], Body]) -> Op:
    """Return an op with each of its bodies replaced by `change(body)`; an op without any as it
    is."""
    changed: dict[str, Any] = {}
    for name in block_fields(type(op)):
        held: Block | tuple[Block, ...] = getattr(op, name)
        several = (held,) if isinstance(held, Block) else held
        made = tuple(body_of(change(block.ops)) for block in several)
        changed[name] = made[0] if isinstance(held, Block) else made
    return replace(op, **changed) if changed else op


def with_operands(op: Op, change: Callable[[Operand], Operand]) -> Op:
    """Return an op with its own operands, not those of nested bodies, replaced by
    `change(operand)`."""
    if not op.operands:
        return op
    changed = replace(op)
    changed.substitute(change)  # pyright: ignore[reportArgumentType]
    return changed


def renamed(body: Body, names: Mapping[Variable, Variable]) -> Body:
    """Return a body with variables renamed where they are read and where they are assigned."""

    def operand(item: Operand) -> Operand:
        return names.get(item, item) if isinstance(item, Variable) else item

    def one(op: Op) -> Op:
        changed = with_bodies(with_operands(op, operand), inner)
        results = tuple(names.get(target, target) for target in assigned(op))
        return replace(changed, results=results)

    def inner(part: Body) -> Body:
        return [one(op) for op in part]

    return inner(body)


class FreshNames:
    """Generator of variables whose names are new in a function."""

    def __init__(self, function: InstanceFunction) -> None:
        self._taken = Counter(v.name for item in function.body.walk() for v in assigned(item))

    def like(self, variable: Variable) -> Variable:
        self._taken[variable.name] += 1
        return Variable(f"{variable.name}'{self._taken[variable.name] - 1}", variable.type)


# ---- Equality of blocks: by content, static objects by identity.


class Blocks:
    """The blocks of a program, deduplicated by content."""

    def __init__(self, blocks: list[StaticBlock]) -> None:
        self._blocks = blocks
        self._numbers: dict[Hashable, int] = {}
        for number, block in enumerate(blocks):
            key = self._key(block.inputs, block.steps, block.outputs)
            self._numbers.setdefault(key, number)

    def number(
        self,
        inputs: tuple[TensorType | RowsType | Scalar, ...],
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
        inputs: tuple[TensorType | RowsType | Scalar, ...],
        steps: tuple[BlockStep, ...],
        outputs: tuple[int, ...],
    ) -> Hashable:
        content = tuple((operation_key(step.operation), step.operands) for step in steps)
        return (inputs, content, outputs)
