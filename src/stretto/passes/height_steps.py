"""What follows the calls of a recursion, each step of one height in one kernel.

As `height_blocks`, for machines where a wait is what costs: a step reads the results of calls where
they lie, and writes its own behind them into the same tensor, by `stretto.rows_before`, which says
that both are apart. Results of activations without calls that are rows of what all calls pass on
are read there (`stretto.rows_of`). Where the rows of a height end stands in the table, so that no
unit counts them. Rows that a height does not fill read what is there, and are computed again by the
step they belong to.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.ir.core import Block, Op, Value
from stretto.ir.ops import LiteralOp
from stretto.ir.sizes import Size
from stretto.ir.types import INDEX, Dim
from stretto.passes.batching.batch import Batch
from stretto.passes.batching.sorting import compared_places, not_above
from stretto.passes.height_blocks import HeightBlocks, Place, Table
from stretto.passes.recursion_walk import BaseRow, Lists, base_row, length_of


@dataclass(slots=True)
class HeightSteps(HeightBlocks):
    """Makes the function that calls the walk and computes the rest, `rows` activations at most in a
    step. Where the walk keeps no results, row 0 of the tensor of results is not used."""

    @property
    def row(self) -> BaseRow | None:
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
        """What the walk kept, sorted by heights, each with each compared. In place of the height of
        an activation: where those of its height end."""
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
        """Computes the rows of a height, or as many as a step has, and looks up where the height of
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
