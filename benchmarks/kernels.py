"""Single convolutions and products, compared with PyTorch's (oneDNN): python -m
benchmarks.kernels.

Each program is one operator with constant weights, between two activations, on images or
matrices of sizes that occur in models. Both systems take turns, with the same number of
threads. Rates count the operations of the direct algorithm, so Winograd may exceed the
machine's peak.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

import stretto
from benchmarks.measure import Protocol, interleave
from stretto.options import Options

PROTOCOL = Protocol(rounds=3, runs=15, short_runs=60, warmup_s=0.1)


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of a call, and its number of operations."""

    name: str
    operations: float
    stretto: float
    torch: float

    @property
    def text(self) -> str:
        ours, theirs = (self.operations / seconds / 1e9 for seconds in (self.stretto, self.torch))
        ratio = self.torch / self.stretto
        return f"{self.name:52s} {ours:8.0f} GF {theirs:8.0f} GF {ratio:6.2f}x"


def convolution(
    channels: int, outputs: int, size: int, kernel: int | tuple[int, int], **kwargs: Any
) -> tuple[str, nn.Module, Tensor, float]:
    """A convolution of one square image; padded so that steps of 1 keep its size."""
    taps = (kernel, kernel) if isinstance(kernel, int) else kernel
    dilation = kwargs.get("dilation", 1)
    padding = tuple(dilation * (n - 1) // 2 for n in taps)
    layer = nn.Conv2d(channels, outputs, taps, padding=padding, bias=False, **kwargs)
    x = torch.randn(1, channels, size, size)
    said = "".join(f", {name} {value}" for name, value in kwargs.items())
    name = f"{channels} to {outputs} channels, {size}^2, {taps[0]}x{taps[1]}{said}"
    with torch.no_grad():
        pixels = layer(x)[0, 0].numel()
    work = 2.0 * pixels * outputs * channels // layer.groups * taps[0] * taps[1]
    return name, nn.Sequential(nn.ReLU(), layer, nn.ReLU()), x, work


def product(rows: int, depth: int, columns: int) -> tuple[str, nn.Module, Tensor, float]:
    """A matrix times constant weights."""
    layer = nn.Linear(depth, columns, bias=False)
    name = f"{rows} rows, {depth} to {columns}"
    return name, layer, torch.randn(rows, depth), 2.0 * rows * depth * columns


def cases() -> Iterator[tuple[str, nn.Module, Tensor, float]]:
    """Every kind of convolution, and products of few and of many rows."""
    for channels, outputs, size in ((64, 64, 56), (256, 64, 56), (512, 512, 14), (1024, 2048, 7)):
        yield convolution(channels, outputs, size, 1)
    for channels, size in ((16, 32), (32, 112), (64, 56), (128, 28), (256, 14), (512, 7)):
        yield convolution(channels, channels, size, 3)
    yield convolution(64, 128, 56, 3, stride=2)
    yield convolution(256, 512, 28, 1, stride=2)
    yield convolution(3, 64, 224, 7, stride=2)
    yield convolution(64, 64, 56, 5)
    yield convolution(192, 192, 17, (1, 7))
    yield convolution(128, 128, 28, 3, dilation=2)
    yield convolution(32, 32, 64, 21)
    yield convolution(64, 4, 56, 3)
    yield convolution(64, 1, 56, 1)
    for groups in (2, 8, 32, 128):
        yield convolution(128, 128, 56, 3, groups=groups)
    yield convolution(96, 96, 112, 3, groups=96, stride=2)
    yield convolution(384, 384, 14, 7, groups=384)
    for rows in (1, 2, 4, 8, 16, 64, 512):
        yield product(rows, 512, 512)
    yield product(1, 4096, 4096)
    yield product(16, 2048, 2048)
    yield product(100, 300, 700)


def compared(
    name: str, model: nn.Module, x: Tensor, operations: float, threads: int
) -> tuple[Row, float]:
    """A row, and the largest difference as a share of the largest result."""
    model = model.eval()
    fast = stretto.compile(model, options=Options(threads=threads))
    found, expected = fast(x), model(x)
    error = float((found - expected).abs().max() / expected.abs().max())
    calls: dict[str, Callable[[], Tensor]] = {"stretto": lambda: fast(x), "torch": lambda: model(x)}
    seconds: dict[str, float] = {}
    for system, timing in interleave(calls, PROTOCOL).items():
        if isinstance(timing, Exception):
            raise timing
        seconds[system] = timing.median_ms / 1e3
    return Row(name, operations, seconds["stretto"], seconds["torch"]), error


def main(
    threads: Annotated[int, typer.Option(help="Of both systems.")] = 2,
    output: Annotated[Path | None, typer.Option("--json", help="Writes the results.")] = None,
) -> None:
    """Print one line per case; the last column is stretto's speed as a multiple of PyTorch's."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    rows: list[Row] = []
    print(f"{'':52s} {'stretto':>11s} {'PyTorch':>11s}")
    with torch.no_grad():
        for case in cases():
            row, error = compared(*case, threads)
            print(row.text, "" if error < 1e-4 else f"  WRONG: {error:.1e}", flush=True)
            rows.append(row)
    if output is not None:
        output.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
