"""What goes wrong on the emulated GPU is said, and does not spoil the calls after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import stretto
from stretto.call.compiler import device_of
from stretto.device.program import DeviceProgram, Schedule, Signal
from stretto.device.tree import map_tree
from stretto.device.verifier import verify
from stretto.errors import BuildError, CaptureError, RunError, ScheduleError, VerifyError
from stretto.machines.cuda.device import emulated_cuda_executable
from stretto.machines.cuda.host import PlanExecutable
from stretto.machines.cuda.machine import CUDA as CUDA_MACHINE
from stretto.machines.cuda.printer.source import HOST
from stretto.machines.cuda.printer.triton_module import print_plan, print_program
from stretto.options import Options
from stretto.runtime.results import DeadlockError, ProgramStopped, Status
from stretto.schedule.plan import make_plan
from tests.backends import built_cuda
from tests.e2e.machines import CUDA, on_cuda, spread
from tests.frontends.python.checks import assert_same
from tests.support import program_of

A = torch.tensor([1.0, 2.0, 3.0])


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad(), spread():
        yield


def emulated(function: Callable[..., Any], units: int = 3, **options: Any) -> Any:
    return stretto.compile(function, backend=CUDA, options=Options.of({"units": units, **options}))


# ---- a run that stops --------------------------------------------------------------------------


def gathered(x: Tensor, i: Tensor) -> Tensor:
    return (x * 2).index_select(0, i) + 1


def selected(x: Tensor, i: Tensor) -> Tensor:
    return x[i[0]] + x


def put(x: Tensor, i: Tensor) -> Tensor:
    return torch.zeros(3).index_put((i,), x[: len(i)])


def in_a_loop(x: Tensor, i: Tensor) -> Tensor:
    for k in range(20):
        x = torch.tanh(x + k) + x[i[1]]
    return x


@pytest.mark.parametrize("units", [1, 3])
@pytest.mark.parametrize("function", [gathered, selected, put, in_a_loop])
def test_an_index_out_of_range(function: Callable[..., Any], units: int) -> None:
    fast = emulated(function, units)
    good, bad = torch.tensor([0, 2]), torch.tensor([7, 9])
    for _ in range(2):
        assert_same(fast(A, good), function(A, good))
        with pytest.raises(IndexError) as eager:
            function(A, bad)
        with pytest.raises(IndexError) as caught:
            fast(A, bad)
        assert isinstance(caught.value, RunError)
        known = str(eager.value), str(eager.value).replace("7", "9")  # whichever lane is the last
        assert caught.value.message in known
    assert_same(fast(A, good), function(A, good))
    assert on_cuda(fast).launches == 5


@pytest.mark.parametrize("function", [gathered, selected])
def test_the_host_is_told_of_an_index(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the control block is not read by the host, only the word that it points to."""
    fast = emulated(function)
    fast(A, torch.tensor([0, 2]))
    program, host = on_cuda(fast), torch.zeros(1, dtype=torch.int64)
    (kernel,), (state,) = program.launcher.kernels, program.states.values()
    state.control[HOST] = host.data_ptr()
    launch = kernel.launch
    monkeypatch.setattr(kernel, "launch", lambda arguments, _: launch(arguments, [host]))
    with pytest.raises(IndexError):
        fast(A, torch.tensor([7, 9]))
    assert host.item() == Status.INDEX.value


def endless(x: Tensor) -> Tensor:
    return endless(x + 1) if x.sum() < 1e9 else x


def test_a_recursion_without_end() -> None:
    fast = emulated(endless, units=2, max_depth=40)
    for _ in range(2):
        with pytest.raises(RunError, match="deeper than 40") as caught:
            fast(A)
        assert isinstance(caught.value, ProgramStopped)
        assert caught.value.status is Status.TOO_DEEP
    assert_same(fast(A + 1e9), A + 1e9)


def grown(x: Tensor, n: Tensor) -> tuple[list[Tensor], Tensor]:
    rows = []
    for i in range(n):
        x = x * 0.5 + i
        rows.append(x)
    return rows, torch.stack(rows)


def test_a_list_that_outgrows_its_room() -> None:
    fast = emulated(grown)
    counts = []
    for n in (3, 90, 80, 91):
        before = on_cuda(fast).launches if fast.signatures else 0
        assert_same(fast(A, torch.tensor(n)), grown(A, torch.tensor(n)))
        counts.append(on_cuda(fast).launches - before)
    assert counts[0] == 1
    assert counts[1] > 1
    assert counts[2:] == [1, 1]


