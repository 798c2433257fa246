"""Captures of programs for CUDA graphs, and what is done to graphs that it should not be."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from stretto.errors import BuildError, RunError
from stretto.machines.cuda import executable as cuda_executable
from stretto.machines.cuda.executable import CudaExecutable
from stretto.machines.cuda.printer.source import PROGRESS
from tests.machines.cuda.cuda_fakes import (
    OPTIONS,
    SIDE_STREAM,
    FakeCuda,
    FakeGpu,
    on_gpu,
    require_order,
)
from tests.machines.cuda.cuda_programs import (
    BLOCK,
    SIZE,
    UNITS,
    count_case,
    deep_case,
    inputs,
    swap_case,
    swapped,
)

pytest.importorskip("triton")
pytest.importorskip("greenlet")

CONSTANT = torch.arange(float(SIZE))


def test_capture_and_replay(cuda: FakeCuda) -> None:
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    x = torch.rand(SIZE)
    machine.fake.know(x)
    run([x])
    cuda.capture(3, 11)
    with machine.fake.on(3):
        machine.fake.allocated.clear()
        outputs = [run([x])[0] for _ in range(2)]
    cuda.capture(3, 0)
    assert len(machine.replays) == 2
    control = run.captures[11].control
    assert control.data_ptr() != run.states[0].control.data_ptr()
    # The control block is no memory of the graph, which has what is allocated on its stream.
    assert (SIDE_STREAM, control.nbytes) in machine.fake.allocated
    assert {stream for stream, nbytes in machine.fake.allocated if nbytes == SIZE * 4} == {3}
    for step in range(3):
        x.copy_(torch.rand(SIZE))
        for arguments in machine.replays:
            machine.execute(arguments)
        for y in outputs:
            assert torch.equal(y, swapped(x, CONSTANT))
        assert control[PROGRESS:].tolist() == [4 * (step + 1)] * UNITS, "counters go on"


def test_each_capture_has_a_state_that_outlives_the_function(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[object] = []
    monkeypatch.setattr(cuda_executable, "_KEPT", kept)
    constant = torch.rand(SIZE + 1)[1:]
    run, machine = on_gpu(cuda, swap_case(constant))
    x = inputs()
    machine.fake.know(*x, *run._filler.constants.values())
    for number in (11, 12):
        cuda.capture(3, number)
        with machine.fake.on(3):
            run(x)
    assert set(run.captures) == {11, 12} and not run.states
    addresses = {state.control.data_ptr() for state in run.captures.values()}
    copy = run._filler.constants[2].data_ptr()
    del run
    gc.collect()
    assert addresses == {entry[0].control.data_ptr() for entry in kept}  # pyright: ignore
    assert [t.data_ptr() for t in kept[0][1]] == [copy]  # pyright: ignore


def test_streams_of_one_capture_follow_each_other_and_leave_others_alone(cuda: FakeCuda) -> None:
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    x = inputs()
    machine.fake.know(*x)
    cuda.capture(3, 11)
    cuda.capture(4, 11)
    for stream in (0, 3, 4):
        with machine.fake.on(stream):
            run(x)
    assert cuda.log("cuEventRecord", "cuStreamWaitEvent") == [
        "cuEventRecord 3",
        "cuStreamWaitEvent 4 flags=0",
    ]
    assert len(run.captures) == 1


def test_a_stream_that_is_captured_now_is_not_waited_for(cuda: FakeCuda) -> None:
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    x = inputs()
    machine.fake.know(*x)
    with machine.fake.on(3):
        run(x)
    cuda.capture(3, 11)
    with machine.fake.on(4):
        run(x)
    assert not cuda.log("cuEventRecord")


def test_a_replay_that_fails_is_seen_by_the_next_call(cuda: FakeCuda) -> None:
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    x = torch.rand(SIZE)
    machine.fake.know(x)
    cuda.capture(3, 11)
    with machine.fake.on(3):
        run([x])
    cuda.capture(3, 0)
    x[0] = -1
    machine.execute(machine.replays[0])
    x[0] = 1
    with pytest.raises(RunError, match="assertion 40"):
        run([x])
    assert torch.equal(run([x])[0], swapped(x, CONSTANT))
    machine.execute(machine.replays[0])
    run.synchronize()


def test_what_waits_for_the_gpu_cannot_be_captured(cuda: FakeCuda) -> None:
    for case, why in (
        (count_case(), "because its outputs' sizes are read on the host"),
        (deep_case(), "because the host must check whether its recursion had enough memory"),
    ):
        run, machine = on_gpu(cuda, case)
        cuda.capture(3, 11)
        with machine.fake.on(3), pytest.raises(RunError, match=f"cannot be captured, {why}"):
            run(inputs(size=BLOCK, dtype=case.interface.inputs[0].dtype.torch))


def test_no_program_is_made_while_a_stream_is_captured(cuda: FakeCuda) -> None:
    case = swap_case(CONSTANT)
    machine = FakeGpu(cuda, [case.source])
    cuda.capture(3, 11)
    with machine.fake.on(3), pytest.raises(BuildError, match="while a stream is captured"):
        CudaExecutable(case.program, [case.source], case.interface, OPTIONS, machine)


def test_a_state_is_made_though_a_stream_is_captured(cuda: FakeCuda) -> None:
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    x = inputs()
    machine.fake.know(*x)
    cuda.capture(3, 11)
    with machine.fake.on(3):
        run(x)
    made = cuda.log("cuThreadExchangeStreamCaptureMode", "cuStreamSynchronize")
    assert made == [
        "cuThreadExchangeStreamCaptureMode 2",
        f"cuStreamSynchronize {SIDE_STREAM:x}",
        "cuThreadExchangeStreamCaptureMode 0",
    ]


# ---- what should not be done to graphs -------------------------------------------------------
def test_a_capture_while_another_one_runs(cuda: FakeCuda) -> None:
    """Two threads capture at once: each graph has a state and an order of its own, and neither
    thread does what a capture by another one forbids."""
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    given = {stream: torch.rand(SIZE) for stream in (3, 4)}
    machine.fake.know(*given.values())
    found: dict[int, list[torch.Tensor]] = {}
    both = threading.Barrier(2)
    for stream in given:
        cuda.capture(stream, 8 + stream)

    def capture(stream: int) -> None:
        with machine.fake.on(stream):
            both.wait()
            found[stream] = [run([given[stream]])[0] for _ in range(2)]

    threads = [threading.Thread(target=capture, args=(stream,)) for stream in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(run.captures) == {11, 12} and not run.states
    assert not cuda.log("cuEventRecord", "cuStreamWaitEvent"), "an order across two graphs"
    for arguments in machine.replays:
        machine.execute(arguments)
    for stream, outputs in found.items():
        for y in outputs:
            assert torch.equal(y, swapped(given[stream], CONSTANT))


def test_an_ordinary_first_call_does_not_disturb_a_capture(cuda: FakeCuda) -> None:
    """What a state needs is allocated in the relaxed mode, in which nothing is forbidden."""
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    x = inputs()
    machine.fake.know(*x)
    cuda.capture(3, 11)
    modes: list[int] = []
    pinned = machine.fake.pinned

    def watched(words: int) -> torch.Tensor:
        modes.append(cuda.library.fake_mode())
        return pinned(words)

    machine.fake.pinned = watched  # pyright: ignore
    with machine.fake.on(5):
        run(x)
    assert modes and set(modes) == {2}
    assert not cuda.log("cuCtxSynchronize"), "it would end the capture"


def test_a_graph_replayed_after_the_device_changed(cuda: FakeCuda) -> None:
    """A replay is torch's and needs none of the thread's context; what it finds wrong is raised by
    a call in whatever context, which stays the thread's."""
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    x = torch.rand(SIZE)
    machine.fake.know(x)
    cuda.capture(3, 11)
    with machine.fake.on(3):
        (y,) = run([x])
    cuda.capture(3, 0)
    with machine.driver.active(0x1234):  # as torch.cuda.set_device(1) leaves it
        machine.execute(machine.replays[0])
        assert torch.equal(y, swapped(x, CONSTANT))
        x[0] = -1
        machine.execute(machine.replays[0])
        cuda.clear()
        with pytest.raises(RunError, match="assertion 40"):
            run.synchronize()
        contexts = cuda.log("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuCtxSynchronize")
        assert contexts[:2] == ["cuCtxPushCurrent_v2 7000000000", "cuCtxSynchronize"]
        cuda.clear()
        with machine.driver.active(0x1234):
            assert not cuda.log(), "the context was not restored"


