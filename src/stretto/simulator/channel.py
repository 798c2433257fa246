"""Bandwidth that units share: each of n transfers under way gets the same rate.

The time of a channel's own clock is the bytes that every transfer has got so far. A transfer of b
bytes ends when that clock has gone on by b, whoever comes and goes meanwhile, so the transfers
under way stand in one heap and nothing is computed again when their number changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf


@dataclass(slots=True)
class Channel:
    """total: bytes per second of all transfers together. each: the most that one of them gets.

    What is transferred may be anything that is shared so, as arithmetic. Equal transfers that begin
    together are one entry with their number.
    """

    total: float
    each: float
    now: float = 0.0
    progress: float = 0.0
    under_way: int = 0
    ends: list[tuple[float, int, int]] = field(default_factory=list[tuple[float, int, int]])

    @property
    def rate(self) -> float:
        """Bytes per second of each transfer under way."""
        return min(self.each, self.total / max(self.under_way, 1))

    @property
    def next_end(self) -> float:
        """When the next transfer ends, if no other one begins."""
        if not self.ends:
            return inf
        return max(self.now, self.now + (self.ends[0][0] - self.progress) / self.rate)

    def begin(self, now: float, unit: int, nbytes: float, count: int = 1) -> None:
        """A transfer of a unit; or `count` of them, of so many bytes each."""
        self._advance(now)
        self.under_way += count
        heappush(self.ends, (self.progress + nbytes, unit, count))

    def end(self, now: float) -> int:
        """Ends the next transfer, or those that began with it, at `next_end`; gives its unit."""
        reached, unit, count = self.ends[0]
        self._advance(now)
        # Rounding must not let the clock stand before what has ended.
        self.progress = max(self.progress, reached)
        heappop(self.ends)
        self.under_way -= count
        return unit

    def _advance(self, now: float) -> None:
        self.progress += (now - self.now) * self.rate if self.ends else 0.0
        self.now = now
