"""Which carried tensors a loop body only updates in place, so that one buffer holds them."""

from __future__ import annotations

from stretto.ir.core import Block, Value
from stretto.ir.ops import TensorOp
from stretto.lowering.uses import block_reads
from stretto.ops.properties import properties


def updated_in_place(body: Block, number: int, offset: int) -> bool:
    """True when yield `number` comes from the carried value by updates alone.

    Each update must be the last use of its base. `offset`: parameters before the carried ones.
    """
    producers = {
        op.result: (place, op)
        for place, op in enumerate(body.ops)
        if isinstance(op, TensorOp) and len(op.results) == 1
    }
    last_use = _last_uses(body)
    value = body.yields[number]
    if body.yields.count(value) > 1:
        return False
    while value is not body.params[number + offset]:
        place, op = producers.get(value, (-1, None))
        if op is None or not properties(op.target).updates:
            return False
        base = op.args[0]
        if not isinstance(base, Value) or last_use.get(base) != place or base in body.yields:
            return False
        if op.operands.count(base) > 1:
            return False
        value = base
    return True


def _last_uses(body: Block) -> dict[Value, int]:
    """The place of the last op that reads a value, by itself or in its blocks."""
    found: dict[Value, int] = {}
    for place, op in enumerate(body.ops):
        inner = [value for block in op.blocks for value in block_reads(block)]
        for value in (*op.operands, *inner):
            found[value] = place
    return found
