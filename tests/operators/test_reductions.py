"""Rules of reductions, softmax and norms."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.lowering.straight_line import NotNative, check, run

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def integers(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randint(0, 5, shape, generator=generator).to(dtype)


DIMS: list[Any] = [[0], [1], [-1], [0, 2], [0, 1, 2], [], None]


@pytest.mark.parametrize("keep", (False, True))
@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize(
    "name", ("sum.dim_IntList", "mean.dim", "var.correction", "std.correction")
)
def test_over_dims(name: str, dims: Any, keep: bool) -> None:
    check(f"aten.{name}", random(3, 5, 4), dims, keepdim=keep)


@pytest.mark.parametrize("keep", (False, True))
@pytest.mark.parametrize("dims", ([0], [-1], [0, 2], []))
@pytest.mark.parametrize("name", ("amax", "amin", "logsumexp"))
def test_extrema_over_dims(name: str, dims: list[int], keep: bool) -> None:
    if name == "logsumexp" and not dims:
        pytest.skip("torch wants dims")
    x = random(3, 5, 4)
    x[1, 2, 3], x[0, 0] = nan, -inf
    check(f"aten.{name}.default", x, dims, keep)


@pytest.mark.parametrize("dtype", (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool))
@pytest.mark.parametrize("name", ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin"))
def test_of_everything(name: str, dtype: torch.dtype) -> None:
    if dtype is torch.bool and name.startswith("arg"):
        pytest.skip("torch has none of this")
    check(f"aten.{name}.default", integers(3, 4, dtype=dtype))
    check(f"aten.{name}.default", integers(1, dtype=dtype))
    check(f"aten.{name}.default", integers(dtype=dtype))


@pytest.mark.parametrize("keep", (False, True))
@pytest.mark.parametrize("dim", (0, 1, -1))
@pytest.mark.parametrize("name", ("max", "min"))
def test_extrema_and_positions(name: str, dim: int, keep: bool) -> None:
    x = random(3, 5, 4)
    x[1, 2, 3] = nan
    check(f"aten.{name}.dim", x, dim, keep)
    check(f"aten.{name}.dim", integers(3, 7), dim, keep)
    check(f"aten.{name}.dim", random(3, 1), dim, keep)


@pytest.mark.parametrize("dim", (None, 0, -1))
@pytest.mark.parametrize("name", ("argmax", "argmin"))
def test_positions(name: str, dim: int | None) -> None:
    x = random(4, 6)
    check(f"aten.{name}.default", x, dim)
    check(f"aten.{name}.default", x, dim, True)
    x[2, 3], x[2, 5] = nan, nan
    check(f"aten.{name}.default", x, dim)
    check(f"aten.{name}.default", integers(4, 9), dim)


@pytest.mark.parametrize("name", ("any", "all"))
def test_truth(name: str) -> None:
    x = torch.tensor([[0.0, nan, 0.0], [0.0, 0.0, 0.0], [1.0, 2.0, -1.0]])
    check(f"aten.{name}.dim", x, 1)
    check(f"aten.{name}.dims", x, [0], True)
    check(f"aten.{name}.dim", integers(3, 4, dtype=torch.uint8), 1)
    check(f"aten.{name}.default", torch.zeros(0, 3))


def test_empty() -> None:
    x = torch.zeros(3, 0)
    check("aten.sum.dim_IntList", x, [1])
    check("aten.mean.dim", x, [1])
    check("aten.prod.dim_int", x, 1)
    check("aten.sum.dim_IntList", x, [0])
    check("aten.var.correction", x, [1])


@pytest.mark.parametrize("correction", (0, 1, 2, 7, None))
def test_corrections(correction: int | None) -> None:
    x = random(3, 5) * 100 + 1000
    check("aten.var.correction", x.double(), [1], correction=correction)
    check("aten.var_mean.correction", x.double(), [1], correction=correction)
    check("aten.std_mean.correction", x.double(), [0], correction=correction, keepdim=True)


def test_dtypes_of_sums() -> None:
    check("aten.sum.dim_IntList", integers(3, 4), [1], dtype=torch.float32)
    check("aten.sum.default", random(3, 4), dtype=torch.float64)
    check("aten.mean.dim", integers(3, 4), [1], dtype=torch.float32)
    check("aten.mean.dim", random(3, 40, dtype=torch.bfloat16), [1])
    check("aten.sum.dim_IntList", random(3, 400, dtype=torch.float16), [1])


@pytest.mark.parametrize("order", (2, 1, 0, 3, inf, -inf, 0.5))
def test_norms(order: float) -> None:
    x = random(3, 5)
    check("aten.linalg_vector_norm.default", x, order, [1])
    check("aten.linalg_vector_norm.default", x, order)
    check("aten.norm.ScalarOpt_dim", x, order, [0], True)


@pytest.mark.parametrize("dim", (0, 1, -1))
@pytest.mark.parametrize("name", ("cumsum", "cumprod"))
def test_scans(name: str, dim: int) -> None:
    check(f"aten.{name}.default", random(3, 5, 4), dim)
    check(f"aten.{name}.default", integers(3, 5), dim)
    check(f"aten.{name}.default", random(3, 5, dtype=torch.bfloat16), dim)
    check(f"aten.{name}.default", integers(3, 5) > 1, dim)
    check(f"aten.{name}.default", torch.zeros(0, 3), dim)


# ---- softmax ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dim", (0, 1, -1))
@pytest.mark.parametrize("name", ("_softmax", "_log_softmax"))
def test_softmax(name: str, dim: int, dtype: torch.dtype) -> None:
    check(f"aten.{name}.default", random(3, 5, 4, dtype=dtype), dim, False)


@pytest.mark.parametrize("name", ("softmax", "log_softmax"))
def test_softmax_of_hard_rows(name: str) -> None:
    x = torch.tensor(
        [[-inf, -inf, -inf], [1e4, 1.0, -1e4], [inf, 1.0, 2.0], [-inf, 0.0, 1.0], [nan, 0.0, 1.0]]
    )
    check(f"aten.{name}.int", x, 1)
    check(f"aten.{name}.int", x, 1, torch.float64)
    check(f"aten.{name}.int", torch.zeros(3, 0), 1)
    check(f"aten.{name}.int", torch.tensor(2.0), 0)
    check("aten._safe_softmax.default", x, 1)


# ---- norms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("affine", (True, False))
@pytest.mark.parametrize("shape", ([4], [5, 4], [3, 5, 4]))
def test_layer_norm(shape: list[int], affine: bool, dtype: torch.dtype) -> None:
    x = random(3, 5, 4, dtype=dtype)
    parameters = (
        [random(*shape, dtype=dtype), random(*shape, dtype=dtype)] if affine else [None] * 2
    )
    check("aten.layer_norm.default", x, shape, *parameters)
    check("aten.native_layer_norm.default", x, shape, *parameters, 1e-5)


def test_layer_norm_of_far_values() -> None:
    check("aten.layer_norm.default", (random(4, 64) + 1e3).double(), [64], None, None, 1e-6)


@pytest.mark.parametrize("groups", (1, 2, 6))
def test_group_norm(groups: int) -> None:
    x, weight, bias = random(2, 6, 3, 4), random(6), random(6) + 1
    check("aten.group_norm.default", x, groups, weight, bias)
    check("aten.group_norm.default", x[:, :, 0], groups)
    check("aten.native_group_norm.default", x, weight, bias, 2, 6, 12, groups, 1e-5)


def test_other_norms() -> None:
    x, weight = random(2, 6, 3), random(6)
    check("aten.instance_norm.default", x, weight, weight + 1, None, None, True, 0.1, 1e-5, False)
    check("aten.rms_norm.default", random(4, 6), [6], weight, 1e-5)
    check("aten.rms_norm.default", random(4, 6), [4, 6])


@pytest.mark.parametrize("shape", ((2, 3), (2, 3, 5), (2, 3, 4, 5)))
@pytest.mark.parametrize("affine", (True, False))
def test_batch_norm(affine: bool, shape: tuple[int, ...]) -> None:
    x = random(*shape)
    parameters = [random(3), random(3) + 1] if affine else [None, None]
    statistics = [random(3), random(3).abs() + 0.5]
    target = "aten._native_batch_norm_legit_no_training.default"
    check(target, x, *parameters, *statistics, 0.1, 1e-5)
    check("aten.batch_norm.default", x, *parameters, *statistics, False, 0.1, 1e-5, True)


def test_batch_norm_by_its_own_statistics() -> None:
    target = "aten._native_batch_norm_legit.no_stats"
    check(target, random(4, 3, 5), random(3), random(3) + 1, True, 0.1, 1e-5)
    check(target, random(4, 3, 5), None, None, True, 0.1, 1e-5)


def test_batch_norm_in_training_is_a_library_call() -> None:
    with pytest.raises(NotNative):
        run("aten.batch_norm.default", random(2, 3), None, None, None, None, True, 0.1, 1e-5, True)
