"""How often the threads of a unit meet within a task.

Threads hand over through memory with a barrier in between. Where a stage holds its results in the
registers of those threads that compute on with them (`Template.holds_rows`), pointwise stages over
the same tile take them from there, and need no barrier.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.device.expr import Buffer
from stretto.device.operator import Stage


def meetings(stages: Sequence[Stage]) -> int:
    """The barriers between the stages of a task."""
    held: dict[Buffer, frozenset[int]] = {}
    written: set[Buffer] = set()
    count = 0
    for stage in stages:
        operator, tiled = stage.operator, _tiled(stage)
        taken = {load.access.buffer for load in operator.reads()} & written
        in_registers = not operator.combine and all(held.get(one) == tiled for one in taken)
        if taken and not in_registers:
            count += 1
            written.clear()
        written.add(operator.out.buffer)
        if stage.template.holds_rows or (taken and in_registers):
            held[operator.out.buffer] = tiled
    return count


def _tiled(stage: Stage) -> frozenset[int]:
    """The grid dims along which a stage has the tile of its task."""
    return frozenset(span.grid for span in stage.box if span.grid is not None)