def test_a_graph_reads_the_weights_that_it_was_captured_with(cuda: FakeCuda) -> None:
    """`module.to(...)` gives a module other memory; the graph reads what it was captured with."""
    weight = torch.nn.Parameter(torch.rand(SIZE), requires_grad=False)
    run, machine = on_gpu(cuda, swap_case(weight))
    machine.fake.know(weight.data)
    x, before = torch.rand(SIZE), weight.detach().clone()
    machine.fake.know(x)
    cuda.capture(3, 11)
    with machine.fake.on(3):
        (y,) = run([x])
    address = weight.data_ptr()
    weight.data = torch.zeros(SIZE)
    assert run.constant(run.sources[0].arguments[2]).data_ptr() == address
    machine.execute(machine.replays[0])
    assert torch.equal(y, swapped(x, before))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("arena", "left for the intermediate values of the program"),
        ("result", "left for a result of the program"),
        ("pinned", "left for the counters of the program"),
    ],
)
def test_out_of_memory_in_a_pool(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, place: str, message: str
) -> None:
    """The error says what there was no room for, and the next capture works."""
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    x = torch.rand(SIZE)
    machine.fake.know(x)
    cuda.capture(3, 11)

    def full(shape: object, dtype: torch.dtype) -> torch.Tensor:
        if (dtype is torch.uint8) == (place == "arena"):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB")
        return machine.fake.empty(shape, dtype)  # pyright: ignore

    def no_pinned(words: int) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory")

    with monkeypatch.context() as patch, machine.fake.on(3):
        if place == "pinned":
            patch.setattr(machine.fake, "pinned", no_pinned)
        else:
            patch.setattr(machine, "empty", full)
        with pytest.raises(RunError, match=f"the GPU has no .* {message}") as caught:
            run([x])
        assert "free memory of the GPU" in (caught.value.remedy or "")
    assert cuda.library.fake_mode() == 0, "the capture mode of the thread was not restored"
    cuda.capture(3, 12)
    with machine.fake.on(3):
        (y,) = run([x])
    machine.execute(machine.replays[-1])
    assert torch.equal(y, swapped(x, CONSTANT))


