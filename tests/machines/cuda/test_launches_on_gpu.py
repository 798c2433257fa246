"""Launches on a real GPU: many, captured, from threads, beside others, and ones that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import stretto
from stretto.errors import BuildError, RunError
from stretto.machines.cuda.compile import CompiledTriton, compile_source
from stretto.machines.cuda.device import find_gpu, launcher_for, resident_units
from stretto.machines.cuda.executable import CudaExecutable
from stretto.options import Options
from tests.machines.cuda.cuda_programs import SIZE, Case, inputs, stuck_case, swap_case, swapped

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)
FEW_POLLS = 200_000
"""Looks of a wait that is never over: a fraction of a second."""


def compiled(case: Case, options: Options) -> CompiledTriton:
    major, minor = find_gpu(DEVICE).capability
    return compile_source(case.source, f"sm_{major}{minor}", options)


@pytest.fixture
def start(tmp_path: Path) -> Callable[[Case], CudaExecutable]:
    options = Options(cache_dir=tmp_path)

    def make(case: Case) -> CudaExecutable:
        kernel = compiled(case, options)
        machine = launcher_for(DEVICE, [kernel], [case.source])
        return CudaExecutable(case.program, [case.source], case.interface, options, machine)

    return make


@pytest.fixture
def constant() -> torch.Tensor:
    return torch.arange(float(SIZE), device=DEVICE)


def steps(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Units wait for each other in every trip."""
    for _ in range(20):
        x = torch.tanh(x @ w) + 0.1 * x
    return x


def until(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    count = torch.zeros((), dtype=torch.int64, device=x.device)
    while x.sum() < 1000:
        x = x * 1.5 + 1
        count = count + 1
    return x, count


def weights() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(16, 64, device=DEVICE), torch.randn(64, 64, device=DEVICE) / 8


def executable(fast: object) -> CudaExecutable:
    found = fast._programs.last.executable  # pyright: ignore
    assert isinstance(found, CudaExecutable)
    return found


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


# ---- many ------------------------------------------------------------------------------------
@torch.no_grad()
def test_ten_thousand_launches_in_a_row() -> None:
    x, w = weights()
    fast = stretto.compile(steps)
    wanted = steps(x, w)
    results = [fast(x, w) for _ in range(10_000)][::997]
    executable(fast).synchronize()
    assert executable(fast).launches == 10_000
    assert len(executable(fast).states) == 1
    for result in results:
        close(result, wanted)


@torch.no_grad()
def test_a_loop_whose_end_the_gpu_decides() -> None:
    fast = stretto.compile(until)
    for scale in (0.1, 1.0, 30.0, 500.0):
        x = torch.rand(64, device=DEVICE) * scale
        found, wanted = fast(x), until(x)
        close(found[0], wanted[0])
        assert torch.equal(found[1], wanted[1])
    executable(fast).synchronize()


@torch.no_grad()
def test_other_programs_between() -> None:
    x, w = weights()
    fast, other = stretto.compile(steps), stretto.compile(until)
    y = torch.rand(64, device=DEVICE)
    for _ in range(200):
        found, (grown, _) = fast(x, w), other(y)
    close(found, steps(x, w))
    close(grown, until(y)[0])


def test_counters_go_on_from_launch_to_launch(
    start: Callable[[Case], CudaExecutable], constant: torch.Tensor
) -> None:
    run = start(swap_case(constant))
    for step in range(100):
        x = torch.rand(SIZE, device=DEVICE) + step
        assert torch.equal(run([x])[0], swapped(x, constant))
    (state,) = run.states.values()
    assert state.control[16:].tolist() == [200] * run.program.units


# ---- streams and threads ---------------------------------------------------------------------
@torch.no_grad()
def test_a_call_runs_on_the_current_stream() -> None:
    x, w = weights()
    fast = stretto.compile(steps)
    fast(x, w)
    stream = torch.cuda.Stream(DEVICE)
    stream.wait_stream(torch.cuda.current_stream(DEVICE))
    with torch.cuda.stream(stream):
        late = x.clone()
        torch.cuda._sleep(50_000_000)
        late.mul_(2.0)  # what follows must see it
        found = fast(late, w)
    torch.cuda.current_stream(DEVICE).wait_stream(stream)
    close(found, steps(x * 2.0, w))
    assert stream.cuda_stream in executable(fast).states


@torch.no_grad()
def test_two_threads_on_two_streams() -> None:
    _, w = weights()
    fast = stretto.compile(steps)
    fast(*weights())
    wrong: list[str] = []

    def work(seed: int) -> None:
        stream = torch.cuda.Stream(DEVICE)
        with torch.no_grad(), torch.cuda.stream(stream):
            for step in range(500):
                x = torch.full((16, 64), 0.01 * (seed + 2 * step), device=DEVICE)
                found = fast(x, w)
                if step % 50 == 0 and not torch.allclose(found, steps(x, w), rtol=1e-4, atol=1e-4):
                    wrong.append(f"thread {seed}, step {step}")
        stream.synchronize()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive(), "a thread hangs"
    executable(fast).synchronize()
    assert not wrong


@torch.no_grad()
def test_a_thread_where_torch_has_not_used_the_gpu_yet() -> None:
    x, w = weights()
    fast = stretto.compile(steps)
    wanted = fast(x, w)
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=torch.no_grad()(lambda: found.append(fast(x, w))))
    thread.start()
    thread.join(60)
    torch.cuda.synchronize()
    close(found[0], wanted)


