"""What follows the calls of a recursion, each step of one height in one kernel.

As `height_blocks`, for machines where a wait is what costs: a step reads the results of calls at
their places in the tensor of all results, and writes its own behind them, by rows of which
`stretto.rows_before` says that they are apart. Where the rows of a height end stands in the table,
so that no unit counts them. Rows that a height does not fill read what is there, and are computed
again by the step they belong to.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.ir.core import Op, Value
from stretto.ir.sizes import Size
from stretto.ir.types import Dim
from stretto.passes.batching.batch import Batch
from stretto.passes.batching.sorting import sorted_ends
from stretto.passes.height_blocks import HeightBlocks, Place, Table
from stretto.passes.recursion_walk import Lists, length_of


@dataclass(slots=True)
class HeightSteps(HeightBlocks):
    """Makes the function that calls the walk and computes the rest, `rows` activations at most in a
    step."""

    def table(self, out: Batch, lists: Lists, calls: Dim) -> Table:
        """What the walk kept, sorted by heights: each item is put where it belongs. In place of the
        height of an activation: where those of its height end."""
        leaves, number = length_of(out, lists.bases[0]), length_of(out, lists.heights)
        rank, ends = sorted_ends(out, self.stack(out, lists.heights, calls), number)
        length = (Size.of(calls) + self.rows).dim

        def sorted(items: Value) -> Value:
            kind = items.tensor
            shape = (length, *kind.shape[1:])
            zeros = out.emit("aten.zeros.default", shape, dtype=kind.dtype.torch)
            return out.emit("aten.index_put.default", zeros, (rank,), items)

        children: list[Value] = []
        for list in lists.children:
            place = self.stack(out, list, calls)
            is_leaf = out.emit("aten.ge.Scalar", place, 0)
            other = out.emit("aten.sub.Tensor", out.emit("aten.neg.default", place), 1)
            other = out.emit("aten.clamp_min.default", other, 0)
            row = out.emit("aten.index_select.default", rank, 0, other)
            row = out.emit("aten.add.Tensor", row, leaves)
            children.append(sorted(out.emit("aten.where.self", is_leaf, place, row)))
        records = tuple(sorted(self.stack(out, list, calls)) for list in lists.records)
        return Table(number, leaves, sorted(ends), tuple(children), records)

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

    def read_rows(self, out: Batch, pool: Value, rows: Value, at: Place, count: int) -> Value:
        return out.emit("stretto.rows_before.default", pool, rows, at.target, count)
