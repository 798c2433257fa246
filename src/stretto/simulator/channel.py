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
    """total: bytes per second of all transfers together. each: the most that one of them gets."""

    total: float
    each: float
    now: float = 0.0
    progress: float = 0.0
    ends: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])

    @property
    def rate(self) -> float:
        """Bytes per second of each transfer under way."""
        return min(self.each, self.total / max(len(self.ends), 1))

    @property
    def next_end(self) -> float:
        """When the next transfer ends, if no other one begins."""
        if not self.ends:
            return inf
        return max(self.now, self.now + (self.ends[0][0] - self.progress) / self.rate)

    def begin(self, now: float, unit: int, nbytes: float) -> None:
        self._advance(now)
        heappush(self.ends, (self.progress + nbytes, unit))

    def end(self, now: float) -> int:
        """Ends the next transfer, at `next_end`; gives its unit."""
        reached, unit = self.ends[0]
        self._advance(now)
        # Rounding must not let the clock stand before what has ended.
        self.progress = max(self.progress, reached)
        heappop(self.ends)
        return unit

    def _advance(self, now: float) -> None:
        self.progress += (now - self.now) * self.rate if self.ends else 0.0
        self.now = now
