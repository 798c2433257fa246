"""Printed templates in the interpreter, against torch: sizes no tile divides, every dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stretto.device.operator import Kernel
from stretto.ir.core import Program
from stretto.machines.cuda.printer.kernel import print_kernel
from stretto.runtime.results import Status
from tests import backends
from tests.lowering import straight_line
from tests.lowering.programs import lowered
from tests.lowering.straight_line import Number, Stacked, check
from tests.machines.cuda.triton_runner import kernels_of, run_straight
from tests.sampling import every
from tests.support import program_of

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@pytest.fixture(autouse=True, params=["whole", "cut"])
def triton(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` runs what Triton prints: as it is selected, or cut finely and not fused."""
    cut = request.param == "cut"

    def execute(program: Program, inputs: list[Tensor]) -> list[Tensor]:
        return run_straight(program, inputs, 7 if cut else 132, fused=not cut, spread=cut)

    monkeypatch.setattr(straight_line, "execute", execute)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    high = 2 if dtype is torch.bool else 9
    return torch.randint(0, high, shape, generator=generator).to(dtype)


# ---- maps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS, torch.bool), ids=str)
def test_maps_of_each_dtype(dtype: torch.dtype) -> None:
    check("aten.add.Tensor", random(3, 37, dtype=dtype), random(37, dtype=dtype))
    check("aten.eq.Tensor", random(2, 3, 5, dtype=dtype), random(3, 1, dtype=dtype))


def test_views_and_long_maps() -> None:
    check("aten.clone.default", random(7, 5, 3).permute(2, 0, 1))
    check("aten.mul.Tensor", random(5003), random(5003))
    check("aten.cat.default", [random(3, 5), random(3, 1), random(3, 9)], 1)
    check("aten.roll.default", random(5, 7), [2, 3], [0, 1])
    check("aten.constant_pad_nd.default", random(3, 5), [2, 1, 1, 3], 1.5)
    check("aten.tril.default", random(9, 7), -1)


@pytest.mark.whole
def test_sizes_known_in_the_run() -> None:
    x = Stacked.of(random(11, 13))
    check("aten.relu.default", x)
    check("aten.sum.dim_IntList", x, [1])
    check("aten.sum.dim_IntList", x, [0])
    check("aten.amax.default", x, [0, 1])
    check("aten.mm.default", x, random(13, 6))
    check("aten.cumsum.default", x, 0)
    check("aten.add.Tensor", random(5), Number(3))


# ---- reductions ------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [[0], [1], [2], [0, 2], [0, 1, 2]], ids=str)
def test_reductions_over_any_dims(dims: list[int]) -> None:
    x = random(5, 7, 19)
    for name in ("sum.dim_IntList", "amax.default", "amin.default", "mean.dim"):
        check(f"aten.{name}", x, dims, False)
    check("aten.any.dims", x > 1, dims)
    check("aten.all.dims", x > -3, dims)


@pytest.mark.parametrize("dtype", every(2, (*FLOATS, *INTEGERS)), ids=str)
def test_reductions_of_each_dtype(dtype: torch.dtype) -> None:
    x = random(4, 300, dtype=dtype)
    for dim in (0, 1):
        check("aten.sum.dim_IntList", x, [dim])
        check("aten.amin.default", x, [dim])
        for name in ("argmax.default", "argmin.default"):
            check(f"aten.{name}", x, dim)
    check("aten.prod.dim_int", x[:, :7], 1)


def test_the_first_of_equals_in_any_chunk() -> None:
    """What is compared is the same in each chunk of 128."""
    program = """
        func @main(%x: f32[8, 1]) -> (i64[8], f32[8]) {
          %e = aten.expand.default(%x, (8, 300)) : f32[8, 300]
          %k = aten.argmax.default(%e, 1) : i64[8]
          %s = aten.sum.dim_IntList(%e, (1,), False) : f32[8]
          return %k, %s
        }
        """
    backends.check(program_of(program), [random(8, 1)], units=(1, 3), native=())


def test_nan_wins_and_the_first_of_equals() -> None:
    x = torch.tensor([[1.0, float("nan"), 3.0, float("nan")], [2.0, 5.0, -0.0, 5.0]])
    x = torch.cat([x, torch.full((1, 4), float("-inf")), torch.tensor([[0.0, -0.0, 0.0, -0.0]])])
    for name in ("amax.default", "amin.default"):
        check(f"aten.{name}", x, [1])
        check(f"aten.{name}", x.double(), [1])
    for name in ("argmax.default", "argmin.default"):
        check(f"aten.{name}", x, 1)
        check(f"aten.{name}", x.long().clamp(-9, 9), 1)
    smallest = torch.full((2, 9), torch.iinfo(torch.int64).min)
    check("aten.argmax.default", smallest, 1)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.int64, torch.int32))
