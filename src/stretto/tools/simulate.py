"""`stretto simulate`: predicts the time of a model on a device that need not be present."""

from __future__ import annotations

import copy
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

import stretto
from stretto.call import compiler
from stretto.call.compiler import begin, build, run_stages
from stretto.call.entry import Entry
from stretto.call.signatures import key_of_call
from stretto.device.costs import CostModel
from stretto.device.program import DeviceProgram
from stretto.frontends.python import Captured, capture
from stretto.machines.machine import HOST, Machine, Stages, TaskEvent
from stretto.machines.registry import default_machine, known_machines
from stretto.machines.stages import TO_SCHEDULE
from stretto.options import Options
from stretto.schedule.plan import make_plan
from stretto.schedule.plan_cost import plan_seconds
from stretto.schedule.plan_search import search_plan
from stretto.simulator.devices import GPUS, NAMES, Device, costs_on, cpu_device, find_device
from stretto.simulator.launches import Launches, launch_per_kernel
from stretto.simulator.result import Bound, Simulation
from stretto.simulator.run_path import Choices, CountingChoices, DefaultChoices, RecordedChoices
from stretto.simulator.simulate import simulate
from stretto.text import TextSection, counted, explanation, seconds_text
from stretto.tools.models import Model
from stretto.tools.names import UsageError, suggestion
from stretto.tools.profile import (
    Profile,
    entry_inputs,
    make_profile,
    profile_entry,
    profiled_kernels,
)
from stretto.tools.timeline import writer_of

# ---- Compilation for devices that need not be present.


def target_machine(target: str, units: int | None = None) -> Machine:
    """Return the machine that compiles for a target. Raise UsageError for an unknown target, and
    BuildError if its compiler is missing."""
    try:
        return compiler.target_machine(target, units)
    except ValueError as error:
        known = [name for machine in known_machines().values() for name in machine.targets]
        raise UsageError(f"unknown target {target!r}{suggestion(target, known)}") from error


def compile_model(model: Model, machine: Machine, options: Options) -> tuple[Captured, Stages]:
    """Return the captured model, and all its stages; its tensors stay on the CPU."""
    with torch.no_grad():
        captured = capture(model.function, model.inputs, {}, options)
    return captured, build(captured.program, machine, options)


MOST_ROWS = 12
MOST_GAPS = 5


@dataclass(frozen=True, slots=True)
class Simulated:
    """A model, its program for the units of a device, and a simulated run of it. apart: for a GPU,
    the run with a launch per kernel. faster: by title, stretches of the program that take less
    time so, with the seconds of both alternatives. planned: seconds of the plan of launches
    that the options request, if they do."""

    model: str
    program: DeviceProgram
    result: Simulation
    apart: Launches | None = None
    faster: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )
    planned: float | None = None


def simulate_model(
    model: Model,
    name: str,
    units: int | None = None,
    *,
    trips: int | None = None,
    depth: int = 4,
    measured: bool = False,
    followed: bool = False,
    options: Options | None = None,
) -> Simulated:
    """Compile a model for a device as far as its schedule, and simulate one run.

    units: of the program; None: as many as the device has. trips: iterations of loops that
    data end; None: as the machine's costs assume. depth: of recursion. measured: use
    measured times of tasks, for which a program for this CPU is built and run here.
    followed: branches and loops go as in a run on one unit of this CPU. options: of the
    compilation, except the units. Raises UsageError for a device that is unknown or whose
    tasks cannot be measured, and the errors of the stages.
    """
    machine, device, options = device_machine(name, units, options or Options())
    if measured:
        _require_cores(device, options)
        program = _measured_program(model, machine, options)
    else:
        program = scheduled_program(model, machine, options)
    choices: Choices = DefaultChoices(
        machine.costs.unknown_trips if trips is None else trips, depth
    )
    if followed:
        threads = options.threads or 1
        here = replace(
            options,
            threads=threads,
            units=None,
            debug=replace(options.debug, launches="auto", control="auto"),
        )
        if device.target:  # programs for GPUs do not unroll recursion, which changes the branches
            skip = (*here.debug.skip, "unroll_recursion")
            here = replace(here, debug=replace(here.debug, skip=skip))
        choices = followed_way(model, here, machine.costs if device.target else None)
    planned = None
    if device.target and (options.debug.launches, options.debug.control) != ("auto", "auto"):
        chosen = search_plan(
            program, machine.costs, options.debug.launches, options.debug.control, device=device
        )
        plan = make_plan(program, cuts=chosen.cuts)
        planned = plan_seconds(plan, device, machine.costs, copy.deepcopy(choices))
    again = copy.deepcopy(choices)  # recorded choices are consumed by a simulation
    found = simulate(program, device, choices, machine.costs, machine.kept_constants(program))
    if isinstance(choices, RecordedChoices):
        choices.require_end()
    if not device.target:
        return Simulated(model.name, program, found)
    apart = launch_per_kernel(program, device, again, machine.costs)
    return Simulated(model.name, program, found, apart, apart.faster(found, device), planned)


