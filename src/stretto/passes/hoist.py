"""Loop-invariant code motion: an op with the same result in every iteration moves before the loop.

An op is invariant if all its operands are defined outside the loop. It moves out of the body of a
`for` or `while`, out of a while's condition, and out of branches inside them, innermost loop first.
Since it may then run although the loop or the branch would not have, only ops that cannot stop the
run move: no list access, no index that may be out of range, no call, nothing random.

    for %i in (0, 8, 1) carry (%a = %x) {     %w = aten.mm.default(%u, %v)
      %w = aten.mm.default(%u, %v)            for %i in (0, 8, 1) carry (%a = %x) {
      %b = aten.add.Tensor(%a, %w)     ->       %b = aten.add.Tensor(%a, %w)
      yield %b                                  yield %b
    }                                         }
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import ConstantOp, ForOp, IfOp, LiteralOp, TensorOp, WhileOp
from stretto.ir.rewrite import defined_values, free_values_of_op
from stretto.ir.sizes import Symbol
from stretto.ir.symbols import bound_symbols, symbols_of_op
from stretto.ops import properties
from stretto.remarks import Remarks


@dataclass(frozen=True, slots=True)
class HoistInvariants:
    name: ClassVar[str] = "hoist"

    def apply(self, program: Program) -> bool:
        moved = [_hoist_in(f.body, program.remarks) for f in program.functions.values()]
        return any(moved)


def stay_reason(op: Op) -> str | None:
    """Return why an op must not run earlier or more often than the Program states, or None."""
    match op:
        case ConstantOp() | LiteralOp():
            return None
        case TensorOp():
            return properties.stay_reason(op)
        case IfOp() | ForOp():
            nested = (stay_reason(inner) for block in op.blocks for inner in block.ops)
            return next((reason for reason in nested if reason is not None), None)
        case _:
            return f"a {op.name} may stop the run, or never end"


def _hoist_in(block: Block, remarks: Remarks) -> bool:
    changed = False
    ops: list[Op] = []
    for op in block.ops:
        for nested in op.blocks:
            changed |= _hoist_in(nested, remarks)
        if isinstance(op, ForOp | WhileOp):
            moved = _take_invariants(op, remarks)
            changed |= bool(moved)
            ops.extend(moved)
        ops.append(op)
    block.ops = ops
    return changed


def _take_invariants(loop: ForOp | WhileOp, remarks: Remarks) -> list[Op]:
    """Remove the invariant ops from the loop and return them, in an order in which they can run."""
    inside = {value for block in loop.blocks for value in defined_values(block)}
    names = {symbol for block in loop.blocks for symbol in bound_symbols(block)}
    moved: list[Op] = []
    for block in loop.blocks:
        _take(block, inside, names, moved, remarks)
    return moved


def _take(
    block: Block, inside: set[Value], names: set[Symbol], moved: list[Op], remarks: Remarks
) -> None:
    """Move the invariant ops of a block to `moved`. inside: values that the loop defines; names:
    symbols that it binds."""
    ops: list[Op] = []
    for op in block.ops:
        reason = stay_reason(op)
        if (reason is None or isinstance(op, TensorOp)) and _is_invariant(op, inside, names):
            if reason is None:
                moved.append(op)
                inside.difference_update(op.results)
                continue
            remarks.decline(HoistInvariants.name, op.name, reason, op.location)
        if isinstance(op, IfOp):
            for nested in op.blocks:
                _take(nested, inside, names, moved, remarks)
        ops.append(op)
    block.ops = ops


def _is_invariant(op: Op, inside: set[Value], names: set[Symbol]) -> bool:
    read = free_values_of_op(op) if op.blocks else op.operands
    if any(value in inside for value in read):
        return False
    return not names or names.isdisjoint(symbols_of_op(op))
