"""Rules where the first dim is known only at run time (the length of a list)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.lowering.straight_line import Number, Stacked, check


def random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(shape, generator=generator)


def rows(*shape: int) -> Stacked:
    return Stacked.of(random(*shape))


@pytest.mark.parametrize("name", ("exp", "relu", "neg"))
def test_pointwise(name: str) -> None:
    check(f"aten.{name}.default", rows(3, 4))


def test_pairs() -> None:
    check("aten.add.Tensor", rows(3, 4), random(4))
    check("aten.mul.Tensor", rows(3, 1, 4), random(5, 1))
    check("aten.add.Tensor", rows(3, 4), random(2, 1, 4))


@pytest.mark.parametrize("dims", ([0], [1], [0, 2], [1, 2], None))
@pytest.mark.parametrize("name", ("sum.dim_IntList", "mean.dim", "var.correction"))
def test_reductions(name: str, dims: Any) -> None:
    check(f"aten.{name}", rows(3, 5, 4), dims)
    check(f"aten.{name}", rows(3, 5, 4), dims, keepdim=True)


@pytest.mark.parametrize("dim", (0, 1))
def test_extrema(dim: int) -> None:
    check("aten.max.dim", rows(3, 5), dim)
    check("aten.argmin.default", rows(3, 5), dim)
    check("aten.cumsum.default", rows(3, 5), dim)
    check("aten._softmax.default", rows(3, 5), dim, False)
    check("aten._log_softmax.default", rows(3, 5), dim, False)


def test_products() -> None:
    check("aten.mm.default", rows(3, 4), random(4, 5))
    check("aten.addmm.default", random(5), rows(3, 4), random(4, 5))
    check("aten.linear.default", rows(3, 4), random(5, 4), random(5))
    check("aten.linear.default", rows(3, 2, 4), random(5, 4), random(5))
    check("aten.bmm.default", rows(3, 2, 4), rows(3, 4, 5))
    check("aten.mv.default", rows(3, 4), random(4))


def test_products_over_a_dynamic_dim() -> None:
    check("aten.mm.default", random(5, 3), rows(3, 4))
    check("aten.matmul.default", random(3), rows(3, 4))


@pytest.mark.parametrize(
    ("target", "args"),
    [
        ("aten.unsqueeze.default", [0]),
        ("aten.unsqueeze.default", [1]),
        ("aten.transpose.int", [0, 1]),
        ("aten.permute.default", [[2, 0, 1]]),
        ("aten.select.int", [0, -1]),
        ("aten.select.int", [0, 2]),
        ("aten.select.int", [1, 2]),
        ("aten.slice.Tensor", [1, 1, 3]),
        ("aten.slice.Tensor", [0, 1, 9223372036854775807]),
        ("aten.flip.default", [[0]]),
        ("aten.expand.default", [[2, -1, -1, -1]]),
    ],
)
def test_views(target: str, args: list[Any]) -> None:
    check(target, rows(3, 5, 4), *args)


def test_joining() -> None:
    check("aten.cat.default", [rows(3, 4), random(2, 4)])
    check("aten.cat.default", [random(2, 4), rows(3, 4)])
    check("aten.cat.default", [rows(3, 4), Stacked.of(random(5, 4), "s1")])
    check("aten.stack.default", [random(4), random(4)])


def test_indexing() -> None:
    check("aten.embedding.default", random(7, 4), Stacked.of(torch.tensor([3, 0, 6])))
    check("aten.index_select.default", rows(3, 4), 0, torch.tensor([2, 0, 2]))
    check("aten.index.Tensor", rows(3, 4), [torch.tensor([2, -1])])
    check("aten.select.int", rows(3, 4), 0, Number(1))
    check("aten.layer_norm.default", rows(3, 4), [4], random(4), random(4))
