"""The way that a real run took: what its branches and loops decided.

The decisions hold for programs of the same model with other units and on other machines, as long as
their control is the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from stretto.device.program import Schedule
from stretto.device.tree import If, Loop, title
from stretto.errors import ScheduleError

ANY_DEPTH = 1_000_000


class Recorded:
    """Repeats decisions, one after the other; each with the title of its node."""

    depth = ANY_DEPTH

    def __init__(self, decisions: Iterable[tuple[str, int]]) -> None:
        self._decisions = deque(decisions)

    def arm(self, node: If[Schedule], seconds: tuple[float, float], ends: tuple[bool, bool]) -> int:
        return self._next(node)

    def goes_on(self, node: Loop[Schedule], done: int) -> bool:
        return bool(self._next(node))

    def passes(self, node: If[Schedule] | Loop[Schedule], way: int) -> None:
        if self._next(node) != way:
            raise _misfit(f"{title(node)} goes another way here")

    def _next(self, node: If[Schedule] | Loop[Schedule]) -> int:
        if not self._decisions or self._decisions[0][0] != title(node):
            found = self._decisions[0][0] if self._decisions else "nothing"
            raise _misfit(f"it decided {found} where {title(node)} stands here")
        return self._decisions.popleft()[1]


def _misfit(reason: str) -> ScheduleError:
    return ScheduleError(
        f"the run that is followed does not fit to this program: {reason}",
        remedy="simulate it without following a run, with a number of trips",
    )
