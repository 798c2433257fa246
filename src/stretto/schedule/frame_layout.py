"""Layout of a function's frame: which local buffers share bytes, and the offset of each.

Two buffers share bytes only if one is no longer used when the other begins: on the same unit, in an
earlier wave, or in an earlier leaf. The waits that reuse requires are found later like all others,
because conflicts are found by bytes. Buffers that rotate are placed as one block and share nothing
with each other.

Buffers whose size is known only at the call get *slots* instead of offsets: a slot holds blocks
whose live ranges do not overlap, and is as large as the largest of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from stretto.components import Partition
from stretto.device.boxes import Mask
from stretto.device.expr import Buffer, is_known
from stretto.device.program import (
    FRAME_ALIGNMENT,
    FrameLayout,
    Placement,
    SizedPlacement,
    aligned,
    sized_bytes,
)
from stretto.device.regions import Interval
from stretto.device.tree import Leaf, Node, TreeFunction, is_parallel, renamed, walk
from stretto.errors import ScheduleError
from stretto.ir.size_bounds import maximum
from stretto.ir.sizes import Maximum, Size, usual_value
from stretto.schedule.footprint import MemoryMap, same_memory
from stretto.schedule.liveness import Liveness, LiveRange, liveness
from stretto.schedule.policy import LeafPlan

# ---- Blocks of a frame, placed by best fit, apart from those that are live at the same time.
#
# A block is compared with all blocks placed already at once, in arrays, so that frames of ten
# thousand buffers are placed in seconds.


SMALL_BLOCK_DISTANCE = 3
"""Small blocks share memory only if the second begins at least this many leaves after the end of
the first; ends of loops count as leaves. By then the units have mostly learnt of each other
what the reuse requires, so that it causes no further waits."""


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """Buffers placed together: one, or a group that rotates. `live` is None if they are never used.

    small: shares only with blocks that are `SMALL_BLOCK_DISTANCE` away, since waits for its memory
    would cost more than it saves. alone: shares with no block.
    """

    buffers: tuple[Buffer, ...]
    nbytes: int
    live: LiveRange | None
    small: bool
    alone: bool = False

    def may_share(self, other: MemoryBlock) -> bool:
        """True if the two blocks may have bytes in common."""
        if self.alone or other.alone:
            return False
        if self.live is None or other.live is None:
            return True
        far = SMALL_BLOCK_DISTANCE if self.small or other.small else 0
        return _follows(self.live, other.live, far) or _follows(other.live, self.live, far)


def _follows(one: LiveRange, other: LiveRange, far: int) -> bool:
    """True if `one` ends before `other` begins, at least `far` leaves earlier."""
    return one.before(other) and other.first.leaf - one.last.leaf >= far


def place(blocks: Sequence[MemoryBlock]) -> list[tuple[int, MemoryBlock]]:
    """Return the offset of each block, placed in this order: the smallest gap that fits, else the
    end of all blocks that it cannot share bytes with."""
    arrays = _Lives(blocks)
    starts, ends = np.zeros(len(blocks), np.int64), np.zeros(len(blocks), np.int64)
    for number, block in enumerate(blocks):
        apart = ~arrays.may_share(number)
        starts[number] = _best_gap(starts[:number][apart], ends[:number][apart], block.nbytes)
        ends[number] = starts[number] + block.nbytes
    return [(int(start), block) for start, block in zip(starts, blocks, strict=True)]


def _best_gap(starts: NDArray[np.int64], ends: NDArray[np.int64], nbytes: int) -> int:
    """Return the offset of the smallest gap of at least `nbytes` between the taken ranges, else
    their end."""
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


NO_UNIT, SEVERAL = -1, -2
"""Instead of the number of the only unit: there is none, or there are several."""


class _Lives:
    """Live ranges of blocks as arrays: `LiveRange.before` for many pairs at once."""

    def __init__(self, blocks: Sequence[MemoryBlock]) -> None:
        lives = [block.live for block in blocks]
        self._alone = np.array([block.alone for block in blocks], np.bool_)
        self._far = np.array(
            [SMALL_BLOCK_DISTANCE if block.small else 0 for block in blocks], np.int64
        )
        self._unused = np.array([live is None for live in lives], np.bool_)
        rows = [(0,) * 8 if live is None else _row(live) for live in lives]
        self._rows = np.array(rows, np.int64).reshape(len(blocks), 8)

    def may_share(self, number: int) -> Mask:
        """Return `MemoryBlock.may_share` of a block with each block before it."""
        if self._alone[number]:
            return np.zeros(number, np.bool_)
        if self._unused[number]:
            return ~self._alone[:number]
        own, others = self._rows[number : number + 1], self._rows[:number]
        far = np.maximum(self._far[number], self._far[:number])
        apart = self._unused[:number] | _before(own, others, far) | _before(others, own, far)
        return apart & ~self._alone[:number]


def _row(live: LiveRange) -> tuple[int, ...]:
    """Return the live range as a row: (position, leaf, wave, only unit) of its start, then of its
    end."""
    first, last = live.first, live.last
    return (
        *(first.position, first.leaf, live.first_wave, _only(live.first_units)),
        *(last.position, last.leaf, live.last_wave, _only(live.last_units)),
    )


def _only(units: int) -> int:
    """Return the only unit of a bit set, or NO_UNIT or SEVERAL."""
    if units == 0:
        return NO_UNIT
    return units.bit_length() - 1 if units & (units - 1) == 0 else SEVERAL


def _before(one: NDArray[np.int64], other: NDArray[np.int64], far: NDArray[np.int64]) -> Mask:
    """Return `_follows` for each pair of rows."""
    position, leaf, wave, unit = one[:, 4:].T
    first, first_leaf, first_wave, first_unit = other[:, :4].T
    same = (unit == first_unit) | (unit == NO_UNIT) | (first_unit == NO_UNIT)
    alone = same & (unit != SEVERAL) & (first_unit != SEVERAL)
    enough = first_leaf - leaf >= far
    return enough & (position < first) & ((leaf != first_leaf) | (wave < first_wave) | alone)


@dataclass(frozen=True, slots=True)
class FramePlan:
    """Layout of a frame. `separate`: bytes that the frame would take if nothing were shared."""

    frame: FrameLayout
    map: MemoryMap
    separate: int


def plan_frame(function: TreeFunction[LeafPlan], units: int, share_bytes: int) -> FramePlan:
    """Place the locals of `function`: best fit, the largest first.

    Blocks smaller than `share_bytes` share memory only with blocks used much earlier or later.
    Raise ScheduleError if the size of a local is not static.
    """
    fixed = tuple(buffer for buffer in function.locals if not buffer.is_sized)
    sized = tuple(buffer for buffer in function.locals if buffer.is_sized)
    for buffer in function.locals:
        if not all(map(is_known, buffer.shape)):
            raise ScheduleError(f"the size of local buffer {buffer.name} is not static")
    live = liveness(function.body, units)
    private = private_buffers(function) if units > 1 else frozenset[str]()
    blocks = _blocks(fixed, live, share_bytes, private, units)
    placed = place(sorted(blocks, key=lambda block: -block.nbytes))
    separate = sum(block.nbytes for block in blocks)
    slots = _slots(_blocks(sized, live, share_bytes))
    frame = _with_slots(_frame(fixed, placed, private, units), sized, slots)
    return FramePlan(frame, _with_sized(_layout(placed), slots), separate)


def frames_side_by_side(
    names: Sequence[str], plans: Sequence[FramePlan], apart: Collection[str], units: int
) -> list[FramePlan]:
    """Return the frames of all functions. Functions in `apart`, which each unit runs by itself,
    get one copy of the frame per unit, all of one size."""
    own = [plan.frame.nbytes for name, plan in zip(names, plans, strict=True) if name in apart]
    if units == 1 or not own:
        return list(plans)
    nbytes = max(FRAME_ALIGNMENT, *map(aligned, own))

    def copied(plan: FramePlan) -> FramePlan:
        frame = replace(plan.frame, nbytes=nbytes, copies=units)
        return replace(plan, frame=frame, separate=plan.separate * units)

    pairs = zip(names, plans, strict=True)
    return [copied(plan) if name in apart else plan for name, plan in pairs]


def private_buffers(function: TreeFunction[LeafPlan]) -> frozenset[str]:
    """Return the names of the local buffers that only one parallel loop accesses; each unit has
    its own copy."""
    loops = [node for node in walk(function.body) if is_parallel(node)]
    inside = {id(node) for loop in loops for node in walk(loop)}
    others = (node for node in walk(function.body) if id(node) not in inside)
    shared = {name for node in others for name in _touched(node)}
    homes = Counter(
        name for loop in loops for name in {n for node in walk(loop) for n in _touched(node)}
    )
    fixed = {buffer.name for buffer in function.locals if not buffer.is_sized}
    return frozenset(name for name, count in homes.items() if count == 1) & (fixed - shared)


def _touched(node: Node[LeafPlan]) -> Iterator[str]:
    """Yield the names of the buffers that a node accesses, without its descendants."""
    yield from (buffer.name for buffer in renamed(node))
    if isinstance(node, Leaf):
        yield from (region.buffer.name for region in node.body.regions)


def _blocks(
    buffers: tuple[Buffer, ...],
    live: Liveness,
    share_bytes: int,
    private: frozenset[str] = frozenset(),
    units: int = 1,
) -> list[MemoryBlock]:
    """Return the blocks to place, with their bytes; usual ones if the call decides the size.
    Private buffers share no bytes, because units are in different iterations."""
    blocks: list[MemoryBlock] = []
    groups = Partition(buffers)
    for pair in live.pairs:
        if set(pair) <= {*buffers}:
            groups.join(*pair)
    for group in groups.sets():
        events = tuple(e for buffer in group for e in live.events.get(buffer.name, ()))
        is_private = group[0].name in private
        nbytes = sum(usual_value(aligned(sized_bytes(buffer))) for buffer in group)
        nbytes *= units if is_private else 1
        span = LiveRange.of(events) if events else None
        small = nbytes < share_bytes
        blocks.append(MemoryBlock(tuple(group), nbytes, span, small, alone=is_private))
    return blocks


# ---- slots -----------------------------------------------------------------------------------
MOST_FORMULAS = 4
"""Limit on the formulas in the maximum that is the size of a slot, because every call
computes it."""


@dataclass(slots=True)
class _Slot:
    """Blocks that share memory. `nbytes`: the maximum of their sizes; `usual`: that at usual
    sizes."""

    blocks: list[MemoryBlock]
    nbytes: Size
    usual: int

    def takes(self, block: MemoryBlock, nbytes: Size) -> bool:
        """True if the block may share the memory of the slot."""
        if not all(block.may_share(other) for other in self.blocks):
            return False
        largest = maximum(self.nbytes, nbytes)
        return all(
            not isinstance(atom, Maximum) or len(atom.parts) <= MOST_FORMULAS
            for atom, _ in largest.terms
        )


def _slots(blocks: list[MemoryBlock]) -> list[_Slot]:
    """Assign the blocks to slots, the largest first: to a slot that need not grow, or else to the
    smallest one."""
    slots: list[_Slot] = []
    for block in sorted(blocks, key=lambda block: -block.nbytes):
        needed = _block_bytes(block)
        able = [slot for slot in slots if slot.takes(block, needed)]
        if not able:
            slots.append(_Slot([block], needed, block.nbytes))
            continue
        slot = min(
            able,
            key=lambda slot: (maximum(slot.nbytes, needed) != slot.nbytes, slot.usual),
        )
        slot.blocks.append(block)
        slot.nbytes = maximum(slot.nbytes, needed)
    return slots


def _block_bytes(block: MemoryBlock) -> Size:
    """Return the bytes of the buffers of a block, one after the other."""
    *before, last = map(sized_bytes, block.buffers)
    return sum((Size.of(aligned(nbytes)) for nbytes in before), start=Size.of(last))


def _with_slots(frame: FrameLayout, buffers: tuple[Buffer, ...], slots: list[_Slot]) -> FrameLayout:
    """Return the frame layout with the sized buffers in their slots."""
    places: dict[str, SizedPlacement] = {}
    for number, slot in enumerate(slots):
        for block in slot.blocks:
            offset: int | Size = 0
            for buffer in block.buffers:
                nbytes = sized_bytes(buffer)
                places[buffer.name] = SizedPlacement(number, offset, nbytes)
                offset = offset + aligned(nbytes)
    sized = tuple((buffer.name, places[buffer.name]) for buffer in buffers)
    return replace(frame, slots=tuple(aligned(slot.nbytes) for slot in slots), sized=sized)


SLOT_BYTES = 1 << 40
"""Distance of slots in the memory map: slot n begins at (n + 1) times this."""


def _with_sized(memory: MemoryMap, slots: list[_Slot]) -> MemoryMap:
    """Return the memory map with the sized buffers: blocks of one slot may have any bytes in
    common."""
    extents, moving, sharing = dict(memory.extents), set(memory.moving), dict(memory.sharing)
    alike: set[tuple[str, str]] = set()
    for number, slot in enumerate(slots, 1):
        for block in slot.blocks:
            names = tuple(buffer.name for buffer in block.buffers)
            extents |= dict.fromkeys(names, (number * SLOT_BYTES, (number + 1) * SLOT_BYTES))
            others = [other for other in slot.blocks if other is not block]
            there = tuple(buffer.name for other in others for buffer in other.buffers)
            sharing |= dict.fromkeys(names, there)
            if len(names) > 1:
                moving |= set(names)
            alike |= {
                (one.name, another.name)
                for other in others
                for one, another in product(block.buffers, other.buffers)
                if len(names) == len(other.buffers) == 1 and same_memory(one, another)
            }
    return MemoryMap(extents, frozenset(moving), sharing, frozenset(alike))


# ---- offsets ---------------------------------------------------------------------------------
def _end(placed: list[tuple[int, MemoryBlock]]) -> int:
    return max((offset + block.nbytes for offset, block in placed), default=0)


def _frame(
    buffers: tuple[Buffer, ...],
    placed: list[tuple[int, MemoryBlock]],
    private: frozenset[str],
    units: int,
) -> FrameLayout:
    """Return the layout of the fixed-size buffers."""
    offsets: dict[str, Placement] = {}
    for start, block in placed:
        for buffer in block.buffers:
            copies = units if buffer.name in private else 1
            offsets[buffer.name] = Placement(start, buffer.nbytes, copies)
            start += copies * aligned(buffer.nbytes)
    return FrameLayout(_end(placed), tuple((b.name, offsets[b.name]) for b in buffers))


def _layout(placed: list[tuple[int, MemoryBlock]]) -> MemoryMap:
    """Return the memory map of the placed blocks."""
    extents: dict[str, Interval] = {}
    moving: set[str] = set()
    sharing: dict[str, tuple[str, ...]] = {}
    starts = np.array([offset for offset, _ in placed], np.int64)
    ends = np.array([offset + block.nbytes for offset, block in placed], np.int64)
    for number, (offset, block) in enumerate(placed):
        names = tuple(buffer.name for buffer in block.buffers)
        extents |= dict.fromkeys(names, (offset, offset + block.nbytes))
        if len(names) > 1:
            moving |= set(names)
        near = np.flatnonzero((offset < ends) & (starts < offset + block.nbytes))
        others = tuple(b.name for n in near if n != number for b in placed[n][1].buffers)
        sharing |= dict.fromkeys(names, others)
    return MemoryMap(extents, frozenset(moving), sharing)
