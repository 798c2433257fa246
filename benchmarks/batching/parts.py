"""Measurements of one model in one process: first results and activities, optimisations, sizes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

import torch

from stretto.batching.batched import Batched
from stretto.batching.passes.pipeline import BatchPasses
from stretto.errors import StrettoError
from stretto.options import Options

from ..harness import SEED, relative_error
from ..machine import git_commit, machine_line, versions
from ..models.instances import INSTANCE_ZOO
from ..models.instances.data import as_arrays

THREADS = 2
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
ALL_ON = "as it is"
ALL_OFF = "none of them"


def head(model: str, batch: int) -> dict[str, Any]:
    """Return the fields that every record begins with."""
    return {
        "model": model,
        "batch": batch,
        "threads": THREADS,
        "machine": machine_line(THREADS),
        "versions": versions(),
        "commit": git_commit(),
    }


def built(model: str, count: int) -> tuple[torch.nn.Module, list[Any]]:
    """Return a model, named as `treelstm:256`, and its instances."""
    name, _, size = model.partition(":")
    entry = INSTANCE_ZOO[name]
    config = entry.presets[size]
    return entry.make(config, SEED), entry.instances(config, count, SEED)


def first_result(model: str, batch: int, cache: Path) -> dict[str, Any]:
    """Measure the seconds to the first result of a batcher, with the cache in this folder, and its
    largest difference from eager."""
    module, instances = built(model, batch)
    begin = time.perf_counter()
    results = Batched(module, options=_options(cache))(instances)
    seconds = time.perf_counter() - begin
    expected = [module(one) for one in instances]
    return {"seconds": seconds, "error": relative_error(as_arrays(results), as_arrays(expected))}


def activities(model: str, batch: int, cache: Path, runs: int = 30) -> dict[str, Any]:
    """Measure the milliseconds of a batch by activity (ACRoBat, Table 5)."""
    module, instances = built(model, batch)
    many = Batched(module, options=_options(cache))
    many(instances)
    found = many.profile(instances, runs=runs)
    return {
        "milliseconds": found.milliseconds,
        "total_ms": found.total_ms,
        "host_share": found.host_share,
        "launches": found.launches,
        "steps": found.steps,
        "rows": found.rows,
    }


MUCH_MEMORY = ("treelstm:256",)
"""Models that need more than 24 GB for a batch of 64 without reuse, when each row has its own
weights."""


def variants(model: str) -> dict[str, BatchPasses]:
    """Return the optimisations as they are, with each one toggled, and with all turned off."""
    switches = {item.name: item.default for item in fields(BatchPasses) if item.type == "bool"}
    found = {ALL_ON: BatchPasses()}
    for name, on in switches.items():
        found[f"{'without' if on else 'with'} {name}"] = BatchPasses(**{name: not on})
    if model in MUCH_MEMORY:
        del found["without reuse"]
    off = dict.fromkeys(switches, False) | {"reuse": model in MUCH_MEMORY}
    return {**found, ALL_OFF: BatchPasses(**off)}


def ablation(
    model: str, batch: int, cache: Path, rounds: int = 15, limit_s: float = 90.0
) -> dict[str, Any]:
    """Measure the milliseconds of a batch by variant of the optimisations (ACRoBat, Figure 5). A
    variant that is wrong, or that there is no time to compile, has a reason instead."""
    module, instances = built(model, batch)
    expected = as_arrays([module(one) for one in instances])
    calls: dict[str, Callable[[], Any]] = {}
    missing: dict[str, str] = {}
    end = time.perf_counter() + limit_s
    for name, passes in variants(model).items():
        if calls and time.perf_counter() > end:
            missing[name] = f"not compiled within {limit_s:g} s"
            continue
        many = Batched(module, options=_options(cache), passes=passes)
        try:
            error = relative_error(as_arrays(many(instances)), expected)
        except StrettoError as reason:
            missing[name] = str(reason).partition("\n")[0]
            continue
        if error > 1e-4:
            missing[name] = f"differs from eager by {error:.1e}"
        else:
            calls[name] = lambda many=many: many(instances)
    return {"milliseconds": interleaved_ms(calls, rounds), "missing": missing}


def by_size(model: str, cache: Path, rounds: int = 7) -> dict[str, Any]:
    """Measure the milliseconds per instance by size of the batch, and the largest difference from
    eager."""
    module, instances = built(model, max(SIZES))
    expected = [module(one) for one in instances]
    many = Batched(module, options=_options(cache))
    errors = {
        str(n): relative_error(as_arrays(many(instances[:n])), as_arrays(expected[:n]))
        for n in SIZES
    }
    calls = {str(n): lambda given=instances[:n]: many(given) for n in SIZES}
    times = interleaved_ms(calls, rounds)
    return {"milliseconds": {n: ms / int(n) for n, ms in times.items()}, "errors": errors}


def interleaved_ms(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each call; the calls take turns."""
    for call in calls.values():
        call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            found[name].append((time.perf_counter() - begin) * 1e3)
    return {name: median(times) for name, times in found.items()}


def _options(cache: Path) -> Options:
    return Options(threads=THREADS, cache_dir=cache)
