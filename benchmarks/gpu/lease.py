"""One command for a GPU that is lent for minutes: python3 -m benchmarks.gpu.lease --out DIR.

Stages run in order of importance. Each has a separate limit and never waits for a later
one; the time left over is for `slack`, which repeats what was cut off. Every row is on disk
before the next begins, in DIR/rows.jsonl; DIR/log.txt has the output of the workers.
Nothing else is written there.

`--second` runs, on the same machine, what failed in the first command, then models and
figures that take longer. `--prepare` makes at home everything that should not take time on
the GPU's machine. `--dry-run` rehearses all of it without a GPU, against a replacement of
the driver.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING

from stretto.simulator.devices import gpu_like

from . import ceilings, correctness, graphs, launches, peers, shapes, smoke, tools, turns
from .device import Home
from .engine import Job, Log, Settings, run_jobs
from .gpu import Gpu, why_no_gpu
from .results import Keep, Row, RowFile, Rows, count, read_rows
from .saved import KINDS, Program

if TYPE_CHECKING:
    from .prepare import Others

ROWS, LOG = "rows.jsonl", "log.txt"
SAVED = Path("build/lease")
TOTAL_S, SECOND_S = 480.0, 200.0
END_S = 3.0
"""Time reserved for ending the last workers."""
DRY_KIND = "h100"

Drive = Callable[[Settings, Keep, float], None]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage. limit_s: its maximum time. drive: runs its rows until a given time."""

    name: str
    limit_s: float
    drive: Drive


FIRST = (
    Stage("facts", 15, smoke.facts),
    Stage("smoke", 30, smoke.drive),
    Stage("sanitizer", 30, tools.sanitizer),
    Stage("correctness", 90, correctness.drive),
    Stage("ceilings", 60, ceilings.drive),
    Stage("peers", 105, peers.drive),
    Stage("graphs", 90, graphs.drive),
    Stage("profile", 40, tools.profile),
)
SLACK_S = 20.0


@dataclass(slots=True)
class Lease:
    """One command in progress. kind: of the programs; None for that of the GPU. rows: all rows so
    far, by stage and name."""

    settings: Settings
    file: RowFile
    end: float
    kind: str | None = None
    rows: dict[tuple[str, str], Row] = field(default_factory=dict[tuple[str, str], Row])

    def stage(self, stage: Stage) -> None:
        """Run a stage within its limit and the command's."""
        limit = min(stage.limit_s, self.end - time.monotonic())
        say(f"== {stage.name}: at most {max(limit, 0):.0f} s")
        start = time.monotonic()
        keep = self._keep(stage.name)
        try:
            stage.drive(self.settings, keep, start + limit)
        except Exception as error:  # a bug of the lease must not lose the stages that follow
            keep(Row("the stage itself", "failed", f"{type(error).__name__}: {error}"))
        found = [row for (name, _), row in self.rows.items() if name == stage.name]
        counts = ", ".join(f"{n} {status}" for status, n in count(found).items())
        say(f"== {stage.name}: {counts or 'nothing'} in {time.monotonic() - start:.1f} s")

    def _keep(self, stage: str) -> Keep:
        append = self.file.keep(stage)

        def keep(row: Row) -> None:
            append(row)
            new = (stage, row.name) not in self.rows
            self.rows[stage, row.name] = row
            if new or row.status != "ok":
                reason = f": {row.reason[:200]}" if row.reason else ""
                say(f"  {row.status:<8}{row.seconds:6.1f} s  {row.name}{reason}")

        return keep

    def known(self) -> Rows:
        return Rows(tuple(self.rows.values()))

    def know_gpu(self) -> None:
        """Take the GPU from the row of facts, and the programs for its kind unless a kind was
        named."""
        row = self.rows.get(("facts", smoke.GPU))
        if row is None or "gpu" not in row.values:
            return
        told = row.values["gpu"]
        gpu = Gpu(**{**told, "capability": tuple(told["capability"])})
        kind = self.kind or gpu_like(gpu.name, gpu.capability).name
        folder = self.settings.saved.parent / kind
        self.settings = replace(self.settings, gpu=gpu, saved=folder)


# ---- repeated jobs -----------------------------------------------------------------------------

JOBS: Mapping[str, Callable[[Settings], list[Job]]] = {
    "sanitizer": tools.sanitizer_jobs,
    "correctness": correctness.jobs,
    "ceilings": ceilings.jobs,
    "peers": peers.jobs,
    "graphs": graphs.jobs,
    "profile": tools.profile_jobs,
    "shapes": shapes.jobs,
}
LINEUPS = {"peers": peers.LINEUP, "graphs": graphs.lineup()}
"""Stages whose systems take turns: all systems of a model are repeated together."""


