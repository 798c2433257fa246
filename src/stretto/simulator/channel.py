"""Bandwidth that units share: each of n current transfers gets the same rate.

The clock of a channel is the number of bytes that a transfer has got since the start. A
transfer of b bytes ends when the clock has advanced by b, even if other transfers start or
end meanwhile, so the current transfers are in one heap and nothing is recomputed when their
number changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf


@dataclass(slots=True)
class Channel:
    """A shared rate. total: bytes per second of all transfers together. each: the most that one of
    them gets.

    Anything shared in this way can be transferred, such as arithmetic. Equal transfers that
    begin together are one entry with their number.
    """

    total: float
    each: float
    now: float = 0.0
    progress: float = 0.0
    under_way: int = 0
    ends: list[tuple[float, int, int]] = field(default_factory=list[tuple[float, int, int]])

    @property
    def rate(self) -> float:
        """Bytes per second of each current transfer."""
        return min(self.each, self.total / max(self.under_way, 1))

    @property
    def next_end(self) -> float:
        """Time when the next transfer ends, if no other one begins; infinite if there is none."""
        if not self.ends:
            return inf
        return max(self.now, self.now + (self.ends[0][0] - self.progress) / self.rate)

    def begin(self, now: float, unit: int, nbytes: float, count: int = 1) -> None:
        """Begin a transfer of a unit, or `count` of them, of `nbytes` each."""
        self._advance(now)
        self.under_way += count
        heappush(self.ends, (self.progress + nbytes, unit, count))

    def end(self, now: float) -> int:
        """End the next transfer, with those that began together with it, at `next_end`; return its
        unit."""
        reached, unit, count = self.ends[0]
        self._advance(now)
        # Rounding must not leave the clock before a transfer that has ended.
        self.progress = max(self.progress, reached)
        heappop(self.ends)
        self.under_way -= count
        return unit

    def _advance(self, now: float) -> None:
        self.progress += (now - self.now) * self.rate if self.ends else 0.0
        self.now = now
