"""Make at home what should not take time on a GPU's machine; needs no GPU.

`saved` describes the folder that it writes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import stretto
from stretto.call.compiled import Compiled
from stretto.errors import ScheduleError
from stretto.machines.cuda.compile import compile_source
from stretto.machines.cuda.machine import gpu_program
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.machine import Stages
from stretto.options import Debug, Options
from stretto.schedule.plan_cost import plan_seconds
from stretto.simulator.devices import device_for
from stretto.simulator.run_path import Choices, CountingChoices, DefaultChoices
from stretto.tools.models import Model
from stretto.tools.simulate import followed_way

from ..harness import reference_outputs
from ..models.real import MissingPackage
from .device import DRY_UNITS
from .saved import CODE, FACTS, KINDS, REFERENCES, SEEDS, Program, Saved, digest_of, entry_of
from .timeline import timed
from .tools import PROFILED

MOST_EXACT_BYTES = 64 << 10
"""Larger references are stored as float32, whose rounding is far below the tolerance."""
MOST_BYTES = 40 << 20
"""Limit for the whole folder, which is sent together with the source tree."""


@dataclass(frozen=True, slots=True)
class Others:
    """Everything that rows compile besides the models' programs: functions with their inputs,
    kernels."""

    functions: Sequence[tuple[Callable[..., Any], tuple[Tensor, ...]]]
    sources: Sequence[TritonSource]


def prepare(
    folder: Path,
    programs: Sequence[Program],
    others: Others | None,
    kinds: Sequence[str] = tuple(KINDS),
    *,
    tell: Callable[[str], None] = print,
) -> None:
    """Prepare the folder for these kinds of GPU.

    others: functions and kernels to compile besides the programs; None for a rehearsal,
    whose programs have few units. A model whose package is missing is left out, with a
    message. Raises ValueError if the folder becomes too large.
    """
    references: dict[str, np.ndarray] = {}
    for kind in kinds:
        facts: dict[str, Any] = {}
        here = folder / kind
        here.mkdir(parents=True, exist_ok=True)
        for program in programs:
            try:
                facts[program.name] = _prepared(folder, kind, program, references, others is None)
            except MissingPackage as error:
                tell(f"{kind}: {program.name}: left out: {error}")
                continue
            simulated = facts[program.name]["simulated_us"]
            shown = "not simulated" if simulated is None else f"{simulated:.1f} us simulated"
            seconds = facts[program.name]["seconds"]
            tell(f"{kind}: {program.name}: {seconds:.1f} s, {shown}")
        (here / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
        if others is not None:
            _compile(folder / CODE, kind, others)
    _write_references(folder / REFERENCES, references)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    tell(f"{folder}: {size / 2**20:.1f} MiB")
    if size > MOST_BYTES:
        raise ValueError(f"{folder} has {size >> 20} MiB, and {MOST_BYTES >> 20} may travel")


def _prepared(
    folder: Path, kind: str, program: Program, references: dict[str, np.ndarray], rehearsed: bool
) -> dict[str, Any]:
    """Save a program and compute its references; return its facts."""
    entry = entry_of(program.model)
    config = entry.presets[program.preset]
    module, inputs = entry.make(config, SEEDS[0])
    start = time.perf_counter()
    options = Options.of({"units": program.units, **dict(program.settings)})
    if rehearsed:
        options = replace(options, units=DRY_UNITS)
    fast = compiled_for(kind, module, inputs, options, program.dynamic)
    fast.save(Saved(folder / kind).file(program), weights=False)
    seconds = time.perf_counter() - start
    stages = fast.signatures[0].stages
    for seed in SEEDS if program.is_checked else SEEDS[:1]:
        prefix = f"{program.model} {program.preset} {seed} "
        if not any(key.startswith(prefix) for key in references):
            outputs = reference_outputs(module, entry.make(config, seed)[1])
            references |= {f"{prefix}{n}": _kept(array) for n, array in enumerate(outputs)}
    made = gpu_program(stages)
    if program == Program(PROFILED[0]) and not rehearsed:
        for source in made.sources:
            cache = Options(cache_dir=str(folder / CODE))
            compile_source(timed(source), KINDS[kind].target, cache)
    texts = hashlib.sha256("".join(source.text for source in made.sources).encode())
    simulated, problem = _simulated(stages, Model(program.model, module, inputs))
    return {
        "simulated_us": simulated,
        "not_simulated": problem,
        "units": made.plan.program.units,
        "target": KINDS[kind].target,
        "launches": len(made.plan.launches),
        "texts": texts.hexdigest(),
        "weights": digest_of(module),
        "seconds": seconds,
        "resources": [asdict(kernel.resources) for kernel in made.compiled[:4]],
    }


@torch.no_grad()
def compiled_for(
    kind: str,
    function: Callable[..., Any],
    inputs: tuple[Any, ...],
    options: Options,
    dynamic: bool | None = None,
) -> Compiled:
    """Compile a function for a kind of GPU."""
    return stretto.compile(
        function, inputs, backend="cuda", target=kind, options=options, dynamic=dynamic
    )


def _simulated(stages: Stages, model: Model) -> tuple[float | None, str]:
    """Simulate a call, in microseconds, on the device of the costs; branches and loops that values
    decide go as they do on these inputs. None, with the reason, if a run is too long or cannot
    be followed."""
    made, costs = gpu_program(stages), stages.machine.costs
    plan = made.plan
    device = device_for(costs, plan.program.units)

    def seconds(choices: Choices) -> float:
        kept = stages.machine.kept_constants(plan.program) if plan.is_whole else None
        return plan_seconds(plan, device, costs, choices, captured=made.as_graph, kept=kept)

    asked = CountingChoices(DefaultChoices(costs.unknown_trips))
    try:
        found = seconds(asked)
        if asked.count:
            way = Options(
                threads=1,
                debug=Debug(skip=("unroll_recursion",)),
                cache_dir=stages.options.cache_dir,
            )
            found = seconds(followed_way(model, way, costs))
    except ScheduleError as error:
        return None, error.message
    return found * 1e6, ""


def _compile(folder: Path, kind: str, others: Others) -> None:
    """Compile functions and kernels into the cache, where the GPU's machine finds them by their
    text."""
    options = Options(cache_dir=str(folder))
    for function, inputs in others.functions:
        compiled_for(kind, function, inputs, options)
    for source in others.sources:
        compile_source(source, KINDS[kind].target, options)


def _kept(array: np.ndarray) -> np.ndarray:
    exact = np.asarray(array, np.float64)
    return exact if exact.nbytes <= MOST_EXACT_BYTES else exact.astype(np.float32)


def _write_references(path: Path, references: Mapping[str, np.ndarray]) -> None:
    from safetensors.numpy import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: np.ascontiguousarray(value) for key, value in references.items()}, path)