def again(rows: Rows, wanted: Callable[[Row], bool]) -> list[Stage]:
    """Return stages that repeat the jobs with wanted rows, without their rows that are right."""
    found: list[Stage] = []
    for name, jobs_of in JOBS.items():
        old = [row for row in rows.of(name) if wanted(row)]
        names = {row.job for row in old}
        if not names:
            continue
        if name in LINEUPS:
            models = {job.partition(" ")[0] for job in names}
            drive = _models_again(name, jobs_of, models)
        else:
            done: dict[str, list[str]] = {}
            for row in rows.of(name):
                if row.status in ("ok", "skipped"):
                    done.setdefault(row.job, []).append(row.name)
            drive = _jobs_again(name, jobs_of, names, done)
        found.append(Stage(name, TOTAL_S, _replacing(drive, old)))
    return found


def _replacing(drive: Drive, old: Sequence[Row]) -> Drive:
    """Also replace old rows of a repeated job that it did not write again, such as "not
    reached"."""

    def run(settings: Settings, keep: Keep, end: float) -> None:
        seen: dict[str, str] = {}

        def noting(row: Row) -> None:
            seen[row.name] = row.job
            keep(row)

        drive(settings, noting, end)
        for row in old:
            if row.name not in seen and row.job in seen.values():
                keep(Row(row.name, "skipped", "its job was run again", job=row.job))

    return run


def _models_again(name: str, jobs_of: Callable[[Settings], list[Job]], models: set[str]) -> Drive:
    def drive(settings: Settings, keep: Keep, end: float) -> None:
        todo = [job for job in jobs_of(settings) if job.name.partition(" ")[0] in models]
        turns.drive(LINEUPS[name], todo, settings, keep, end)

    return drive


def _jobs_again(
    name: str,
    jobs_of: Callable[[Settings], list[Job]],
    names: set[str],
    done: Mapping[str, Sequence[str]],
) -> Drive:
    parallel = name in ("sanitizer", "correctness")  # the other stages measure times

    def drive(settings: Settings, keep: Keep, end: float) -> None:
        todo = [job for job in jobs_of(settings) if job.name in names]
        run_jobs(todo, settings, keep, end, settings.workers if parallel else 1, done)

    return drive


def is_wrong(row: Row) -> bool:
    return row.status in ("failed", "wrong")


def was_cut_off(row: Row) -> bool:
    return row.status == "failed" and row.reason.startswith(
        ("not reached", "no result", "not ready")
    )


# ---- the two commands --------------------------------------------------------------------------


def first(lease: Lease) -> None:
    for stage in FIRST:
        lease.stage(stage)
        if stage.name == "facts":
            lease.know_gpu()
    for stage in again(lease.known(), was_cut_off):
        lease.stage(replace(stage, limit_s=max(SLACK_S, lease.end - time.monotonic())))


def second(lease: Lease, previous: Rows) -> None:
    """Run the second command: half of the time is for what went wrong before, the rest is divided
    among the other stages."""
    lease.stage(FIRST[0])
    lease.know_gpu()
    repeated = again(previous, is_wrong)
    half = (lease.end - time.monotonic()) / 2
    stages = [replace(stage, limit_s=half / len(repeated)) for stage in repeated]
    later = (Stage("skipnet", 0, _skipnet), Stage("shapes", 0, shapes.drive))
    for stage in stages:
        lease.stage(stage)
    for left, stage in zip((0.4, 0.6, 1.0), (*later, Stage("tuned", 0, _tuned)), strict=True):
        lease.stage(replace(stage, limit_s=left * (lease.end - time.monotonic())))


def _skipnet(settings: Settings, keep: Keep, end: float) -> None:
    turns.drive(peers.LINEUP, peers.jobs(settings, ("skipnet",)), settings, keep, end)


def _tuned(settings: Settings, keep: Keep, end: float) -> None:
    turns.drive(graphs.lineup(), graphs.jobs(settings, tuned=True), settings, keep, end)


