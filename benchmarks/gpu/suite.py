"""Runs the parts one after the other, each within its time, and keeps what they leave."""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .device import about
from .engine import Settings, run_jobs
from .results import PartRecord, Row, now, read_part
from .summary import PARTS

LIMITS_S = {"correctness": 190.0, "ceilings": 115.0, "models": 195.0, "traces": 30.0}
TOTAL_S = 530.0
"""Under nine minutes, with the end of the last worker."""
PARALLEL = {"correctness": 8}


@dataclass(frozen=True, slots=True)
class Choice:
    """What to run. cache: where compiled programs are kept; None keeps none."""

    out: Path
    parts: tuple[str, ...] = PARTS
    dry_run: bool = False
    force: bool = False
    commit: str | None = None
    cache: Path | None = None
    chosen: tuple[str, ...] = ()
    total_s: float = TOTAL_S


def run(choice: Choice) -> list[PartRecord]:
    """Runs what has no results yet. Gives the records of all the parts that were asked for."""
    choice.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + choice.total_s
    found: list[PartRecord] = []
    with ExitStack() as held:
        temporary = tempfile.TemporaryDirectory(prefix="stretto-gpu-", ignore_cleanup_errors=True)
        scratch = Path(held.enter_context(temporary))
        if choice.cache is not None:
            choice.cache.mkdir(parents=True, exist_ok=True)
            (scratch / "programs").symlink_to(choice.cache.resolve())
        settings = Settings(choice.out.resolve(), scratch, choice.dry_run, choice.chosen)
        known = about(choice.dry_run, choice.commit)
        for part in choice.parts:
            before = read_part(choice.out, part)
            if before is not None and before.complete and not choice.force:
                say(f"== {part}: there already (--force runs it again)")
                found.append(before)
                continue
            limit = min(time.monotonic() + LIMITS_S[part], end)
            found.append(run_part(part, settings, known, limit))
    return found


def run_part(part: str, settings: Settings, known: dict[str, Any], end: float) -> PartRecord:
    """One part until the time `end` of the monotonic clock; its file is written row by row."""
    say(f"== {part}: at most {max(end - time.monotonic(), 0):.0f} s")
    start = time.monotonic()
    record = PartRecord(part, settings.dry_run, {"date": now(), **known})

    def keep(row: Row) -> None:
        places = [n for n, other in enumerate(record.rows) if other.name == row.name]
        if places:
            record.rows[places[0]] = row
        else:
            record.rows.append(row)
            tell(row)
        record.seconds = time.monotonic() - start
        record.write(settings.out)

    module = importlib.import_module(f".{part}", __package__)
    try:
        if hasattr(module, "drive"):
            module.drive(settings, keep, end)
        else:
            parallel = 2 if settings.dry_run else PARALLEL.get(part, 1)
            parallel = max(1, min(parallel, os.cpu_count() or 1))
            run_jobs(module.jobs(settings.dry_run, settings.chosen), settings, keep, end, parallel)
    except Exception as error:  # the suite's own mistake must not lose the parts that follow
        keep(Row(f"{part}: the suite itself", "failed", f"{type(error).__name__}: {error}"))
    record.complete = True
    record.seconds = time.monotonic() - start
    record.write(settings.out)
    return record


def tell(row: Row) -> None:
    reason = f": {row.reason[:200]}" if row.reason else ""
    say(f"  {row.status:<8}{row.seconds:6.1f} s  {row.name}{reason}")


def say(line: str) -> None:
    print(line, flush=True)


def is_good(records: Sequence[PartRecord]) -> bool:
    """Is everything right that must be? A peer that fails is no failure of the suite."""
    return all(
        row.status in ("ok", "skipped")
        for record in records
        for row in record.rows
        if record.part == "correctness"
    )
