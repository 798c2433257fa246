"""Speed of a compiled program while others use the cores: `python -m benchmarks.contention`.

In each situation the model runs with one unit and with `--threads` units, in turns, each
time in a new process. Reported are the median and the 99th percentile of a call, and their
ratios to those of one unit in the same situation.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

BUSY = "while True: pass"


@dataclass(frozen=True, slots=True)
class Situation:
    """The other load on the machine. `prefix`: a command that starts the measured process."""

    name: str
    neighbours: int = 0
    copies: int = 1
    prefix: tuple[str, ...] = ()


SITUATIONS = (
    Situation("alone"),
    Situation("1 busy neighbour", neighbours=1),
    Situation("2 busy neighbours", neighbours=2),
    Situation("4 processes", copies=4),
    Situation("taskset -c 0", prefix=("taskset", "-c", "0")),
    Situation("nice 5, 2 busy neighbours", neighbours=2, prefix=("nice", "-n", "5")),
    Situation("nice 5", prefix=("nice", "-n", "5")),
)


@dataclass(frozen=True, slots=True)
class Row:
    """Milliseconds per call of one process in one situation; of several copies, the worst."""

    situation: str
    threads: int
    round: int
    calls: int
    median: float
    p99: float


def measure(model: str, threads: int, seconds: float) -> dict[str, float]:
    """Call the model for this many seconds, in this process."""
    import torch

    import stretto
    from stretto.tools.models import find_model

    torch.set_num_threads(1)
    found = find_model(model)
    options = stretto.Options(threads=threads)
    with torch.no_grad():
        fast = stretto.compile(found.function, found.inputs, options=options)
        for _ in range(3):
            fast(*found.inputs)
        times = list[float]()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            fast(*found.inputs)
            times.append(1e3 * (time.perf_counter() - start))
    times.sort()
    return {
        "calls": len(times),
        "median": times[len(times) // 2],
        "p99": times[min(int(len(times) * 0.99), len(times) - 1)],
    }


@contextmanager
def busy(count: int) -> Generator[None]:
    """Run processes that keep one core busy each."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def command(model: str, threads: int, seconds: float) -> list[str]:
    """Return the command that measures in a separate process and prints the result of `measure`."""
    measured = [sys.executable, "-m", "benchmarks.contention", "--measure", "--model", model]
    return [*measured, "--threads", str(threads), "--seconds", str(seconds)]


def run(situation: Situation, model: str, threads: int, seconds: float, number: int) -> Row:
    """Run one round: all copies at once, beside the busy neighbours."""
    started = [*situation.prefix, *command(model, threads, seconds)]
    with busy(situation.neighbours):
        processes = [
            subprocess.Popen(started, stdout=subprocess.PIPE, text=True)
            for _ in range(situation.copies)
        ]
        found = [json.loads(process.communicate()[0]) for process in processes]
    worst = max(found, key=lambda row: row["p99"])
    median = max(row["median"] for row in found)
    return Row(situation.name, threads, number, int(worst["calls"]), median, worst["p99"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lstm")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.model, options.threads, options.seconds)))
        return
    rows = list[Row]()
    for situation in SITUATIONS:
        for number in range(options.rounds):
            pair = [
                run(situation, options.model, threads, options.seconds, number)
                for threads in (1, options.threads)
            ]
            rows += pair
            one, many = pair
            print(
                f"{situation.name:26} median {one.median:7.2f} {many.median:7.2f} ms "
                f"{many.median / one.median:5.2f}x   p99 {one.p99:7.2f} {many.p99:7.2f} ms "
                f"{many.p99 / one.p99:5.2f}x",
                flush=True,
            )
    if options.out is not None:
        record = {"model": options.model, "cores": os.cpu_count(), "rows": list(map(asdict, rows))}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
