"""Remarks: what a pass, fusion, selection or a policy could have done and did not, and why.

A Program carries them from its capture on, and all later stages add to the same object, so that
`explain()` and `stretto explain --remarks` can show everything together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stretto.errors import SourceLocation


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that was declined. stage: the pass or stage that declined. subject: the op,
    operator or kernel. place: the user's line, as `file.py:12`; empty if unknown."""

    stage: str
    subject: str
    reason: str
    place: str


class Remarks:
    """Remarks in the order of their first occurrence, each with a count."""

    def __init__(self) -> None:
        self._counts: dict[Remark, int] = {}

    def decline(
        self, stage: str, subject: str, reason: str, place: SourceLocation | str | None = None
    ) -> None:
        """Add a remark; equal ones are counted."""
        if isinstance(place, SourceLocation):
            place = f"{place.file}:{place.line}"
        remark = Remark(stage, subject, reason, place or "")
        self._counts[remark] = self._counts.get(remark, 0) + 1

    def __iter__(self) -> Iterator[tuple[Remark, int]]:
        """Yield each remark with the number of times that it was made."""
        return iter(list(self._counts.items()))
