"""Large products, convolutions and attention call instances that are compiled by themselves."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import stretto
from stretto.machines.cpu.costs import CPU_COSTS, host_costs
from stretto.machines.cpu.machine import source_of
from stretto.options import Options
from tests.backends import assert_close

WEIGHTS = {
    (depth, columns): torch.randn(depth, columns, generator=torch.Generator().manual_seed(depth))
    for depth, columns in ((64, 128), (72, 100), (300, 17))
}


def products(x: Tensor, turned: Tensor) -> tuple[Tensor, ...]:
    """Of rows, and of columns as rows."""
    first, second, third = WEIGHTS.values()
    return x[:, :64] @ first, x[:, :72] @ second, x @ third, turned[:300].mT @ third


def shared_of(compiled: stretto.call.compiled.Compiled) -> list[str]:
    return [item.declaration for item in source_of(compiled.signatures[-1].stages).shared]


def test_products_of_any_number_of_rows() -> None:
    compiled = stretto.compile(products, dynamic=True, options=Options(threads=2))
    for rows in (7, 0, 1, 2, 5, 6, 8, 12, 13, 14, 15, 23, 26, 240, 251):
        x, turned = torch.randn(rows, 300), torch.randn(300, rows)
        expected = [r.float() for r in exact(x, turned)]
        assert_close(list(compiled(x, turned)), expected, scale=10)
    assert shared_of(compiled) == (
        [
            "STRETTO_SHARED_PACKED(extern, float, 12, 16, false)",
            "STRETTO_SHARED_PACKED(extern, float, 12, 16, true)",
            "STRETTO_SHARED_PACKED(extern, float, 6, 64, true)",
        ]
        if host_costs() is CPU_COSTS
        else [  # of 16 registers
            "STRETTO_SHARED_PACKED(extern, float, 6, 16, false)",
            "STRETTO_SHARED_PACKED(extern, float, 6, 16, true)",
        ]
    )


def test_deep_products_of_rows_that_no_cache_holds() -> None:
    """Their depth is taken in pieces, each with all columns; 88 rows are the first that do not fit,
    257 too many."""
    weight = torch.randn(3000, 300, generator=torch.Generator().manual_seed(1)) / 50

    def function(x: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
        return x @ weight, turned.mT @ weight

    compiled = stretto.compile(function, dynamic=True, options=Options(threads=2))
    for rows in (0, 1, 6, 7, 87, 88, 193, 256, 257, 600):
        x, turned = torch.randn(rows, 3000), torch.randn(3000, rows)
        expected = [(left.double() @ weight.double()).float() for left in (x, turned.mT)]
        assert_close(list(compiled(x, turned)), expected, scale=10)
    fixed = stretto.compile(lambda x: x @ weight, dynamic=False, options=Options(threads=2))
    x = torch.randn(197, 3000)
    assert_close([fixed(x)], [(x.double() @ weight.double()).float()], scale=10)


def exact(x: Tensor, turned: Tensor) -> list[Tensor]:
    first, second, third = (weight.double() for weight in WEIGHTS.values())
    x, turned = x.double(), turned.double()
    return [x[:, :64] @ first, x[:, :72] @ second, x @ third, turned[:300].mT @ third]


@pytest.mark.parametrize(("rows", "shares"), [(4, False), (40, True)])
def test_a_product_of_fixed_sizes_is_inlined_unless_it_is_large(rows: int, shares: bool) -> None:
    weight = WEIGHTS[64, 128]
    compiled = stretto.compile(lambda x: x @ weight, options=Options(threads=2))
    x = torch.randn(rows, 64)
    assert_close([compiled(x)], [(x.double() @ weight.double()).float()], scale=10)
    assert bool(shared_of(compiled)) == shares


@pytest.mark.whole
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_convolutions_and_attention(dtype: torch.dtype) -> None:
    wide = torch.randn(20, 8, 3, 3).to(dtype)
    point = torch.randn(14, 8, 1, 1).to(dtype)

    def function(image: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        attended = F.scaled_dot_product_attention(q, k, k)
        return F.conv2d(image, wide, padding=1), F.conv2d(image, point), attended

    given = (torch.randn(2, 8, 9, 11), torch.randn(1, 2, 50, 64), torch.randn(1, 2, 133, 64))
    given = tuple(tensor.to(dtype) for tensor in given)
    compiled = stretto.compile(function, options=Options(threads=2))
    assert_close(list(compiled(*given)), list(function(*given)), scale=20)
    kind = "float" if dtype is torch.float32 else "double"
    names = [name.partition("(")[0].removeprefix("STRETTO_SHARED_") for name in shared_of(compiled)]
    assert sorted(names) == ["IMAGE", "PANEL", "ROWS", "ROWS"]
    assert all(f"extern, {kind}," in name for name in shared_of(compiled))
