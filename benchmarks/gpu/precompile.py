"""Compiles models for a GPU without using one, so that no row waits for a compiler.

For a GPU that is not here (`--compile-only`), or for one that is, before it is measured.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..models import CORE
from ..models.real import MissingPackage
from . import graphs
from .engine import Job
from .gpu import Gpu
from .shortened import entry_of
from .worker import Reporter

H200 = Gpu("", "NVIDIA H200", (9, 0), 132, 0)
JOB = "beforehand"
LIMIT_S = 180.0


def precompile(folder: Path, chosen: tuple[str, ...] = ()) -> dict[str, float]:
    """The zoo for an H200: seconds by model."""
    found: dict[str, float] = {}
    for name in chosen or CORE:
        for preset in ("small", "full"):
            seconds = compile_for(H200, name, preset, folder)["compile_s"]
            found[f"{name} {preset}"] = seconds
            print(f"  {name} {preset}: {seconds:.1f} s", flush=True)
    return found


def precompile_graphs(folder: Path, chosen: tuple[str, ...] = ()) -> dict[str, float]:
    """The programs of the part `graphs` for an H200: seconds by model and system. A model whose
    package is not installed is left out, and said to be."""
    found: dict[str, float] = {}
    for name in graphs.models(False, chosen):
        for system, settings in graphs.SETTINGS.items():
            try:
                seconds = compile_for(H200, name, "full", folder, settings)["compile_s"]
            except MissingPackage as error:
                print(f"  {name}: left out: {error}", flush=True)
                break
            found[f"{name} {system}"] = seconds
            print(f"  {name} {system}: {seconds:.1f} s", flush=True)
    return found


@torch.no_grad()
def compile_for(
    gpu: Gpu, model: str, preset: str, folder: Path, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Puts a model's program into the cache in `folder`, as it is made where that GPU is. One that
    is found there later is one whose text is the same. settings: of the options of stretto."""
    from stretto.build import build
    from stretto.frontends.python import capture
    from stretto.machines.cuda.machine import CUDA, gpu_program
    from stretto.options import Options
    from stretto.simulator.devices import costs_on, gpu_like

    options = Options(cache_dir=str(folder), **(settings or {}))
    entry = entry_of(model)
    module, inputs = entry.make(entry.presets[preset], 0)
    costs = costs_on(gpu_like(gpu.name, gpu.capability), CUDA.costs)
    machine = replace(CUDA.for_target(gpu.target, gpu.multiprocessors), costs=costs)
    start = time.perf_counter()
    captured = capture(module, inputs, {}, options)
    stages = build(captured.program, machine, options)
    return {
        "compile_s": time.perf_counter() - start,
        "kernels_from_cache": [kernel.from_cache for kernel in gpu_program(stages).compiled],
    }


def job(model: str, gpu: Gpu) -> Job:
    """A job that sees no GPU: it is told which one to compile for."""
    major, minor = gpu.capability
    name = f"{JOB} {model} {major} {minor} {gpu.multiprocessors} {gpu.name}"
    return Job("models", name, LIMIT_S, {"CUDA_VISIBLE_DEVICES": ""})


def run(reporter: Reporter, told: str, preset: str = "full") -> None:
    """In a worker; `told` is what stands behind JOB in the job's name."""
    model, major, minor, multiprocessors, name = told.split(" ", 4)
    gpu = Gpu("", name, (int(major), int(minor)), int(multiprocessors), 0)
    folder = reporter.scratch / "programs"
    reporter.row(
        f"{model} (compiled beforehand)",
        LIMIT_S,
        lambda: compile_for(gpu, model, preset, folder),
    )