def predicted_seconds(fast: stretto.Compiled, options: Options) -> float:
    """Return the seconds of a call of a compiled model on its units of this CPU, by the simulator
    and the costs that it was planned with. Data-dependent control goes as in its first call.

    options: those of the compilation.
    """
    stages = fast.signatures[0].stages
    program, costs = stages.device, stages.machine.costs
    assert program is not None
    device, asked = (
        cpu_device(program.units, costs),
        CountingChoices(DefaultChoices(costs.unknown_trips)),
    )
    seconds = simulate(program, device, asked, costs).seconds
    if not asked.count:
        return seconds
    choices = _way(fast.signatures[0], options)
    return simulate(program, device, choices, costs).seconds


def device_machine(
    name: str, units: int | None, options: Options
) -> tuple[Machine, Device, Options]:
    """Return the machine that compiles for a device, the device, and options that request the
    units."""
    cpu = default_machine()
    if match := re.fullmatch(r"cpu:(\d+)", name):
        options = replace(options, threads=units or int(match[1]) or None)
        cpu = cpu.tuned(options, HOST)
    try:
        device = find_device(name, cpu.costs)
    except ValueError:
        near = suggestion(name, list(GPUS))
        raise UsageError(f"unknown device {name!r}{near}; known are {', '.join(NAMES)}") from None
    if device.target:
        options = replace(options, units=units)
        machine = target_machine(device.target, units or device.units)
        return replace(machine, costs=costs_on(device, machine.costs)), device, options
    return cpu, device, options


def scheduled_program(model: Model, machine: Machine, options: Options) -> DeviceProgram:
    """Return the verified program of a model, without printing or building it."""
    with torch.no_grad():
        captured = capture(model.function, model.inputs, {}, options)
    stages = begin(captured.program, machine, options, HOST)
    run_stages(stages, TO_SCHEDULE)
    assert stages.device is not None
    return stages.device


def followed_way(model: Model, options: Options, costs: CostModel | None) -> RecordedChoices:
    """Return the recorded control decisions of a run of the model on this host. costs: those of
    another machine, which decide how its recursions are computed, because branches and loops
    follow from that."""
    machine = default_machine()
    if costs is not None:
        names = ("level_bytes", "level_rows", "rows_before")
        figures = {name: getattr(costs, name) for name in names}
        machine = replace(machine, costs=replace(machine.costs, **figures))
    with torch.no_grad():
        captured = capture(model.function, model.inputs, {}, options)
        stages = build(captured.program, machine, options)
        assert stages.executable is not None
        key, _, _ = key_of_call(model.inputs, {})
        return _way(Entry(key, captured, stages.executable, stages, 0.0, model.inputs), options)


def _way(entry: Entry, options: Options) -> RecordedChoices:
    """Return the control decisions of a run on the inputs that an entry was compiled with."""
    profiler = entry.stages.machine.profiler(entry.stages, options)
    assert profiler is not None
    return RecordedChoices(profiler.decisions(entry_inputs(entry)))


def _profiled(model: Model, machine: Machine, options: Options) -> tuple[DeviceProgram, Profile]:
    """Build and run a model's program here with a clock around each task."""
    with torch.no_grad():
        fast = stretto.compile(model.function, model.inputs, backend=machine.name, options=options)
        entry = fast.signatures[0]
        profile = profile_entry(entry, options)
    assert entry.stages.device is not None
    return entry.stages.device, profile


def _require_cores(device: Device, options: Options) -> None:
    cores, wanted = os.cpu_count() or 1, options.unit_count()
    if device.target:
        raise UsageError(
            f"--measured runs the tasks of cpu:N here: it does not go with {device.name}"
        )
    if wanted > cores:
        raise UsageError(f"--measured needs as many cores as units: {wanted}, and here are {cores}")


def _measured_program(model: Model, machine: Machine, options: Options) -> DeviceProgram:
    """Return the program of a model with the measured mean time of its tasks as the estimate of
    each kernel."""
    program, profile = _profiled(model, machine, options)
    seconds = {
        kernel.name: kernel.busy / kernel.tasks / 1e9 for kernel in profile.kernels if kernel.tasks
    }
    kernels = (replace(k, seconds=seconds.get(k.name, k.seconds)) for k in program.kernels)
    return replace(program, kernels=tuple(kernels))


