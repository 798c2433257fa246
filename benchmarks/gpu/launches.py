"""Checks that launches neither hang nor compute a wrong value.

There are many launches, launches beside other work, captured ones, ones from several
threads, of programs that grow, and of one that waits for ever. They do not need pytest, so
they run where it is not installed. The tests marked `gpu` check more.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stretto.machines.cuda.printer.source import TritonSource

from ..peers.base import Skipped
from .device import Bench
from .engine import ROOT
from .probes import EXCHANGE, Loaded
from .results import WrongValue
from .worker import Reporter

FEW_POLLS = 200_000
"""Polls before a wait that never ends gives up: a fraction of a second."""
BOUND_S = 20.0


def run(reporter: Reporter, bench: Bench) -> None:
    rows = {
        "exchange between all units, long": partial(exchange, trips=20_000, launches=20),
        "10,000 launches in a row": many,
        "a loop whose end the GPU decides": decided,
        "a launch beside other work": beside,
        "two threads on two streams": threads,
        "two programs on two streams": programs,
        "two graphs replayed on two streams": graphs,
        "recursion that outgrows its memory": recursion,
        "recursion without end": endless,
    }
    for name, check in rows.items():
        reporter.row(name, 40.0, partial(check, bench, reporter))


def steps(x: Tensor, w: Tensor) -> Tensor:
    """A loop in every trip of which units wait for each other."""
    for _ in range(20):
        x = torch.tanh(x @ w) + 0.1 * x
    return x


def until(x: Tensor) -> tuple[Tensor, Tensor]:
    count = torch.zeros((), dtype=torch.int64, device=x.device)
    while x.sum() < 1000:
        x = x * 1.5 + 1
        count = count + 1
    return x, count


def descend(x: Tensor, depth: Tensor) -> Tensor:
    if depth <= 0:
        return x
    return torch.tanh(descend(x * 1.01, depth - 1)) + 0.5


def functions(bench: Bench) -> Iterator[tuple[Callable[..., Any], tuple[Tensor, ...]]]:
    """Yield the functions that the rows compile, with their inputs."""
    yield steps, _operands(bench)
    yield until, (torch.rand(64, device=bench.device),)
    yield descend, _descent(bench, 3)


def sources() -> Iterator[TritonSource]:
    """Yield the kernels of `deadlock`, if the tests are there."""
    if (programs := _programs_of_tests()) is not None:
        yield programs.stuck_case().source


def _programs_of_tests() -> Any:
    """Return the module of hand-written programs; None if the source tree has no tests."""
    if not (ROOT / "tests" / "machines" / "cuda" / "cuda_programs.py").is_file():
        return None
    return importlib.import_module("tests.machines.cuda.cuda_programs")


def _descent(bench: Bench, depth: int) -> tuple[Tensor, Tensor]:
    return torch.linspace(-1, 1, 32, device=bench.device), torch.tensor(depth, device=bench.device)


def _compile(bench: Bench, reporter: Reporter, function: Any, **options: Any) -> Any:
    import stretto

    folder = str(reporter.programs)
    settings = stretto.Options.of({"cache_dir": folder, **options})
    return stretto.compile(function, backend=bench.backend, options=settings)


def _operands(bench: Bench, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    size = bench.size(64, 16)
    x = torch.randn(bench.size(16, 2), size, generator=generator)
    w = torch.randn(size, size, generator=generator) / size**0.5
    return x.to(bench.device), w.to(bench.device)


def _require_close(found: Tensor, wanted: Tensor, what: str) -> None:
    worst = float((found.double() - wanted.double()).abs().max())
    if not worst <= 1e-3:
        raise WrongValue(f"{what}: off by {worst:.1e}")


def _settle(fast: Any) -> Any:
    """Wait for all launches; raise the error of any of them."""
    executable = fast.signatures[-1].executable
    executable.synchronize()
    return executable


# ---- the rows --------------------------------------------------------------------------------
def exchange(
    bench: Bench, reporter: Reporter, trips: int = 2000, launches: int = 1
) -> dict[str, Any]:
    """Check that a unit reads, after a wait, what the others wrote before their signal."""
    board = torch.zeros(2 * bench.units * 256, dtype=torch.int64, device=bench.device)
    errors = torch.zeros(1, dtype=torch.int32, device=bench.device)
    loaded = Loaded(bench, EXCHANGE, str(reporter.programs), (board, errors))
    trips, launches = bench.size(trips, 4), bench.size(launches, 2)
    for _ in range(launches):
        loaded.run(trips)
    loaded.check()
    if count := int(errors):
        raise WrongValue(f"{count} of the values read were stale")
    return {"waves": trips * launches, "units": loaded.units}


@torch.no_grad()
def many(bench: Bench, reporter: Reporter, calls: int = 10_000) -> dict[str, Any]:
    x, w = _operands(bench)
    fast = _compile(bench, reporter, steps)
    wanted = steps(x, w)
    fast(x, w)
    count = bench.size(calls, 3)
    bench.synchronize()
    start = time.perf_counter()
    results = [fast(x, w) for _ in range(count)]
    executable = _settle(fast)
    seconds = time.perf_counter() - start
    for place in range(0, count, max(count // 50, 1)):
        _require_close(results[place], wanted, f"launch {place}")
    same = all(torch.equal(result, results[0]) for result in results[:: max(count // 500, 1)])
    if executable.launches != count + 1:
        raise WrongValue(f"{executable.launches} launches for {count + 1} calls")
    return {"calls": count, "seconds_per_call": seconds / count, "bitwise_equal": same}


@torch.no_grad()
def decided(bench: Bench, reporter: Reporter) -> dict[str, Any]:
    fast = _compile(bench, reporter, until)
    for number, scale in enumerate((0.1, 1.0, 30.0, 500.0)):
        generator = torch.Generator().manual_seed(number)
        x = torch.rand(64, generator=generator).to(bench.device) * scale
        (found, count), (wanted, trips) = fast(x), until(x)
        if int(count) != int(trips):
            raise WrongValue(f"{int(count)} trips, eager {int(trips)}")
        _require_close(found / wanted, torch.ones_like(wanted), f"scale {scale}")
    _settle(fast)
    return {}


@torch.no_grad()
def beside(bench: Bench, reporter: Reporter) -> dict[str, Any]:
    """Start the program while other kernels hold multiprocessors: it has to wait, and then run
    whole."""
    x, w = _operands(bench)
    fast = _compile(bench, reporter, steps)
    wanted = steps(x, w)
    if bench.dry_run:
        _require_close(fast(x, w), wanted, "alone")
        return {}
    a = torch.randn(4096, 4096, device=bench.device)
    streams = [torch.cuda.Stream(bench.device) for _ in range(2)]
    bench.synchronize()
    results: list[Tensor] = []
    for _ in range(200):
        for stream in streams:
            with torch.cuda.stream(stream):
                a @ a
        results.append(fast(x, w))
    _settle(fast)
    for number, found in enumerate(results):
        _require_close(found, wanted, f"launch {number}")
    return {"launches": len(results)}


@torch.no_grad()
def replay(bench: Bench, reporter: Reporter) -> dict[str, Any]:
    if bench.dry_run:
        raise Skipped("a dry run has no CUDA graphs")
    x, w = _operands(bench)
    fast = _compile(bench, reporter, steps)
    fast(x, w)
    static = x.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = fast(static, w)
        second = fast(first, w)
    for step in range(1000):
        static.copy_(x * (0.002 * step))
        graph.replay()
        if step % 50 == 0:
            once = steps(static, w)
            _require_close(first, once, f"replay {step}")
            _require_close(second, steps(once, w), f"second call of replay {step}")
            _require_close(fast(x, w), steps(x, w), f"a call beside replay {step}")
    _settle(fast)
    return {"replays": 1000}


def threads(bench: Bench, reporter: Reporter) -> dict[str, Any]:
    fast = _compile(bench, reporter, steps)
    return _two_threads(bench, (fast, fast), bench.size(1000, 2))


def programs(bench: Bench, reporter: Reporter) -> dict[str, Any]:
    """Run two programs, each with as many units as the GPU holds, so that no block of one fits
    beside the other."""
    pair = tuple(_filling(bench, reporter) for _ in range(2))
    return _two_threads(bench, pair, bench.size(500, 2))


def _filling(bench: Bench, reporter: Reporter) -> Any:
    fast = _compile(bench, reporter, steps)
    with torch.no_grad():
        fast(*_operands(bench))
    if bench.dry_run:
        return fast
    room = fast.signatures[-1].executable.launcher.kernels[0].resident * bench.units
    return _compile(bench, reporter, steps, units=room)


def _two_threads(bench: Bench, pair: tuple[Any, ...], calls: int) -> dict[str, Any]:
    """Let two threads each call one of the functions on a separate stream."""
    _, w = _operands(bench)
    with torch.no_grad():
        for fast in pair:
            fast(*_operands(bench))
    bench.synchronize()
    wrong: list[str] = []

    def work(seed: int) -> None:
        try:
            with torch.no_grad(), _own_stream(bench):
                for step in range(calls):
                    x = torch.full_like(_operands(bench)[0], 0.01 * (seed + 2 * (step % 50)))
                    found = pair[seed](x, w)
                    if step % 100 == 0:
                        _require_close(found, steps(x, w), f"thread {seed}, call {step}")
                if not bench.dry_run:
                    torch.cuda.current_stream(bench.device).synchronize()
        except Exception as error:
            wrong.append(f"thread {seed}: {error}")

    workers = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(40)
        if worker.is_alive():
            raise WrongValue("a thread hangs")
    units = [_settle(fast).program.units for fast in pair]
    if wrong:
        raise WrongValue("; ".join(wrong))
    return {"calls": 2 * calls, "units": units}


@torch.no_grad()
def graphs(bench: Bench, reporter: Reporter) -> dict[str, Any]:
    """Replay two graphs that nothing orders and that do not fit beside each other: the GPU has to
    start each as a whole, as it guarantees for cooperative launches."""
    if bench.dry_run:
        raise Skipped("a dry run has no CUDA graphs")
    x, w = _operands(bench)
    pair = [_filling(bench, reporter) for _ in range(2)]
    captured = [torch.cuda.CUDAGraph() for _ in pair]
    streams = [torch.cuda.Stream(bench.device) for _ in pair]
    results: list[Tensor] = []
    for fast, graph in zip(pair, captured, strict=True):
        fast(x, w)
        with torch.cuda.graph(graph):
            results.append(fast(x, w))
    bench.synchronize()
    for _ in range(500):
        for graph, stream in zip(captured, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    bench.synchronize()
    units = [_settle(fast).program.units for fast in pair]
    for found in results:
        _require_close(found, steps(x, w), "a replay")
    return {"replays": 1000, "units": units}


def _own_stream(bench: Bench) -> Any:
    import contextlib

    if bench.dry_run:
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(bench.device))


@torch.no_grad()
def recursion(bench: Bench, reporter: Reporter) -> dict[str, Any]:
    fast = _compile(bench, reporter, descend)
    for depth in (3, bench.size(3000, 80), 5):
        x, levels = _descent(bench, depth)
        wanted = x * 1.01**depth
        for _ in range(depth):
            wanted = torch.tanh(wanted) + 0.5
        _require_close(fast(x, levels), wanted, f"depth {depth}")
    executable = _settle(fast)
    if executable.launches <= 3:
        raise WrongValue("nothing had to grow: the row does not test what it should")
    return {"launches": executable.launches}


@torch.no_grad()
def endless(bench: Bench, reporter: Reporter) -> dict[str, Any]:
    from stretto.errors import RunError

    fast = _compile(bench, reporter, descend, max_depth=bench.size(2000, 70))
    start = time.perf_counter()
    try:
        fast(*_descent(bench, 10**9))
    except RunError as error:
        seconds = time.perf_counter() - start
        x, levels = _descent(bench, 0)
        _require_close(fast(x, levels), x, "the call after it")
        return {"seconds": seconds, "error": str(error).splitlines()[0]}
    raise WrongValue("no error was raised")


def deadlock(bench: Bench, reporter: Reporter) -> dict[str, Any]:
    """Check that a deadlock raises RunError in bounded time, and that the program runs again after
    it."""
    from stretto.errors import RunError

    if (programs := _programs_of_tests()) is None:
        raise Skipped("its program is one of the tests', which are not here")
    execute = _executable(bench, reporter, programs.stuck_case())
    bad, good = (programs.inputs(first)[0].to(bench.device) for first in (-1.0, 1.0))
    longest = 0.0
    for attempt in range(2):
        start = time.perf_counter()
        try:
            execute([bad])
            execute.synchronize()
        except RunError:
            longest = max(longest, time.perf_counter() - start)
        else:
            raise WrongValue("no error was raised")
        if bench.dry_run:
            break  # after a deadlock the interpreter cannot run the program again
        _require_close(execute([good])[0], good + 1, f"the launch after failure {attempt}")
    if longest > BOUND_S:
        raise WrongValue(f"it took {longest:.0f} s")
    return {"seconds": longest}


def _executable(bench: Bench, reporter: Reporter, case: Any) -> Any:
    """Load a hand-written program."""
    from stretto.machines.cuda.executable import CudaExecutable
    from stretto.options import Options

    options = Options(cache_dir=str(reporter.programs))
    compiled = bench.compiled(case.source, str(reporter.programs))
    machine = bench.launcher([case.source], [compiled])
    machine.polls = FEW_POLLS
    kind = bench.rehearsal.known(CudaExecutable, machine) if bench.dry_run else CudaExecutable
    return kind(case.program, (case.source,), case.interface, options, machine)
