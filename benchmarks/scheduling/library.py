"""What running library calls side by side is worth: models whose operators are all left to torch.

    python -m benchmarks.scheduling.library [NAMES] [--repeats N] [--json F]

Each model is compiled with `Options(library=("*",))` for each of `Options.calls`: its calls one
after the other, each on all threads of torch, side by side, and the faster of the two as timed in
its first calls. These and eager PyTorch take turns; medians are shown, of each repeat. `others` is
the part of the machine's processor time that other processes had meanwhile: where it is not close
to 0, the figures say little.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer

import stretto
from benchmarks.models.nasnet import NASNetConfig
from benchmarks.models.static import STATIC
from stretto.machines.cpu.ways import TIMED_CALLS
from stretto.machines.cpu.ways import WARM_CALLS as UNTIMED_CALLS
from stretto.options import Options

WARM_CALLS = 3
PAUSE_S = 0.005
"""Between calls, in which the threads of the one before fall asleep."""
WIDE = "nasnet_wide"
NAMES = ("googlenet", "inception_v3", WIDE)

Calls = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of one repeat, in milliseconds. others: as the module says, from 0 to 1."""

    model: str
    one_by_one: float
    side_by_side: float
    auto: float
    eager: float
    others: float

    @property
    def gain(self) -> float:
        return self.one_by_one / self.side_by_side

    @property
    def auto_gain(self) -> float:
        return self.one_by_one / self.auto


def compiled(name: str, threads: int) -> tuple[Calls, tuple[torch.Tensor, ...]]:
    """The three ways to call a model, checked against each other."""
    entry = STATIC["nasnet_cifar" if name == WIDE else name]
    config = NASNetConfig(filters=64, repeats=2) if name == WIDE else entry.presets["full"]
    model, inputs = entry.make(config, 0)
    calls: dict[str, Callable[..., Any]] = {"eager": model}
    for way in ("one_by_one", "side_by_side", "auto"):
        options = Options(threads=threads, library=("*",), calls=way, tune="off")
        calls[way] = stretto.compile(model, inputs, options=options)
        torch.testing.assert_close(calls[way](*inputs), model(*inputs), rtol=1e-3, atol=1e-4)
    return calls, inputs


def busy_seconds() -> float:
    """Processor time of all processes of the machine."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(fields[n]) for n in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK")


def measured(name: str, calls: Calls, inputs: tuple[torch.Tensor, ...], runs: int) -> Row:
    """One repeat: the ways in turns."""
    seconds: dict[str, list[float]] = {way: [] for way in calls}
    began, busy, own = time.perf_counter(), busy_seconds(), time.process_time()
    for _ in range(runs + WARM_CALLS):
        for way, call in calls.items():
            time.sleep(PAUSE_S)
            start = time.perf_counter()
            call(*inputs)
            seconds[way].append(time.perf_counter() - start)
    passed = (time.perf_counter() - began) * (os.cpu_count() or 1)
    others = max(busy_seconds() - busy - (time.process_time() - own), 0.0) / passed
    milliseconds = {way: 1e3 * median(found[WARM_CALLS:]) for way, found in seconds.items()}
    return Row(name, **milliseconds, others=others)


def main(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    repeats: int = 3,
    runs: int = 15,
    threads: int = 2,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    torch.set_num_threads(threads)
    rows: list[Row] = []
    with torch.no_grad():
        for name in names or NAMES:
            calls, inputs = compiled(name, threads)
            for _ in range(2 * (UNTIMED_CALLS + TIMED_CALLS)):  # until the faster way is known
                time.sleep(PAUSE_S)
                calls["auto"](*inputs)
            for _ in range(repeats):
                row = measured(name, calls, inputs, runs)
                rows.append(row)
                print(
                    f"{name:14} one by one {row.one_by_one:8.2f} ms  side by side "
                    f"{row.side_by_side:8.2f} ms  auto {row.auto:8.2f} ms  "
                    f"eager {row.eager:8.2f} ms  gain {row.gain:5.2f}, auto {row.auto_gain:5.2f}  "
                    f"others {row.others:4.0%}",
                    flush=True,
                )
    if json_file is not None:
        found = {"torch": torch.__version__, "threads": threads, "rows": list(map(asdict, rows))}
        json_file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
