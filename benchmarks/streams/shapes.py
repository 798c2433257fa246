"""Cost of a program for many sizes, compared with one compiled for the size at hand.

    python -m benchmarks.streams.shapes [MODEL ...] [--threads N] [--json FILE]

Each model of the zoo runs at three sizes. Its one dynamic program is compiled with
`dynamic=True`, at the first of them; it and the programs for one size take turns.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

import stretto

from ..measure import Protocol, Timing, interleave, limit_cpus
from ..models import ZOO
from ..peers.base import tensors_to_numpy

VARIED: dict[str, tuple[str, tuple[int, int, int]]] = {
    "lstm": ("length", (32, 64, 100)),
    "nasrnn": ("length", (250, 500, 1000)),
    "attention": ("slots", (64, 80, 128)),
    "seq2seq": ("batch", (2, 4, 8)),
    "blockdrop": ("image", (32, 40, 64)),
    "skipnet": ("image", (160, 192, 224)),
    "rae": ("slots", (127, 191, 255)),
    "deepspeech2": ("frames", (200, 300, 400)),
}
"""The field of each model's configuration that varies, and its values."""
SMALL: dict[str, tuple[int, int, int]] = {"lstm": (3, 5, 8), "rae": (9, 12, 20)}


@dataclass(frozen=True, slots=True)
class ShapeResult:
    """Median milliseconds of one model at one size. programs: number of programs of the dynamic
    function."""

    model: str
    size: str
    static_ms: float
    dynamic_ms: float
    programs: int
    reason: str = ""

    @property
    def ratio(self) -> float:
        return self.dynamic_ms / self.static_ms


def measure(
    name: str, threads: int, protocol: Protocol, *, small: bool = False
) -> list[ShapeResult]:
    """Measure a model at its three sizes."""
    entry, (varied, values) = ZOO[name], VARIED[name]
    config = entry.presets["small" if small else "full"]
    values = SMALL[name] if small else values
    cases = [entry.make(replace(config, **{varied: value}), 0) for value in values]
    module = cases[0][0]
    options = stretto.Options(threads=threads)
    found = list[ShapeResult]()
    with torch.no_grad():
        try:
            dynamic = stretto.compile(module, backend="cpu", options=options, dynamic=True)
            for _, inputs in cases:
                _require_equal(dynamic(*inputs), module(*inputs))
        except Exception as error:  # a model that cannot be compiled is a result
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            return [ShapeResult(name, varied, math.nan, math.nan, 0, reason)]
        for value, (_, inputs) in zip(values, cases, strict=True):
            static = stretto.compile(module, backend="cpu", options=options, dynamic=False)
            calls = {"static": partial(static, *inputs), "dynamic": partial(dynamic, *inputs)}
            times = interleave(calls, protocol)
            medians = _median_ms(times["static"]), _median_ms(times["dynamic"])
            size = f"{varied}={value}"
            found.append(ShapeResult(name, size, *medians, len(dynamic.signatures)))
    return found


def _median_ms(timing: Timing | Exception) -> float:
    if isinstance(timing, Exception):
        raise timing
    return timing.median_ms


def _require_equal(got: Any, wanted: Any) -> None:
    for mine, eager in zip(tensors_to_numpy(got), tensors_to_numpy(wanted), strict=True):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(eager), rtol=1e-3, atol=1e-4)


def table(results: list[ShapeResult]) -> Table:
    made = Table("model", "size", "static ms", "dynamic ms", "ratio", "programs")
    for result in results:
        if result.reason:
            made.add_row(result.model, result.size, result.reason)
            continue
        times = f"{result.static_ms:.3f}", f"{result.dynamic_ms:.3f}", f"{result.ratio:.2f}"
        made.add_row(result.model, result.size, *times, str(result.programs))
    ratios = [result.ratio for result in results if not result.reason]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        made.add_row("geometric mean", "", "", "", f"{mean:.3f}", "")
    return made


def main(
    models: Annotated[list[str] | None, typer.Argument()] = None,
    threads: int = 2,
    rounds: int = 5,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    console, results = Console(), list[ShapeResult]()
    with limit_cpus(threads):
        for name in models or VARIED:
            results += measure(name, threads, Protocol(rounds=rounds))
            console.print(table(results[-3:]))
    console.print(table(results))
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