@pytest.mark.parametrize("code", [3, 201, 400, 709])
def test_a_kernel_that_is_no_longer_where_it_was(cuda: FakeCuda, code: int) -> None:
    """After a reset of the device, or in a process that forked."""
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    x = inputs()
    machine.fake.know(*x)
    for function, message in (
        ("cuLaunchKernelEx", "the program cannot be launched"),
        ("cuStreamGetCaptureInfo_v2", "the stream cannot be used"),
        ("cuCtxGetCurrent", "the GPU cannot be used"),
    ):
        cuda.fail(function, code)
        with pytest.raises(RunError, match=message) as caught:
            run(x)
        assert "no longer where it was" in (caught.value.remedy or "")
        assert "started, not forked" in (caught.value.remedy or "")


def test_a_program_that_is_compiled_again_has_a_kernel_of_its_own(cuda: FakeCuda) -> None:
    """A graph goes on with the kernel that it was captured with: none is ever unloaded."""
    case = swap_case(CONSTANT)
    first, second = (FakeGpu(cuda, [case.source]) for _ in range(2))
    assert first.kernels[0].function != second.kernels[0].function
    assert not [line for line in cuda.log() if "Unload" in line]


def test_two_programs_from_two_threads_on_two_streams(cuda: FakeCuda) -> None:
    """Each fills the GPU with a block per multiprocessor, so none may start beside the other."""
    case = swap_case(CONSTANT)
    machine = FakeGpu(cuda, [case.source])
    machine.fake.know(CONSTANT)
    pair = [
        CudaExecutable(case.program, [case.source], case.interface, OPTIONS, machine) for _ in "ab"
    ]
    cuda.clear()
    given = [torch.rand(SIZE) for _ in pair]
    machine.fake.know(*given)
    right: list[bool] = []

    def work(number: int) -> None:
        with machine.fake.on(5 + number):
            for _ in range(8):
                (y,) = pair[number]([given[number]])
                right.append(torch.equal(y, swapped(given[number], CONSTANT)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 16
    require_order(cuda)


def test_replays_on_two_streams_are_of_grids_that_start_as_a_whole(cuda: FakeCuda) -> None:
    """Nobody orders replays on two streams, so what is captured must be cooperative: CUDA starts
    such a grid only when all its blocks fit."""
    run, machine = on_gpu(cuda, swap_case(CONSTANT))
    x = inputs()
    machine.fake.know(*x)
    for stream, number in ((3, 11), (4, 12)):
        cuda.capture(stream, number)
        with machine.fake.on(stream):
            run(x)
        cuda.capture(stream, 0)
    captured = cuda.log("cuLaunchKernelEx")
    assert len(captured) == 2 and all("cooperative=1" in line for line in captured)
    states = [state.control.data_ptr() for state in run.captures.values()]
    assert len(set(states)) == 2, "two graphs on one state"
