"""Computation of the rest of a recursion by levels: some activations of one height per step.

`HeightBlocks` makes the function that calls the walk and then computes the rest (see
`recursion_levels`). `HeightSteps` is its variant for machines where waits dominate the
cost, with one kernel per step: a step reads the results of calls in place and writes its
own after them into the same tensor, by `stretto.rows_before`, which declares that the two
are disjoint. If the results of activations without calls are rows of a tensor that all
calls pass on, they are read there (`stretto.rows_of`). The table records where the rows of
each height end, so that no unit counts them. Rows of a step that its height does not fill
compute on whatever is in memory, and are computed again by the step that they belong to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from stretto.ir.core import Block, Function, Op, Program, Value
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

# ---- Sorting of small integers, as many as the run decides, by ops that every machine has.


MOST_COMPARED = 512
"""Largest number of items that are sorted by comparing all pairs."""


def sorted_places(out: Batch, numbers: Value, number: Value) -> Value:
    """Return the place of each item in sorted order, in which equal items keep their order.
    number: count of the items, which none of them exceeds.

    Up to MOST_COMPARED items are compared pairwise, more are sorted by counting.
    """
    few = Batch(0)
    rank = compared_places(few, numbers)
    many, counted = _counted(numbers, number)
    found = Value(rank.type)
    is_few = out.emit("aten.le.Scalar", number, MOST_COMPARED)
    arms = Block((), few.ops, (rank,)), Block((), many.ops, (counted,))
    out.add(IfOp(is_few, *arms, results=(found,)))
    return found


def compared_places(out: Batch, numbers: Value) -> Value:
    """Return the same as `sorted_places`, by comparing all pairs."""
    place = out.emit("aten.arange.default", numbers.tensor.shape[0])
    earlier = compared(out, "aten.lt.Tensor", place, place)
    same = compared(out, "aten.eq.Tensor", numbers, numbers)
    lower = compared(out, "aten.lt.Tensor", numbers, numbers)
    before = out.emit("aten.logical_and.default", same, earlier)
    before = out.emit("aten.logical_or.default", lower, before)
    return out.emit("aten.sum.dim_IntList", before, (1,))


def not_above(out: Batch, numbers: Value) -> Value:
    """Return, for each item, the number of items that are not greater."""
    found = compared(out, "aten.le.Tensor", numbers, numbers)
    return out.emit("aten.sum.dim_IntList", found, (1,))


def _counted(numbers: Value, number: Value) -> tuple[Batch, Value]:
    """Return the same as `sorted_places`, with the ops, by counting the items below each number.
    No item exceeds `number`."""
    out = Batch(0)
    size = (Size.of(numbers.tensor.shape[0]) + 2).dim
    below = out.emit("aten.zeros.default", (size,), dtype=torch.int64)

    def count(body: Batch, index: Value, carried: list[Value]) -> list[Value]:
        above = body.emit("aten.add.Tensor", _item(body, numbers, index), 1)
        more = body.emit("aten.add.Tensor", _item(body, carried[0], above), 1)
        return [_replaced(body, carried[0], above, more)]

    def sum_up(body: Batch, index: Value, carried: list[Value]) -> list[Value]:
        above = body.emit("aten.add.Tensor", index, 1)
        items = (_item(body, carried[0], one) for one in (index, above))
        return [_replaced(body, carried[0], above, body.emit("aten.add.Tensor", *items))]

    def place(body: Batch, index: Value, carried: list[Value]) -> list[Value]:
        one = _item(body, numbers, index)
        rank = _item(body, carried[0], one)
        behind = body.emit("aten.add.Tensor", rank, 1)
        places = _replaced(body, carried[1], index, rank)
        return [_replaced(body, carried[0], one, behind), places]

    (below,) = _loop(out, number, [below], count)
    (below,) = _loop(out, number, [below], sum_up)
    places = out.emit("aten.zeros.default", (numbers.tensor.shape[0],), dtype=torch.int64)
    return out, _loop(out, number, [below, places], place)[1]


def _loop(
    out: Batch,
    stop: Value,
    inits: list[Value],
    step: Callable[[Batch, Value, list[Value]], list[Value]],
) -> tuple[Value, ...]:
    """Emit a loop from 0 to `stop` whose body `step` emits, and return its results."""
    body, index = Batch(0), Value(INDEX, "i")
    carried = [Value(value.type) for value in inits]
    yields = tuple(step(body, index, carried))
    block = Block((index, *carried), body.ops, yields)
    results = tuple(Value(value.type) for value in inits)
    return out.add(ForOp(0, stop, 1, tuple(inits), block, results=results)).results


def _item(out: Batch, table: Value, index: Value) -> Value:
    return out.emit("aten.select.int", table, 0, index)


def _replaced(out: Batch, table: Value, index: Value, item: Value) -> Value:
    """Return the table with the item at `index` replaced."""
    return out.emit("aten.select_scatter.default", table, item, 0, index)


def compared(out: Batch, target: str, columns: Value, rows: Value) -> Value:
    """Return a matrix whose element [i, j] compares columns[j] with rows[i]."""
    wide = out.emit("aten.unsqueeze.default", columns, 0)
    return out.emit(target, wide, out.emit("aten.unsqueeze.default", rows, 1))


# ---- Computation of the rest for some activations of one height at a time, see `recursion_levels`.


@dataclass(slots=True)
class HeightBlocks:
    """Makes the function that calls the walk and computes the rest. rows: activations per step."""

    program: Program
    parts: Recursion
    walk: str
    rows: int

    @property
    def row(self) -> BaseCaseRow | None:
        """The row that activations without calls return, if the walk does not store it."""
        return None

    def lists(self) -> Lists:
        return Lists.of(self.parts)

    def walk_block(self) -> Block:
        """Return the block of the walk, made by changing that of the function."""
        return walk_of(self.parts, self.walk, self.lists(), self.row)

    def function(self) -> Function:
        own = self.parts.function
        params = tuple(Value(value.type, value.hint) for value in own.params)
        out, empty, lists = Batch(0), self.lists(), self.lists()
        for list in empty.all:
            out.add(ListNewOp(results=(list,)))
        at = Value(INDEX, "at")
        results = (at, Value(INDEX, "height"), *lists.all)
        out.add(CallOp(self.walk, (*params, *empty.all), results=results))
        runs = out.emit("aten.gt.Scalar", length_of(out, lists.numbers[0]), 0)
        known = dict(zip(own.params, params, strict=True))
        then, orelse = self.levels(lists, known), self.alone(lists, at, known)
        found = tuple(Value(value.type, value.hint) for value in own.body.yields)
        out.add(IfOp(runs, then, orelse, results=found))
        return Function(own.name, Block(params, out.ops, found))

    def alone(self, lists: Lists, at: Value, params: dict[Value, Value]) -> Block:
        """Return the results if there is only one activation."""
        out = Batch(0)
        for list in lists.bases:
            out.add(ListGetOp(list, at, results=(Value(list.list.element),)))
        return Block((), out.ops, tuple(op.results[0] for op in out.ops))

    def levels(self, lists: Lists, params: dict[Value, Value]) -> Block:
        """Compute all activations with calls, lowest height first, and yield the results of the
        last one."""
        out = Batch(0)
        calls, leaves = fresh_symbol(self.program, "calls"), fresh_symbol(self.program, "leaves")
        table = self.table(out, lists, calls)
        pools = self.pools(out, lists, (Size.of(calls) + self.rows).dim, leaves)
        counters = self.counters(out, table)
        fixed = {value: clone_op(op, {}) for value, op in self.parts.constants.items()}
        for op in fixed.values():
            out.add(op)
        known = {value: op.results[0] for value, op in fixed.items()}
        known |= {value: params[value] for value in self.parts.same}
        loop = self.loop(table, (*counters, *pools), known)
        out.add(loop)
        last = out.emit(
            "aten.sub.Tensor", out.emit("aten.add.Tensor", table.leaves, table.calls), 1
        )
        yields = tuple(
            out.emit("aten.select.int", p, 0, last) for p in loop.results[len(counters) :]
        )
        return Block((), out.ops, yields)

    def counters(self, out: Batch, table: Table) -> tuple[Value, ...]:
        """Emit the initial values that the loop carries beside the results; the first is the row
        at which the step starts."""
        return out.add(LiteralOp(0, results=(Value(INDEX, "start"),))).results

    def pools(self, out: Batch, lists: Lists, more: Dim, leaves: Dim) -> list[Value]:
        """Return the results of activations without calls, with `more` rows of zeros appended."""
        return [self.padded(out, self.stack(out, list, leaves), more) for list in lists.bases]

    def table(self, out: Batch, lists: Lists, calls: Dim) -> Table:
        """Return the records of the walk, sorted by height. calls: the symbol for the number of
        activations with calls."""
        emit = out.emit
        leaves = length_of(out, lists.bases[0])
        kept_heights, *kept_children = lists.numbers
        number = length_of(out, kept_heights)
        kept = self.stack(out, kept_heights, calls)
        rank = sorted_places(out, kept, number)
        zeros = emit("aten.zeros.default", (calls,), dtype=torch.int64)
        order = emit("aten.index_put.default", zeros, (rank,), emit("aten.arange.default", calls))
        heights = emit("aten.index_select.default", kept, 0, order)
        children: list[Value] = []
        for list in kept_children:
            place = emit("aten.index_select.default", self.stack(out, list, calls), 0, order)
            is_leaf = emit("aten.ge.Scalar", place, 0)
            other = emit("aten.sub.Tensor", emit("aten.neg.default", place), 1)
            other = emit("aten.clamp_min.default", other, 0)
            row = emit("aten.index_select.default", rank, 0, other)
            row = emit("aten.add.Tensor", row, leaves)
            row = emit("aten.where.self", is_leaf, place, row)
            children.append(self.padded(out, row, self.rows))
        records: list[Value] = []
        for list in lists.records:
            kept = emit("aten.index_select.default", self.stack(out, list, calls), 0, order)
            records.append(self.padded(out, kept, self.rows))
        heights = self.padded(out, heights, self.rows)
        return Table(number, leaves, heights, tuple(children), tuple(records))

    def padded(self, out: Batch, value: Value, rows: Dim) -> Value:
        """Return the tensor with `rows` rows of zeros appended."""
        dtype, shape = value.tensor.dtype.torch, value.tensor.shape[1:]
        zeros = out.emit("aten.zeros.default", (rows, *shape), dtype=dtype)
        return out.emit("aten.cat.default", (value, zeros), 0)

    def loop(self, table: Table, inits: tuple[Value, ...], known: dict[Value, Value]) -> WhileOp:
        """Return the loop; each iteration computes up to `rows` activations of one height."""

        def carried() -> tuple[Value, ...]:
            return tuple(Value(value.type, value.hint) for value in inits)

        head, params, results = Batch(0), carried(), carried()
        test = head.emit("aten.lt.Tensor", params[0], table.calls)
        condition = Block(params, head.ops, (test,))
        params = carried()
        body = Block(params)
        body.ops, body.yields = self.iteration(table, params, known)
        return WhileOp(inits, condition, body, results=results)

    def iteration(
        self, table: Table, carried: tuple[Value, ...], known: dict[Value, Value]
    ) -> tuple[list[Op], tuple[Value, ...]]:
        """Count the rows of the height that are left, and compute them with code for at least as
        many."""
        start, *pools = carried
        out = Batch(self.rows)
        height = out.emit("stretto.narrow.default", table.heights, 0, start, self.rows)
        first = out.emit("aten.select.int", height, 0, 0)
        count = out.emit("aten.sum.default", out.emit("aten.eq.Tensor", height, first))
        target = out.emit("aten.add.Tensor", start, table.leaves)
        at = Place(table, start, target, tuple(pools))
        ops, made = self.computed(at, known, count, self.heights)
        out.ops.extend(ops)
        return out.ops, (out.emit("aten.add.Tensor", start, count), *made)

    @property
    def heights(self) -> tuple[int, ...]:
        """The numbers of rows to emit code for, ascending. From about two rows on, the time of a
        product grows with each row, so a row that is computed in vain costs as much as any
        other."""
        return tuple(sorted({-(-self.rows * part // 4) for part in (2, 3, 4)}))

    def computed(
        self, at: Place, known: dict[Value, Value], count: Value, heights: tuple[int, ...]
    ) -> tuple[list[Op], tuple[Value, ...]]:
        """Compute `count` rows with the smallest of `heights` that is large enough; return the ops
        and the updated pools."""
        if len(heights) == 1:
            return self.some_rows(at, known, heights[0])
        out = Batch(self.rows)
        few = out.emit("aten.le.Scalar", count, heights[0])
        arms = (self.computed(at, known, count, some) for some in (heights[:1], heights[1:]))
        blocks = (Block((), ops, yields) for ops, yields in arms)
        found = tuple(Value(value.type, value.hint) for value in at.pools)
        out.add(IfOp(few, *blocks, results=found))
        return out.ops, found

    def some_rows(
        self, at: Place, known: dict[Value, Value], count: int
    ) -> tuple[list[Op], tuple[Value, ...]]:
        """Compute `count` rows. Rows that are not of this height are computed again by the
        iteration they belong to."""
        out = Batch(count, invariants=dict(known))

        def rows(value: Value) -> Value:
            return out.emit("stretto.narrow.default", value, 0, at.start, count)

        for call, child in zip(self.parts.calls, at.table.children, strict=True):
            row = rows(child)
            for number, result in enumerate(call.results):
                out.twins[result] = self.read_rows(out, number, row, at, known)
        for value, record in zip(self.parts.records, at.table.records, strict=True):
            out.twins[value] = rows(record)
        self.rest(out, count)
        yields: list[Value] = []
        for place, pool in zip(self.parts.places, at.pools, strict=True):
            made = out.expanded(self.parts.arm.yields[place])
            yields.append(out.emit("stretto.narrow_scatter.default", pool, made, 0, at.target))
        return out.ops, tuple(yields)

    def read_rows(
        self, out: Batch, number: int, rows: Value, at: Place, known: dict[Value, Value]
    ) -> Value:
        """Return result `number` of one call of each activation."""
        return out.emit("aten.index_select.default", at.pools[number], 0, rows)

    def rest(self, out: Batch, count: int) -> None:
        """Emit the rest of the activations for `count` rows. Raises NotBatchable if an op cannot be
        batched."""
        for op in self.parts.rest:
            out.accept(op, out.by_rule(op))

    def stack(self, out: Batch, list: Value, length: Dim) -> Value:
        element = list.list.element
        result = Value(TensorType(element.dtype, (length, *element.shape)))
        return out.add(ListStackOp(list, results=(result,))).results[0]


@dataclass(frozen=True, slots=True)
class Table:
    """The records of the walk. calls, leaves: the numbers of activations with and without calls.

    The tensors have a row per activation with calls, sorted by height, then rows of zeros. heights:
    the height, or in HeightSteps the row where its height ends. children: for each call, the row of
    its results in the pools. records: the values that the walk stored for the rest.
    """

    calls: Value
    leaves: Value
    heights: Value
    children: tuple[Value, ...]
    records: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Position of an iteration: it reads rows of the table from `start` on, and writes rows of the
    pools from `target` on."""

    table: Table
    start: Value
    target: Value
    pools: tuple[Value, ...]


