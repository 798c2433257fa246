"""Pass that turns lists filled by a loop into tensors, so that a block holds tensors only.

Changes: a list that begins empty, gets one item in each iteration of a loop, and is stacked after
it. Needs: nothing. Guarantees: the same results; `dce` then removes what remains of the list.

    %l = list.new()                                  %b = full((s0, 4), 0)
    %m = for %t in (0, s0, 1) carry (%c = %l) {      %m = for %t in (0, s0, 1) carry (%c = %b) {
      %n = list.push(%c, %y)                   =>      %n = select_scatter(%c, %y, 0, %t)
      yield %n }                                       yield %n }
    %s = list.stack(%m)                              (uses of %s become uses of %m)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import ForOp, ListNewOp, ListPushOp, ListStackOp
from stretto.ir.rewrite import all_blocks, substitute, users
from stretto.ir.types import TensorType
from stretto.ops.infer import tensor_op


@dataclass(frozen=True, slots=True)
class FilledLists:
    name: ClassVar[str] = "filled_lists"

    def apply(self, program: Program) -> bool:
        return sum(_in_function(item.body) for item in program.functions.values()) > 0


def _in_function(body: Block) -> int:
    """Rewrite the lists of a function; return the number of stacks that were replaced."""
    known = users(body)
    makers = {value: op for op in body.walk() for value in op.results}
    stacked: dict[Value, Value] = {}
    for block in all_blocks(body):
        for op in list(block.ops):
            if not isinstance(op, ForOp) or op.step not in (1, -1):
                continue
            for place in range(len(op.results)):
                reads = known.get(op.results[place], [])
                if not reads or not _is_filled(op, place, known, makers):
                    continue
                types = {
                    use.result.tensor if isinstance(use, ListStackOp) else None for use in reads
                }
                type_ = types.pop()
                if types or type_ is None or type_.shape[0] != op.trips():
                    continue
                _fill(block, op, place, type_)
                stacked |= {use.results[0]: op.results[place] for use in reads}
    for block in all_blocks(body):
        block.ops = [op for op in block.ops if not op.results or op.results[0] not in stacked]
    substitute(body, stacked)
    return len(stacked)


def _is_filled(
    loop: ForOp, place: int, known: dict[Value, list[Op]], makers: dict[Value, Op]
) -> bool:
    """Return True if the list is empty before the loop, and each iteration only pushes one item to
    it."""
    start, push = makers.get(loop.inits[place]), makers.get(loop.body.yields[place])
    return (
        isinstance(start, ListNewOp)
        and not start.items
        and isinstance(push, ListPushOp)
        and push.list is loop.carried[place]
        and any(push is op for op in loop.body.ops)
        and known[push.list] == [push]
        and known[push.result] == [loop]
        and loop.body.yields.count(push.result) == 1
    )


def _fill(block: Block, loop: ForOp, place: int, type_: TensorType) -> None:
    """Turn the carried list into a tensor of type `type_`, in which each iteration writes its
    item."""
    is_float = type_.dtype.is_float
    zero = False if type_.dtype.value == "bool" else 0.0 if is_float else 0
    begin = tensor_op("aten.full.default", type_.shape, zero, dtype=type_.dtype.torch)
    before = next(n for n, op in enumerate(block.ops) if op is loop)
    block.ops.insert(before, begin)
    carried, result = Value(type_, loop.carried[place].hint), Value(type_)
    at = next(n for n, op in enumerate(loop.body.ops) if loop.body.yields[place] in op.results)
    push = loop.body.ops[at]
    assert isinstance(push, ListPushOp)
    ops: list[Op] = []
    position = loop.index
    if loop.step == -1:
        ops.append(tensor_op("aten.rsub.Scalar", position, loop.start))
        position = ops[-1].results[0]
    elif loop.start != 0:
        ops.append(tensor_op("aten.sub.Tensor", position, loop.start))
        position = ops[-1].results[0]
    ops.append(tensor_op("aten.select_scatter.default", carried, push.item, 0, position))
    for op in ops:
        op.location = push.location
    loop.body.ops[at : at + 1] = ops
    loop.inits = _with(loop.inits, place, begin.results[0])
    loop.body.params = _with(loop.body.params, place + 1, carried)
    loop.body.yields = _with(loop.body.yields, place, ops[-1].results[0])
    loop.results = _with(loop.results, place, result)


def _with(values: tuple[Value, ...], place: int, value: Value) -> tuple[Value, ...]:
    return (*values[:place], value, *values[place + 1 :])
