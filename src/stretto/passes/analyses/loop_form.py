"""Loops in canonical form, `for k in range(0, trips, 1)`: the index is the iteration number."""

from __future__ import annotations

from collections.abc import Callable

from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import ForOp
from stretto.ir.rewrite import all_blocks, substitute, uses
from stretto.ir.types import INDEX, Dim
from stretto.ops.infer import tensor_op


def replace_loops(program: Program, new: Callable[[ForOp, Block], list[Op]]) -> bool:
    """Puts the ops that `new` gives in the place of each `for` loop, inner loops first.

    `new` gets the loop and the body of its function. True when a loop became several ops.
    """
    changed = False
    for function in program.functions.values():
        for block in innermost_blocks(function.body):
            for loop in [op for op in block.ops if isinstance(op, ForOp)]:
                ops = new(loop, function.body)
                place = block.ops.index(loop)
                block.ops[place : place + 1] = ops
                changed |= len(ops) > 1
    return changed


def innermost_blocks(body: Block) -> list[Block]:
    """Every block of a function, each after the blocks nested in it."""
    return list(all_blocks(body))[::-1]


def normalise(loop: ForOp) -> bool:
    """Make a loop whose trip count is a size run from 0 in steps of 1; the old index is computed.

    True when that changed the loop.
    """
    trips = loop.trips()
    if trips is None or (loop.start == 0 and loop.step == 1):
        return False
    assert not isinstance(loop.start, Value)
    number, index = Value(INDEX, loop.index.hint), loop.index
    if uses(loop.body).get(index):
        ops = _affine_ops(number, loop.step, loop.start)
        loop.body.ops[:0] = ops
        substitute(loop.body, {index: ops[-1].result})
    loop.body.params = (number, *loop.carried)
    loop.start, loop.stop, loop.step = 0, trips, 1
    return True


def _affine_ops(number: Value, scale: int, offset: Dim) -> list[Op]:
    """Ops whose last result is scale * number + offset."""
    ops: list[Op] = []
    if scale != 1:
        ops.append(tensor_op("aten.mul.Tensor", number, scale))
    if offset or not ops:
        form = "aten.add.Tensor" if isinstance(offset, int) else "aten.add.Scalar"
        ops.append(tensor_op(form, ops[-1].result if ops else number, offset))
    return ops
