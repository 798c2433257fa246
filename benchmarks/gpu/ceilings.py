"""The stage `ceilings`: the GPU's best rates, and the costs of waits, launches and loops on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import stretto
from stretto.machines.cuda.printer.source import TritonSource

from . import conditional, probes
from .clock import Call, device_seconds, host_seconds, rate, repeat, slopes, spread
from .device import Bench
from .engine import Job, Settings, run_jobs
from .probes import Loaded, Probe
from .results import Keep
from .worker import Reporter

LIMIT_S = 6.0
SAMPLES = 7
LAUNCHES = 400
"""Launches per sample: few enough for the GPU's queue, which holds about a thousand."""
STREAM = probes.stream(8192, 8)
DRY_STREAM = probes.stream(64, 8)
UNITS = (2, 8, 32, 66)
"""Numbers of units for waits and waves, besides all."""


def jobs(settings: Settings) -> list[Job]:
    return [Job("ceilings", "all", 60.0)]


def drive(settings: Settings, record: Keep, end: float) -> None:
    """Run the stage with one worker: nothing else may use the GPU."""
    run_jobs(jobs(settings), settings, record, end, 1)


def run(reporter: Reporter, bench: Bench) -> None:
    """Measure, in a worker; what the cost model needs most comes first."""
    for group in (rates, waits, tasks, launches, loops):
        for name, measure in group(bench, str(reporter.programs)).items():
            reporter.row(name, LIMIT_S, measure)


def sources(units: int) -> Iterator[TritonSource]:
    """Yield the kernels of this stage and of `smoke` for a GPU of this many units, to be compiled
    beforehand."""
    for probe in (probes.EMPTY, STREAM, probes.BARRIER, probes.EXCHANGE, *ARITHMETIC.values()):
        yield probe.source(units)
    yield from (probe.source(units) for probe in PRODUCTS.values())
    yield from (probe.source(1) for probe in (STREAM, probes.CHASE, probes.EMPTY))
    for count in (*UNITS, units):
        yield from (probe.source(count) for probe in (probes.PING_PONG, probes.WAVE))


Rows = dict[str, Callable[[], dict[str, Any]]]


# ---- rates -----------------------------------------------------------------------------------


def rates(bench: Bench, folder: str) -> Rows:
    def ceiling(dtype: torch.dtype, size: int, tf32: bool = False) -> dict[str, Any]:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        try:
            return matmul(bench, dtype, size)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    return {
        "copy bandwidth": partial(copy, bench),
        "bf16 matmul": partial(ceiling, torch.bfloat16, 8192),
        "fp32 matmul": partial(ceiling, torch.float32, 4096),
        "tf32 matmul": partial(ceiling, torch.float32, 8192, True),
        "fp64 matmul": partial(ceiling, torch.float64, 4096),
        "read bandwidth, memory": partial(read, bench, folder, 4 << 30, bench.units),
        "read bandwidth, L2": partial(read, bench, folder, 16 << 20, bench.units),
        "read bandwidth, one unit alone": partial(read, bench, folder, 16 << 20, 1),
    }


def copy(bench: Bench) -> dict[str, Any]:
    """Measure bytes read plus bytes written per second, copying random data."""
    count = bench.size(1 << 30, 1 << 12)
    source = torch.randn(count, device=bench.device)
    target = torch.empty_like(source)
    seconds = repeat(bench, lambda: target.copy_(source), bench.size(5, 1), bench.size(SAMPLES, 2))
    return rate(seconds, 2.0 * source.nbytes, "B/s") | {"bytes": source.nbytes}


def matmul(bench: Bench, dtype: torch.dtype, size: int) -> dict[str, Any]:
    """Measure the floating-point operations per second of torch's product of random square
    matrices."""
    size = bench.size(size, 16)
    generator = torch.Generator(device=bench.device).manual_seed(0)
    a, b = (
        torch.randn(size, size, generator=generator, device=bench.device).to(dtype)
        for _ in range(2)
    )
    out = torch.empty_like(a)
    call = partial(torch.matmul, a, b, out=out)
    seconds = repeat(bench, call, bench.size(8, 1), bench.size(SAMPLES, 2))
    return rate(seconds, 2.0 * size**3, "FLOP/s") | {"size": size}


