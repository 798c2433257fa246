"""Counts of uses: where values are read, and the number of reads still to come while lowering.

A value that is not read again may be changed in place. Blocks are lowered once in textual order,
but a loop runs its body again and only one arm of a branch runs: `held` and `without` adjust the
counts for that.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field

from stretto.ir.core import Block, Op, Value
from stretto.ir.ops import TensorOp
from stretto.ir.rewrite import block_reads
from stretto.ops.properties import properties

_CHOOSING = ("aten.where.", "aten.masked_fill.")
"""Elementwise operators that may not read each element of each operand."""

_WHOLE = (
    *("aten.mm.", "aten.addmm.", "aten.bmm.", "aten.baddbmm.", "aten.mv.", "aten.linear."),
    *("aten.sum.", "aten.mean.", "aten.amax.", "aten.amin.", "aten._softmax.", "aten.cumsum."),
    *("aten.native_layer_norm.", "aten.cat.", "aten.stack.", "aten.clone.", "aten._to_copy."),
    *("aten.view.", "aten.reshape.", "aten._unsafe_view.", "aten.permute.", "aten.transpose."),
    *("aten.t.", "aten.unsqueeze.", "aten.squeeze.", "aten.expand.", "aten.alias.", "aten.flip."),
)
"""Other operators that read each element of each operand."""


def reads_whole(op: Op) -> bool:
    """True if an op is known to read each element of its operands."""
    if not isinstance(op, TensorOp):
        return False
    if op.target.startswith(_WHOLE):
        return True
    return properties(op.target).elementwise and not op.target.startswith(_CHOOSING)


@dataclass(slots=True)
class Uses:
    """Uses of the values of one function.

    total: number of reads in the whole text. below: values that are read in a block nested in
    their own. home: the block that defines a value. later: number of reads still to come.
    partly: values of which an op may read only some elements.
    """

    total: dict[Value, int] = field(default_factory=dict[Value, int])
    below: set[Value] = field(default_factory=set[Value])
    partly: set[Value] = field(default_factory=set[Value])
    home: dict[Value, Block] = field(default_factory=dict[Value, Block])
    later: dict[Value, int] = field(default_factory=dict[Value, int])

    def count(self, block: Block) -> None:
        """Count the reads in a block and the blocks inside it."""
        for value in block.params:
            self.home[value] = block
        for op in block.ops:
            for value in op.results:
                self.home[value] = block
            self._read(op.operands, block)
            if not reads_whole(op):
                self.partly.update(op.operands)
            for inner in op.blocks:
                self.count(inner)
        self._read(block.yields, block)

    def _read(self, values: Iterable[Value], block: Block) -> None:
        for value in values:
            self.total[value] = self.total.get(value, 0) + 1
            self.later[value] = self.total[value]
            if self.home.get(value) is not block:
                self.below.add(value)

    def is_needed(self, value: Value) -> bool:
        """True if a read of the value is still to come."""
        return self.later.get(value, 0) > 0

    def take(self, values: Iterable[Value]) -> None:
        """Remove reads that are being lowered now from those still to come."""
        for value in values:
            self.later[value] = self.later.get(value, 0) - 1

    @contextmanager
    def held(self, values: Collection[Value]) -> Generator[None]:
        """While a loop is lowered, keep its values needed until its last iteration."""
        for value in values:
            self.later[value] = self.later.get(value, 0) + 1
        yield
        self.take(values)

    @contextmanager
    def without(self, block: Block) -> Generator[None]:
        """While the other arm of a branch is lowered, do not count the reads in `block` as still
        to come."""
        reads = list(block_reads(block))
        self.take(reads)
        yield
        for value in reads:
            self.later[value] += 1
