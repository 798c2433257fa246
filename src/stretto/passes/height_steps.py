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
from stretto.passes.batching.sorting import sorted_ends
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
            out.emit("aten.zeros.default", (rows, *kind.shape), dtype=kind.dtype.torch)
            for kind in kinds
        ]

    def table(self, out: Batch, lists: Lists, calls: Dim) -> Table:
        """What the walk kept, sorted by heights: each item is put where it belongs. In place of the
        height of an activation: where those of its height end."""
        number = length_of(out, lists.numbers[0])
        if self.row is None:
            first = length_of(out, lists.bases[0])
        else:
            first = out.add(LiteralOp(1, results=(Value(INDEX),))).results[0]
        kept = self.stack(out, lists.numbers[0], calls)
        heights, *children = (
            out.emit("aten.select.int", kept, 1, column)
            for column in range(1 + len(self.parts.calls))
        )
        rank, ends = sorted_ends(out, heights, number)
        length = (Size.of(calls) + self.rows).dim

        def sorted(items: Value) -> Value:
            kind = items.tensor
            shape = (length, *kind.shape[1:])
            zeros = out.emit("aten.zeros.default", shape, dtype=kind.dtype.torch)
            return out.emit("aten.index_put.default", zeros, (rank,), items)

        places = tuple(sorted(self.places(out, child, rank, first)) for child in children)
        records = tuple(sorted(self.stack(out, list, calls)) for list in lists.records)
        return Table(number, first, sorted(ends), places, records)

    def places(self, out: Batch, places: Value, rank: Value, first: Value) -> Value:
        """Where the results of calls are that the walk found at these places: as `rows_before`
        wants them, or `rows_of`."""
        is_base = out.emit("aten.ge.Scalar", places, 0)
        other = out.emit("aten.sub.Tensor", out.emit("aten.neg.default", places), 1)
        other = out.emit("aten.clamp_min.default", other, 0)
        row = out.emit("aten.index_select.default", rank, 0, other)
        row = out.emit("aten.add.Tensor", row, first)
        if self.row is not None:
            row = out.emit("aten.neg.default", row)
        return out.emit("aten.where.self", is_base, places, row)

    def iteration(
        self, table: Table, carried: tuple[Value, ...], known: dict[Value, Value]
    ) -> tuple[list[Op], tuple[Value, ...]]:
        """Computes the rows of a height, or as many as a step has."""
        start, *pools = carried
        out = Batch(self.rows)
        end = out.emit("aten.select.int", table.heights, 0, start)
        most = out.emit("aten.add.Tensor", start, self.rows)
        target = out.emit("aten.add.Tensor", start, table.leaves)
        at = Place(table, start, target, tuple(pools))
        ops, made = self.some_rows(at, known, self.rows)
        out.ops.extend(ops)
        return out.ops, (out.emit("aten.minimum.default", end, most), *made)

    def read_rows(
        self, out: Batch, number: int, rows: Value, at: Place, known: dict[Value, Value]
    ) -> Value:
        window = at.target, self.rows
        if self.row is None:
            return out.emit("stretto.rows_before.default", at.pools[number], rows, *window)
        source = known[self.row.sources[number]]
        return out.emit("stretto.rows_of.default", at.pools[number], source, rows, *window)
