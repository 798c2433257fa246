"""Which carried tensors a loop body only updates in place, so that one buffer holds them."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.ir.core import Block, Op, Value
from stretto.ir.ops import ForOp, IfOp, TensorOp, WhileOp
from stretto.lowering.uses import block_reads
from stretto.ops.properties import properties


@dataclass(frozen=True, slots=True)
class Updates:
    """How a carried tensor is updated. blocks: the body and the arms that change it. joined: the
    results of branches that are the tensor after an arm has changed it, or has not; and what it was
    before."""

    blocks: set[Block] = field(default_factory=set[Block])
    joined: dict[Value, Value] = field(default_factory=dict[Value, Value])


def updated_in_place(body: Block, number: int, offset: int) -> Updates | None:
    """How yield `number` comes from the carried value, if it does by updates alone, also in the
    arms of branches and in loops. Each update must be the last use of its base.

    `offset`: parameters before the carried ones.
    """
    found = Updates()
    base = _base(body, number, found)
    return found if base is body.params[number + offset] else None


def _base(block: Block, number: int, found: Updates) -> Value | None:
    """The value from outside of the block's ops that yield `number` comes from by updates."""
    value = block.yields[number]
    if block.yields.count(value) > 1:
        return None
    found.blocks.add(block)
    producers = {result: (place, op) for place, op in enumerate(block.ops) for result in op.results}
    last_use = _last_uses(block)
    while value in producers:
        place, op = producers[value]
        base = _before(op, value, found)
        if base is None or last_use.get(base) != place or base in block.yields:
            return None
        value = base
    return value


def _before(op: Op, result: Value, found: Updates) -> Value | None:
    """What an op updates in place into its result; None where it does not."""
    match op:
        case TensorOp():
            if len(op.results) != 1 or not properties(op.target).updates:
                return None
            base = op.args[0]
            return base if isinstance(base, Value) and op.operands.count(base) == 1 else None
        case IfOp():
            number = op.results.index(result)
            base = _base(op.then, number, found)
            if base is None or base is not _base(op.orelse, number, found):
                return None
            found.joined[result] = base
            return base
        case ForOp() | WhileOp():
            number = op.results.index(result)
            base, offset = op.inits[number], len(op.body.params) - len(op.body.yields)
            inside = updated_in_place(op.body, number, offset)
            return None if inside is None or op.operands.count(base) > 1 else base
        case _:
            return None


def _last_uses(body: Block) -> dict[Value, int]:
    """The place of the last op that reads a value, by itself or in its blocks."""
    found: dict[Value, int] = {}
    for place, op in enumerate(body.ops):
        inner = [value for block in op.blocks for value in block_reads(block)]
        for value in (*op.operands, *inner):
            found[value] = place
    return found
