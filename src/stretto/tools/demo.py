"""`stretto demo`: four models of the zoo, compiled and run against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils import _pytree as pytree

import stretto
from stretto.machines.cpu.executable import CpuExecutable
from stretto.machines.cuda.executable import CudaExecutable
from stretto.machines.machine import HOST, Executable, Machine
from stretto.options import Options
from stretto.text import TextSection, counted, explanation, seconds_text
from stretto.tools.models import Model, on_device, zoo_module

MODELS = ("seq2seq", "blockdrop", "rae", "lstm")
DRAWN = "lstm"
"""The model whose timeline is drawn."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ModelMeasurement:
    """Measurements of one model: median times in seconds, largest relative error against eager in
    float64, compile time in seconds."""

    model: str
    eager: float
    fast: float
    error: float
    launches: int
    compile: float

    @property
    def speedup(self) -> float:
        return self.eager / self.fast


def demo(
    options: Options,
    machine: Machine,
    folder: Path | None,
    tell: Tell,
    *,
    models: tuple[str, ...] = MODELS,
    preset: str = "full",
    quick: bool = False,
) -> tuple[list[ModelMeasurement], list[Path]]:
    """Measure the models; return the results, and the paths of timelines written into `folder`
    (None: none).

    Eager gets as many threads as stretto, and runs on the same device. `quick` does few
    runs: a check, not a measurement.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(options.unit_count())
    results: list[ModelMeasurement] = []
    written: list[Path] = []
    try:
        for name in models:
            result, fast = _measure(name, options, preset, quick, tell, machine)
            results.append(result)
            if folder is not None and (name == DRAWN or len(models) == 1):
                tell(f"{name}: drawing a timeline")
                written = [folder / f"timeline-{name}{suffix}" for suffix in (".html", ".png")]
                for path in written:
                    fast.timeline(path)
    finally:
        torch.set_num_threads(before)
    return results, written


def _measure(
    name: str, options: Options, preset: str, quick: bool, tell: Tell, machine: Machine
) -> tuple[ModelMeasurement, stretto.Compiled]:
    zoo, harness, measure = (zoo_module(part) for part in ("models", "harness", "measure"))
    model = Model(name, *zoo.build(name, preset))
    reference = harness.reference_outputs(model.function, model.inputs)
    model = on_device(model, machine)
    module, inputs = model.function, model.inputs
    tell(f"{name}: compiling")
    with torch.no_grad():
        fast = stretto.compile(module, inputs, backend=machine.name, options=options)
        outputs, launches = _count_launches(fast, inputs)
        tell(f"{name}: comparing with eager in float64")
        error = harness.relative_error(_arrays(outputs), reference)
        tell(f"{name}: timing")
        wait = (lambda: None) if machine.device_type == HOST.type else torch.cuda.synchronize
        calls = {
            "eager": lambda: (module(*inputs), wait()),
            "stretto": lambda: (fast(*inputs), wait()),
        }
        protocol = measure.Protocol.quick() if quick else measure.Protocol()
        timings = measure.interleave(calls, protocol)
    for timing in timings.values():
        if isinstance(timing, Exception):
            raise timing
    eager, own = (timings[system].median_ms / 1e3 for system in ("eager", "stretto"))
    seconds = fast.signatures[0].seconds
    return ModelMeasurement(name, eager, own, error, launches, seconds), fast


def _count_launches(fast: stretto.Compiled, inputs: tuple[Any, ...]) -> tuple[Any, int]:
    """Return the outputs of a second call, and the number of launches in it. (The first call may
    have to learn how much room lists need.)"""
    fast(*inputs)
    executable = fast.signatures[0].executable
    if isinstance(executable, CpuExecutable):
        native = executable.native
        with patch.object(native, "run", wraps=native.run) as counted:
            return fast(*inputs), counted.call_count
    before = _launches(executable)
    return fast(*inputs), _launches(executable) - before


def _launches(executable: Executable) -> int:
    """Return the number of launches that a program on a GPU, or an emulated one, has enqueued."""
    return executable.launches if isinstance(executable, CudaExecutable) else 0


def _arrays(outputs: Any) -> Any:
    here = pytree.tree_map(lambda leaf: leaf.cpu(), outputs)
    return zoo_module("peers.base").tensors_to_numpy(here)


def results_table(results: Sequence[ModelMeasurement], units: int, machine: Machine) -> str:
    """Return the table that `stretto demo` prints."""
    title = f"medians, {counted(units, 'thread')} each"
    if machine.is_emulated:
        title = f"{machine.name}: errors and launches count, the times mean nothing"
    elif machine.device_type != HOST.type:
        title = f"medians, both on {machine.device()}"
    rows = [
        (
            result.model,
            seconds_text(result.eager),
            seconds_text(result.fast),
            f"{result.speedup:.2f}x",
            f"{result.error:.1e}",
            result.launches,
            seconds_text(result.compile),
        )
        for result in results
    ]
    headers = ("model", "eager", "stretto", "speed-up", "error", "launches", "compile")
    return explanation([TextSection(title, rows, headers)])