def test_a_library_call_that_stops() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.linalg.eigvalsh(x * 2) + 1

    fast = emulated(f)
    good, bad = torch.eye(3), torch.full((3, 3), float("nan"))
    for _ in range(2):
        with pytest.raises(RunError, match=r"linalg.eigh: The algorithm failed to converge"):
            fast(bad)
        assert_same(fast(good), f(good))


# ---- units that wait for ever ------------------------------------------------------------------

CHAIN = """
    func @main(%x: f32[12, 16]) -> (f32[12, 16]) {
      %w = constant "w" : f32[16, 16]
      %a = aten.mm.default(%x, %w) : f32[12, 16]
      %b = aten.mm.default(%a, %w) : f32[12, 16]
      %c = aten.mm.default(%b, %w) : f32[12, 16]
      return %c
    }
    """


def without_signals(program: DeviceProgram) -> DeviceProgram:
    """Unit 0 never says what it has done, and waits for those who wait for that."""

    def without(schedule: Schedule) -> Schedule:
        first, *others = schedule.units
        kept = tuple(item for item in first if not isinstance(item, Signal))
        return Schedule((kept, *others), schedule.steps)

    return replace(program, tree=map_tree(program.tree, without))


def test_a_schedule_without_signals_is_not_printed() -> None:
    broken = without_signals(built_cuda(program_of(CHAIN), 3).device)
    with pytest.raises(VerifyError, match="wait"):
        verify(broken)
    with pytest.raises(ScheduleError, match="the waits of a leaf never end"):
        print_program(broken)


def broken() -> PlanExecutable:
    """As if the printer had forgotten unit 0's signals."""
    built = built_cuda(program_of(CHAIN), 3)
    plan = make_plan(built.device)
    (source,) = print_plan(plan)
    publish = "    tl.atomic_xchg(control + 16 + unit"
    assert source.text.count(publish) == 1
    text = source.text.replace(publish, f"    if unit != 0:\n    {publish}")
    return emulated_cuda_executable(plan, [replace(source, text=text)], built.interface, Options())


def test_a_deadlock_is_explained() -> None:
    executable = broken()
    for _ in range(2):  # its state is thrown away: the next call begins anew
        with pytest.raises(DeadlockError, match=r"deadlock: .*unit 1 waits for unit 0 \(at 0\) to"):
            executable([torch.randn(12, 16)])


def test_a_wait_that_takes_too_long_stops_the_program() -> None:
    """As on a GPU, where nobody can see that no unit goes on."""
    executable = broken()
    executable.launcher.polls = 1
    for _ in range(2):
        with pytest.raises(ProgramStopped, match="a wait for unit 0 to reach step 1") as caught:
            executable([torch.randn(12, 16)])
        assert caught.value.status is Status.STUCK


# ---- devices -----------------------------------------------------------------------------------


def test_an_input_on_another_device() -> None:
    fast = emulated(lambda x, y: x + y)
    meta = torch.ones(3, device="meta")
    for arguments in ((meta, meta), (A, meta)):
        with pytest.raises(CaptureError, match=r"(?s)on the meta device.*make it on the CPU"):
            fast(*arguments)
    assert_same(fast(A, A), A + A)
    with pytest.raises(RunError, match="on cpu, but there is input 0 on cpu, input 1 on meta"):
        on_cuda(fast)([A, meta])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU can be used")
def test_without_a_gpu() -> None:
    fast = stretto.compile(lambda x: x + 1, backend="cuda")
    with pytest.raises(BuildError, match=r"(?s)input 0 is on cpu: backend 'cuda'.*remedy: .*cuda"):
        fast(A)
    with pytest.raises(BuildError, match=r"(?s)CUDA.*remedy: "):
        stretto.compile(lambda: torch.ones(3) + 1, backend="cuda")()


def test_options() -> None:
    for units in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match=r"Options.units must be an int of at least 1"):
            Options(units=units)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="backend must be one of .*cuda-emulated"):
        stretto.compile(lambda x: x, backend="gpu")


def test_numbers_on_the_cpu_go_with_tensors_on_a_gpu() -> None:
    """As in eager PyTorch; other tensors of the program must be where the inputs are."""
    with FakeTensorMode():
        on_gpu = torch.empty(3, device="cuda:0")
    constants = {"half": torch.tensor(0.5), "weight": torch.ones(3)}

    def of_constants(*names: str) -> torch.device:
        program = SimpleNamespace(constants={name: constants[name] for name in names})
        captured: Any = SimpleNamespace(inputs=(), program=program)
        return device_of(CUDA_MACHINE, [on_gpu], captured)

    assert of_constants("half") == torch.device("cuda", 0)
    with pytest.raises(BuildError, match="the tensor 'weight' is on cpu, others are on cuda:0"):
        of_constants("half", "weight")
