"""What an unfinished try of a capture has found, by which the next try comes further at once.

Nothing is decided by a hint: without it the same program is found in more rounds. What all tries
have traced is counted here as well, so that each capture ends.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from types import CodeType

_MOST_RESTARTS = 4

MOST_WORK = 400_000
"""Ops that one capture traces at most, those included that later rounds and tries replace."""
REGION_WORK = 10
"""Ops that count as much as an arm of a branch, or a round of a loop."""
MOST_NESTED = 250
"""Branches and loops inside of each other at most."""


@dataclass(slots=True, eq=False)
class Hints:
    """Kept from one try of a capture to the next."""

    recursive: set[CodeType] = field(default_factory=set[CodeType])
    """Functions that were found to call themselves."""
    splits: set[Hashable] = field(default_factory=set[Hashable])
    """Loops with variables that hold another kind of thing after a round."""
    sized: set[CodeType] = field(default_factory=set[CodeType])
    """Those that call themselves with tensors of other sizes, which data decide."""
    varying: set[tuple[CodeType, int | str]] = field(
        default_factory=set[tuple[CodeType, "int | str"]]
    )
    """Their arguments that are another number on each level."""
    is_varying: bool = True
    """Whether such arguments are numbers of the Program."""
    says_compiling: bool = True
    """The answer to `torch.compiler.is_compiling()`."""
    was_asked: bool = False
    """True once the function has asked that."""
    work: int = 0
    """How much has been traced in all tries."""
    restarts: int = 0
    """How many tries have ended as soon as it was known that they would."""

    def may_restart(self) -> bool:
        """Whether a try may end before all of the function has been traced. What it would have
        found in the rest is found by the next one, so there must not be many such ends."""
        return self.restarts < _MOST_RESTARTS

    def is_compiling(self) -> bool:
        """Answers a function that asks whether it is compiled."""
        self.was_asked = True
        return self.says_compiling

    def deny_compiling(self) -> bool:
        """Answers otherwise from the next try on. Returns whether that makes a difference: eager
        PyTorch does not take the way on which the function has raised an exception."""
        makes_difference = self.was_asked and self.says_compiling
        self.says_compiling = False
        return makes_difference

    def size(self) -> int:
        found = len(self.recursive) + len(self.sized) + len(self.varying)
        return found + self.restarts + (not self.is_varying) + (not self.says_compiling)
