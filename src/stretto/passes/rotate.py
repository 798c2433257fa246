"""Loop rotation: the test of a `while` is computed at the end of the previous iteration.

The tensor operators of a condition, such as a norm or a comparison of all elements, move to
the end of the body, among the operators of the iteration: they are scheduled with these,
early if they depend on little, and units that wait for something else may compute them. The
condition keeps its arithmetic on single numbers. (Loop inversion: Muchnick, "Advanced
Compiler Design and Implementation", section 18.5.)

Changes: `while` loops whose condition has operators on tensors with dims. Needs: nothing;
fewer values are carried if invariants are hoisted. Guarantees: each op runs as often as
before, in the same order.

    while carry (%x = %a) {                     %m = norm(%a)
      %n = norm(%x)                             while carry (%x = %a, %n = %m) {
      %c = gt(%n, 1)                              %c = gt(%n, 1)
      condition %c } do {                  =>     condition %c } do {
      %y = step(%x)                               %y = step(%x)
      yield %y }                                  %o = norm(%y)
                                                  yield %y, %o }
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.ir.core import Block, Op, Program, Value, fresh
from stretto.ir.ops import ConstantOp, LiteralOp, TensorOp, WhileOp
from stretto.ir.rewrite import all_blocks, clone_op, free_values_of_op
from stretto.ir.symbols import bound_symbols
from stretto.ir.types import TensorType
from stretto.ops.properties import is_view
from stretto.remarks import Remarks


@dataclass(frozen=True, slots=True)
class Rotate:
    name: ClassVar[str] = "rotate"

    def apply(self, program: Program) -> bool:
        changed = False
        for function in program.functions.values():
            for block in list(all_blocks(function.body)):
                changed |= _in_block(block, program.remarks)
        return changed


def _in_block(block: Block, remarks: Remarks) -> bool:
    changed = False
    for loop in [op for op in block.ops if isinstance(op, WhileOp)]:
        moved = moving(loop)
        if isinstance(moved, str):
            remarks.decline(Rotate.name, "while", moved, loop.location)
            continue
        place = block.ops.index(loop)
        block.ops[place:place] = rotate(loop, moved)
        changed = True
    return changed


def moving(loop: WhileOp) -> list[Op] | str:
    """Return the ops of the condition that would move, or the reason why none does.

    They are all ops up to the last one on tensors with dims, so that the order stays the same.
    """
    ops = loop.condition.ops
    if any(True for _ in bound_symbols(loop.condition)):
        return "its condition binds a size"
    last = max((place for place, op in enumerate(ops) if _is_work(op)), default=None)
    return "its condition computes with single numbers only" if last is None else ops[: last + 1]


def _is_work(op: Op) -> bool:
    """True if an op computes with a tensor that has dims."""
    if op.blocks or not isinstance(op, TensorOp):
        return bool(op.blocks)
    values = (*op.operands, *op.results)
    types = [value.type for value in values if isinstance(value.type, TensorType)]
    return any(type.rank for type in types) and not is_view(op)


def rotate(loop: WhileOp, moved: list[Op]) -> list[Op]:
    """Move ops from the condition of a loop to its body; return the copies that run before the
    loop."""
    condition, body = loop.condition, loop.body
    known = [op for op in moved if isinstance(op, LiteralOp | ConstantOp)]
    results = {value for op in moved if op not in known for value in op.results}
    staying = [*known, *condition.ops[len(moved) :]]
    read = [value for op in staying for value in free_values_of_op(op)]
    kept = [value for value in dict.fromkeys((*read, *condition.yields)) if value in results]

    before, mapping = _copy(moved, dict(zip(condition.params, loop.inits, strict=True)))
    loop.inits = (*loop.inits, *(mapping[value] for value in kept))
    inside, mapping = _copy(moved, dict(zip(condition.params, body.yields, strict=True)))
    body.ops.extend(inside)
    body.yields = (*body.yields, *(mapping[value] for value in kept))
    body.params = (*body.params, *map(fresh, kept))
    condition.ops = staying
    condition.params = (*condition.params, *kept)
    loop.results = (*loop.results, *map(fresh, kept))
    return before


def _copy(ops: list[Op], mapping: dict[Value, Value]) -> tuple[list[Op], dict[Value, Value]]:
    return [clone_op(op, mapping) for op in ops], mapping
