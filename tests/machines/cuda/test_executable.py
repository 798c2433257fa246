"""The call of a program on a GPU: on one that is emulated, and on a fake of a real one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stretto.errors import RunError
from stretto.machines.cuda import executable
from stretto.machines.cuda.executable import CudaExecutable
from stretto.machines.cuda.interpreter import InterpretedKernel
from stretto.machines.cuda.launcher import InterpretedLauncher
from stretto.machines.cuda.printer.source import PROGRESS
from stretto.machines.cuda.state import LaunchState, StateSizes
from stretto.runtime.results import ProgramStopped, Status
from tests.machines.cuda.cuda_fakes import OPTIONS, FakeCuda, FakeGpu, on_gpu, require_order
from tests.machines.cuda.cuda_programs import (
    BLOCK,
    SIZE,
    UNITS,
    Case,
    count_case,
    deep_case,
    inputs,
    stuck_case,
    swap_case,
    swapped,
)

pytest.importorskip("triton")
pytest.importorskip("greenlet")

CONSTANT = torch.arange(float(SIZE))


def emulated(case: Case) -> CudaExecutable:
    machine = InterpretedLauncher([InterpretedKernel(case.source)])
    return CudaExecutable(case.program, [case.source], case.interface, OPTIONS, machine)


@pytest.fixture(params=["emulated", "driver"])
def start(request: pytest.FixtureRequest, cuda: FakeCuda) -> Callable[[Case], CudaExecutable]:
    """`start(case)`: the program on either machine."""
    if request.param == "emulated":
        return emulated

    def make(case: Case) -> CudaExecutable:
        executable, machine = on_gpu(cuda, case)
        call = executable._memory

        def known(given, capacities, sizes):  # the fake finds inputs by their address
            memory = call(given, capacities, sizes)
            machine.fake.know(*memory.values())
            return memory

        executable._memory = known
        return executable

    return make


# ---- results ---------------------------------------------------------------------------------
def test_launch_after_launch_on_counters_that_go_on(
    start: Callable[[Case], CudaExecutable],
) -> None:
    run = start(swap_case(CONSTANT))
    for step in range(4):
        x = torch.rand(SIZE) + step
        assert torch.equal(run([x])[0], swapped(x, CONSTANT))
    assert run.launches == 4
    (state,) = run.states.values()
    assert state.control[PROGRESS:].tolist() == [8] * UNITS


def test_results_are_memory_of_their_own(start: Callable[[Case], CudaExecutable]) -> None:
    run = start(swap_case(CONSTANT))
    first = run(inputs(1.0))[0]
    kept = first.clone()
    run(inputs(2.0))
    assert torch.equal(first, kept)


def test_inputs_and_constants_that_are_not_aligned(
    start: Callable[[Case], CudaExecutable],
) -> None:
    constant, x = torch.rand(SIZE + 1)[1:], torch.rand(SIZE + 1)[1:]
    assert constant.data_ptr() % 16 and x.data_ptr() % 16
    run = start(swap_case(constant))
    if isinstance(run.launcher, FakeGpu):
        run.launcher.fake.know(*run._filler.constants.values())
    assert torch.equal(run([x])[0], swapped(x, constant))


def test_an_aligned_constant_is_read_where_it_is() -> None:
    run = emulated(swap_case(CONSTANT))
    CONSTANT[0] += 1
    assert torch.equal(run(inputs())[0], CONSTANT)


def test_a_list_gets_more_room_until_it_fits(start: Callable[[Case], CudaExecutable]) -> None:
    run = start(count_case())
    if isinstance(run.launcher, FakeGpu):
        run.launcher.fake.know(*run._filler.tables)
    for count, launches in ((3, 1), (300, 2 + 1 + 1), (200, 5)):
        (items,) = run(inputs(count, 7.0, size=BLOCK))
        assert isinstance(items, list) and len(items) == count
        assert [int(item[1]) for item in items] == [7 + n for n in range(count)]
        assert run.launches == launches


def test_a_recursion_gets_more_memory(start: Callable[[Case], CudaExecutable]) -> None:
    run = start(deep_case())
    first = run.sizes
    assert int(run(inputs(1, 1, size=BLOCK, dtype=torch.int64))[0][0]) == 1
    assert run.launches == 1
    frames, words = first.arena // 64 * 5, first.stack // (8 * UNITS) + 1
    assert int(run(inputs(frames, words, size=BLOCK, dtype=torch.int64))[0][0]) == frames
    assert run.launches == 4  # the arena was too small, then the stack, then all was well
    assert run.sizes.arena >= frames * 64
    assert run.sizes.stack == 2 * first.stack
    run(inputs(frames, words, size=BLOCK, dtype=torch.int64))
    assert run.launches == 5


# ---- errors ----------------------------------------------------------------------------------
def test_a_synchronous_failure_is_raised_and_the_next_call_works(
    start: Callable[[Case], CudaExecutable],
) -> None:
    run = start(deep_case())
    with pytest.raises(RunError, match="the recursion is deeper than 50 calls") as caught:
        run(inputs(1, 1, 51, size=BLOCK, dtype=torch.int64))
    assert isinstance(caught.value, ProgramStopped) and caught.value.status is Status.TOO_DEEP
    assert "max_depth" in (caught.value.remedy or "")
    assert int(run(inputs(1, 1, 50, size=BLOCK, dtype=torch.int64))[0][0]) == 1


def test_an_emulated_failure_is_raised_at_once() -> None:
    run = emulated(swap_case(CONSTANT))
    with pytest.raises(RunError, match="assertion 40 of the program does not hold"):
        run(inputs(-1.0))
    x = torch.rand(SIZE)
    assert torch.equal(run([x])[0], swapped(x, CONSTANT))


def test_a_deadlock_does_not_spoil_the_next_call() -> None:
    run = emulated(stuck_case())
    for _ in range(2):
        with pytest.raises(RunError, match="unit 0 waits for unit 1"):
            run(inputs(-1.0))
        assert torch.equal(run(inputs(1.0))[0], inputs(1.0)[0] + 1)


def test_a_failure_is_raised_by_the_next_call_on_the_stream(cuda: FakeCuda) -> None:
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    bad, x = inputs(-1.0), torch.rand(SIZE)
    machine.fake.know(*bad, x)
    with machine.fake.on(5):
        run(bad)
    run([x])  # another stream does not care
    with machine.fake.on(5):
        with pytest.raises(RunError, match="assertion 40 of the program does not hold"):
            run([x])
        assert torch.equal(run([x])[0], swapped(x, CONSTANT))
    run.synchronize()


def test_synchronize_raises_what_went_wrong(cuda: FakeCuda) -> None:
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    bad = inputs(-1.0)
    machine.fake.know(*bad)
    run(bad)
    with pytest.raises(RunError, match="assertion 40"):
        run.synchronize()
    run.synchronize()
    assert cuda.log("cuCtxSynchronize")


def test_a_failed_state_does_nothing_until_the_host_has_seen_it(cuda: FakeCuda) -> None:
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    x = torch.rand(SIZE)
    bad = inputs(-1.0)
    machine.fake.know(x, *bad)
    run([x])
    (state,) = run.states.values()
    run(bad)
    state.error[0] = 0  # as if the store to the host's memory had not arrived yet
    assert not torch.equal(run([x])[0], swapped(x, CONSTANT))
    with pytest.raises(RunError):
        run([x])


def test_a_recursion_without_end_stops_at_half_the_memory_and_gives_it_back(
    cuda: FakeCuda,
) -> None:
    run, machine = on_gpu(cuda, deep_case(), limit=1 << 16)
    first = run.sizes
    x = inputs(1 << 20, 1, size=BLOCK, dtype=torch.int64)
    machine.fake.know(*x)
    with pytest.raises(RunError, match="the intermediate values of the program need more than"):
        run(x)
    assert run.sizes == first
    small = inputs(1, 1, size=BLOCK, dtype=torch.int64)
    machine.fake.know(*small)
    run(small)
    (state,) = run.states.values()
    assert state.sizes == first


def test_no_memory_left_for_a_recursion(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    run, machine = on_gpu(cuda, deep_case(), limit=1 << 16)
    monkeypatch.setattr(machine.fake, "total", lambda: 1 << 30)
    x = inputs(1000, 1, size=BLOCK, dtype=torch.int64)
    machine.fake.know(*x)
    with pytest.raises(RunError, match="the GPU has no 62.5 KiB left for the intermediate") as e:
        run(x)
    assert "base case" in (e.value.remedy or "")


def test_inputs_on_another_device() -> None:
    run = emulated(swap_case(CONSTANT))
    with pytest.raises(RunError, match="runs on cpu, but there is input 0 on meta") as caught:
        run([torch.empty(SIZE, device="meta")])
    assert caught.value.remedy == "move all inputs there: `.to('cpu')`"


def test_a_driver_that_refuses_the_launch(cuda: FakeCuda) -> None:
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    x = inputs()
    machine.fake.know(*x)
    cuda.fail("cuLaunchKernelEx", 720)
    with pytest.raises(RunError, match="the program cannot be launched: cuLaunchKernelEx") as e:
        run(x)
    assert "compile it again" in (e.value.remedy or "")
    cuda.fail("cuLaunchKernelEx", 700)
    with pytest.raises(RunError, match="cannot be launched") as e:
        run(x)
    assert "CUDA_LAUNCH_BLOCKING" in (e.value.remedy or "")


def test_a_gpu_that_stops(cuda: FakeCuda) -> None:
    run, machine = on_gpu(cuda, count_case())
    x = inputs(1, size=BLOCK)
    machine.fake.know(*x, *run._filler.tables)
    cuda.fail("cuStreamSynchronize", 700)
    with pytest.raises(RunError, match="the GPU stopped"):
        run(x)


# ---- streams ---------------------------------------------------------------------------------
def test_a_launch_is_one_call_of_the_driver(cuda: FakeCuda) -> None:
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    x = inputs()
    machine.fake.know(*x)
    run(x)
    with machine.active():  # as in a thread where torch has made the context current
        cuda.clear()
        run(x)
    assert cuda.log() == [
        "cuLaunchKernelEx line blocks=3 threads=128 shared=0 stream=0 cooperative=1",
        "cuCtxPopCurrent_v2",
    ]


def test_each_stream_has_a_state_and_follows_the_launch_before(cuda: FakeCuda) -> None:
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    x = inputs()
    machine.fake.know(*x)
    for stream in (0, 7, 7, 0):
        with machine.fake.on(stream):
            run(x)
    assert set(run.states) == {0, 7}
    assert run.states[0].control.data_ptr() != run.states[7].control.data_ptr()
    assert cuda.log("cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernelEx") == [
        "cuLaunchKernelEx line blocks=3 threads=128 shared=0 stream=0 cooperative=1",
        "cuEventRecord 0",
        "cuStreamWaitEvent 7 flags=0",
        "cuLaunchKernelEx line blocks=3 threads=128 shared=0 stream=7 cooperative=1",
        "cuLaunchKernelEx line blocks=3 threads=128 shared=0 stream=7 cooperative=1",
        "cuEventRecord 7",
        "cuStreamWaitEvent 0 flags=0",
        "cuLaunchKernelEx line blocks=3 threads=128 shared=0 stream=0 cooperative=1",
    ]


def test_two_programs_follow_each_other_too(cuda: FakeCuda) -> None:
    x = inputs()
    case = swap_case(CONSTANT)
    machine = FakeGpu(cuda, [case.source])
    machine.fake.know(*x, *case.interface.constants.values())
    pair = [
        CudaExecutable(case.program, [case.source], case.interface, OPTIONS, machine) for _ in "ab"
    ]
    cuda.clear()
    for stream, run in enumerate(pair):
        with machine.fake.on(stream):
            run(x)
    assert cuda.log("cuEventRecord", "cuStreamWaitEvent") == [
        "cuEventRecord 0",
        "cuStreamWaitEvent 1 flags=0",
    ]


def test_threads_on_streams_of_their_own(cuda: FakeCuda) -> None:
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    wrong: list[object] = []

    def work(stream: int) -> None:
        with machine.fake.on(stream):
            for _ in range(5):
                x = torch.rand(SIZE)
                machine.fake.know(x)
                if not torch.equal(run([x])[0], swapped(x, CONSTANT)):
                    wrong.append(stream)

    threads = [threading.Thread(target=work, args=(stream,)) for stream in (1, 3, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert run.launches == 15
    require_order(cuda)


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    """Start the work; wait for its end, unless it waits for this thread."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(timeout=0.5)
    return thread


