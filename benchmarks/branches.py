"""What the passes over branches and recursion are worth: each left out in turn, all in one run.

    python -m benchmarks.branches [NAMES] [--runs N]

A program is compiled once for each column, and these are called in turns; the medians are shown.
Zoo models are at full size; the others are small programs of one kind each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor, nn

import stretto
from benchmarks.models import ZOO
from stretto.options import Options

PASSES = ("merge_branches", "share_arms", "if_convert", "speculate", "recursion_levels")

Program = tuple[Callable[..., Tensor], tuple[Tensor, ...]]


class Adapters(nn.Module):
    """Eight layers; each adds an adapter where the call asks for them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
        self.adapters = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))

    def forward(self, x: Tensor, adapted: Tensor) -> Tensor:
        for layer, adapter in zip(self.layers, self.adapters, strict=True):
            y = torch.tanh(layer(x))
            if adapted:
                y = y + adapter(x)
            x = y
        return x


class Clipped(nn.Module):
    """A recurrence of 64 steps that halves a state whose sum is large."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[0])
        for row in x:
            h = h + torch.tanh(self.step(h) + row)
            if h.sum() > 4:
                h = h * 0.5
        return h


class Gated(nn.Module):
    """Rows are turned by their sign before they are projected, one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        rows: list[Tensor] = []
        for row in x:
            if row.sum() > 0:
                row = -row
            rows.append(torch.tanh(self.map(row)))
        return torch.stack(rows)


class Projected(nn.Module):
    """Both arms project the input and their result by the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(256, 256), nn.Linear(256, 256)

    def forward(self, x: Tensor, flag: Tensor) -> Tensor:
        for _ in range(4):
            if x.sum() > 0:
                x = self.last(torch.relu(self.first(x)))
            else:
                x = self.last(torch.sigmoid(self.first(x)))
        return x


class Decided(nn.Module):
    """A chain of small products decides whether six other products are wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = nn.ModuleList(nn.Linear(64, 64) for _ in range(96))
        self.work = nn.ModuleList(nn.Linear(96, 96) for _ in range(6))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.chain:
            x = torch.tanh(layer(x))
        if x.sum() < 1e9:
            for layer in self.work:
                y = torch.relu(layer(y))
        return y


def small(model: nn.Module, *shapes: tuple[int, ...]) -> Callable[[], Program]:
    def make() -> Program:
        torch.manual_seed(0)
        inputs = tuple(torch.randn(shape) if shape else torch.tensor(True) for shape in shapes)
        return model.eval(), inputs

    return make


def zoo(name: str) -> Callable[[], Program]:
    def make() -> Program:
        entry = ZOO[name]
        model, inputs = entry.make(entry.presets["full"], 0)
        return model.eval(), inputs

    return make


PROGRAMS: dict[str, Callable[[], Program]] = {
    "adapters": small(Adapters(), (16, 64), ()),
    "clipped": small(Clipped(), (64, 64)),
    "gated": small(Gated(), (64, 64)),
    "projected": small(Projected(), (16, 256), ()),
    "decided": small(Decided(), (64,), (32, 96)),
    "rae": zoo("rae"),
    "blockdrop": zoo("blockdrop"),
    "skipnet": zoo("skipnet"),
}


def measured(program: Program, runs: int) -> dict[str, float]:
    """Seconds of a call, with all passes and with one of them left out."""
    function, inputs = program
    compiled: dict[str, Callable[..., Tensor]] = {}
    with torch.no_grad():
        for name in ("", *PASSES):
            options = Options(threads=2, skip=(name,) if name else ())
            compiled[name or "all"] = stretto.compile(function, options=options)
            for _ in range(3):
                compiled[name or "all"](*inputs)
        seconds: dict[str, list[float]] = {name: [] for name in compiled}
        for _ in range(runs):
            for name, call in compiled.items():
                start = time.perf_counter()
                call(*inputs)
                seconds[name].append(time.perf_counter() - start)
    return {name: median(found) for name, found in seconds.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PROGRAMS)}; default: all")
    parser.add_argument("--runs", type=int, default=300)
    chosen = parser.parse_args(arguments)
    width = max(map(len, PASSES))
    print("us per call".ljust(12), *(name.rjust(width) for name in ("all", *PASSES)))
    for name in chosen.names or PROGRAMS:
        found = measured(PROGRAMS[name](), chosen.runs)
        print(name.ljust(12), *(f"{seconds * 1e6:.1f}".rjust(width) for seconds in found.values()))


if __name__ == "__main__":
    main()
