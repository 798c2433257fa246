"""`stretto calibrate`: fits the parameters of the CPU's cost model to this host.

Programs whose kernels each depend on one parameter are compiled and run with a clock around every
task. Parameters that follow from one time are computed from it; the remaining difference between
the model and a template is a factor of that template.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

import stretto
from stretto.call.compiler import begin, run_stages
from stretto.call.entry import Entry
from stretto.device.costs import count_applies, count_expensive
from stretto.device.operator import Kernel, Loops, Operator
from stretto.errors import BuildError
from stretto.machines.cpu.costs import FACTOR, CpuCosts, host_costs
from stretto.machines.cpu.machine import CpuMachine
from stretto.machines.machine import HOST, TaskEvent
from stretto.machines.registry import default_machine
from stretto.machines.stages import TO_SCHEDULE
from stretto.options import Options
from stretto.text import table
from stretto.tools.profile import entry_inputs, one_torch_thread
from stretto.tuning import Database, this_cpu

# ---- Programs that `stretto calibrate` times: each module is named after its parameter.


Tensors = tuple[torch.Tensor, ...]


class RepeatedFunction(nn.Module):
    """A function applied repeatedly to its own result, so that all its data is in the cache."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], trips: int) -> None:
        super().__init__()
        self.function = function
        self.trips = trips

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.trips):
            x = self.function(x)
        return x


class RowProbe(RepeatedFunction):
    """One row times square weights that stay in a unit's own cache, in the shared cache, or in
    neither."""

    def __init__(self, size: int, trips: int) -> None:
        super().__init__(nn.Linear(size, size, bias=False), trips)
        self.size = size


def polynomial(x: torch.Tensor) -> torch.Tensor:
    """A polynomial without loops, so that it becomes one kernel. Values remain between 0 and 1."""
    return quartic(quartic(quartic(quartic(x, x), x), x), x) * 0.5


