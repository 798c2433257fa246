"""Memory of a function's frame: which local buffers share bytes, and where each lies.

Two buffers share bytes only if one is done with before the other begins: on the same unit, in an
earlier wave, or in an earlier leaf. The waits that reuse needs are found later like all others, for
conflicts are found by bytes. Buffers that rotate are placed as one block and share nothing with
each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from stretto.device.expr import Buffer, Reg
from stretto.device.program import FRAME_ALIGNMENT, FrameLayout, Placement, sized_placements
from stretto.device.regions import Interval
from stretto.device.tree import TreeFunction
from stretto.errors import ScheduleError
from stretto.schedule.liveness import LiveRange, liveness
from stretto.schedule.memory_map import MemoryMap
from stretto.schedule.policy import LeafPlan


@dataclass(frozen=True, slots=True)
class FramePlan:
    """`separate`: the bytes that the frame would take if nothing were shared."""

    frame: FrameLayout
    map: MemoryMap
    separate: int


@dataclass(frozen=True, slots=True)
class _Block:
    """Buffers placed together: one, or a group that rotates. `live` is None for unused memory."""

    buffers: tuple[Buffer, ...]
    nbytes: int
    live: LiveRange | None
    small: bool

    def may_share(self, other: _Block) -> bool:
        if self.small or other.small:
            return False
        if self.live is None or other.live is None:
            return True
        return self.live.before(other.live) or other.live.before(self.live)


def plan_frame(function: TreeFunction[LeafPlan], units: int, share_bytes: int) -> FramePlan:
    """Places the locals of `function`, best fit, the largest first.

    Blocks of less than `share_bytes` get memory of their own.
    """
    fixed = tuple(buffer for buffer in function.locals if not buffer.is_sized)
    for buffer in fixed:
        if any(isinstance(dim, Reg) for dim in buffer.shape):
            raise ScheduleError(f"the size of local buffer {buffer.name} is not static")
    live = liveness(function.body, units)
    blocks: list[_Block] = []
    for group in _groups(fixed, live.pairs):
        events = tuple(e for buffer in group for e in live.events.get(buffer.name, ()))
        nbytes = sum(_aligned(buffer.nbytes) for buffer in group)
        span = LiveRange.of(events) if events else None
        blocks.append(_Block(group, nbytes, span, small=nbytes < share_bytes))
    placed: list[tuple[int, _Block]] = []
    for block in sorted(blocks, key=lambda block: -block.nbytes):
        taken = [(o, o + other.nbytes) for o, other in placed if not block.may_share(other)]
        placed.append((_best_gap(taken, block.nbytes), block))
    separate = sum(block.nbytes for block in blocks)
    sized = sized_placements(function.locals, _end(placed))
    frame = replace(_frame(fixed, placed), sized=sized)
    return FramePlan(frame, _layout(placed), separate)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // FRAME_ALIGNMENT) * FRAME_ALIGNMENT


def _groups(
    buffers: tuple[Buffer, ...], pairs: Iterable[tuple[Buffer, Buffer]]
) -> list[tuple[Buffer, ...]]:
    """The buffers, those that trade places with each other together."""
    group = {buffer.name: [buffer] for buffer in buffers}
    for current, following in pairs:
        if current.name not in group or following.name not in group:
            continue
        one, two = group[current.name], group[following.name]
        if one is not two:
            one.extend(two)
            group |= {buffer.name: one for buffer in two}
    return [
        tuple(members) for members in {id(members): members for members in group.values()}.values()
    ]


def _best_gap(taken: list[Interval], nbytes: int) -> int:
    """The offset of the smallest gap that fits, else the end of what is taken."""
    best: tuple[int, int] | None = None
    end = 0
    for first, last in sorted(taken):
        gap = first - end
        if gap >= nbytes and (best is None or gap < best[0]):
            best = gap, end
        end = max(end, last)
    return end if best is None else best[1]


def _end(placed: list[tuple[int, _Block]]) -> int:
    return max((offset + block.nbytes for offset, block in placed), default=0)


def _frame(buffers: tuple[Buffer, ...], placed: list[tuple[int, _Block]]) -> FrameLayout:
    offsets: dict[str, Placement] = {}
    for start, block in placed:
        for buffer in block.buffers:
            offsets[buffer.name] = Placement(start, buffer.nbytes)
            start += _aligned(buffer.nbytes)
    return FrameLayout(_end(placed), tuple((b.name, offsets[b.name]) for b in buffers))


def _layout(placed: list[tuple[int, _Block]]) -> MemoryMap:
    extents: dict[str, Interval] = {}
    moving: set[str] = set()
    sharing: dict[str, tuple[str, ...]] = {}
    for offset, block in placed:
        names = tuple(buffer.name for buffer in block.buffers)
        extents |= dict.fromkeys(names, (offset, offset + block.nbytes))
        if len(names) > 1:
            moving |= set(names)
        others = tuple(
            buffer.name
            for start, other in placed
            if other is not block
            and offset < start + other.nbytes
            and start < offset + block.nbytes
            for buffer in other.buffers
        )
        sharing |= dict.fromkeys(names, others)
    return MemoryMap(extents, frozenset(moving), sharing)