# ---- output ------------------------------------------------------------------------------------
def report(simulated: Simulated) -> str:
    """Return the text about a prediction."""
    result = simulated.result
    title = f"{simulated.model} on {result.device}, simulated"
    summary = TextSection(title, list(_summary(simulated)))
    return explanation((summary, _stretches(result), _kernels(result), _gaps(result)))


def _summary(simulated: Simulated) -> Iterator[tuple[str, str]]:
    result = simulated.result
    shares = [result.utilisation(unit) for unit in range(result.units)]
    mean = sum(shares) / max(len(shares), 1)
    yield "time", seconds_text(result.seconds)
    yield "tasks", f"{result.tasks:,} on {counted(result.units, 'unit')}"
    lowest, highest = min(shares, default=0.0), max(shares, default=0.0)
    yield "utilisation", f"{mean:.0%} (units from {lowest:.0%} to {highest:.0%})"
    yield "critical path", _spent(result.critical, result.seconds)
    yield "waits on it", f"{result.dependent_waits:,}, each for the one before"
    yield from _launches(simulated)
    calls = sum(kernel.call is not None for kernel in simulated.program.kernels)
    if calls:
        yield "library calls", f"{calls} in the program, estimated coarsely"


def _launches(simulated: Simulated) -> Iterator[tuple[str, str]]:
    """Yield lines about separate launches: their time, and the stretches that they make faster."""
    apart = simulated.apart
    if apart is None:
        return
    text = f"{seconds_text(apart.seconds)}, {apart.count:,} launches"
    if apart.reads:
        text += f", {counted(apart.reads, 'decision')} read by the host"
    yield "a launch per kernel", text
    for title, (whole, split) in simulated.faster.items():
        yield "faster as launches", f"{title}: {seconds_text(split)} for {seconds_text(whole)}"


def _spent(seconds: Mapping[Bound, float], total: float) -> str:
    """Return the shares of time by what bounds it, the largest first."""
    found = sorted(seconds.items(), key=lambda item: -item[1])
    shown = [f"{bound} {spent / total:.0%}" for bound, spent in found if spent > 0.005 * total]
    return ", ".join(shown)


def _stretches(result: Simulation) -> TextSection:
    """List the leaves by the time they add to the run."""
    found = sorted(result.stretches, key=lambda stretch: -stretch.seconds)
    rows = [
        (
            stretch.title,
            str(stretch.runs),
            seconds_text(stretch.seconds),
            f"{stretch.seconds / (result.seconds or 1.0):.0%}",
            _spent(stretch.critical, stretch.seconds),
            f"{stretch.idle / ((stretch.busy + stretch.idle) or 1.0):.0%}",
        )
        for stretch in found[:MOST_ROWS]
    ]
    if len(found) > MOST_ROWS:
        rest = sum(stretch.seconds for stretch in found[MOST_ROWS:])
        rows.append((f"{len(found) - MOST_ROWS} more", "", seconds_text(rest), "", "", ""))
    headers = ("stretch", "runs", "adds", "share", "bound by", "idle")
    return TextSection("stretches of the program", rows, headers)


def _kernels(result: Simulation) -> TextSection:
    """List the kernels by their seconds on the critical path."""
    seconds: dict[int, float] = defaultdict(float)
    for link in result.critical_path:
        if link.kernel >= 0:
            seconds[link.kernel] += link.seconds
    rows = [
        (result.names[kernel], seconds_text(spent), f"{spent / result.seconds:.0%}")
        for kernel, spent in sorted(seconds.items(), key=lambda item: -item[1])[:MOST_ROWS]
    ]
    return TextSection("kernels on the critical path", rows, ("kernel", "adds", "share"))


def _gaps(result: Simulation) -> TextSection:
    rows: list[tuple[object, ...]] = []
    for unit, gap in result.gaps(MOST_GAPS):
        assert gap.cause is not None
        begun, length = seconds_text(gap.start), seconds_text(gap.end - gap.start)
        rows.append((unit, begun, length, f"unit {gap.cause.unit}", result.titles[gap.leaf]))
    return TextSection("longest idle gaps", rows, ("unit", "from", "idle", "waits for", "in"))


def write_simulated_timeline(simulated: Simulated, path: Path) -> None:
    """Draw the simulated run like a measured one. Raise ValueError for an unknown suffix."""
    write = writer_of(path)
    events = list(_events(simulated.result))
    kernels = profiled_kernels(simulated.result.names, simulated.program.kernels, events)
    title = f"{simulated.model} on {simulated.result.device}, simulated"
    profile = make_profile(title, simulated.result.units, kernels, events)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(profile, path)


def _events(result: Simulation) -> Iterator[TaskEvent]:
    for unit, segments in enumerate(result.segments):
        for s in segments:
            if s.is_task:
                start, end = (round(1e9 * time) for time in (s.start, s.end))
                yield TaskEvent(unit, s.kernel, s.task, start, end)
