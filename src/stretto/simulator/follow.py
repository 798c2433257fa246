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
    """Repeats the decisions of each branch and loop, in their order; each has its node's title, the
    way, and the unit that decided so. All units decide alike, but in iterations of parallel loops,
    of which each had its own, in turn."""

    depth = ANY_DEPTH

    def __init__(self, decisions: Iterable[tuple[str, int, int]]) -> None:
        self._decisions = defaultdict[tuple[str, int], deque[int]](deque)
        for name, way, unit in decisions:
            self._decisions[name, unit].append(way)
        self._units = 1 + max((unit for _, unit in self._decisions), default=0)
        self._unit = 0
        self._met = set[tuple[str, int]]()

    def arm(self, node: If[Schedule], seconds: tuple[float, float], ends: tuple[bool, bool]) -> int:
        return self._next(node)

    def goes_on(self, node: Loop[Schedule], done: int) -> bool:
        return bool(self._next(node))

    def passes(self, node: If[Schedule] | Loop[Schedule], way: int) -> None:
        if (title(node), self._unit) in self._decisions and self._next(node) != way:
            raise _misfit(f"{title(node)} goes another way here")

    def enters(self, iteration: int | None) -> None:
        self._unit = 0 if iteration is None else iteration % self._units

    def require_end(self) -> None:
        """Raises ScheduleError where the run went on at a branch or loop that was come to."""
        for name, unit in self._met:  # other units, whose decisions nobody asked, decided alike
            if self._decisions[name, unit]:
                raise _misfit(f"it came to {name} more often")

    def _next(self, node: If[Schedule] | Loop[Schedule]) -> int:
        name = title(node)
        self._met.add((name, self._unit))
        if (name, self._unit) not in self._decisions:
            raise _misfit(f"it never came to {name}")
        if not self._decisions[name, self._unit]:
            raise _misfit(f"it came to {name} less often")
        return self._decisions[name, self._unit].popleft()


def _misfit(reason: str) -> ScheduleError:
    return ScheduleError(
        f"the run that is followed does not fit to this program: {reason}",
        remedy="simulate it without following a run, with a number of trips",
    )
