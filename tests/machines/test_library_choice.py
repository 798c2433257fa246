"""`Options.library="auto"`: which products torch computes, and what the plan computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import stretto
from stretto.device.expr import Buffer
from stretto.device.operator import LibraryCall
from stretto.device.plan import Launch, Library
from stretto.device.program import DeviceProgram
from stretto.device.tree import Leaf, Seq, walk
from stretto.ir.types import DType
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.machines.cuda.machine import gpu_program
from stretto.machines.library_choice import choose_library
from stretto.machines.machine import Stages
from stretto.options import Debug, Options
from stretto.simulator.devices import A100, H200, V100
from stretto.simulator.library_kernels import KERNELS, ComputationKind, library_estimate
from tests.e2e.machines import CUDA
from tests.machines.cuda.cuda_fakes import FakeCuda
from tests.machines.cuda.graphs.programs import on_fake_gpu

AUTO = Options(units=3, library="auto", enqueue="graph", debug=Debug(unroll=0))


def mixed(x: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """A large convolution, a loop of small products, and a product behind it."""
    y = functional.conv2d(x, k, padding=1).relu().mean((2, 3))
    for _ in range(4):
        y = torch.tanh(y @ w)
    return y @ w.t() + 1


def branching(x: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """Convolutions in a branch, in a loop that values end."""
    y = functional.conv2d(x, k, padding=1)
    while y.abs().mean() > 0.05:
        y = functional.conv2d(y, k, padding=1) * 0.5 if y.mean() > 0 else y * 0.25 - 0.01
    return (y.mean((2, 3)) @ w).softmax(1)


def small(x: Tensor, k: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x.mean((2, 3)) @ w) @ w


def without_products(x: Tensor, k: Tensor, w: Tensor) -> Tensor:
    return (x * 2).sum((2, 3)) + w[0]


def images(seed: int = 0, *, count: int = 2, pixels: int = 41) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 32, pixels, pixels, generator=draw)
    k = torch.randn(32, 32, 3, 3, generator=draw) / 17
    return x, k, torch.randn(32, 32, generator=draw) / 6


def compiled(
    function: Callable[..., Any], inputs: Sequence[Tensor], options: Options = AUTO, **more: Any
) -> tuple[stretto.Compiled, Stages]:
    """A program on the emulated GPU that has computed what eager does."""
    fast = stretto.compile(function, backend=CUDA, options=options, **more)
    agrees(fast, function, inputs)
    return fast, fast.signatures[0].stages


def agrees(
    fast: Callable[..., Any], function: Callable[..., Any], inputs: Sequence[Tensor]
) -> None:
    with torch.no_grad():
        torch.testing.assert_close(fast(*inputs), function(*inputs), rtol=1e-4, atol=1e-4)


def actions(stages: Stages) -> tuple[int, int]:
    """Launches and library calls of the plan."""
    leaves = [n.body for n in walk(gpu_program(stages).plan.tree.main.body) if isinstance(n, Leaf)]
    return sum(isinstance(a, Launch) for a in leaves), sum(isinstance(a, Library) for a in leaves)


def taken(stages: Stages) -> list[str]:
    assert stages.library is not None
    return [product.name.rpartition(".")[2] for product in stages.library.taken]


@pytest.mark.parametrize("enqueue", ["graph", "stream", "auto"])
def test_a_plan_of_our_launches_and_a_call_of_the_library(enqueue: str) -> None:
    fast, stages = compiled(mixed, images(), replace(AUTO, enqueue=enqueue))
    assert taken(stages) == ["convolution"]
    launches, calls = actions(stages)
    assert calls == 1 and launches >= 1
    for seed in (1, 2):
        agrees(fast, mixed, images(seed))
    found = stages.library
    assert found is not None and len(found.tried) >= 2
    own, library = found.tried[0], min(found.tried[1:], key=lambda one: one[1])
    assert own[0] == 0 and library[1] < own[1]
    text = fast.explain()
    assert "1 of 3 products by the library; simulated: 0 library calls" in text
    assert "chosen by cost" in text and "in a loop, branch or function" in text


def test_the_loop_is_not_cut() -> None:
    """The products in it would be calls of the library only where the plan were faster."""
    _, stages = compiled(mixed, images())
    nodes = list(walk(gpu_program(stages).plan.tree.main.body))
    assert all(isinstance(node, Leaf | Seq) for node in nodes) and actions(stages)[1] == 1


@pytest.mark.whole
def test_a_branch_in_a_loop() -> None:
    fast, stages = compiled(branching, images())
    assert stages.library is not None and stages.library.taken
    for seed in (3, 4, 5):
        agrees(fast, branching, images(seed))


@pytest.mark.parametrize("function", [small, without_products])
def test_own_kernels_where_the_library_promises_nothing(function: Callable[..., Any]) -> None:
    fast, stages = compiled(function, images(pixels=3))
    assert not taken(stages) and actions(stages)[1] == 0 and stages.left is None
    why = "none promises a gain" if function is small else "there is none that it could compute"
    assert why in fast.explain()


@pytest.mark.whole
def test_sizes_that_change_and_no_rows_at_all() -> None:
    fast = stretto.compile(mixed, backend=CUDA, options=AUTO, dynamic=True)
    for count in (3, 1, 0, 5):
        agrees(fast, mixed, images(count, count=count))


def test_one_unit_and_many() -> None:
    for units in (1, 7):
        compiled(mixed, images(), replace(AUTO, units=units))


def test_a_mixed_plan_on_the_driver(cuda: FakeCuda) -> None:
    gpu = on_fake_gpu(cuda, mixed, images(), AUTO)
    for seed in range(3):
        inputs = images(seed)
        (found,) = gpu(*inputs)
        torch.testing.assert_close(found, mixed(*inputs), rtol=1e-4, atol=1e-4)
    assert len(cuda.log("cuGraphAddChildGraphNode")) >= 1
    assert len(cuda.log("cuGraphLaunch")) == 3 and not cuda.log("cuLaunchKernelEx")


# ---- the choice ------------------------------------------------------------------------------
def scheduled(function: Callable[..., Any]) -> Stages:
    """With our own kernels, before anything is chosen."""
    _, stages = compiled(function, images(), replace(AUTO, library=()))
    return stages


def call_count(program: DeviceProgram) -> int:
    return sum(kernel.call is not None for kernel in program.kernels)


@pytest.mark.whole
def test_the_simulated_plan_decides() -> None:
    """Not the estimate of a product by itself: where no plan is faster, nothing changes."""
    stages = scheduled(branching)
    own = stages.device
    found = choose_library(stages, lambda program: 1.0)
    assert len(found.tried) >= 2 and not found.taken and stages.device is own
    # A gain of less than a twentieth is none.
    found = choose_library(stages, lambda program: 0.97 if call_count(program) else 1.0)
    assert not found.taken and stages.device is own


@pytest.mark.whole
def test_a_call_in_a_loop_where_the_plan_says_so() -> None:
    stages = scheduled(branching)
    found = choose_library(stages, lambda program: 1.0 - 0.3 * call_count(program))
    assert any(product.nested for product in found.taken)
    assert stages.device is not None and call_count(stages.device) == len(found.taken)
    assert len(found.tried) <= 4


# ---- estimates -------------------------------------------------------------------------------
def product(rows: int, depth: int, columns: int, dtype: DType = DType.F32) -> LibraryCall:
    a, b, c = (
        Buffer(name, dtype, shape, "local")
        for name, shape in (("a", (rows, depth)), ("b", (depth, columns)), ("c", (rows, columns)))
    )
    return LibraryCall("mm", "aten.mm.default", (a, b), (), (c,), "")


def seconds(call: LibraryCall, device: Any = H200) -> float:
    return library_estimate(call, device, CUDA_COSTS).seconds(device)


def test_all_kinds_of_kernels_have_figures() -> None:
    kinds = set(ComputationKind) - {ComputationKind.OTHER}
    assert set(KERNELS) == {
        (kind, numbers) for kind in kinds for numbers in ("half", "tf32", "single", "double")
    }
    assert all(0 < kernel.efficiency < 1 for kernel in KERNELS.values())


def test_large_products_come_near_the_peak_and_small_ones_do_not() -> None:
    def reached(n: int, dtype: DType) -> float:
        return 2 * n**3 / seconds(product(n, n, n, dtype)) / H200.half_flops

    assert 0.65 < reached(8192, DType.BF16) < 0.75
    assert reached(512, DType.BF16) < reached(2048, DType.BF16) < reached(8192, DType.BF16)
    assert reached(8192, DType.F64) < reached(8192, DType.F32) < 0.1


def test_a_row_takes_as_long_as_its_weights() -> None:
    assert seconds(product(1, 4096, 4096)) == pytest.approx(4096 * 4098 * 4 / 4.8e12, rel=0.5)


def test_no_rows_take_next_to_nothing() -> None:
    assert seconds(product(0, 64, 64)) < 1e-6
    assert seconds(product(64, 0, 64)) < 1e-6


def test_f32_products_are_as_torch_is_set() -> None:
    large = product(4096, 4096, 4096)
    before, exact = torch.backends.cuda.matmul.allow_tf32, seconds(large)
    assert not before
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert seconds(large) < exact / 3
        assert seconds(large, A100) < seconds(large, V100) / 4  # which has none
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("wrong", ["all", ["aten.mm"], ("aten.mm", 1), None])
def test_other_values_of_the_option(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"Options\.library must be a tuple of names or 'auto'"):
        Options(library=wrong)
