"""Loop distribution: a loop over several recurrences becomes consecutive loops, one for each.

A recurrence is a cycle of dependences through carried values (`loop_dependence`). Where one feeds
a contraction whose result another one needs, that contraction has to wait for nothing but the
first: with a loop of its own for each recurrence, `batch_loops` can run it for all iterations at
once, and each loop reads only the weights of its own recurrence again and again (Kennedy and
Allen, "Automatic Translation of FORTRAN Programs to Vector Form", 1987, with lists in the place of
expanded scalars).

Changes: `for` loops anywhere in the program, inner ones first. Needs: nothing; small loops inside
the body unrolled and invariant ops hoisted, for more to be found. Guarantees: every op runs as
often and on the same values as before, except that index arithmetic and views are repeated in each
loop; values that flow from one loop to the next take at most `limit_bytes`, if the trip count is
known.

    for %t in range(0, 64) carry (%h, %g) {   for %t in range(0, 64) carry (%h, %l = list.new()) {
      %y = cell(%x_t, %h)                       %y = cell(%x_t, %h); yield %y, list.push(%l, %y) }
      %w = linear(%y, %W)                =>   for %t in range(0, 64) carry (%g) {
      %z = cell(%w, %g)                         %y = list.get(%l, %t)
      yield %y, %z }                            %z = cell(linear(%y, %W), %g); yield %z }
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import ForOp, ListGetOp, ListNewOp, ListPushOp
from stretto.ir.rewrite import clone_op
from stretto.ir.types import ListType
from stretto.passes.analyses.loop_form import normalise, replace_loops
from stretto.passes.distribution_plan import Part, plan_distribution
from stretto.remarks import Remarks

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Distribute:
    """`limit_bytes` bounds what the loops made from one loop hand over to each other."""

    limit_bytes: int = 64 * MEBIBYTE
    name: ClassVar[str] = "distribute"

    def apply(self, program: Program) -> bool:
        return replace_loops(program, lambda loop, _: self._loop(loop, program.remarks))

    def _loop(self, loop: ForOp, remarks: Remarks) -> list[Op]:
        parts = plan_distribution(loop, self.limit_bytes)
        if isinstance(parts, str):
            remarks.decline(self.name, "for", parts, loop.location)
            return [loop]
        if normalise(loop):
            parts = plan_distribution(loop, self.limit_bytes)
            assert not isinstance(parts, str)
        return distribute(loop, parts)


def distribute(loop: ForOp, parts: tuple[Part, ...]) -> list[Op]:
    """The loops that take the place of a loop in canonical form; its results become theirs."""
    ops: list[Op] = []
    lists: dict[Value, Value] = {}
    for part in parts:
        ops.extend(_part_loop(loop, part, lists))
    return ops


def _part_loop(loop: ForOp, part: Part, lists: dict[Value, Value]) -> list[Op]:
    """One loop after the empty lists for what it hands over. `lists` gains their final values."""
    mapping: dict[Value, Value] = {}
    body = Block()
    index = mapping[loop.index] = _fresh(loop.index)
    old = [loop.carried[place] for place in part.carried]
    carried = tuple(map(_fresh, old))
    mapping.update(zip(old, carried, strict=True))
    for value in part.received:
        item = mapping[value] = _fresh(value)
        body.ops.append(ListGetOp(lists[value], index, results=(item,)))
    body.ops.extend(clone_op(op, mapping) for op in loop.body.ops if op in part.ops)
    types = [Value(ListType(value.tensor), value.hint) for value in part.sent]
    empty = [ListNewOp(results=(value,)) for value in types]
    growing, final = (tuple(map(_fresh, types)) for _ in range(2))
    pushed = [
        ListPushOp(values, mapping[value], results=(_fresh(values),))
        for values, value in zip(growing, part.sent, strict=True)
    ]
    body.ops.extend(pushed)
    body.params = (index, *carried, *growing)
    yielded = tuple(mapping.get(v, v) for v in (loop.body.yields[place] for place in part.carried))
    body.yields = (*yielded, *(op.result for op in pushed))
    lists.update(zip(part.sent, final, strict=True))
    inits = (*(loop.inits[place] for place in part.carried), *(op.result for op in empty))
    results = (*(loop.results[place] for place in part.carried), *final)
    new = ForOp(
        loop.start, loop.stop, loop.step, inits, body, results=results, location=loop.location
    )
    return [*empty, new]


def _fresh(value: Value) -> Value:
    return Value(value.type, value.hint)
