"""Rows of results, one line of JSON each, in a file to which lines are only appended.

A line is on disk before the next row begins, so a lease that is cut short loses the row it
was in. A row may be written again when more is known about it: the last line of a stage and
name counts.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..record import Status


class WrongValue(Exception):
    """Raised by a check that ran and found another value than it should."""


@dataclass(slots=True)
class Row:
    """One check or measurement. `reason` says why it is not `ok`; `values` is plain data. stage
    and job: where it ran."""

    name: str
    status: Status
    reason: str = ""
    seconds: float = 0.0
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    stage: str = ""
    job: str = ""

    @property
    def measured_us(self) -> float | None:
        """Microseconds of a call of the model, or of the operation that a ceiling measures."""
        timing, scale = self.values.get("device"), 1e3
        if timing is None and self.values.get("unit") == "s":
            timing, scale = self.values, 1e6
        return None if timing is None else timing["median"] * scale

    @property
    def simulated_us(self) -> float | None:
        return self.values.get("simulated_us")


Keep = Callable[[Row], None]


@dataclass(slots=True)
class RowFile:
    """The file of a lease. seconds: returns the seconds since the lease began."""

    path: Path
    dry_run: bool
    seconds: Callable[[], float]

    def keep(self, stage: str) -> Keep:
        """Return a function that appends the rows of a stage."""

        def append(row: Row) -> None:
            row.stage = stage
            line = {
                "stage": stage,
                "name": row.name,
                "status": row.status,
                "seconds": round(row.seconds, 3),
                "measured_us": row.measured_us,
                "simulated_us": row.simulated_us,
                "reason": row.reason,
                "job": row.job,
                "at": round(self.seconds(), 1),
                "dry_run": self.dry_run,
                "details": {k: v for k, v in row.values.items() if k != "simulated_us"},
            }
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())

        return append


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one or several leases. dry_run: True if its figures mean nothing."""

    rows: tuple[Row, ...]
    dry_run: bool = False

    def of(self, stage: str) -> list[Row]:
        return [row for row in self.rows if row.stage == stage]

    def row(self, stage: str, name: str) -> Row | None:
        return next((row for row in self.of(stage) if row.name == name), None)

    def value(self, stage: str, name: str, key: str = "median") -> float | None:
        """Return a figure of a row that is ok; None if there is none."""
        row = self.row(stage, name)
        return row.values.get(key) if row is not None and row.status == "ok" else None


def read_rows(paths: Sequence[Path]) -> Rows:
    """Read the rows of files in this order; later lines replace earlier ones. A last line that was
    cut off is left out. Raises ValueError for any other line that is no row."""
    found: dict[tuple[str, str], Row] = {}
    dry_run = False
    for path in paths:
        text = path.read_text()
        lines = text.splitlines()
        for number, line in enumerate(lines, 1):
            try:
                data = json.loads(line)
            except ValueError as error:
                if number == len(lines) and not text.endswith("\n"):
                    break
                raise ValueError(f"{path}, line {number}, is no row") from error
            dry_run |= data["dry_run"]
            row = _row(data)
            found[row.stage, row.name] = row
    return Rows(tuple(found.values()), dry_run)


def _row(data: dict[str, Any]) -> Row:
    values = data["details"]
    if data["simulated_us"] is not None:
        values["simulated_us"] = data["simulated_us"]
    names = ("name", "status", "reason", "seconds", "stage", "job")
    return Row(values=values, **{name: data[name] for name in names})


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def count(rows: Iterable[Row]) -> dict[str, int]:
    """Return the number of rows per status."""
    found: dict[str, int] = {}
    for row in rows:
        found[row.status] = found.get(row.status, 0) + 1
    return found
