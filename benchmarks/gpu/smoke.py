"""The stages `facts` and `smoke`: a description of the GPU, and a check that launches work at all.

Nothing is compiled here if the folder of saved programs is right. If the first launch
fails, other forms of a launch are tried, each in a separate row, so that the record shows
which works.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from stretto.machines.cuda.driver import COOPERATIVE_LAUNCH, load_driver
from stretto.machines.cuda.printer.source import ENTRY
from stretto.machines.cuda.toolchain import file_name

from ..machine import git_commit
from ..peers.base import Skipped
from . import launches, probes
from .ceilings import trip
from .device import Bench, versions
from .engine import Job, Settings, run_jobs
from .gpu import found
from .probes import Loaded
from .results import Keep, Row, WrongValue, now
from .worker import Reporter

FIRST = "an empty launch"
GPU = "the GPU"
TOOLS = ("compute-sanitizer", "ncu", "nvcc", "cuobjdump")
SMI = "name,driver_version,pstate,clocks.sm,clocks.max.sm,clocks.mem,power.draw,temperature.gpu"


def facts(settings: Settings, record: Keep, end: float) -> None:
    run_jobs([Job("smoke", "facts", 30.0)], settings, record, end, 1)


def drive(settings: Settings, record: Keep, end: float) -> None:
    """Run the checks of launches; try other forms only if the first launch fails."""
    rows: dict[str, Row] = {}

    def keep(row: Row) -> None:
        rows[row.name] = row
        record(row)

    run_jobs([Job("smoke", "launches", 30.0)], settings, keep, end, 1)
    if FIRST not in rows or rows[FIRST].status != "ok":
        run_jobs([Job("smoke", "forms", 30.0)], settings, keep, end, 1)


def run(reporter: Reporter, bench: Bench) -> None:
    """Run the checks of a job, in a worker."""
    checks: dict[str, Callable[[], dict[str, Any]]]
    match reporter.job:
        case "facts":
            checks = {
                GPU: partial(gpu, bench),
                "the programs' text": partial(text, bench, reporter),
            }
        case "launches":
            checks = launch_checks(bench, reporter)
        case _:
            checks = forms(bench, str(reporter.programs))
    for name, check in checks.items():
        reporter.row(name, 20.0, check)


# ---- facts -------------------------------------------------------------------------------------


def gpu(bench: Bench) -> dict[str, Any]:
    """Describe the machine that the figures come from."""
    values: dict[str, Any] = {"date": now(), "commit": git_commit(), "versions": versions()}
    values["tools"] = {tool: shutil.which(tool) for tool in TOOLS}
    if bench.dry_run:
        return values | {"machine": "dry run: no GPU, figures mean nothing"}
    there, driver = found(), load_driver()
    return values | {
        "gpu": asdict(there),
        "machine": there.line,
        "compute_mode": there.mode_name,
        "driver": ".".join(map(str, driver.version())),
        "cooperative_launches": driver.attribute(0, COOPERATIVE_LAUNCH),
        "nvidia_smi": _nvidia_smi(),
    }


def _nvidia_smi() -> str:
    query = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)


def text(bench: Bench, reporter: Reporter) -> dict[str, Any]:
    """Check that a kernel's machine code made at home is found."""
    compiled = bench.compiled(probes.EMPTY.source(bench.units), str(reporter.programs))
    if compiled is None:
        raise Skipped("a dry run has no machine code")
    if not compiled.from_cache:
        raise WrongValue("the text differs from the one at home, so programs are compiled here")
    return {"triton_seconds": compiled.seconds}


# ---- launches ----------------------------------------------------------------------------------


def launch_checks(bench: Bench, reporter: Reporter) -> dict[str, Callable[[], dict[str, Any]]]:
    folder = str(reporter.programs)
    rows: dict[str, Callable[[], dict[str, Any]]] = {FIRST: partial(empty, bench, folder)}
    rows["ping-pong between two units"] = partial(
        trip, bench, folder, probes.PING_PONG, bench.units, 0.5, 200
    )
    for units in (2, 8, 66, bench.units):
        if units <= bench.units:
            wave = partial(trip, bench, folder, probes.WAVE, units, 1.0, 200)
            rows[f"wave over {units} units"] = wave
    return rows | {
        "exchange between all units": partial(launches.exchange, bench, reporter),
        "a program of waits": partial(launches.many, bench, reporter, calls=20),
        "capture and replay": partial(launches.replay, bench, reporter),
        "a planted deadlock": partial(launches.deadlock, bench, reporter),
    }


def empty(bench: Bench, folder: str) -> dict[str, Any]:
    loaded = Loaded(bench, probes.EMPTY, folder)
    return _launched(loaded.run, loaded.check) | {"from_cache": loaded.from_cache}


def _launched(run: Callable[[int], object], check: Callable[[], None]) -> dict[str, Any]:
    """Return the seconds of the first launch, including the GPU's start."""
    start = time.perf_counter()
    run(1)
    check()
    return {"first_s": time.perf_counter() - start}


# ---- other forms of a launch -------------------------------------------------------------------


def forms(bench: Bench, folder: str) -> dict[str, Callable[[], dict[str, Any]]]:
    return {
        "launch form: not cooperative": partial(apart, bench, folder),
        "launch form: one unit": partial(alone, bench, folder),
        "launch form: Triton's own": partial(by_triton, bench, False),
        "launch form: Triton's own, cooperative": partial(by_triton, bench, True),
    }


def apart(bench: Bench, folder: str) -> dict[str, Any]:
    loaded = Loaded(bench, replace(probes.EMPTY, joint=False), folder)
    return _launched(loaded.run, loaded.check)


def alone(bench: Bench, folder: str) -> dict[str, Any]:
    loaded = Loaded(bench, probes.EMPTY, folder, units=1)
    return _launched(loaded.run, loaded.check)


def by_triton(bench: Bench, cooperative: bool) -> dict[str, Any]:
    """Let Triton itself compile and launch the same kernel."""
    if bench.dry_run:
        raise Skipped("a dry run has no launcher of Triton")
    source = probes.EMPTY.source(bench.units)
    module: dict[str, Any] = {"__name__": "triton_program"}
    exec(compile(source.text, file_name(source.text), "exec"), module)
    kernel = module[ENTRY]
    control = torch.zeros(16 + bench.units, dtype=torch.int64, device=bench.device)

    def run(trips: int) -> None:
        settings = {"num_warps": source.warps, "launch_cooperative_grid": cooperative}
        kernel[(bench.units,)](control, probes.POLLS, trips, **settings)

    return _launched(run, bench.synchronize)