@dataclass(slots=True)
class HeightSteps(HeightBlocks):
    """Makes the function that calls the walk and computes the rest, at most `rows` activations per
    step, with one kernel each. If the walk stores no results, row 0 of the tensor of results is
    unused."""

    @property
    def row(self) -> BaseCaseRow | None:
        return base_row(self.parts)

    def lists(self) -> Lists:
        return Lists.of(self.parts, self.row, packed=True)

    def alone(self, lists: Lists, at: Value, params: dict[Value, Value]) -> Block:
        row = self.row
        if row is None:
            return HeightBlocks.alone(self, lists, at, params)
        out = Batch(0)
        yields = [out.emit("aten.select.int", params[source], 0, at) for source in row.sources]
        return Block((), out.ops, tuple(yields))

    def pools(self, out: Batch, lists: Lists, more: Dim, leaves: Dim) -> list[Value]:
        if self.row is None:
            return HeightBlocks.pools(self, out, lists, more, leaves)
        kinds = [self.parts.branch.results[place].tensor for place in self.parts.places]
        rows = (Size.of(more) + 1).dim
        return [
            out.emit("aten.empty.memory_format", (rows, *kind.shape), dtype=kind.dtype.torch)
            for kind in kinds
        ]

    def table(self, out: Batch, lists: Lists, calls: Dim) -> Table:
        """Return the records of the walk, sorted by height, with pairwise ranking. Instead of the
        height of each activation, it has the row where its height ends."""
        number = length_of(out, lists.numbers[0])
        if self.row is None:
            first = length_of(out, lists.bases[0])
        else:
            first = out.add(LiteralOp(1, results=(Value(INDEX),))).results[0]
        kept = self.stack(out, lists.numbers[0], calls)
        heights = out.emit("aten.select.int", kept, 1, 0)
        rank, ends = compared_places(out, heights), not_above(out, heights)
        length, signed = (Size.of(calls) + self.rows).dim, self.row is not None
        table = out.emit("stretto.call_table.default", kept, rank, ends, first, length, signed)
        width = 2 + len(self.parts.calls)
        end, *places, order = (
            out.emit("aten.select.int", table, 1, column) for column in range(width)
        )
        kept_records = [self.stack(out, list, calls) for list in lists.records]
        records = [out.emit("aten.index_select.default", r, 0, order) for r in kept_records]
        return Table(number, first, end, tuple(places), tuple(records))

    def iteration(
        self, table: Table, carried: tuple[Value, ...], known: dict[Value, Value]
    ) -> tuple[list[Op], tuple[Value, ...]]:
        """Compute the rows of a height, or as many as a step has, and look up where the height of
        the next step ends."""
        start, end, *pools = carried
        out = Batch(self.rows)
        most = out.emit("aten.add.Tensor", start, self.rows)
        target = out.emit("aten.add.Tensor", start, table.leaves)
        behind = out.emit("aten.minimum.default", end, most)
        after = out.emit("aten.select.int", table.heights, 0, behind)
        at = Place(table, start, target, tuple(pools))
        ops, made = self.some_rows(at, known, self.rows)
        out.ops.extend(ops)
        return out.ops, (behind, after, *made)

    def counters(self, out: Batch, table: Table) -> tuple[Value, ...]:
        start = HeightBlocks.counters(self, out, table)
        return (*start, out.emit("aten.select.int", table.heights, 0, 0))

    def read_rows(
        self, out: Batch, number: int, rows: Value, at: Place, known: dict[Value, Value]
    ) -> Value:
        window = at.target, self.rows
        if self.row is None:
            return out.emit("stretto.rows_before.default", at.pools[number], rows, *window)
        source = known[self.row.sources[number]]
        return out.emit("stretto.rows_of.default", at.pools[number], source, rows, *window)