def read(bench: Bench, folder: str, nbytes: int, units: int) -> dict[str, Any]:
    """Measure the bytes per second that units read, with a persistent kernel as in programs."""
    block = bench.size(8192, 64)
    blocks = bench.size(nbytes // (4 * block), 5)
    data = torch.randn(blocks * block, device=bench.device)
    count = torch.tensor([blocks], dtype=torch.int32, device=bench.device)
    found = torch.zeros(units, device=bench.device)
    units = min(units, bench.units)
    probe = DRY_STREAM if bench.dry_run else STREAM
    loaded = Loaded(bench, probe, folder, (data, count, found), units=units)
    low = bench.size(1 if nbytes > 1 << 28 else 200, 1)
    seconds = slopes(bench, loaded.run, low, 3 * low, bench.size(SAMPLES, 2))
    loaded.check()
    return rate(seconds, float(data.nbytes), "B/s") | {"bytes": data.nbytes, "units": units}


# ---- waits -----------------------------------------------------------------------------------


def waits(bench: Bench, folder: str) -> Rows:
    """Seconds from a signal to the end of the wait for it: the progress counters are in L2."""
    found: Rows = {}
    for units in (*(count for count in UNITS if count < bench.units), bench.units):
        apart = f", {units} apart" if units > 2 else ""
        measure = partial(trip, bench, folder, probes.PING_PONG, units, 0.5)
        found[f"wait between two units{apart}"] = measure
        row = "wave over all units" if units == bench.units else f"wave over {units} units"
        found[row] = partial(trip, bench, folder, probes.WAVE, units, 1.0)
    return found


def trip(
    bench: Bench, folder: str, probe: Probe, units: int, share: float, most: int = 5000
) -> dict[str, Any]:
    """Measure the seconds of a trip, times `share`; a run has at most `most` trips."""
    loaded = Loaded(bench, probe, folder, units=units)
    return _trips(bench, loaded, share, most) | {"units": units}


def _trips(bench: Bench, loaded: Loaded, share: float = 1.0, most: int = 5000) -> dict[str, Any]:
    low, high = bench.size(most // 5, 1), bench.size(most, 4)
    found = slopes(bench, loaded.run, low, high, bench.size(SAMPLES, 2))
    loaded.check()
    return spread(found, share)


# ---- launches --------------------------------------------------------------------------------


def launches(bench: Bench, folder: str) -> Rows:
    def program(kind: str) -> dict[str, Any]:
        loaded = Loaded(bench, probes.EMPTY, folder)
        return launch_seconds(bench, lambda: loaded.run(0), kind)

    def operator(kind: str) -> dict[str, Any]:
        x = torch.zeros(64, device=bench.device)
        return launch_seconds(bench, lambda: x.add_(1.0), kind)

    return {
        "launch of an empty program, device": partial(program, "device"),
        "launch of an empty program, host": partial(program, "host"),
        "operator of torch, device": partial(operator, "device"),
        "operator of torch, host": partial(operator, "host"),
        "call of a compiled function, device": partial(whole_call, bench, folder, "device"),
        "call of a compiled function, host": partial(whole_call, bench, folder, "host"),
        "kernel boundary in a CUDA graph": partial(boundary, bench, 1),
        "kernel boundary in a CUDA graph, two kernels wide": partial(boundary, bench, 2),
    }


def launch_seconds(bench: Bench, call: Call, kind: str) -> dict[str, Any]:
    """device: seconds per launch when many are queued on the GPU. host: seconds until a launch
    returns."""
    calls, samples = bench.size(LAUNCHES, 1), bench.size(SAMPLES, 2)
    measure = device_seconds if kind == "device" else host_seconds
    return spread(measure(bench, call, calls, samples)) | {"calls": calls}


def plus_one(x: Tensor) -> Tensor:
    return x + 1.0


@torch.no_grad()
def whole_call(bench: Bench, folder: str, kind: str) -> dict[str, Any]:
    x = torch.ones(16, device=bench.device)
    options = stretto.Options(cache_dir=folder)
    fast = stretto.compile(plus_one, backend=bench.backend, options=options)
    fast(x)
    return launch_seconds(bench, lambda: fast(x), kind)


def boundary(bench: Bench, wide: int) -> dict[str, Any]:
    """Measure the seconds from one small kernel of a graph to the next that depends on it."""
    tensors = [torch.zeros(64, device=bench.device) for _ in range(wide)]
    chain = bench.size(500, 4)
    if bench.dry_run:

        def replay() -> None:
            for _ in range(chain):
                for x in tensors:
                    x.add_(1.0)
    else:
        replay = _graph(bench, tensors, chain).replay

    seconds = repeat(bench, replay, 1, bench.size(SAMPLES, 2))
    return spread([value / chain for value in seconds]) | {"kernels": chain * wide}


def _graph(bench: Bench, tensors: list[Tensor], chain: int) -> torch.cuda.CUDAGraph:
    """Capture a chain of kernels on each of several streams, joined after each step."""
    graph = torch.cuda.CUDAGraph()
    for x in tensors:
        x.add_(1.0)
    bench.synchronize()
    others = [torch.cuda.Stream(bench.device) for _ in tensors[1:]]
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream(bench.device)
        for _ in range(chain):
            for stream, x in zip(others, tensors[1:], strict=True):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    x.add_(1.0)
            tensors[0].add_(1.0)
            for stream in others:
                main.wait_stream(stream)
    return graph


# ---- tasks -----------------------------------------------------------------------------------


BLOCK, DRY_BLOCK = 512, 32
STEPS = {
    "function applications": ("stretto_tanh({x})", "tl.float32", 1.0),
    "fp32 arithmetic": ("{x} * 0.999 + 0.001", "tl.float32", 2.0),
    "fp64 arithmetic": ("{x} * 0.999 + 0.001", "tl.float64", 2.0),
}
"""The step on each element, the element type, and the number of operations it counts as."""
SHAPES = {
    "tensor cores, fp32 as three TF32": ("fp32", "tf32x3", 64, 64, 32),
    "tensor cores, bf16": ("bf16", "ieee", 64, 64, 64),
    "a step of a small product": ("fp32", "tf32x3", 16, 16, 32),
}
ARITHMETIC = {name: probes.arithmetic(step, BLOCK, kind) for name, (step, kind, _) in STEPS.items()}
PRODUCTS = {name: probes.products(*shape) for name, shape in SHAPES.items()}


def tasks(bench: Bench, folder: str) -> Rows:
    """Measure the figures of machines/cuda/costs.py, for one unit while all run."""
    block = bench.size(BLOCK, DRY_BLOCK)
    found: Rows = {
        "barrier of a unit": partial(small, bench, folder, probes.BARRIER, ()),
        "load to use, L2": partial(chase, bench, folder, 4 << 20),
        "load to use, memory": partial(chase, bench, folder, 1 << 30),
    }
    for name, (step, kind, amount) in STEPS.items():
        probe = probes.arithmetic(step, block, kind)
        found[name] = partial(work, bench, folder, probe, amount * 4 * block)
    for name, shape in SHAPES.items():
        found[name] = partial(tensor_cores, bench, folder, *shape)
    return found


def small(bench: Bench, folder: str, probe: Probe, memory: tuple[Tensor, ...]) -> dict[str, Any]:
    return _trips(bench, Loaded(bench, probe, folder, memory), most=20_000)


def chase(bench: Bench, folder: str, nbytes: int) -> dict[str, Any]:
    """Measure the seconds from a load's address to its value, one load at a time."""
    count = bench.size(nbytes // 4, 256)
    order = torch.randperm(count, device=bench.device)
    ring = torch.empty(count, dtype=torch.int32, device=bench.device)
    ring[order] = order.roll(-1).to(torch.int32)
    found = torch.zeros(1, dtype=torch.int32, device=bench.device)
    loaded = Loaded(bench, probes.CHASE, folder, (ring, found), units=1)
    return _trips(bench, loaded, most=20_000) | {"bytes": nbytes}


def work(bench: Bench, folder: str, probe: Probe, amount: float) -> dict[str, Any]:
    """Measure the operations per second of one unit; a trip has `amount`."""
    found = torch.zeros(4096, device=bench.device)
    loaded = Loaded(bench, probe, folder, (found,))
    low, high = bench.size(2000, 1), bench.size(10_000, 3)
    seconds = slopes(bench, loaded.run, low, high, bench.size(SAMPLES, 2))
    loaded.check()
    return rate(seconds, amount, "1/s")


def tensor_cores(
    bench: Bench, folder: str, kind: str, precision: str, rows: int, columns: int, depth: int
) -> dict[str, Any]:
    """Measure the floating-point operations per second of one unit, and the seconds of a step."""
    dtype = torch.float32 if kind == "fp32" else torch.bfloat16
    left = torch.randn(rows, 4 * depth, device=bench.device).to(dtype)
    right = torch.randn(4 * depth, columns, device=bench.device).to(dtype)
    found = torch.zeros(rows, columns, device=bench.device)
    probe = probes.products(kind, precision, rows, columns, depth)
    loaded = Loaded(bench, probe, folder, (left, right, found))
    low, high = bench.size(2000, 1), bench.size(10_000, 3)
    seconds = slopes(bench, loaded.run, low, high, bench.size(SAMPLES, 2))
    loaded.check()
    amount = 2.0 * rows * columns * depth
    return rate(seconds, amount, "FLOP/s") | {"step": spread(seconds)}


# ---- loops -----------------------------------------------------------------------------------


def loops(bench: Bench, folder: str) -> Rows:
    return {
        "WHILE node of a CUDA graph, one kernel": partial(conditional.measure, bench, 1),
        "WHILE node of a CUDA graph, two kernels": partial(conditional.measure, bench, 2),
        "iteration of a loop, one unit": partial(iteration, bench, folder, count_up),
        "iteration of a loop, all units": partial(iteration, bench, folder, spread_out),
        "iteration of a loop, a product": partial(iteration, bench, folder, apply),
    }


def count_up(x: Tensor, step: Tensor, limit: Tensor, matrix: Tensor) -> Tensor:
    """A loop with a decision on a value in each iteration and little else."""
    while step < limit:
        step = step + 1
        x = x + 1.0
    return x + step


def spread_out(x: Tensor, step: Tensor, limit: Tensor, matrix: Tensor) -> Tensor:
    """A loop each of whose iterations needs the whole result of the previous one."""
    while step < limit:
        step = step + 1
        x = x * 0.5 + x.sum() * 1e-6
    return x


def apply(x: Tensor, step: Tensor, limit: Tensor, matrix: Tensor) -> Tensor:
    """A loop with a product of a square matrix and a vector, and a pointwise function."""
    while step < limit:
        step = step + 1
        x = torch.tanh(matrix @ x + 0.1)
    return x


LOOPS: dict[Callable[..., Tensor], tuple[int, int]] = {
    count_up: (64, 64),
    spread_out: (4096, 32),
    apply: (1024, 16),
}
"""Loops, with the size of x, and its size in a dry run."""


def functions(bench: Bench) -> Iterator[tuple[Callable[..., Any], tuple[Tensor, ...]]]:
    """Yield the functions that the rows compile, with their inputs."""
    yield plus_one, (torch.ones(16, device=bench.device),)
    yield from ((function, _operands(bench, function, 3)) for function in LOOPS)


def _operands(bench: Bench, function: Callable[..., Tensor], trips: int) -> tuple[Tensor, ...]:
    size = bench.size(*LOOPS[function])
    x = torch.ones(size, device=bench.device)
    side = size if function is apply else 1
    matrix = torch.randn(side, side, device=bench.device) / size**0.5
    start = torch.zeros((), dtype=torch.int64, device=bench.device)
    return x, start, torch.tensor(trips, device=bench.device), matrix


@torch.no_grad()
def iteration(bench: Bench, folder: str, function: Callable[..., Tensor]) -> dict[str, Any]:
    """Measure the seconds of an iteration of a program's own loop, which ends when a value says
    so."""
    options = stretto.Options(cache_dir=folder)
    fast = stretto.compile(function, backend=bench.backend, options=options)
    low, high = bench.size(200, 3), bench.size(2200, 5)
    operands = {trips: _operands(bench, function, trips) for trips in (low, high)}

    def run(trips: int) -> torch.Tensor:
        return fast(*operands[trips])

    found = slopes(bench, run, low, high, bench.size(SAMPLES, 2))
    executable = fast.signatures[0].executable
    executable.synchronize()
    return spread(found) | {"waits_on_host": executable.waits}