def run(
    out: Path,
    *,
    kind: str | None = None,
    dry_run: bool = False,
    chosen: tuple[str, ...] = (),
    limit_s: float = TOTAL_S,
    previous: Rows | None = None,
    folder: Path = SAVED,
) -> list[Row]:
    """Run the first command, or the second one if `previous` has rows. Return the rows."""
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        temporary = tempfile.TemporaryDirectory(prefix="stretto-gpu-", ignore_cleanup_errors=True)
        scratch = Path(held.enter_context(temporary))
        if dry_run:
            rehearse(scratch, chosen)
        elif folder.is_dir():
            copytree(folder, scratch / "saved")
            make_private(scratch / "saved")
        start = time.monotonic()
        here = scratch / "saved" / (DRY_KIND if dry_run else kind or DRY_KIND)
        here.mkdir(parents=True, exist_ok=True)
        settings = Settings(scratch, here, Log(out / LOG), dry_run, chosen)
        file = RowFile(out / ROWS, dry_run, lambda: time.monotonic() - start)
        lease = Lease(settings, file, start + limit_s - END_S, kind)
        if previous is None:
            first(lease)
        else:
            second(lease, previous)
        say(f"== the end after {time.monotonic() - start:.1f} s of {limit_s:.0f}")
        return list(lease.rows.values())


def make_private(folder: Path) -> None:
    """Restrict access to a folder: the build cache reads only files that no other user can
    write."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)


def rehearse(scratch: Path, chosen: tuple[str, ...]) -> None:
    """Prepare a dry run: the replacement of the driver, references, simulated times. It has no
    machine code."""
    from .device import Bench
    from .prepare import prepare

    assert Bench(True, scratch).rehearsal is not None
    prepare(scratch / "saved", programs(True, chosen), None, (DRY_KIND,), tell=say)


# ---- at home -----------------------------------------------------------------------------------


def programs(dry_run: bool, chosen: tuple[str, ...]) -> list[Program]:
    """Return all programs that the commands run, each once."""
    skipnet = [] if dry_run or (chosen and "skipnet" not in chosen) else [Program("skipnet")]
    found = [
        *correctness.programs(dry_run, chosen),
        *tools.programs(dry_run, chosen),
        *graphs.programs(dry_run, chosen),
        *skipnet,
    ]
    return list(dict.fromkeys(found))


def others() -> Others:
    """Return everything that rows compile besides the models' programs."""
    from .prepare import Others

    home = Home()
    parts = (launches, ceilings, correctness)
    functions = [one for part in parts for one in part.functions(home)]
    sources = [*ceilings.sources(KINDS[DRY_KIND].multiprocessors), *launches.sources()]
    return Others(functions, sources)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    chosen = tuple(options.models)
    if options.prepare is not None:
        kinds = (options.kind,) if options.kind else tuple(KINDS)
        from .prepare import prepare

        prepare(options.prepare, programs(False, chosen), others(), kinds)
        return 0
    if not options.dry_run and (reason := why_no_gpu()):
        say(f"No GPU, nothing is measured: {reason}. --dry-run rehearses without one.")
        return 0
    previous = None
    if options.second:
        path = options.previous or options.out / ROWS
        previous = read_rows([path]) if path.is_file() else Rows(())
    rows = run(
        options.out,
        kind=options.kind,
        dry_run=options.dry_run,
        chosen=chosen,
        limit_s=options.limit or (SECOND_S if options.second else TOTAL_S),
        previous=previous,
    )
    return int(any(is_wrong(row) for row in rows if row.stage in ("smoke", "correctness")))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.gpu.lease",
        description="Check and measure stretto on an NVIDIA GPU that is lent for minutes.",
    )
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder of results")
    parser.add_argument("--kind", choices=tuple(KINDS), help="which of the prepared programs")
    parser.add_argument("--second", action="store_true", help="what failed, and what takes longer")
    parser.add_argument(
        "--previous",
        type=Path,
        metavar="ROWS",
        help="rows of the first command (default: of --out)",
    )
    parser.add_argument("--dry-run", action="store_true", help="tiny, without a GPU")
    parser.add_argument("--models", nargs="*", default=(), metavar="MODEL", help="only these")
    parser.add_argument(
        "--limit", type=float, help=f"seconds (default: {TOTAL_S:g}, of the second {SECOND_S:g})"
    )
    parser.add_argument(
        "--prepare",
        type=Path,
        metavar="DIR",
        help="make programs, references and simulated times; needs no GPU",
    )
    return parser


def say(line: str) -> None:
    """Print a line; a closed terminal must not end the lease."""
    with suppress(OSError):
        print(line, flush=True)


if __name__ == "__main__":
    if find_spec("torch") is None:
        raise SystemExit("benchmarks.gpu needs torch and triton; this Python has no torch")
    sys.exit(main())