def test_the_sizes_of_two_calls_at_once_are_the_larger_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread reserves more just before a smaller size is stored."""
    run = emulated(deep_case())
    states = [run._new_state(stream, 0) for stream in (1, 2)]
    needed = {1: 1 << 20, 2: 1 << 22}
    monkeypatch.setattr(executable, "resolve", lambda end, registers: needed[registers["at"]])
    symbols = SimpleNamespace(registers=lambda sizes: {"at": sizes[0]})
    monkeypatch.setattr(run, "symbols", symbols)
    threads: list[threading.Thread] = []

    def made(arena: int, stack: int) -> StateSizes:
        if arena == 1 << 20 and not threads:
            threads.append(in_a_thread(lambda: run._reserve(states[1], (2,))))
        return StateSizes(arena, stack)

    monkeypatch.setattr(executable, "StateSizes", made)
    run._reserve(states[0], (1,))
    threads[0].join()
    assert run.sizes.arena == 1 << 22


def test_a_call_that_fails_takes_nothing_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a call on another stream needed meanwhile is still reserved."""
    run = emulated(deep_case())
    stream = 1
    monkeypatch.setattr(run.launcher, "stream", lambda: stream)
    usual, first = run.run, run.sizes
    frames = first.arena // 64 * 5
    enlarged: list[int] = []

    def meanwhile(state: LaunchState, *rest: Any) -> None:
        nonlocal stream
        if state.stream == 1 and run.launches and not enlarged:
            enlarged.append(frames * 64)
            stream = 2
            run(inputs(frames, 1, size=BLOCK, dtype=torch.int64))
            raise KeyboardInterrupt
        usual(state, *rest)

    monkeypatch.setattr(run, "run", meanwhile)
    with pytest.raises(KeyboardInterrupt):
        run(inputs(frames, 1, size=BLOCK, dtype=torch.int64))
    assert enlarged and run.sizes.arena >= frames * 64


def test_a_state_that_a_thread_has_given_up_is_not_used_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = emulated(deep_case())
    usual = run.run
    seen: list[LaunchState] = []
    threads: list[threading.Thread] = []
    x = inputs(1, 1, size=BLOCK, dtype=torch.int64)

    def interrupted(state: LaunchState, *rest: Any) -> None:
        seen.append(state)
        if len(seen) == 1:
            threads.append(in_a_thread(lambda: run(x)))
            raise KeyboardInterrupt
        usual(state, *rest)

    monkeypatch.setattr(run, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(x)
    threads[0].join()
    assert len(seen) == 2 and seen[0] is not seen[1]


def test_the_context_of_the_thread_is_left_as_it_was(cuda: FakeCuda) -> None:
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    x = inputs()
    machine.fake.know(*x)
    with machine.driver.active(0x1234):
        run(x)
        assert cuda.log("cuCtxPushCurrent_v2")[0] == "cuCtxPushCurrent_v2 1234"
        cuda.clear()
        with pytest.raises(RunError):
            run([torch.empty(SIZE, device="meta")])
        with machine.driver.active(0x1234):
            assert not cuda.log(), "the context was not restored"
