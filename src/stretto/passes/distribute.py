"""Loop distribution: a loop over several recurrences becomes consecutive loops, one per recurrence.

A recurrence is a cycle of dependences through carried values (`loop_dependence`). If one feeds a
contraction whose result another one needs, the contraction has to wait only for the first: with a
separate loop for each recurrence, `batch_loops` can run it for all iterations at once, and each
loop rereads only the weights of its own recurrence (Kennedy and Allen, "Automatic Translation of
FORTRAN Programs to Vector Form", 1987, with lists instead of expanded scalars).

Changes: `for` loops anywhere in the program, inner ones first. Needs: nothing; finds more if small
loops inside the body are unrolled and invariant ops hoisted. Guarantees: every op runs as often and
on the same values as before, except that index arithmetic and views are repeated in each loop;
values that flow from one loop to the next take at most `limit_bytes`, if the trip count is known.

    for %t in range(0, 64) carry (%h, %g) {   for %t in range(0, 64) carry (%h, %l = list.new()) {
      %y = cell(%x_t, %h)                       %y = cell(%x_t, %h); yield %y, list.push(%l, %y) }
      %w = linear(%y, %W)                =>   for %t in range(0, 64) carry (%g) {
      %z = cell(%w, %g)                         %y = list.get(%l, %t)
      yield %y, %z }                            %z = cell(linear(%y, %W), %g); yield %z }
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from stretto.ir.core import Block, Op, Program, Value, fresh
from stretto.ir.ops import ConstantOp, ForOp, ListGetOp, ListNewOp, ListPushOp, LiteralOp, TensorOp
from stretto.ir.rewrite import clone_op
from stretto.ir.size_bounds import at_most
from stretto.ir.symbols import symbols_bound_by
from stretto.ir.types import INDEX, TensorListType, TensorType
from stretto.ops.effects import has_effect
from stretto.ops.properties import is_contraction, is_view, properties
from stretto.passes.analyses.loop_dependences import (
    LoopDependence,
    Node,
    loop_dependence,
    normalise,
    replace_loops,
)
from stretto.remarks import Remarks

# ---- The plan: which part of the body is in which loop, and whether distribution pays.
#
# Recurrences are placed in the order of their dependences. One starts a new loop if a contraction
# that it depends on then depends only on earlier loops; otherwise it joins the last loop that it
# depends on. Ops on no cycle join the first recurrence that needs them. Ops that depend only on the
# index and cost nothing are repeated wherever they are read.


@dataclass(frozen=True, slots=True)
class DistributedLoop:
    """One of the new loops: its ops, the numbers of its carried values in the old loop, and the
    values that it receives from earlier loops and sends to later ones."""

    ops: frozenset[Op]
    carried: tuple[int, ...]
    received: tuple[Value, ...]
    sent: tuple[Value, ...]


def plan_distribution(loop: ForOp, limit_bytes: int) -> tuple[DistributedLoop, ...] | str:
    """Return the loops in order, or the reason why the loop should stay as it is."""
    trips = loop.trips()
    if trips is not None and at_most(trips, 1):
        return "it runs less than twice"
    if len(loop.carried) < 2:
        return "it carries one value"
    if trips is None and (loop.start != 0 or loop.step != 1):
        return "its trip count is not known, and it does not count from 0 in steps of 1"
    if has_effect(loop):
        return "it has a check or a draw, which runs between the ops of its iteration"
    dependence = loop_dependence(loop)
    plan = Planner(loop, dependence)
    plan.place_all()
    if plan.count < 2:
        return "no contraction would depend on earlier loops alone"
    plan.join_lists()
    if plan.count < 2:
        return "a list would have to flow from one loop to the other in each iteration"
    parts = plan.parts()
    size = sum(value.tensor.nbytes for part in parts for value in part.sent) * (
        trips if isinstance(trips, int) else 1
    )
    if size > limit_bytes:
        return f"the loops would hand over {size} bytes"
    return parts


@dataclass(slots=True)
class Planner:
    """Assigns each node the number of its loop. Ops that are repeated or dead have none."""

    loop: ForOp
    dependence: LoopDependence
    loop_of: dict[Node, int] = field(default_factory=dict[Node, int])
    repeated: dict[Node, None] = field(default_factory=dict[Node, None])
    count: int = 0

    def place_all(self) -> None:
        self.find_repeated()
        for number, nodes in enumerate(self.dependence.components):
            if number in self.dependence.cyclic or not isinstance(nodes[0], Op):
                self.place(nodes)

    def find_repeated(self) -> None:
        """Find the ops that are repeated in each loop: they cost nothing and depend on no
        recurrence."""
        for op in self.loop.body.ops:
            makers = [self.dependence.maker[value] for value in self.dependence.reads[op]]
            if _is_free(op) and all(maker in self.repeated for maker in makers):
                self.repeated[op] = None

    def place(self, recurrence: tuple[Node, ...]) -> None:
        """Put a recurrence, and the ops that so far only it needs, into a loop."""
        feeding, sources = self.feeding(recurrence)
        if self.count == 0:
            number = 0
        elif self.enables_batching(feeding):
            number = self.count
        else:
            number = max((self.loop_of[node] for node in sources), default=0)
        self.count = max(self.count, number + 1)
        for node in (*feeding, *recurrence):
            self.loop_of[node] = number

    def feeding(self, recurrence: tuple[Node, ...]) -> tuple[list[Op], list[Node]]:
        """Return the ops without a loop that the recurrence needs, in body order, and the nodes
        with a loop that these depend on."""
        found: set[Node] = set()
        sources: dict[Node, None] = {}
        stack = list(recurrence)
        while stack:
            for value in self.dependence.reads[stack.pop()]:
                node = self.dependence.maker[value]
                if node in self.loop_of:
                    sources[node] = None
                elif node not in self.repeated and node not in recurrence and node not in found:
                    found.add(node)
                    stack.append(node)
        return [op for op in self.loop.body.ops if op in found], list(sources)

    def enables_batching(self, feeding: list[Op]) -> bool:
        """True if a contraction among the ops could be batched over the results of earlier loops.

        It can if it depends on those only through operators that can be batched themselves.
        """
        batched: dict[Op, bool] = {}
        for op in feeding:
            if not isinstance(op, TensorOp) or properties(op.target).batching is None:
                continue
            makers = [self.dependence.maker[value] for value in self.dependence.reads[op]]
            inside = [maker for maker in makers if isinstance(maker, Op) and maker in feeding]
            if all(maker in batched for maker in inside):
                earlier = any(maker in self.loop_of for maker in makers)
                batched[op] = earlier or any(batched[maker] for maker in inside)
                if batched[op] and is_contraction(op):
                    return True
        return False

    def join_lists(self) -> None:
        """Join loops if a value would flow between them that cannot be an item of a list."""
        joined = set(range(1, self.count))
        for node, number in self.loop_of.items():
            for value in self.dependence.reads[node]:
                maker = self.dependence.maker[value]
                if maker in self.repeated or (_can_be_item(value) and not _binds_size(maker)):
                    continue
                joined -= set(range(self.loop_of[maker] + 1, number + 1))
        new = [sum(cut <= number for cut in joined) for number in range(self.count)]
        self.loop_of = {node: new[number] for node, number in self.loop_of.items()}
        self.count = len(joined) + 1

    def parts(self) -> tuple[DistributedLoop, ...]:
        ops = [self.ops(number) for number in range(self.count)]
        received = [self.received(number, ops[number]) for number in range(self.count)]
        flowing = dict.fromkeys(value for values in received for value in values)
        return tuple(
            DistributedLoop(
                frozenset(ops[number]),
                self.carried(number),
                received[number],
                tuple(v for v in flowing if self.loop_of[self.dependence.maker[v]] == number),
            )
            for number in range(self.count)
        )

    def carried(self, number: int) -> tuple[int, ...]:
        values = enumerate(self.loop.carried)
        return tuple(place for place, value in values if self.loop_of[value] == number)

    def ops(self, number: int) -> list[Op]:
        """Return the loop's own ops and the repeated ones that they or its yields read, in body
        order."""
        needed = {self.loop.body.yields[place] for place in self.carried(number)}
        found: list[Op] = []
        for op in reversed(self.loop.body.ops):
            own = self.loop_of.get(op) == number
            if own or (op in self.repeated and not needed.isdisjoint(op.results)):
                found.append(op)
                needed.update(self.dependence.reads[op])
        return found[::-1]

    def received(self, number: int, ops: list[Op]) -> tuple[Value, ...]:
        """Values that the loop reads and earlier loops compute."""
        read = [value for op in ops for value in self.dependence.reads[op]]
        read.extend(
            value
            for place in self.carried(number)
            for value in self.dependence.reads[self.loop.carried[place]]
        )
        makers = {value: self.dependence.maker[value] for value in read}
        return tuple(v for v, maker in makers.items() if self.loop_of.get(maker, number) != number)


def _is_free(op: Op) -> bool:
    """True for constants, views, and arithmetic on single integers."""
    if isinstance(op, (ConstantOp, LiteralOp, ListGetOp)):
        return True
    return (
        isinstance(op, TensorOp)
        and bool(op.results)
        and (is_view(op) or op.results[0].type == INDEX)
    )


def _binds_size(node: Node) -> bool:
    """True if the node binds a size, which types may name: its readers have to be in the same
    loop."""
    return isinstance(node, Op) and bool(symbols_bound_by(node))


def _can_be_item(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.is_static


MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Distribute:
    """The pass; `limit_bytes` bounds the values that the loops made from one loop pass to each
    other."""

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


def distribute(loop: ForOp, parts: tuple[DistributedLoop, ...]) -> list[Op]:
    """Return the loops that replace a loop in canonical form; they define its results."""
    ops: list[Op] = []
    lists: dict[Value, Value] = {}
    for part in parts:
        ops.extend(_part_loop(loop, part, lists))
    return ops


def _part_loop(loop: ForOp, part: DistributedLoop, lists: dict[Value, Value]) -> list[Op]:
    """Return one loop, preceded by the empty lists for the values that it sends. Adds their final
    values to `lists`."""
    mapping: dict[Value, Value] = {}
    body = Block()
    index = mapping[loop.index] = fresh(loop.index)
    old = [loop.carried[place] for place in part.carried]
    carried = tuple(map(fresh, old))
    mapping.update(zip(old, carried, strict=True))
    for value in part.received:
        item = mapping[value] = fresh(value)
        body.ops.append(ListGetOp(lists[value], index, results=(item,)))
    body.ops.extend(clone_op(op, mapping) for op in loop.body.ops if op in part.ops)
    types = [Value(TensorListType(value.tensor), value.hint) for value in part.sent]
    empty = [ListNewOp(results=(value,)) for value in types]
    growing, final = (tuple(map(fresh, types)) for _ in range(2))
    pushed = [
        ListPushOp(values, mapping[value], results=(fresh(values),))
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
