"""What goes wrong on the emulated GPU is said, and does not spoil the calls after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.errors import BuildError, RunError
from stretto.kernels.tree import map_tree
from stretto.options import Options
from stretto.runtime.emulator import DeadlockError
from stretto.runtime.native import ProgramStopped, Status
from stretto.schedule.program import DeviceProgram, Schedule, Signal
from tests.backends import Built, assert_close, built_cuda
from tests.capture.checks import assert_same
from tests.e2e.machines import CUDA, on_cuda, spread
from tests.support import program_of

A = torch.tensor([1.0, 2.0, 3.0])


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad(), spread():
        yield


def emulated(function: Callable[..., Any], units: int = 3, **options: Any) -> Any:
    return stretto.compile(function, backend=CUDA, options=Options(units=units, **options))


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
        with pytest.raises(RunError, match=r"(?s)an index is out of range.*remedy: ") as caught:
            fast(A, bad)
        assert isinstance(caught.value, ProgramStopped)
        assert caught.value.status is Status.INDEX
    assert_same(fast(A, good), function(A, good))
    assert on_cuda(fast).launches == 5


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
    fast = emulated(lambda x: torch.linalg.cholesky(x * 2) + 1)
    good, bad = torch.eye(3), -torch.eye(3)
    for _ in range(2):
        with pytest.raises(RunError, match="cholesky.* stopped"):
            fast(bad)
        assert_same(fast(good), torch.linalg.cholesky(good * 2) + 1)


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


def without_a_signal(program: DeviceProgram) -> DeviceProgram:
    """Unit 0 never says that it has done its part of the first step."""

    def without(schedule: Schedule) -> Schedule:
        first, *others = schedule.units
        signal = next(item for item in first if isinstance(item, Signal))
        kept = tuple(item for item in first if item is not signal)
        return Schedule((kept, *others), schedule.steps)

    return replace(program, tree=map_tree(program.tree, without))


def chains() -> tuple[Built, Built]:
    good = built_cuda(program_of(CHAIN), 3)
    return good, replace(good, device=without_a_signal(good.device))


def test_a_deadlock_is_explained() -> None:
    good, broken = chains()
    data = [torch.randn(12, 16)]
    executable = broken.cuda()
    for _ in range(2):  # its state is thrown away: the next call does not wait for this one
        with pytest.raises(DeadlockError, match=r"deadlock: .*unit \d waits for .*unit 0 \(at 0"):
            executable(data)
    w = good.lowered.constants.popitem()[1]
    assert_close(chains()[0].cuda()(data), [data[0] @ w @ w @ w])


def test_a_wait_that_takes_too_long_stops_the_program() -> None:
    """As on a GPU, where nobody can see that no unit goes on."""
    _, broken = chains()
    executable = broken.cuda()
    executable.machine.polls = 1
    with pytest.raises(ProgramStopped, match="waited") as caught:
        executable([torch.randn(12, 16)])
    assert caught.value.status is Status.STUCK


# ---- devices -----------------------------------------------------------------------------------


def test_an_input_on_another_device() -> None:
    fast = emulated(lambda x, y: x + y)
    meta = torch.ones(3, device="meta")
    with pytest.raises(BuildError, match=r"(?s)input 0 is on meta: backend 'cuda-emulated' runs "):
        fast(meta, meta)
    with pytest.raises(BuildError, match=r"(?s)input 1 is on meta.*remedy: move the inputs"):
        fast(A, meta)
    assert_same(fast(A, A), A + A)
    with pytest.raises(RunError, match=r"runs on cpu, but there is input 0 on cpu, input 1 on meta"):
        on_cuda(fast)([A, meta])


def test_a_module_on_another_device() -> None:
    model = torch.nn.Linear(3, 3, device="meta")
    with pytest.raises(BuildError, match=r"the tensor '.*weight' is on meta"):
        emulated(model)(A)


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
