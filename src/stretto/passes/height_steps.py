"""Computation of the rest of a recursion by levels: some activations of one height per step.

`HeightSteps` makes the function that calls the walk and then computes the rest (see
`recursion_levels`):

    walk; ends, children, records = the records of the walk, sorted by height
    pools = the results of activations without calls, then rows for the others
    start, end = 0, ends[0]
    while start < (number of activations with calls):
        stop = min(end, start + rows)
        pools[first + start :] = (rest of `rows` activations, from pools[children] and records)
        start, end = stop, ends[stop]

Rows of a step that its height does not fill compute on whatever is in memory, and are computed
again by the step that they belong to.

On machines where waits dominate the cost (`in_place`), a step is one kernel. It reads the
results of calls in place and writes its own after them into the same tensor, by
`stretto.rows_before`, which declares that the two are disjoint. If the results of activations
without calls are rows of a tensor that all calls pass on, they are read there
(`stretto.rows_of`); then row 0 of the pools is unused. Elsewhere a step branches on how many
activations its height has left.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stretto.ir.core import Block, Function, Program, Value, fresh
from stretto.ir.ops import (
    CallOp,
    ForOp,
    IfOp,
    ListGetOp,
    ListNewOp,
    ListStackOp,
    LiteralOp,
    WhileOp,
)
from stretto.ir.rewrite import clone_op
from stretto.ir.sizes import Size
from stretto.ir.types import INDEX, Dim, TensorType
from stretto.ops.infer import Emitter
from stretto.passes.batch_loops import fresh_symbol
from stretto.passes.batching.rules import Batch
from stretto.passes.recursion_walk import (
    BaseCaseRow,
    Lists,
    Recursion,
    base_row,
    length_of,
    walk_of,
)

# ---- Sorting of small integers, as many as the run decides.


def compared_places(out: Emitter, numbers: Value) -> tuple[Value, Value]:
    """Return, for each item, its place in sorted order, in which equal items keep their order, and
    the number of items that are not greater. All pairs are compared, in few steps."""
    place = out.emit("aten.arange.default", numbers.tensor.shape[0])
    earlier = _compared(out, "aten.lt.Tensor", place)
    same = _compared(out, "aten.eq.Tensor", numbers)
    lower = _compared(out, "aten.lt.Tensor", numbers)
    before = out.emit("aten.logical_and.default", same, earlier)
    before = out.emit("aten.logical_or.default", lower, before)
    rank = out.emit("aten.sum.dim_IntList", before, (1,))
    not_above = _compared(out, "aten.le.Tensor", numbers)
    return rank, out.emit("aten.sum.dim_IntList", not_above, (1,))


def _compared(out: Emitter, target: str, items: Value) -> Value:
    """Return a matrix whose element [i, j] compares items[j] with items[i]."""
    wide = out.emit("aten.unsqueeze.default", items, 0)
    return out.emit(target, wide, out.emit("aten.unsqueeze.default", items, 1))


def counted_places(out: Emitter, numbers: Value) -> tuple[Value, Value]:
    """Return the same as `compared_places`, by counting the items of each number: linear time, one
    after the other. No item exceeds the number of items."""
    emit, length = out.emit, numbers.tensor.shape[0]
    counts = emit("aten.zeros.default", ((Size.of(length) + 2).dim,), dtype=torch.int64)
    above = emit("aten.add.Tensor", numbers, 1)
    ones = emit("aten.ones.default", (length,), dtype=torch.int64)
    counts = emit("aten.scatter_add.default", counts, 0, above, ones)
    below = emit("aten.cumsum.default", counts, 0)
    places = emit("aten.zeros.default", (length,), dtype=torch.int64)
    body, inits = Emitter(), (below, places)
    index, (free, placed) = Value(INDEX, "i"), tuple(map(fresh, inits))
    number = body.emit("aten.select.int", numbers, 0, index)
    place = body.emit("aten.select.int", free, 0, number)
    after = body.emit("aten.add.Tensor", place, 1)
    yields = (
        body.emit("aten.select_scatter.default", free, after, 0, number),
        body.emit("aten.select_scatter.default", placed, place, 0, index),
    )
    block = Block((index, free, placed), body.ops, yields)
    loop = out.add(ForOp(0, Size.of(length), 1, inits, block, results=tuple(map(fresh, inits))))
    return loop.results[1], emit("aten.index_select.default", below, 0, above)


# ---- Computation of the rest for some activations of one height at a time, see `recursion_levels`.


@dataclass(frozen=True, slots=True)
class HeightSteps:
    """Makes the function that calls the walk and computes the rest. rows: activations per step.
    in_place: a step is one kernel that reads results of calls where they are."""

    program: Program
    parts: Recursion
    walk: str
    rows: int
    in_place: bool

    @property
    def row(self) -> BaseCaseRow | None:
        """The row that activations without calls return, if the walk does not store it."""
        return base_row(self.parts) if self.in_place else None

    def walk_block(self) -> Block:
        """Return the block of the walk, made by changing that of the function."""
        return walk_of(self.parts, self.walk, Lists.of(self.parts, self.row), self.row)

    def function(self) -> Function:
        own = self.parts.function
        params, found = tuple(map(fresh, own.params)), tuple(map(fresh, own.body.yields))
        lists = Lists.of(self.parts, self.row)
        out, empty = Emitter(), lists.again()
        for list in empty.all:
            out.add(ListNewOp(results=(list,)))
        at = Value(INDEX, "at")
        results = (at, Value(INDEX, "height"), *lists.all)
        out.add(CallOp(self.walk, (*params, *empty.all), results=results))
        runs = out.emit("aten.gt.Scalar", length_of(out, lists.numbers), 0)
        known = dict(zip(own.params, params, strict=True))
        then, orelse = self.levels(lists, known), self.alone(lists, at, known)
        out.add(IfOp(runs, then, orelse, results=found))
        return Function(own.name, Block(params, out.ops, found))

    def alone(self, lists: Lists, at: Value, params: dict[Value, Value]) -> Block:
        """Return the results if there is only one activation."""
        out, row = Emitter(), self.row
        if row is not None:
            yields = [out.emit("aten.select.int", params[source], 0, at) for source in row.sources]
            return Block((), out.ops, tuple(yields))
        for list in lists.bases:
            out.add(ListGetOp(list, at, results=(Value(list.list.element),)))
        return Block((), out.ops, tuple(op.results[0] for op in out.ops))

    def levels(self, lists: Lists, params: dict[Value, Value]) -> Block:
        """Compute all activations with calls, lowest height first, and yield the results of the
        last one."""
        out = Emitter()
        calls, leaves = fresh_symbol(self.program, "calls"), fresh_symbol(self.program, "leaves")
        table = self.table(out, lists, calls)
        pools = self.pools(out, lists, (Size.of(calls) + self.rows).dim, leaves)
        start = out.add(LiteralOp(0, results=(Value(INDEX, "start"),))).result
        end = out.emit("aten.select.int", table.ends, 0, 0)
        known = {value: params[value] for value in self.parts.same}
        for op in self.parts.constants.values():
            out.add(clone_op(op, known))
        loop = out.add(self.loop(table, (start, end, *pools), known))
        last = out.emit("aten.add.Tensor", table.first, table.calls)
        last = out.emit("aten.sub.Tensor", last, 1)
        yields = tuple(out.emit("aten.select.int", p, 0, last) for p in loop.results[2:])
        return Block((), out.ops, yields)

    def pools(self, out: Emitter, lists: Lists, more: Dim, leaves: Dim) -> list[Value]:
        """Return tensors of the results of activations without calls, if they are stored, and
        `more` rows."""
        pools: list[Value] = []
        for place in self.parts.places if self.row is not None else ():
            kind = self.parts.branch.results[place].tensor
            shape = ((Size.of(more) + 1).dim, *kind.shape)
            pools.append(out.emit("aten.empty.memory_format", shape, dtype=kind.dtype.torch))
        for list in lists.bases:
            kind, stored = list.list.element, _stack(out, list, leaves)
            zeros = out.emit("aten.zeros.default", (more, *kind.shape), dtype=kind.dtype.torch)
            pools.append(out.emit("aten.cat.default", (stored, zeros), 0))
        return pools

    def table(self, out: Emitter, lists: Lists, calls: Dim) -> RecordTable:
        """Return the records of the walk, sorted by height. calls: the symbol for the number of
        activations with calls."""
        emit, count = out.emit, length_of(out, lists.numbers)
        if self.row is None:
            first = length_of(out, lists.bases[0])
        else:
            first = out.add(LiteralOp(1, results=(Value(INDEX),))).result
        numbers, length = _stack(out, lists.numbers, calls), (Size.of(calls) + self.rows).dim
        heights = emit("aten.select.int", numbers, 1, 0)
        if self.in_place:
            signed = self.row is not None
            ranks = compared_places(out, heights)
            table = emit("stretto.call_table.default", numbers, *ranks, first, length, signed)
            columns = range(2 + len(self.parts.calls))
            ends, *children, order = (emit("aten.select.int", table, 1, n) for n in columns)
        else:
            rank, ends = counted_places(out, heights)
            zeros = emit("aten.zeros.default", (length,), dtype=torch.int64)
            each = emit("aten.arange.default", calls)
            order = emit("aten.index_put.default", zeros, (rank,), each)
            ends = emit("aten.index_select.default", ends, 0, order)
            children = self.children(out, numbers, rank, first, order)
        stored = [_stack(out, list, calls) for list in lists.records]
        records = [emit("aten.index_select.default", one, 0, order) for one in stored]
        return RecordTable(count, first, ends, tuple(children), tuple(records))

    def children(
        self, out: Emitter, numbers: Value, rank: Value, first: Value, order: Value
    ) -> list[Value]:
        """Return, for each call of the activations in `order`, the row of its results in the
        pools."""
        found: list[Value] = []
        for column in range(1, 1 + len(self.parts.calls)):
            place = out.emit("aten.select.int", numbers, 1, column)
            is_leaf = out.emit("aten.ge.Scalar", place, 0)
            other = out.emit("aten.bitwise_not.default", place)
            other = out.emit("aten.clamp_min.default", other, 0)
            row = out.emit("aten.index_select.default", rank, 0, other)
            row = out.emit("aten.add.Tensor", row, first)
            row = out.emit("aten.where.self", is_leaf, place, row)
            found.append(out.emit("aten.index_select.default", row, 0, order))
        return found

    def loop(
        self, table: RecordTable, inits: tuple[Value, ...], known: dict[Value, Value]
    ) -> WhileOp:
        """Return the loop. An iteration computes the rows of a height, or as many as a step has,
        and looks up where the height of the next step ends."""
        head, carried, params = Emitter(), tuple(map(fresh, inits)), tuple(map(fresh, inits))
        test = head.emit("aten.lt.Tensor", carried[0], table.calls)
        condition = Block(carried, head.ops, (test,))
        start, end, *pools = params
        out = Emitter()
        most = out.emit("aten.add.Tensor", start, self.rows)
        target = out.emit("aten.add.Tensor", start, table.first)
        stop = out.emit("aten.minimum.default", end, most)
        after = out.emit("aten.select.int", table.ends, 0, stop)
        step = Step(table, known, start, stop, target, tuple(pools))
        made = self.computed(out, step, self.heights)
        body = Block(params, out.ops, (stop, after, *made))
        return WhileOp(inits, condition, body, results=tuple(map(fresh, inits)))

    @property
    def heights(self) -> tuple[int, ...]:
        """The numbers of rows to emit code for, ascending. On CPUs, from about two rows on, the
        time of a product grows with each row, so a row that is computed in vain costs as much as
        any other."""
        if self.in_place:
            return (self.rows,)
        return tuple(sorted({-(-self.rows * part // 4) for part in (2, 3, 4)}))

    def computed(self, out: Emitter, step: Step, heights: tuple[int, ...]) -> tuple[Value, ...]:
        """Compute the step with the smallest of `heights` that is large enough; return the updated
        pools."""
        if len(heights) == 1:
            return self.some_rows(out, step, heights[0])
        count = out.emit("aten.sub.Tensor", step.stop, step.start)
        few = out.emit("aten.le.Scalar", count, heights[0])
        arms: list[Block] = []
        for some in (heights[:1], heights[1:]):
            arm = Emitter()
            yields = self.computed(arm, step, some)
            arms.append(Block((), arm.ops, yields))
        return out.add(IfOp(few, *arms, results=tuple(map(fresh, step.pools)))).results

    def some_rows(self, out: Emitter, step: Step, count: int) -> tuple[Value, ...]:
        """Compute `count` rows; return the updated pools. Rows that are not of this height are
        computed again by the iteration they belong to. Raises NotBatchable if an op of the rest
        cannot be batched."""
        batch = Batch(count, invariants=dict(step.known), ops=out.ops)

        def rows(value: Value) -> Value:
            return batch.emit("stretto.narrow.default", value, 0, step.start, count)

        for call, child in zip(self.parts.calls, step.table.children, strict=True):
            row = rows(child)
            for number, result in enumerate(call.results):
                batch.twins[result] = self.read_rows(batch, number, row, step)
        for value, record in zip(self.parts.records, step.table.records, strict=True):
            batch.twins[value] = rows(record)
        for op in self.parts.rest:
            batch.accept(op, batch.by_rule(op))
        yields: list[Value] = []
        for place, pool in zip(self.parts.places, step.pools, strict=True):
            made = batch.expanded(self.parts.arm.yields[place])
            put = batch.emit("stretto.narrow_scatter.default", pool, made, 0, step.target)
            yields.append(put)
        return tuple(yields)

    def read_rows(self, out: Emitter, number: int, rows: Value, step: Step) -> Value:
        """Return result `number` of one call of each activation."""
        pool, window = step.pools[number], (step.target, self.rows)
        if not self.in_place:
            return out.emit("aten.index_select.default", pool, 0, rows)
        if self.row is None:
            return out.emit("stretto.rows_before.default", pool, rows, *window)
        source = step.known[self.row.sources[number]]
        return out.emit("stretto.rows_of.default", pool, source, rows, *window)


def _stack(out: Emitter, list: Value, length: Dim) -> Value:
    element = list.list.element
    result = Value(TensorType(element.dtype, (length, *element.shape)))
    return out.add(ListStackOp(list, results=(result,))).results[0]


@dataclass(frozen=True, slots=True)
class RecordTable:
    """The records of the walk. calls: the number of activations with calls. first: the row of the
    pools where their results begin.

    The tensors have a row per activation with calls, sorted by height, then rows that may be
    computed in vain. ends: the row where its height ends. children: for each call, the row of its
    results in the pools. records: the values that the walk stored for the rest.
    """

    calls: Value
    first: Value
    ends: Value
    children: tuple[Value, ...]
    records: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """An iteration: it computes rows `start` to `stop` of the table, and writes rows of the pools
    from `target` on. known: the constants and parameters that the rest reads."""

    table: RecordTable
    known: dict[Value, Value]
    start: Value
    stop: Value
    target: Value
    pools: tuple[Value, ...]
