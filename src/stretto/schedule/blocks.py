"""Blocks of a frame, and where each is placed: best fit, beside those that live at the same time.

Whether a block may share bytes with those that are placed already is asked of all of them at once,
in arrays: frames of ten thousand buffers are placed in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.device.boxes import Mask
from stretto.device.expr import Buffer
from stretto.schedule.liveness import LiveRange

FAR = 3
"""Small blocks share memory where the second begins so many leaves after the end of the first; the
ends of loops count as leaves. In between the units have mostly learnt of each other what reuse of
the memory needs, so that it causes no further waits."""


@dataclass(frozen=True, slots=True)
class Block:
    """Buffers placed together: one, or a group that rotates. `live` is None for unused memory.
    small: it shares with what is `FAR` away only, since waits for its memory would cost more than
    it saves. alone: it shares with nothing."""

    buffers: tuple[Buffer, ...]
    nbytes: int
    live: LiveRange | None
    small: bool
    alone: bool = False

    def may_share(self, other: Block) -> bool:
        if self.alone or other.alone:
            return False
        if self.live is None or other.live is None:
            return True
        far = FAR if self.small or other.small else 0
        return _follows(self.live, other.live, far) or _follows(other.live, self.live, far)


def _follows(one: LiveRange, other: LiveRange, far: int) -> bool:
    return one.before(other) and other.first.leaf - one.last.leaf >= far


def place(blocks: Sequence[Block]) -> list[tuple[int, Block]]:
    """The offset of each block, in this order: the smallest gap that fits, else the end of all
    that it shares no bytes with."""
    arrays = _Lives(blocks)
    starts, ends = np.zeros(len(blocks), np.int64), np.zeros(len(blocks), np.int64)
    for number, block in enumerate(blocks):
        apart = ~arrays.may_share(number)
        starts[number] = _best_gap(starts[:number][apart], ends[:number][apart], block.nbytes)
        ends[number] = starts[number] + block.nbytes
    return [(int(start), block) for start, block in zip(starts, blocks, strict=True)]


def _best_gap(starts: NDArray[np.int64], ends: NDArray[np.int64], nbytes: int) -> int:
    """The offset of the smallest gap between what is taken, else its end."""
    if not len(starts):
        return 0
    order = np.lexsort((ends, starts))
    reached = np.maximum.accumulate(ends[order])
    before = np.concatenate([[0], reached[:-1]])
    gaps = starts[order] - before
    fitting = np.flatnonzero((gaps >= nbytes) & (gaps >= 0))
    if not len(fitting):
        return int(reached[-1])
    return int(before[fitting[np.argmin(gaps[fitting])]])


NOBODY, SEVERAL = -1, -2
"""Instead of the number of the only unit."""


class _Lives:
    """The live ranges of blocks as arrays: `LiveRange.before` for many pairs at once."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        lives = [block.live for block in blocks]
        self._alone = np.array([block.alone for block in blocks], np.bool_)
        self._far = np.array([FAR if block.small else 0 for block in blocks], np.int64)
        self._unused = np.array([live is None for live in lives], np.bool_)
        rows = [(0,) * 8 if live is None else _row(live) for live in lives]
        self._rows = np.array(rows, np.int64).reshape(len(blocks), 8)

    def may_share(self, number: int) -> Mask:
        """`Block.may_share` of one block with each of those before it."""
        if self._alone[number]:
            return np.zeros(number, np.bool_)
        if self._unused[number]:
            return ~self._alone[:number]
        own, others = self._rows[number : number + 1], self._rows[:number]
        far = np.maximum(self._far[number], self._far[:number])
        apart = self._unused[:number] | _before(own, others, far) | _before(others, own, far)
        return apart & ~self._alone[:number]


def _row(live: LiveRange) -> tuple[int, ...]:
    first, last = live.first, live.last
    return (
        *(first.position, first.leaf, live.first_wave, _only(live.first_units)),
        *(last.position, last.leaf, live.last_wave, _only(live.last_units)),
    )


def _only(units: int) -> int:
    """The only unit of a set of bits."""
    if units == 0:
        return NOBODY
    return units.bit_length() - 1 if units & (units - 1) == 0 else SEVERAL


def _before(one: NDArray[np.int64], other: NDArray[np.int64], far: NDArray[np.int64]) -> Mask:
    """`_follows`, row by row."""
    position, leaf, wave, unit = one[:, 4:].T
    first, first_leaf, first_wave, first_unit = other[:, :4].T
    same = (unit == first_unit) | (unit == NOBODY) | (first_unit == NOBODY)
    alone = same & (unit != SEVERAL) & (first_unit != SEVERAL)
    enough = first_leaf - leaf >= far
    return enough & (position < first) & ((leaf != first_leaf) | (wave < first_wave) | alone)