@torch.no_grad()
def test_beside_another_kernel() -> None:
    """Other work holds multiprocessors while the program starts: it waits, and then runs whole."""
    x, w = weights()
    fast = stretto.compile(steps)
    wanted = fast(x, w)
    a = torch.randn(4096, 4096, device=DEVICE)
    beside = torch.cuda.Stream(DEVICE)
    torch.cuda.synchronize()
    for _ in range(50):
        with torch.cuda.stream(beside):
            b = a @ a
        found = fast(x, w)
        with torch.cuda.stream(beside):
            b = b + a
    torch.cuda.synchronize()
    close(found, wanted)


# ---- captures --------------------------------------------------------------------------------
@torch.no_grad()
def test_capture_and_replay() -> None:
    x, w = weights()
    fast = stretto.compile(steps)
    fast(x, w)
    static = x.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = fast(static, w)
        second = fast(first, w)
    for step in range(200):
        static.copy_(x * (0.1 * step))
        graph.replay()
        if step % 20 == 0:
            close(first, steps(static, w))
            close(second, steps(steps(static, w), w))
            close(fast(x, w), steps(x, w))  # beside the graph, on a state of its own
    executable(fast).synchronize()


@torch.no_grad()
def test_two_graphs_of_one_function() -> None:
    x, w = weights()
    fast = stretto.compile(steps)
    fast(x, w)
    statics = [x.clone(), x * 2]
    results: list[torch.Tensor] = []
    graphs: list[torch.cuda.CUDAGraph] = []
    for static in statics:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results.append(fast(static, w))
        graphs.append(graph)
    for _ in range(20):
        for graph in graphs:
            graph.replay()
    for static, result in zip(statics, results, strict=True):
        close(result, steps(static, w))
    assert len(executable(fast).captures) == 2


@torch.no_grad()
def test_a_graph_outlives_its_function() -> None:
    x, w = weights()
    fast = stretto.compile(steps)
    fast(x, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = fast(x, w)
    del fast
    junk = [torch.full((1000,), -1, device=DEVICE) for _ in range(100)]
    graph.replay()
    close(found, steps(x, w))
    del junk


@torch.no_grad()
def test_a_program_that_waits_cannot_be_captured() -> None:
    def grown(x: torch.Tensor) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        while x.sum() < 1000:
            x = x * 1.5 + 1
            found.append(x)
        return found

    fast = stretto.compile(grown)
    x = torch.rand(64, device=DEVICE)
    assert len(fast(x)) == len(grown(x))
    with (
        pytest.raises(RunError, match="cannot be captured, because its outputs' sizes"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        fast(x)
    torch.cuda.synchronize()


# ---- programs that stop ----------------------------------------------------------------------
def test_a_failure_is_seen_by_the_host(
    start: Callable[[Case], CudaExecutable], constant: torch.Tensor
) -> None:
    run = start(swap_case(constant))
    x = torch.rand(SIZE, device=DEVICE)
    run([-1 - x])
    with pytest.raises(RunError, match=r"assertion 4[012] of the program does not hold"):
        run.synchronize()
    assert torch.equal(run([x])[0], swapped(x, constant))
    run([-1 - x])
    torch.cuda.synchronize()
    with pytest.raises(RunError, match="assertion"):  # no synchronize() needed
        run([x])
    assert torch.equal(run([x])[0], swapped(x, constant))
    run.synchronize()


def test_a_replay_that_fails(
    start: Callable[[Case], CudaExecutable], constant: torch.Tensor
) -> None:
    run = start(swap_case(constant))
    x = torch.rand(SIZE, device=DEVICE)
    run([x])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = run([x])
    x[3] = -1
    graph.replay()
    with pytest.raises(RunError, match="assertion"):
        run.synchronize()
    x[3] = 1
    graph.replay()
    run.synchronize()
    assert torch.equal(y, swapped(x, constant))


def test_a_planted_deadlock_ends(start: Callable[[Case], CudaExecutable]) -> None:
    run = start(stuck_case())
    run.launcher.polls = FEW_POLLS
    (bad,), (good,) = ([x.to(DEVICE) for x in inputs(first)] for first in (-1.0, 1.0))
    for _ in range(2):
        run([bad])
        with pytest.raises(RunError, match="a wait for unit 1 to reach step .* took too long"):
            run.synchronize()
        assert torch.equal(run([good])[0], good + 1)
    run.synchronize()


def test_more_units_than_the_gpu_holds(tmp_path: Path, constant: torch.Tensor) -> None:
    options = Options(cache_dir=tmp_path)
    case = swap_case(constant)
    kernel = compiled(case, options)
    room = resident_units(kernel, DEVICE)
    assert room >= find_gpu(DEVICE).multiprocessors
    with pytest.raises(BuildError, match=f"but the GPU holds only {room} of"):
        launcher_for(DEVICE, [kernel], [replace(case.source, units=room + 1)])


# ---- devices ---------------------------------------------------------------------------------
@torch.no_grad()
def test_inputs_on_two_devices() -> None:
    x, w = weights()
    fast = stretto.compile(steps)
    fast(x, w)
    with pytest.raises((RunError, BuildError, stretto.errors.CaptureError)):
        fast(x, w.cpu())


@torch.no_grad()
def test_the_second_gpu_while_the_first_is_current() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    x, w = (tensor.to("cuda:1") for tensor in weights())
    fast = stretto.compile(steps)
    with torch.cuda.device(0):
        found = fast(x, w)
        assert torch.cuda.current_device() == 0
    assert found.device == x.device
    close(found, steps(x, w))
