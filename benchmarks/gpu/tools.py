"""The stages `sanitizer` and `profile`: NVIDIA's tools on programs of stretto.

A worker's row starts the tool, and the tool starts this module on one program. compute-
sanitizer's racecheck finds accesses to shared memory without a barrier between them,
memcheck accesses outside of allocated memory; ncu reads the hardware counters of one
launch. On a machine without a tool its rows are `skipped`. Neither changes settings of the
GPU: ncu is run with `--clock-control none`.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..harness import relative_error
from . import graphs, saved, timeline
from .device import TOLERANCE, Bench, plain_math
from .engine import Job, Settings, run_jobs
from .results import Keep, Row, WrongValue
from .saved import SEEDS, Program, Saved, entry_of
from .systems import on_host
from .worker import Reporter

CHECKED = ("attention", "lstm", "deepfm", "rae")
DRY_CHECKED = ("lstm",)
CHECKS = ("racecheck", "memcheck")
UNITS = 2
"""Units of checked programs: instrumented code is slow, and two units already wait for
each other."""
ROW_S = 28.0
PROFILED = ("lstm", "gpt2_decode")
PROFILE_S = 38.0
KERNEL = "stretto_run"
SKIPPED_LAUNCHES = 2
METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_bytes.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_membar_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio",
)
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")


def checked(model: str) -> Program:
    """Return a program small enough to run with a check of each access."""
    return Program(model, "small", units=UNITS)


def profiled(model: str) -> Program:
    """Return a program of full size that is one launch."""
    if model in graphs.MODELS:
        return graphs.program(model, "stretto", False)
    return Program(model)


def programs(dry_run: bool, chosen: tuple[str, ...]) -> list[Program]:
    models = DRY_CHECKED if dry_run else CHECKED
    found = [checked(model) for model in models if not chosen or model in chosen]
    if dry_run:
        return found
    return [*found, *(profiled(m) for m in PROFILED if not chosen or m in chosen)]


def sanitizer_jobs(settings: Settings) -> list[Job]:
    models = DRY_CHECKED if settings.dry_run else CHECKED
    return [
        Job("tools", f"{check} {model}", ROW_S)
        for check in CHECKS
        for model in models
        if not settings.chosen or model in settings.chosen
    ]


def sanitizer(settings: Settings, record: Keep, end: float) -> None:
    jobs = with_tool("compute-sanitizer", sanitizer_jobs(settings), record)
    run_jobs(jobs, settings, record, end, settings.workers)


def with_tool(tool: str, jobs: Sequence[Job], record: Keep) -> list[Job]:
    """Return the jobs if the tool is installed; else none, and record their rows as skipped."""
    if shutil.which(tool) is not None:
        return list(jobs)
    for job in jobs:
        record(Row(job.name, "skipped", f"{tool} is not installed", job=job.name))
    return []


def profile_jobs(settings: Settings) -> list[Job]:
    """Return the jobs of `profile`. A dry run has no timer of a GPU, so it traces nothing."""
    models = DRY_CHECKED if settings.dry_run else PROFILED
    chosen = [model for model in models if not settings.chosen or model in settings.chosen]
    traced = [] if settings.dry_run else [f"timeline {model}" for model in chosen[:1]]
    counted = [f"ncu {model}" for model in chosen]
    return [Job("tools", name, PROFILE_S) for name in (*traced, *counted)]


def profile(settings: Settings, record: Keep, end: float) -> None:
    """Run the jobs one at a time, so that each has the GPU for itself."""
    jobs = profile_jobs(settings)
    counted = with_tool("ncu", [job for job in jobs if job.name.startswith("ncu")], record)
    traced = [job for job in jobs if not job.name.startswith("ncu")]
    run_jobs([*traced, *counted], settings, record, end, 1)


def run(reporter: Reporter, bench: Bench) -> None:
    """Run the tool of a job, in a worker."""
    tool, _, model = reporter.job.partition(" ")
    match tool:
        case "timeline":
            reporter.row(reporter.job, PROFILE_S, partial(timeline.measure, reporter, bench, model))
        case "ncu":
            reporter.row(reporter.job, PROFILE_S, partial(counters, reporter, bench, model))
        case _:
            check = partial(sanitized, reporter, bench, tool, model)
            reporter.row(reporter.job, ROW_S, check)


def sanitized(reporter: Reporter, bench: Bench, check: str, model: str) -> dict[str, Any]:
    """Run compute-sanitizer on a model. Raises WrongValue if it reports an error."""
    options = ["--tool", check, "--kernel-name", f"kernel_substring={KERNEL}", "--print-limit", "9"]
    done = _run(["compute-sanitizer", *options, *_subject(reporter, bench, checked(model))])
    counted = SUMMARY.findall(done.stdout + done.stderr)
    print(done.stdout[-4000:], done.stderr[-2000:], file=sys.stderr)
    if not counted:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"{check} gave no summary, exit code {done.returncode}: {lines[-1]}")
    errors = sum(map(int, counted))
    if errors or done.returncode:
        first = next((line for line in done.stdout.splitlines() if "=====" in line[:9]), "")
        raise WrongValue(f"{errors} errors, exit code {done.returncode}: {first}")
    return {"errors": 0, "units": UNITS}


def counters(reporter: Reporter, bench: Bench, model: str) -> dict[str, Any]:
    """Read the counters of one launch by ncu, after a few launches to warm up."""
    options = ["--clock-control", "none", "--csv", "--page", "raw"]
    options += ["--kernel-name", KERNEL, "--metrics", ",".join(METRICS)]
    options += ["--launch-skip", str(SKIPPED_LAUNCHES), "--launch-count", "1"]
    wanted = checked(model) if bench.dry_run else profiled(model)
    done = _run(["ncu", *options, *_subject(reporter, bench, wanted)])
    print(done.stdout[-6000:], done.stderr[-2000:], file=sys.stderr)
    known = reporter.saved.facts(wanted)
    return read_counters(done.stdout) | {"simulated_us": known.get("simulated_us")}


def read_counters(text: str) -> dict[str, Any]:
    """Parse ncu's table into figures of one launch with their units: a row of names, one of units,
    one of values. Raises RuntimeError if there is none."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    table = list(csv.reader(lines))
    if len(table) < 3:
        said = text.strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"ncu gave no figures: {said[-1]}")
    names, units, values = table[:3]
    found: dict[str, Any] = {}
    for name, unit, value in zip(names, units, values, strict=True):
        if name in METRICS:
            found[name] = {"value": float(value.replace(",", "")), "unit": unit}
    return found


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command. Its limit is the row's: the worker is killed with all processes that it
    started."""
    return subprocess.run(command, capture_output=True, text=True, errors="replace")


def _subject(reporter: Reporter, bench: Bench, program: Program) -> list[str]:
    told = {
        "model": program.model,
        "preset": program.preset,
        "system": program.system,
        "settings": program.settings,
        "units": program.units,
        "saved": str(reporter.saved.folder),
        "scratch": str(reporter.scratch),
        "dry_run": bench.dry_run,
    }
    return [sys.executable, "-m", f"{__package__}.tools", json.dumps(told)]


# ---- in the process that a tool observes -------------------------------------------------------


@torch.no_grad()
def main() -> None:
    """Call a program a few times, and check its results."""
    told: dict[str, Any] = json.loads(sys.argv[1])
    bench = Bench(told["dry_run"], Path(told["scratch"]))
    plain_math()
    settings = tuple((name, _setting(value)) for name, value in told["settings"])
    program = Program(told["model"], told["preset"], told["system"], settings, told["units"])
    entry = entry_of(program.model)
    module, inputs = entry.make(entry.presets[program.preset], SEEDS[0])
    folder = Saved(Path(told["saved"]))
    wanted, _ = folder.reference(program, SEEDS[0], module, inputs)
    module, inputs = bench.place(module, inputs)
    fast = saved.load(program, module, bench, folder)
    for _ in range(SKIPPED_LAUNCHES):
        fast(*inputs)
    found = fast(*inputs)
    bench.synchronize()
    error = relative_error(on_host(found), wanted)
    if not error <= TOLERANCE:
        raise SystemExit(f"error {error:.1e}")


def _setting(value: Any) -> Any:
    """Convert lists to tuples, which JSON does not have."""
    return tuple(value) if isinstance(value, list) else value


if __name__ == "__main__":
    main()
