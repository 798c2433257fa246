"""What the passes over loops are worth: each left out in turn, on the CPU and on simulated GPUs.

    python -m benchmarks.scheduling.loops [NAMES] [--runs N] [--json FILE] [--picture FILE]

On the CPU a program is compiled once for each column, and these are called in turns; the medians
are shown. GPUs are simulated (docs/simulator.md): the figures say what the schedule is worth under
the estimates of a wait, not what a GPU takes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import stretto
from benchmarks.models import ZOO
from stretto.options import Options
from stretto.tools.models import Model
from stretto.tools.simulate import simulate_model

PASSES = ("skew", "overlap", "unroll", "rotate")
GPUS = ("h200", "v100")

Program = tuple[Callable[..., Any], tuple[Tensor, ...]]


class Tagger(nn.Module):
    """A product and a sort before a recurrence of products, and the same behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.state, self.behind = (nn.Linear(128, 128) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h, total = torch.zeros_like(x[0]), torch.zeros_like(x[0])
        for row in x:
            h = torch.tanh(self.state(h) + self.before(row + total * 0.0).cumsum(0))
            total = total + torch.sigmoid(self.behind(h))
        return total


def fixed_point(x: Tensor, w: Tensor) -> Tensor:
    """Until nothing changes."""
    before = x + 1
    while (x - before).abs().max() > 1e-4:
        before = x
        x = torch.tanh(x @ w) * 0.99
    return x


def samples(image: Tensor, grid: Tensor) -> Tensor:
    """Images sampled one by one, which nothing does for all of them at once."""
    parts = [
        nn.functional.grid_sample(image[t], grid[t], align_corners=True)
        for t in range(image.shape[0])
    ]
    return torch.stack(parts)


def _zoo(name: str) -> Program:
    entry = ZOO[name]
    model, inputs = entry.make(entry.presets["full"], 0)
    return model.eval(), inputs


PROGRAMS: dict[str, Callable[[], Program]] = {
    "lstm": lambda: _zoo("lstm"),
    "bilstm": lambda: (nn.LSTM(128, 128, bidirectional=True).eval(), (torch.randn(64, 1, 128),)),
    "gru": lambda: (nn.GRU(32, 32, num_layers=6).eval(), (torch.randn(64, 1, 32),)),
    "tagger": lambda: (Tagger().eval(), (torch.randn(64, 128),)),
    "fixed point": lambda: (fixed_point, (torch.randn(16, 64), torch.randn(64, 64) / 9)),
    "samples": lambda: (samples, (torch.randn(32, 1, 8, 8, 8), torch.rand(32, 1, 8, 8, 2))),
}


def columns() -> dict[str, Options]:
    """All passes, and each left out."""
    return {
        "all": Options(threads=2),
        **{name: Options(threads=2, skip=(name,)) for name in PASSES},
    }


def measured(program: Program, runs: int) -> dict[str, float]:
    """Seconds of a call on this CPU, by what is left out."""
    function, inputs = program
    with torch.no_grad():
        compiled = {
            name: stretto.compile(function, inputs, options=options)
            for name, options in columns().items()
        }
        seconds: dict[str, list[float]] = {name: [] for name in compiled}
        for _ in range(runs + 3):
            for name, call in compiled.items():
                start = time.perf_counter()
                call(*inputs)
                seconds[name].append(time.perf_counter() - start)
    return {name: median(found[3:]) for name, found in seconds.items()}


def simulated(name: str, program: Program, device: str) -> dict[str, tuple[float, int]]:
    """Seconds and dependent waits of a call on a device that is absent, by what is left out."""
    found: dict[str, tuple[float, int]] = {}
    for column, options in columns().items():
        result = simulate_model(Model(name, *program), device, options=options).result
        found[column] = result.seconds, result.dependent_waits
    return found


def picture(record: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    """How much longer a call takes without each pass, one panel for each device."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 1 + len(GPUS), figsize=(13, 3.6), sharey=True)
    for panel, device in zip(panels, ("cpu", *GPUS), strict=True):
        for place, name in enumerate(PASSES):
            ratios = [
                _seconds(row[device][name]) / _seconds(row[device]["all"])
                for row in record.values()
            ]
            positions = [row + 0.2 * place for row in range(len(ratios))]
            panel.bar(positions, ratios, 0.2, label=f"without {name}")
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_xticks([row + 0.3 for row in range(len(record))], list(record), rotation=30)
        panel.set_title("CPU, two cores, measured" if device == "cpu" else f"{device}, simulated")
    panels[0].set_ylabel("time, all passes = 1")
    panels[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _seconds(entry: Any) -> float:
    return entry if isinstance(entry, float) else float(entry[0])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PROGRAMS)}; default: all")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    chosen = parser.parse_args(arguments)
    record: dict[str, dict[str, dict[str, Any]]] = {}
    for name in chosen.names or PROGRAMS:
        torch.manual_seed(0)
        program = PROGRAMS[name]()
        row: dict[str, dict[str, Any]] = {"cpu": measured(program, chosen.runs)}
        row |= {device: simulated(name, program, device) for device in GPUS}
        record[name] = row
        for device, found in row.items():
            times = (f"{column} {_seconds(entry) * 1e6:.1f}" for column, entry in found.items())
            print(f"{name} on {device}, us:", ", ".join(times))
            if device in GPUS:
                waits = (f"{column} {entry[1]}" for column, entry in found.items())
                print("  waits, each for the one before:", ", ".join(waits))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(record, indent=1))
    if chosen.picture is not None:
        picture(record, chosen.picture)


if __name__ == "__main__":
    main()
