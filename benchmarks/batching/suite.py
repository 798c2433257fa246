"""The jobs that produce the docs' figures, and a runner for those that have no record yet."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..models.instances import INSTANCE_ZOO

RESULTS = Path(__file__).parents[1] / "results" / "batching"

PUBLISHED = (
    ("treelstm:256", 64),
    ("treelstm:256", 8),
    ("treelstm:512", 64),
    ("birnn:256", 64),
    ("birnn:256", 8),
)
"""The configurations with published times of peers; measured in three runs."""

ACROBAT = ("treelstm", "mvrnn", "birnn", "nestedrnn", "drnn", "berxit", "stackrnn")
"""The models of ACRoBat's tables."""

ABLATED = ("treelstm:256", "birnn:256", "drnn:256", "stackrnn:256", "act:256", "experts:256")
SIZED = ("treelstm:256", "birnn:256", "stackrnn:256", "act:256")

LARGE = ("berxit",)
"""Models whose batch of 64 takes seconds in every system; measured in batches of 8."""


@dataclass(frozen=True, slots=True)
class Job:
    """One process. name: of its record, without suffix. arguments: of `benchmarks.batching part`;
    a part that measures two things names the second in `then`. limit_s: its time limit."""

    name: str
    arguments: tuple[str, ...]
    limit_s: float

    def record(self, folder: Path) -> Path:
        return folder / f"{self.name}.json"


def first_size(name: str) -> str:
    """Return the smaller published size of a model, as `treelstm:256`."""
    return f"{name}:{INSTANCE_ZOO[name].sizes[0]}"


def batch_of(name: str) -> int:
    """Return the batch size of a model in tables of all models."""
    return 8 if name.partition(":")[0] in LARGE else 64


def all_jobs(runs: int = 3) -> Iterator[Job]:
    """Yield the jobs by importance, so that a session that ends early has the most
    important ones."""
    for run in range(1, runs + 1):
        for model, batch in PUBLISHED:
            # stretto_each compiles a program per structure, which takes long, and is never close
            # to the fastest: one run is enough.
            systems = "eager,hand,hand_compile,stretto" + (",stretto_each" if run == 1 else "")
            yield _peers(model, batch, run, systems, "full", 100.0)
    for name in INSTANCE_ZOO:
        model = first_size(name)
        yield Job(_file("first", model), ("first", model, str(batch_of(name))), 120.0)
    yield Job("service", ("service",), 90.0)
    for name in INSTANCE_ZOO:
        for batch in (64, 8):
            model = first_size(name)
            if (model, batch) in PUBLISHED or (name in LARGE and batch != 8):
                continue
            systems = "eager,hand,hand_compile,stretto,stretto_each" if batch == 64 else ""
            yield _peers(model, batch, 1, systems or "eager,hand,stretto", "short", 120.0)
    for model in SIZED:
        yield Job(_file("sizes", model), ("sizes", model), 90.0)
    for model in ABLATED:
        yield Job(_file("ablation", model), ("ablation", model, "64"), 130.0)


def _peers(model: str, batch: int, run: int, systems: str, protocol: str, limit_s: float) -> Job:
    arguments = ("peers", model, str(batch), systems, protocol)
    return Job(f"{_file('peers', model)}-{batch}-{run}", arguments, limit_s)


def _file(kind: str, model: str) -> str:
    return f"{kind}-{model.replace(':', '-')}"


def run_jobs(jobs: Sequence[Job], folder: Path, cache: Path, until: float) -> None:
    """Run the jobs that have no record in the folder, one after the other.

    cache: the folder of compiled programs. until: the time by `time.monotonic` after
    which none is begun. A job that fails, or is stopped at its limit, leaves a file with
    its output beside the records, and is run again next time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cache.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        if job.record(folder).exists():
            continue
        left = until - time.monotonic()
        if left < 5.0:
            print("no time is left for the other jobs; run again to go on")
            return
        begin = time.monotonic()
        print(f"{job.name} ...", end=" ", flush=True)
        result = run_job(job, folder, cache, min(job.limit_s, left))
        print(f"{result}, {time.monotonic() - begin:.0f} s", flush=True)


def run_job(job: Job, folder: Path, cache: Path, limit_s: float) -> str:
    """Run a job; return its outcome, in words."""
    temporary = folder / f"{job.name}.json.part"
    command = [sys.executable, "-m", "benchmarks.batching", "part", *job.arguments]
    command += ["--json", str(temporary), "--cache", str(cache)]
    log = folder / f"{job.name}.log"
    try:
        with log.open("w") as out:
            code = subprocess.run(
                command, stdout=out, stderr=subprocess.STDOUT, timeout=limit_s
            ).returncode
    except subprocess.TimeoutExpired:
        return f"stopped after {limit_s:.0f} s"
    if code != 0 or not temporary.exists():
        return f"failed, see {log}"
    temporary.replace(job.record(folder))
    log.unlink()
    return "done"