def test_scans(dtype: torch.dtype) -> None:
    for dim in (0, 1):
        check("aten.cumsum.default", random(3, 700, dtype=dtype), dim)
        check("aten.cumprod.default", random(3, 50, dtype=dtype), dim)


def test_softmax_and_norms() -> None:
    check("aten.softmax.int", random(13, 37), 1)
    check("aten._log_softmax.default", random(5, 3, 7), 0, False)
    check("aten.native_layer_norm.default", random(6, 50), [50], random(50), random(50), 1e-5)


# ---- products --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "dtype"),
    every(3, [(1, 40, 33), (3, 70, 130), (4, 9, 5), (50, 1, 70), (1, 1, 9)], FLOATS),
    ids=str,
)
def test_products_with_few_rows(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, n, k = size
    check("aten.mm.default", random(m, k, dtype=dtype), random(k, n, dtype=dtype))
    check("aten.linear.default", random(m, k, dtype=dtype), random(n, k, dtype=dtype))


@pytest.mark.parametrize(
    ("size", "dtype"), every(2, [(17, 33, 70), (70, 20, 17), (9, 9, 9)], FLOATS), ids=str
)
def test_products_of_matrices(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, n, k = size
    check("aten.mm.default", random(m, k, dtype=dtype), random(k, n, dtype=dtype))
    check("aten.linear.default", random(m, k, dtype=dtype), random(n, k, dtype=dtype))
    check("aten.bmm.default", random(3, m, k, dtype=dtype), random(3, k, n, dtype=dtype))


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"padding": [1, 1]},
        {"stride": [2, 2], "padding": [1, 0]},
        {"dilation": [2, 1], "padding": [2, 2]},
        {"groups": 2},
        {"groups": 8},
    ],
    ids=str,
)
def test_convolutions(keywords: dict[str, Any]) -> None:
    weight = random(16, 8 // keywords.get("groups", 1), 3, 3)
    check("aten.conv2d.default", random(2, 8, 9, 7), weight, random(16), **keywords)


# ---- stores at computed places ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", (*FLOATS, torch.int64, torch.uint8), ids=str)
def test_stores_that_meet(dtype: torch.dtype) -> None:
    x, source = random(5, 6, dtype=dtype), random(9, 6, dtype=dtype)
    rows = torch.tensor([0, 3, 3, 1, 0, 4, 4, 4, 2])
    check("aten.index_add.default", x, 0, rows, source)
    check("aten.index_put.default", x, [rows], source)
    check("aten.index_put.default", x, [rows], source, True)
    check("aten.scatter_add.default", x, 0, rows[:, None].expand(9, 6).contiguous(), source)


def test_gathers_check_their_indices() -> None:
    x = random(6, 4)
    check("aten.embedding.default", x, torch.tensor([[0, 5], [2, 2]]))
    check("aten.index_select.default", x, 1, torch.tensor([3, 0, 0]))
    for wrong in (6, -7):
        with pytest.raises(straight_line.RunStopped, match=str(int(Status.INDEX))):
            straight_line.run("aten.index.Tensor", x, [torch.tensor([0, wrong, 1])])


# ---- the text --------------------------------------------------------------------------------


def text_of(program: str) -> str:
    items = [item for leaf in kernels_of(lowered(program)) for item in leaf]
    (kernel,) = (item for item in items if isinstance(item, Kernel))
    return print_kernel(kernel).text("k")


def test_results_stay_in_registers() -> None:
    body = text_of("""
        func @main(%x: f32[12, 64]) -> (f32[12, 64]) {
          %s = aten.softmax.int(%x, 1) : f32[12, 64]
          return %s
        }
        """)
    assert "debug_barrier" not in body
    assert body.count("tl.load(") == 1


def test_rows_share_the_weights() -> None:
    body = text_of("""
        func @main(%x: f32[3, 256]) -> (f32[3, 512]) {
          %w = constant "w" : f32[512, 256]
          %y = aten.linear.default(%x, %w) : f32[3, 512]
          return %y
        }
        """)
    assert body.count("tl.load(") == 2 * 4  # in two pieces three rows, and the weights once
