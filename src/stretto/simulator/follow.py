"""The way that a real run took: what its branches and loops decided.

The decisions hold for programs of the same model with other units and on other machines, where
these have the same branches and loops; those that a program itself knows the way of may differ.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

from stretto.device.program import Schedule
from stretto.device.tree import If, Loop, title
from stretto.errors import ScheduleError

ANY_DEPTH = 1_000_000


class Recorded:
    """Repeats the decisions of each branch and loop, in their order; each has its node's title."""

    depth = ANY_DEPTH

    def __init__(self, decisions: Iterable[tuple[str, int]]) -> None:
        self._decisions = defaultdict[str, deque[int]](deque)
        for name, way in decisions:
            self._decisions[name].append(way)

    def arm(self, node: If[Schedule], seconds: tuple[float, float], ends: tuple[bool, bool]) -> int:
        return self._next(node)

    def goes_on(self, node: Loop[Schedule], done: int) -> bool:
        return bool(self._next(node))

    def passes(self, node: If[Schedule] | Loop[Schedule], way: int) -> None:
        if title(node) in self._decisions and self._next(node) != way:
            raise _misfit(f"{title(node)} goes another way here")

    def _next(self, node: If[Schedule] | Loop[Schedule]) -> int:
        if title(node) not in self._decisions:
            raise _misfit(f"it never came to {title(node)}")
        if not self._decisions[title(node)]:
            raise _misfit(f"it came to {title(node)} less often")
        return self._decisions[title(node)].popleft()


def _misfit(reason: str) -> ScheduleError:
    return ScheduleError(
        f"the run that is followed does not fit to this program: {reason}",
        remedy="simulate it without following a run, with a number of trips",
    )
