"""Remarks: what a pass, fusion, selection or a policy could have done and did not, and why.

A Program carries the channel from its capture on, and the stages after it use the same one, so
that `explain()` and `stretto explain --remarks` can show everything together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stretto.errors import SourceLocation


@dataclass(frozen=True, slots=True)
class Remark:
    """stage: the pass or stage that declined. subject: the op, operator or kernel. place: the
    user's line, as `file.py:12`; empty where it is not known."""

    stage: str
    subject: str
    reason: str
    place: str


class Remarks:
    """Remarks in the order in which they came first; equal ones are counted."""

    def __init__(self) -> None:
        self._counts: dict[Remark, int] = {}

    def decline(
        self, stage: str, subject: str, reason: str, place: SourceLocation | str | None = None
    ) -> None:
        if isinstance(place, SourceLocation):
            place = f"{place.file}:{place.line}"
        remark = Remark(stage, subject, reason, place or "")
        self._counts[remark] = self._counts.get(remark, 0) + 1

    def __iter__(self) -> Iterator[tuple[Remark, int]]:
        """Each remark, and how often it came."""
        return iter(list(self._counts.items()))
