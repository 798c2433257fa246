"""Runs the parts one after the other, each within its time, and keeps what they leave."""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .device import about
from .engine import Settings, run_jobs
from .gpu import Gpu
from .results import PartRecord, Row, now, read_part
from .summary import PARTS

LIMITS_S = {
    "correctness": 160.0,
    "ceilings": 100.0,
    "models": 140.0,
    "graphs": 100.0,
    "traces": 30.0,
}
TOTAL_S = 530.0
"""Under nine minutes, with the end of the last worker."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to run. cache: where compiled programs are kept; None keeps none. gpu: None in a dry
    run."""

    out: Path
    parts: tuple[str, ...] = PARTS
    dry_run: bool = False
    force: bool = False
    commit: str | None = None
    cache: Path | None = None
    chosen: tuple[str, ...] = ()
    total_s: float = TOTAL_S
    gpu: Gpu | None = None


def deal(parts: Sequence[str], total_s: float) -> dict[str, float]:
    """The most seconds of each part: in proportion to what it has in a run of all parts, so that
    fewer parts, or a longer total, give each of them more."""
    factor = max(1.0, total_s / sum(LIMITS_S[part] for part in parts)) if parts else 1.0
    return {part: LIMITS_S[part] * factor for part in parts}


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
        out = choice.out.resolve()
        settings = Settings(out, scratch, choice.dry_run, choice.chosen, choice.gpu)
        if settings.alone:
            say("== exclusive-process mode: one worker at a time, and no systems in turns")
        known = about(choice.gpu, choice.commit)
        there = {} if choice.force else _complete(choice)
        limits = deal([part for part in choice.parts if part not in there], choice.total_s)
        for part in choice.parts:
            if part in there:
                say(f"== {part}: there already (--force runs it again)")
                found.append(there[part])
                continue
            limit = min(time.monotonic() + limits[part], end)
            found.append(run_part(part, settings, known, limit))
            settings = replace(settings, compiled=settings.compiled + compiled(found[-1]))
    return found


def _complete(choice: Choice) -> dict[str, PartRecord]:
    """What earlier runs have left and came to its end."""
    records = {part: read_part(choice.out, part) for part in choice.parts}
    return {part: record for part, record in records.items() if record and record.complete}


def compiled(record: PartRecord) -> tuple[str, ...]:
    """The models whose programs of full size a part has left in the cache."""
    prefix = "zoo full "
    rows = [row.name for row in record.rows if row.status in ("ok", "wrong")]
    return tuple(name.removeprefix(prefix) for name in rows if name.startswith(prefix))


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
            parallel = settings.workers if part == "correctness" else 1  # others measure
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
