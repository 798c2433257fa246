"""What `stretto.batch` is worth by optimisation, by activity and by size of the batch.

    python -m benchmarks.batching --model treelstm:256 --json F.json --plot F.png

Four parts: the time with each pass turned off and with hoisting turned on (as Figure 5 of the
ACRoBat paper), the time by activity (as its Table 5), the time per instance for batches of 1 to
1,024, and the time to the first result, with an empty cache and with a full one. All variants of a
part take turns; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure

from stretto.batching.batched import Batched
from stretto.batching.passes.pipeline import BatchPasses
from stretto.batching.profile import ACTIVITIES
from stretto.options import Options

from .machine import git_commit, machine_line, versions
from .models.instances import build

VARIANTS: dict[str, BatchPasses] = {
    "all": BatchPasses(),
    "no tidy": BatchPasses(tidy=False),
    "no branches": BatchPasses(branches=False),
    "no phases": BatchPasses(phases=False),
    "no coarsen": BatchPasses(coarsen=False),
    "hoist": BatchPasses(hoist=True),
}
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def interleaved_ms(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Milliseconds of each call, medians; the calls take turns."""
    for call in calls.values():
        call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            found[name].append((time.perf_counter() - begin) * 1e3)
    return {name: median(times) for name, times in found.items()}


def ablation(model: torch.nn.Module, instances: list[Any], rounds: int) -> dict[str, float]:
    """Milliseconds of a batch by variant of the passes."""
    many = {name: Batched(model, passes=passes) for name, passes in VARIANTS.items()}
    calls = {name: lambda m=batched: m(instances) for name, batched in many.items()}
    return interleaved_ms(calls, rounds)


def by_size(model: torch.nn.Module, instances: list[Any], rounds: int) -> dict[int, float]:
    """Milliseconds per instance by size of the batch."""
    many = Batched(model)
    calls = {str(n): lambda n=n: many(instances[:n]) for n in SIZES if n <= len(instances)}
    return {int(n): ms / int(n) for n, ms in interleaved_ms(calls, rounds).items()}


def first_result(model: torch.nn.Module, instances: list[Any]) -> dict[str, float]:
    """Seconds to the first result of a batcher: with an empty cache, and with a full one."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("empty cache", "full cache"):
            begin = time.perf_counter()
            Batched(model, options=Options(cache_dir=Path(folder)))(instances)
            found[name] = time.perf_counter() - begin
    return found


def draw(record: dict[str, Any], path: Path) -> None:
    """The ablation as bars, and the time per instance as a line."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    names = list(record["ablation_ms"])
    values = [record["ablation_ms"][name] for name in names]
    colors = ["#2f6f4f", *["#b0b7bd"] * (len(names) - 1)]
    left.barh(names[::-1], values[::-1], color=colors[::-1])
    for place, value in enumerate(values[::-1]):
        left.text(value, place, f" {value:.1f}", va="center", fontsize=8)
    left.set_xlabel(f"ms for {record['batch']} instances")
    left.set_title("each optimisation turned off, or on")
    left.margins(x=0.15)
    sizes = [int(size) for size in record["per_instance_ms"]]
    right.plot(sizes, list(record["per_instance_ms"].values()), "o-", color="#2f6f4f")
    right.set_xscale("log", base=2)
    right.set_yscale("log")
    right.set_xlabel("instances in a batch")
    right.set_ylabel("ms per instance")
    right.set_title("cost of an instance")
    right.grid(visible=True, which="major", color="#dddddd")
    figure.suptitle(f"stretto.batch, {record['model']}, 2 threads")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="treelstm:256", help="name:preset of the zoo")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--largest", type=int, default=1024, help="largest batch of the last part")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(2)
    name, preset = given.model.split(":")
    model, instances = build(name, preset, max(given.batch, given.largest))
    batch = instances[: given.batch]
    with torch.no_grad():
        record: dict[str, Any] = {
            "model": given.model,
            "batch": given.batch,
            "machine": machine_line(2),
            "versions": versions(),
            "commit": git_commit(),
            "first_result_s": first_result(model, batch),
            "ablation_ms": ablation(model, batch, given.rounds),
            "per_instance_ms": by_size(model, instances, given.rounds),
        }
        found = Batched(model).profile(batch, runs=given.rounds)
        record["activities_ms"] = {name: found.milliseconds[name] for name in ACTIVITIES}
        print(found)
    for part in ("first_result_s", "ablation_ms", "per_instance_ms"):
        print(part, {key: round(value, 4) for key, value in record[part].items()})
    if given.json:
        given.json.write_text(json.dumps(record, indent=1))
    if given.plot:
        draw(record, given.plot)


if __name__ == "__main__":
    main()
