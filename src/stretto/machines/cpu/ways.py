"""Whether library calls run side by side, or one after the other: decided by running both ways.

A program whose calls have shares of the threads can run in both: with a thread for each unit, where
calls run side by side; or with all units on the caller's thread, where each call has all threads of
torch. The first calls of a program take turns, and the faster way is kept, for later processes, too
(docs/tuning.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from stretto.device.operator import LibraryCall
from stretto.options import Options
from stretto.runtime.cache import content_key
from stretto.tuning.database import Database, KernelTime, this_cpu

WARM_CALLS = 1
"""Calls of each way that do not count: memory is touched, and threads are made."""
TIMED_CALLS = 5
"""Calls of each way that count; their smallest time does."""
LEAST_GAIN = 1.03
"""Side by side must be faster by this factor: smaller differences may be chance."""

Result = TypeVar("Result")


class Way(Enum):
    SIDE_BY_SIDE = "side by side"
    ONE_BY_ONE = "one by one"


@dataclass(eq=False, slots=True)
class Ways:
    """The ways to run one program. database: where their times are kept; None keeps none."""

    key: str
    options: Options
    database: Database | None
    seconds: dict[Way, list[float]] = field(default_factory=lambda: {way: [] for way in Way})
    fastest: dict[Way, float] = field(default_factory=dict[Way, float])
    """What each way takes, once that is known."""

    @staticmethod
    def of(text: str, calls: Sequence[LibraryCall], options: Options) -> Ways:
        """The ways of a program with this text and these calls."""
        database = None if options.tune == "off" else Database(options.cache_path())
        ways = Ways(content_key("library calls", text, *map(repr, calls))[:32], options, database)
        if database is not None:
            found = database.kernels(this_cpu(options), map(ways.name, Way))
            if len(found) == len(Way):
                ways.fastest = {way: found[ways.name(way)].seconds for way in Way}
        return ways

    def name(self, way: Way) -> str:
        """By what its time is kept."""
        return f"{self.key} {way.value}"

    @property
    def kept(self) -> Way | None:
        """The way of all later calls; None until it is known."""
        if not self.fastest:
            return None
        gains = self.fastest[Way.SIDE_BY_SIDE] * LEAST_GAIN < self.fastest[Way.ONE_BY_ONE]
        return Way.SIDE_BY_SIDE if gains else Way.ONE_BY_ONE

    def run(self, call: Callable[[Way], Result]) -> Result:
        """Runs the program in one of its ways. A call that raises does not count."""
        if (kept := self.kept) is not None:
            return call(kept)
        way = min(Way, key=lambda way: len(self.seconds[way]))
        start = time.perf_counter()
        result = call(way)
        self._took(way, time.perf_counter() - start)
        return result

    def _took(self, way: Way, seconds: float) -> None:
        self.seconds[way].append(seconds)
        if self.fastest or min(map(len, self.seconds.values())) < WARM_CALLS + TIMED_CALLS:
            return
        self.fastest = {way: min(times[WARM_CALLS:]) for way, times in self.seconds.items()}
        if self.database is not None:
            times = {self.name(way): KernelTime(s, TIMED_CALLS) for way, s in self.fastest.items()}
            self.database.put_kernels(this_cpu(self.options), times)

    def __str__(self) -> str:
        if (kept := self.kept) is None:
            return "both ways are being timed"
        times = (f"{way.value} {1e3 * seconds:.2f} ms" for way, seconds in self.fastest.items())
        return f"{kept.value} (measured: {', '.join(times)})"
