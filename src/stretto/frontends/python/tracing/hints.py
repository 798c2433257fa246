"""What an unfinished try of a capture has found, by which the next try comes further at once.

Nothing is decided by a hint: without it the same program is found in more rounds.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from types import CodeType

_MOST_RESTARTS = 4


@dataclass(slots=True, eq=False)
class Hints:
    """Kept from one try of a capture to the next."""

    recursive: set[CodeType] = field(default_factory=set[CodeType])
    """Functions that were found to call themselves."""
    splits: set[Hashable] = field(default_factory=set[Hashable])
    """Loops with variables that hold another kind of thing after a round."""
    restarts: int = 0
    """How many tries have ended as soon as it was known that they would."""

    def may_restart(self) -> bool:
        """Whether a try may end before all of the function has been traced. What it would have
        found in the rest is found by the next one, so there must not be many such ends."""
        return self.restarts < _MOST_RESTARTS

    def size(self) -> int:
        return len(self.recursive) + self.restarts
