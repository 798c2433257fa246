"""What captures of a function have found out about its branches."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.errors import SourceLocation

Arm = tuple[SourceLocation, bool]
"""The place of a branch, and whether the arm is the one for conditions that hold."""


@dataclass(eq=False, slots=True)
class Settling:
    """divided: branches of which a program has the arm that its call takes. arms: those that are
    left out of programs where they cannot be captured."""

    divided: set[SourceLocation] = field(default_factory=set[SourceLocation])
    arms: set[Arm] = field(default_factory=set[Arm])
