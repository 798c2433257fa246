"""The part `traces`: pictures of what the other parts left, and traces that Perfetto opens."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..models import ZOO
from ..peers.base import Skipped
from .device import Bench
from .engine import Job
from .results import read_part
from .worker import Reporter

TRACED = ("attention", "seq2seq")
DRY_TRACED = ("rae",)
MOST_BYTES = 12 << 20
"""Of one file: what comes back from a lent machine is limited."""


def jobs(dry_run: bool, chosen: tuple[str, ...]) -> list[Job]:
    return [Job("traces", name, 60.0) for name in (("all",) if dry_run else ("pictures", "traces"))]


def run(reporter: Reporter, bench: Bench) -> None:
    if reporter.job in ("pictures", "all"):
        for name, draw in _pictures().items():
            reporter.row(name, 30.0, partial(_draw, draw, reporter.out / name))
    if reporter.job in ("traces", "all"):
        for model in DRY_TRACED if bench.dry_run else TRACED:
            reporter.row(f"trace-{model}.json", 40.0, partial(trace, bench, reporter, model))


def _pictures() -> dict[str, Callable[[Path], Any]]:
    def ratios(path: Path) -> Any:
        from . import pictures

        return pictures.ratios(_require(path, "models"), path)

    def gemv(path: Path) -> Any:
        from . import pictures

        return pictures.gemv(_require(path, "ceilings"), path)

    return {"ratios.png": ratios, "gemv.png": gemv}


def _require(path: Path, part: str) -> Any:
    record = read_part(path.parent, part)
    if record is None:
        raise Skipped(f"the part `{part}` has left no results")
    return record


def _draw(draw: Callable[[Path], Any], path: Path) -> dict[str, Any]:
    if importlib.util.find_spec("matplotlib") is None:
        raise Skipped("matplotlib is not installed")
    draw(path)
    return {"bytes": path.stat().st_size}


@torch.no_grad()
def trace(bench: Bench, reporter: Reporter, model: str) -> dict[str, Any]:
    """Three calls of eager and three of stretto, on one time axis: what the host does, what it
    launches, what the GPU runs."""
    from torch.profiler import ProfilerActivity, profile, record_function

    import stretto

    entry = ZOO[model]
    module, inputs = entry.make(entry.presets["small" if bench.dry_run else "full"], 0)
    module, inputs = bench.place(module, inputs)
    options = stretto.Options(cache_dir=str(reporter.scratch / "programs"))
    fast = stretto.compile(module, backend=bench.backend, options=options)
    calls: dict[str, Any] = {"eager": module, "stretto": fast}
    for call in calls.values():
        for _ in range(3):
            call(*inputs)
    bench.synchronize()
    kinds = [ProfilerActivity.CPU, *([] if bench.dry_run else [ProfilerActivity.CUDA])]
    with profile(activities=kinds) as found:
        for name, call in calls.items():
            for _ in range(1 if bench.dry_run else 3):
                with record_function(f"{model}: {name}"):
                    call(*inputs)
                    bench.synchronize()
    path = reporter.out / f"trace-{model}.json"
    aside = reporter.scratch / f"trace-{model}.json"
    found.export_chrome_trace(str(aside))
    events = json.loads(aside.read_text())
    kept = _within(events, MOST_BYTES)
    path.write_text(json.dumps(events))
    return {"events": kept, "bytes": path.stat().st_size}


def _within(events: dict[str, Any], most: int) -> int:
    """Leaves out the last events where the file would be too large; how many are left."""
    found: list[Any] = events["traceEvents"]
    size = len(json.dumps(found))
    if size > most:
        found.sort(key=lambda event: event.get("ts", 0))
        del found[int(len(found) * most / size * 0.9) :]
    return len(found)