def quartic(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (((y * x + 0.03) * x + 0.05) * x + 0.07) * x + 0.09


def functions(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.sigmoid(x))


def halved(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5


ELEMENTS = 1 << 15
"""Number of elements of the pointwise probes: their operands fit in a unit's own cache."""


class UnitProbe(nn.Module):
    """Kernels each of which depends on one parameter, run on one unit."""

    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Linear(512, 512, bias=False)
        self.wide_product = nn.Linear(256, 2048, bias=False)
        self.own = RowProbe(384, 16)
        self.shared = RowProbe(1536, 8)
        self.memory = RowProbe(5120, 2)
        self.elements = RepeatedFunction(polynomial, 8)
        self.functions = RepeatedFunction(functions, 8)
        self.loads = RepeatedFunction(halved, 8)
        self.factor_square = nn.Conv2d(64, 64, 3, padding=1)
        self.factor_wide = nn.Conv2d(128, 128, 3, padding=1)
        self.factor_step = nn.Conv2d(64, 128, 3, padding=1, stride=2)
        self.factor_point = nn.Conv2d(64, 256, 1)
        self.factor_first = nn.Conv2d(3, 64, 7, padding=3, stride=2)
        self.factor_depth = nn.Conv2d(64, 64, 3, padding=1, groups=64)
        self.factor_groups = nn.Conv2d(64, 64, 3, padding=1, groups=8)
        self.factor_line = nn.Conv1d(64, 64, 5, padding=2)

    def forward(self, *x: torch.Tensor) -> Tensors:
        """Compute all probes. x: the result of `inputs`."""
        rows, own, shared, memory, points, image, small, colours, line, left, right = x
        return (
            self.product(rows),
            self.wide_product(left),
            self.own(own),
            self.shared(shared),
            self.memory(memory),
            self.elements(points),
            self.functions(points),
            self.loads(points),
            self.factor_square(image),
            self.factor_wide(small),
            self.factor_step(image),
            self.factor_point(image),
            self.factor_first(colours),
            self.factor_depth(image),
            self.factor_groups(image),
            self.factor_line(line),
            left @ right.T,
            left @ right,
        )

    def inputs(self) -> Tensors:
        shapes = (
            *((256, 512), (1, 384), (1, 1536), (1, 5120), (ELEMENTS,), (1, 64, 56, 56)),
            *((1, 128, 28, 28), (1, 3, 112, 112), (1, 64, 1024), (256, 256), (256, 256)),
        )
        return tuple(torch.rand(shape) for shape in shapes)


class WaitProbe(nn.Module):
    """Products divided among several units, each of which needs the whole result of the previous
    one."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = RowProbe(512, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.chain(x)

    def inputs(self) -> Tensors:
        return (torch.rand(1, 512),)


def little(x: torch.Tensor) -> torch.Tensor:
    """A program in which only the launch takes time."""
    return x + 1.0


def with_library_call(x: torch.Tensor) -> torch.Tensor:
    """The same program with a small call of torch."""
    return torch.lgamma(x + 1.0)


SECONDS = 1.5
"""Seconds for which each probe runs, after one warm-up run."""
CALLS = 2000
LEAST, LEAST_CALL = 1e-13, 1e-7
"""Lower bounds in seconds of a fitted time per element, and per library call."""
LEAST_FACTOR_SECONDS = 2e-6
"""Kernels that take less than this do not count for the factor of their template."""
DIRECT = ("packed",)
"""Templates that the other parameters are derived from, which therefore have no factor."""
FACTORS = (0.3, 4.0)
"""Limits of a factor; a value beyond them comes from a disturbed measurement."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A parameter: its value in the source, and the fitted one."""

    name: str
    source: float
    value: float


@dataclass(frozen=True, slots=True)
class Timed:
    """A probe that ran. seconds: by the name of a kernel, the median time of its tasks. runs: the
    events of each run."""

    entry: Entry
    kernels: tuple[Kernel, ...]
    names: tuple[str, ...]
    seconds: Mapping[str, float]
    runs: Sequence[Sequence[TaskEvent]]

    def kernel(self, module: str) -> tuple[Kernel, float]:
        """Return the kernel with most work in a module of the probe, and its seconds. Raise
        BuildError if it has none."""
        found = [
            kernel
            for kernel in self.kernels
            if kernel.name.startswith(f"{module}.") and kernel.name in self.seconds
        ]
        if not found:
            raise BuildError(f"no measured kernel belongs to the probe {module!r}")
        costs = host_costs()
        kernel = max(found, key=lambda k: sum(costs.work(stage.operator) for stage in k.stages))
        return kernel, self.seconds[kernel.name]


def calibrate(options: Options, tell: Callable[[str], None] = lambda _: None) -> list[Fitted]:
    """Measure and fit the parameters, and store them in the database of the options' cache. tell:
    called with the name of each measurement. Raises the errors of compiling."""
    plain = replace(
        options,
        tune="off",
        profile=False,
        debug=replace(options.debug, dump_dir=None, remarks=False),
    )
    torch.manual_seed(0)
    with torch.no_grad(), one_torch_thread():
        tell("arithmetic and memory on one unit")
        unit = _timed(UnitProbe(), replace(plain, threads=1))
        values = rates(unit)
        values |= factors(unit, host_costs().fitted(values))
        tell("launches")
        values |= _launches(plain)
        if options.unit_count() > 1:
            tell("waits between units")
            values |= waits(_timed(WaitProbe(), plain))
    Database(options.cache_path()).put_parameters(this_cpu(options), values)
    return [Fitted(name, _source(name), value) for name, value in values.items()]


def _source(name: str) -> float:
    return 1.0 if name.startswith(FACTOR) else float(getattr(host_costs(), name))


def _timed(probe: UnitProbe | WaitProbe, options: Options) -> Timed:
    inputs = probe.inputs()
    fast = stretto.compile(probe.eval(), inputs, backend=default_machine().name, options=options)
    entry = fast.signatures[0]
    profiler = entry.stages.machine.profiler(entry.stages, options)
    assert profiler is not None and entry.stages.device is not None
    bound = entry_inputs(entry)
    profiler.profile(bound)
    runs: list[Sequence[TaskEvent]] = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(runs) < 3:
        runs.append(profiler.profile(bound)[1])
    taken: dict[str, list[int]] = defaultdict(list)
    names = tuple(profiler.kernels)
    for event in (event for run in runs for event in run):
        taken[names[event.kernel]].append(event.end - event.start)
    medians = {name: statistics.median(times) / 1e9 for name, times in taken.items()}
    return Timed(entry, entry.stages.device.kernels, names, medians, runs)


# ---- one unit ----------------------------------------------------------------------------------
def rates(unit: Timed) -> dict[str, float]:
    """Return the parameters that follow from the times of single kernels."""
    products = [_operators_seconds(unit, name) for name in ("product", "wide_product")]
    flops = [2.0 * operations / seconds for operations, seconds in products]
    own, shared, memory = (
        4.0 * weights / seconds
        for weights, seconds in (_operators_seconds(unit, n) for n in ("own", "shared", "memory"))
    )
    return {
        "flops": statistics.fmean(flops),
        "bandwidth": (own * shared) ** 0.5,
        "shared_bandwidth": shared,
        "memory_bandwidth": memory,
        "stream_bandwidth": memory,
        **_pointwise(unit),
    }


def _operators_seconds(unit: Timed, module: str) -> tuple[int, float]:
    """Return the number of multiplications of the product in a module, and its seconds."""
    kernel, seconds = unit.kernel(module)
    return max(_points(stage.operator) for stage in kernel.stages), seconds


def _points(operator: Operator) -> int:
    return host_costs().points((*operator.dims, *operator.reduce))


def _pointwise(unit: Timed) -> dict[str, float]:
    """Return the time of an element, an expensive function and a load, from kernels that differ in
    one of these each."""
    copied, cheap, _ = _per_element(unit, "loads")
    computed, more, _ = _per_element(unit, "elements")
    element = max((computed - copied) / (more - cheap), LEAST)
    load = max(copied - cheap * element, LEAST)
    taken, some, long = _per_element(unit, "functions")
    costly = max((taken - load - some * element) / long, element)
    return {"element_seconds": element, "expensive_seconds": costly, "load_seconds": load}


def _per_element(unit: Timed, module: str) -> tuple[float, int, int]:
    """Return, per element of a pointwise kernel, its seconds, number of cheap functions and number
    of expensive ones, counted as the model does."""
    kernel, seconds = unit.kernel(module)
    values = [stage.operator.value for stage in kernel.stages]
    long = sum(map(count_expensive, values))
    cheap = sum(1 + count_applies(value) for value in values) - long
    return seconds / _points(kernel.stages[0].operator), cheap, long


def factors(unit: Timed, costs: CpuCosts) -> dict[str, float]:
    """Return measured over estimated time by template: the median of the kernels whose work is
    mostly in one stage of it. costs: with all other parameters fitted."""
    estimated = _estimates(unit, costs)
    found: dict[str, list[float]] = defaultdict(list)
    for kernel in unit.kernels:
        template = _template(kernel)
        same = estimated.get(kernel.name)
        if template is None or same is None or _template(same) != template:
            continue
        if kernel.name in unit.seconds and same.seconds > LEAST_FACTOR_SECONDS:
            found[template].append(unit.seconds[kernel.name] / same.seconds)
    low, high = FACTORS
    return {
        f"{FACTOR}{template}": min(max(statistics.median(ratios), low), high)
        for template, ratios in sorted(found.items())
    }


def _template(kernel: Kernel) -> str | None:
    """Return the template of the stage with most work; None for loops, whose figures are fitted
    individually, and for products of one row, which are as fast as memory."""
    if not kernel.stages:
        return None
    stage = max(kernel.stages, key=lambda stage: _points(stage.operator))
    if isinstance(stage.template, Loops) or stage.template.name in DIRECT:
        return None
    return stage.template.name


def _estimates(unit: Timed, costs: CpuCosts) -> dict[str, Kernel]:
    """Return the kernels of the same program by name, with a model's estimates."""
    stages = begin(
        unit.entry.captured.program,
        CpuMachine(default_machine().name, costs=costs),
        Options(threads=1, tune="off"),
        HOST,
    )
    run_stages(stages, TO_SCHEDULE)
    assert stages.device is not None
    return {kernel.name: kernel for kernel in stages.device.kernels}


# ---- launches and waits ------------------------------------------------------------------------
def _launches(options: Options) -> dict[str, float]:
    """Return the time of a call of a program without work, and the time that a library call adds
    to it."""
    x = torch.eye(4)
    plain = _call_seconds(little, x, options)
    library = _call_seconds(with_library_call, x, options)
    return {"launch_seconds": plain, "call_seconds": max(library - plain, LEAST_CALL)}


def _call_seconds(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, options: Options
) -> float:
    fast = stretto.compile(function, (x,), backend=default_machine().name, options=options)
    taken: list[float] = []
    for _ in range(CALLS):
        start = time.perf_counter()
        fast(x)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def waits(chain: Timed) -> dict[str, float]:
    """Return the time that one unit takes to notice that another one has finished.

    Each kernel of the chain needs all of the previous one: the unit that finishes first
    waits for the other.
    """
    seen: list[float] = []
    for run in chain.runs:
        by_unit: dict[int, list[TaskEvent]] = defaultdict(list)
        for event in sorted(run, key=lambda event: event.start):
            by_unit[event.unit].append(event)
        for ended, begun in _steps(list(by_unit.values())):
            last = max(ended)
            pairs = zip(ended, begun, strict=True)
            seen += [start - last for end, start in pairs if end < last < start]
    return {"wait_seconds": max(statistics.median(seen), 1.0) / 1e9} if seen else {}


def _steps(units: list[list[TaskEvent]]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield for each task the times at which the units ended it, and those at which they began the
    next one."""
    ended = zip(*([event.end for event in unit[:-1]] for unit in units), strict=False)
    begun = zip(*([event.start for event in unit[1:]] for unit in units), strict=False)
    for ends, starts in zip(ended, begun, strict=False):
        yield list(ends), list(starts)


# ---- output ------------------------------------------------------------------------------------
def fitted_table(fitted: Sequence[Fitted]) -> str:
    """Return the table that `stretto calibrate` prints."""
    rows = [(one.name, _shown(one.name, one.source), _shown(one.name, one.value)) for one in fitted]
    return table(rows, ("parameter", "in the source", "here"))


def _shown(name: str, value: float) -> str:
    if name.startswith(FACTOR):
        return f"{value:.2f}"
    if name.endswith("_seconds"):
        return f"{value * 1e9:.3g} ns"
    return f"{value / 1e9:.3g} {'GFLOP/s' if name == 'flops' else 'GB/s'}"
