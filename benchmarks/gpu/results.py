"""Rows of results, and the JSON file of a part."""

import datetime
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..record import Status


@dataclass(slots=True)
class Row:
    """One check or measurement. `reason` says why it is not `ok`; `values` is plain data."""

    name: str
    status: Status
    reason: str = ""
    seconds: float = 0.0
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class PartRecord:
    """What one part left. `about`: date, commit, device, versions. complete: it came to its end,
    whether or not all its rows are ok."""

    part: str
    dry_run: bool
    about: dict[str, Any]
    complete: bool = False
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    def value(self, name: str, key: str = "median") -> float | None:
        """A figure of a row that is ok."""
        row = self.row(name)
        return row.values.get(key) if row is not None and row.status == "ok" else None

    def write(self, folder: Path) -> None:
        """Replaces the file at once, so that no reader and no kill sees half of one."""
        path = part_path(folder, self.part)
        aside = path.with_suffix(".part")
        aside.write_text(json.dumps(asdict(self), indent=1) + "\n")
        aside.replace(path)


def part_path(folder: Path, part: str) -> Path:
    return folder / f"{part}.json"


def read_part(folder: Path, part: str) -> PartRecord | None:
    """None where the part has left no file, or one that cannot be read."""
    try:
        data = json.loads(part_path(folder, part).read_text())
        data["rows"] = [Row(**row) for row in data["rows"]]
        return PartRecord(**data)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def count(rows: Iterable[Row]) -> dict[str, int]:
    """How many rows have each status."""
    found: dict[str, int] = {}
    for row in rows:
        found[row.status] = found.get(row.status, 0) + 1
    return found
