"""`stretto tune`: times the variants of a program's kernels, and stores the times of their tasks.

The program is built once per variant number: each kernel in its first, then each in its second, and
so on. Every build runs with a clock around each task, on the inputs that the program was compiled
for. So a task is timed where it will run: with its data in the caches it will have, and with the
other units at work.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

import stretto
from stretto.call.compiler import begin, run_stages
from stretto.call.entry import Entry
from stretto.device.operator import Kernel
from stretto.device.tree import leaves
from stretto.errors import BuildError
from stretto.machines.cpu.executable import CpuExecutable
from stretto.machines.cpu.machine import CpuMachine
from stretto.machines.cpu.measured import NumberedChooser, kernel_key
from stretto.machines.machine import HOST, Stages
from stretto.machines.registry import default_machine
from stretto.options import Options
from stretto.text import seconds_text, table
from stretto.tools.models import Model
from stretto.tools.profile import entry_inputs, one_torch_thread
from stretto.tools.simulate import predicted_seconds
from stretto.tuning import Database, KernelTime, this_cpu

SECONDS = 0.4
"""Seconds for which each build is timed, after one warm-up run."""
LEAST_RUNS = 3
COMPARED_SECONDS = 1.0
"""Seconds per program when programs are compared in turns."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """Results of tuning a model: number of kernels, number of kernels with a different grid than
    without measurements, and seconds of a call before, after, and as predicted by the simulator."""

    model: str
    kernels: int
    changed: int
    before: float
    after: float
    predicted: float


def measure(entry: Entry, options: Options) -> dict[str, KernelTime]:
    """Time all variants of an entry's kernels, store the times and return them. Runs do not
    advance torch's default generator, but do advance generators of the user. Raise BuildError
    for a machine without a database."""
    machine = entry.stages.machine.tuned(replace(options, tune="cached"), HOST)
    if not isinstance(machine, CpuMachine):
        raise BuildError(f"the machine {machine.name} does not measure kernels")
    found: dict[str, list[KernelTime]] = defaultdict(list)
    number, most = 0, 1
    while number < most:
        chooser = NumberedChooser(number)
        stages = _built(entry, replace(machine, measured=None, chooser=chooser), options)
        with torch.random.fork_rng(devices=()):
            times = _times(stages, entry_inputs(entry))
        for key, taken in times.items():
            found[key].append(taken)
        number, most = number + 1, chooser.most
    known = {key: _together(several) for key, several in found.items()}
    Database(options.cache_path()).put_kernels(this_cpu(options), known)
    return known


def _built(entry: Entry, machine: CpuMachine, options: Options) -> Stages:
    """Build the program of an entry with a clock around each task."""
    traced = replace(
        options,
        tune="off",
        profile=True,
        debug=replace(options.debug, dump_dir=None, remarks=False),
    )
    stages = begin(entry.captured.program, machine, traced, entry.stages.place)
    run_stages(stages, machine.stages)
    return stages


def _times(stages: Stages, inputs: list[torch.Tensor]) -> dict[str, KernelTime]:
    """Return the time of a task of each kernel: the median over runs of its mean in a run."""
    program, selected = stages.executable, stages.selected
    assert isinstance(program, CpuExecutable) and selected is not None
    kernels = {
        item.name: item
        for function in selected.tree.functions
        for body in leaves(function.body)
        for item in body
        if isinstance(item, Kernel)
    }
    means: dict[int, list[float]] = defaultdict(list)
    counts: Counter[int] = Counter()
    program.profile(inputs)
    end, runs = time.perf_counter() + SECONDS, 0
    while time.perf_counter() < end or runs < LEAST_RUNS:
        runs += 1
        taken: Counter[int] = Counter()
        tasks: Counter[int] = Counter()
        for event in program.profile(inputs)[1]:
            taken[event.kernel] += event.end - event.start
            tasks[event.kernel] += 1
        for kernel, count in tasks.items():
            means[kernel].append(max(taken[kernel], 1) / count / 1e9)
        counts += tasks
    found: dict[str, list[KernelTime]] = defaultdict(list)
    for number, name in enumerate(program.kernels):
        key = kernel_key(kernels[name]) if name in kernels and number in means else None
        if key is not None:
            found[key].append(KernelTime(statistics.median(means[number]), counts[number]))
    return {key: _together(several) for key, several in found.items()}


def _together(times: Sequence[KernelTime]) -> KernelTime:
    """Return the mean over all tasks: equal kernels in several places share one time."""
    samples = sum(one.samples for one in times)
    return KernelTime(sum(one.seconds * one.samples for one in times) / samples, samples)


def tune_model(
    model: Model, options: Options, tell: Callable[[str], None] = lambda _: None
) -> Tuned:
    """Measure the kernels of a model, and compare it before and after."""
    plain = replace(options, tune="cached")
    with torch.no_grad(), one_torch_thread():
        tell(f"compiling {model.name}")
        off = _compiled(model, replace(options, tune="off"))
        tell(f"measuring the kernels of {model.name}")
        measure(off.signatures[0], plain)
        tell(f"compiling {model.name} with what was measured")
        tuned = _compiled(model, plain)
        tell(f"comparing {model.name}")
        before, after = compared(
            [lambda: off(*model.inputs), lambda: tuned(*model.inputs)], COMPARED_SECONDS
        )
    old, new = (_kernels(fast.signatures[0].stages) for fast in (off, tuned))
    changed = sum(new[name].grid != kernel.grid for name, kernel in old.items() if name in new)
    predicted = predicted_seconds(tuned, plain)
    return Tuned(model.name, len(new), changed, before, after, predicted)


def _compiled(model: Model, options: Options) -> stretto.Compiled:
    name = default_machine().name
    return stretto.compile(model.function, model.inputs, backend=name, options=options)


def _kernels(stages: Stages) -> Mapping[str, Kernel]:
    assert stages.device is not None
    return {kernel.name: kernel for kernel in stages.device.kernels}


def compared(calls: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Return the median seconds of calls that take turns."""
    taken: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or len(taken[0]) < LEAST_RUNS:
        for call, times in zip(calls, taken, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in taken]


def tuned_table(found: Sequence[Tuned]) -> str:
    """Return the table that `stretto tune` prints."""
    rows = [
        (
            one.model,
            one.kernels,
            one.changed,
            seconds_text(one.before),
            seconds_text(one.after),
            f"{one.before / one.after:.2f}x",
            seconds_text(one.predicted),
            f"{one.predicted / one.after - 1:+.0%}",
        )
        for one in found
    ]
    headers = (
        "model", "kernels", "other variant", "before", "tuned", "gain", "predicted", "error",
    )  # fmt: skip
    return table(rows, headers)
