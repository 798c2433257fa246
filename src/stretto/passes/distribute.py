"""Loop distribution: a loop over several recurrences becomes consecutive loops, one for each.

A recurrence is a cycle of dependences through carried values (`loop_dependence`). Where one feeds a
contraction whose result another one needs, that contraction has to wait for nothing but the first:
with a loop of its own for each recurrence, `batch_loops` can run it for all iterations at once, and
each loop reads only the weights of its own recurrence again and again (Kennedy and Allen, "Automatic
Translation of FORTRAN Programs to Vector Form", 1987, with lists in the place of expanded scalars).

Changes: `for` loops anywhere in the program, inner ones first. Needs: nothing; small loops inside the
body unrolled and invariant ops hoisted, for more to be found. Guarantees: every op runs as often and
on the same values as before, except that index arithmetic and views are repeated in each loop; values
that flow from one loop to the next take at most `limit_bytes`, if the trip count is known.

    for %t in range(0, 64) carry (%h, %g) {   for %t in range(0, 64) carry (%h, %l = list.new()) {
      %y = cell(%x_t, %h)                       %y = cell(%x_t, %h); yield %y, list.push(%l, %y) }
      %w = linear(%y, %W)                =>   for %t in range(0, 64) carry (%g) {
      %z = cell(%w, %g)                         %y = list.get(%l, %t)
      yield %y, %z }                            %z = cell(linear(%y, %W), %g); yield %z }
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import ForOp, ListGetOp, ListNewOp, ListPushOp
from stretto.ir.rewrite import clone_op
from stretto.ir.types import ListType
from stretto.passes.distribution_plan import Part, plan_distribution
from stretto.passes.loop_form import innermost_blocks, iteration_number, normalise

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Distribute:
    """`limit_bytes` bounds what the loops made from one loop hand over to each other."""

    limit_bytes: int = 64 * MEBIBYTE
    name: str = "distribute"

    def apply(self, program: Program) -> Program:
        for function in program.functions.values():
            for block in innermost_blocks(function.body):
                for loop in [op for op in block.ops if isinstance(op, ForOp)]:
                    parts = plan_distribution(loop, self.limit_bytes)
                    if not isinstance(parts, str):
                        place = block.ops.index(loop)
                        block.ops[place : place + 1] = distribute(loop, parts)
        return program


def distribute(loop: ForOp, parts: tuple[Part, ...]) -> list[Op]:
    """The loops that take the place of `loop`; its results become theirs."""
    normalise(loop)
    ops: list[Op] = []
    lists: dict[Value, Value] = {}
    for part in parts:
        ops.extend(_part_loop(loop, part, lists))
    return ops


def _part_loop(loop: ForOp, part: Part, lists: dict[Value, Value]) -> list[Op]:
    """One loop, and the empty lists for what it hands over. `lists` gains those lists' final values."""
    mapping: dict[Value, Value] = {}
    body = Block()
    index = mapping[loop.index] = Value(loop.index.type, loop.index.hint)
    carried = tuple(Value(loop.carried[place].type, loop.carried[place].hint) for place in part.carried)
    mapping.update(zip((loop.carried[place] for place in part.carried), carried, strict=True))
    body.ops.extend(_received(loop, part, lists, mapping))
    body.ops.extend(clone_op(op, mapping) for op in loop.body.ops if op in part.ops)
    empty = [_empty_list(value) for value in part.sent]
    growing = tuple(Value(op.result.type, op.result.hint) for op in empty)
    pushed = [
        _push(values, mapping[value]) for values, value in zip(growing, part.sent, strict=True)
    ]
    body.ops.extend(pushed)
    body.params = (index, *carried, *growing)
    yielded = tuple(mapping.get(v, v) for v in (loop.body.yields[place] for place in part.carried))
    body.yields = (*yielded, *(op.result for op in pushed))
    final = tuple(Value(op.result.type, op.result.hint) for op in empty)
    lists.update(zip(part.sent, final, strict=True))
    inits = (*(loop.inits[place] for place in part.carried), *(op.result for op in empty))
    results = (*(loop.results[place] for place in part.carried), *final)
    new = ForOp(
        loop.start, loop.stop, loop.step, inits, body, results=results, location=loop.location
    )
    return [*empty, new]


def _received(
    loop: ForOp, part: Part, lists: dict[Value, Value], mapping: dict[Value, Value]
) -> list[Op]:
    """Reads this iteration's values of earlier parts; `mapping` gains them."""
    if not part.received:
        return []
    arithmetic, number = iteration_number(loop, mapping[loop.index])
    ops: list[Op] = [*arithmetic]
    for value in part.received:
        item = Value(value.type, value.hint)
        ops.append(ListGetOp(lists[value], number, results=(item,)))
        mapping[value] = item
    return ops


def _empty_list(value: Value) -> Op:
    return ListNewOp(results=(Value(ListType(value.tensor), value.hint),))


def _push(values: Value, item: Value) -> Op:
    return ListPushOp(values, item, results=(Value(values.type, values.hint),))
