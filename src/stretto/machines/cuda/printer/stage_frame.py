"""Results of a task's stages that are still in registers, for later stages.

A frame is a block shape with an order of dims. A later stage whose lanes represent the same
positions of the grid takes its operands from the names of the results instead of memory: the gates
of an LSTM cell on their way into its state, the maximum of a softmax's row into its sum. The
results are stored nevertheless.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.device.expr import Buffer, Index, Load, Reg, Var, substitute_index
from stretto.device.operator import Operator, Span
from stretto.machines.terms import Term

Signature = tuple[tuple[int | None, int | Term], ...]
"""Pairs (grid dim, size) of the dims along the lanes, in order."""


@dataclass(slots=True)
class ResultFrame:
    """Results in registers. `values`: the name of an element, by its buffer and position.

    lanes: the length of axis 0; rank: the number of axes of the blocks; warps: number of warps that
    the rows are divided among, or 0 (blocks.py). writers: the operator that last wrote a buffer.
    """

    signature: Signature
    lanes: int
    rank: int
    warps: int = 0
    values: dict[tuple[Buffer, Index], Term] = field(
        default_factory=dict[tuple[Buffer, Index], Term]
    )
    writers: dict[Buffer, Operator] = field(default_factory=dict[Buffer, Operator])

    def is_like(self, other: ResultFrame) -> bool:
        """Return True if the lanes of blocks of both frames represent the same positions."""
        mine = self.signature, self.lanes, self.rank, self.warps
        return mine == (other.signature, other.lanes, other.rank, other.warps)

    def written(self, operator: Operator) -> None:
        """Note that an operator writes its result: drop values that another one wrote there. (The
        boxes of one operator have no element in common.)"""
        buffer = operator.out.buffer
        if self.writers.get(buffer) != operator:
            self.values = {key: value for key, value in self.values.items() if key[0] != buffer}
            self.writers[buffer] = operator


@dataclass(frozen=True, slots=True)
class LanePlaces:
    """Positions of a stage in terms of lanes and of the grid, comparable between all stages of a
    frame.

    order: the dims along the lanes, by number. box: all parallel dims of the stage.
    """

    order: tuple[int, ...]
    box: tuple[Span, ...]

    def of(self, index: Index) -> Index:
        return substitute_index(index, self._place)

    def _place(self, atom: Var | Reg) -> Index:
        if isinstance(atom, Reg) or atom.number >= len(self.box):
            return Index.of(atom)
        span = self.box[atom.number]
        if atom.number in self.order:
            return Index.of(Var(-1 - self.order.index(atom.number))) + span.offset
        if span.grid is not None:
            return Index.of(Var(-1000 - span.grid)) + span.offset
        # A dim of one value, or a dim along the other axis.
        return Index(const=span.offset) if span.extent == 1 else Index.of(atom)

    def known(self, frame: ResultFrame, load: Load) -> Term | None:
        """Return the name of a load's element in the frame; None if it has none."""
        offset = load.access.offset
        if not offset.is_affine:
            return None
        return frame.values.get((load.access.buffer, self.of(offset)))
