"""The kernel that never stores the scores of an attention, against eager PyTorch."""

from __future__ import annotations

from math import inf

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import stretto
from stretto.options import Options

attend = F.scaled_dot_product_attention


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def kinds(q: Tensor, k: Tensor, v: Tensor, flags: Tensor, added: Tensor) -> tuple[Tensor, ...]:
    """Of two heads: masks of which a row is whole, grouped heads, operands of other strides."""
    return (
        attend(q, k, v),
        attend(q, k, v, is_causal=True),
        attend(q, k, v, is_causal=True, scale=-0.3),
        attend(q, k, v, flags),
        attend(q, k, v, flags[:1, None]),
        attend(q, k, v, added),
        attend(torch.cat([q, q], 1), k, v, is_causal=True, enable_gqa=True),
        attend(q, k[:1, :1], v[:1, :1]),
        attend(q[0], k[0], v[0]),
        attend(q.mT.contiguous().mT, k.mT.contiguous().mT, v),
    )


@pytest.mark.whole
@pytest.mark.parametrize(("rows", "keys"), [(130, 150), (500, 40)])
def test_as_eager(rows: int, keys: int) -> None:
    q, k, v = random(2, 2, rows, 8), random(2, 2, keys, 8), random(2, 2, keys, 24)
    flags, added = random(rows, keys) > -0.5, random(rows, keys)
    flags[2], added[1], added[3] = False, -inf, 100
    compiled = stretto.compile(kinds, backend="cpu", options=Options(threads=2))
    found = compiled(q, k, v, flags, added)
    for one, other in zip(found, kinds(q, k, v, flags, added), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)
    assert (found[3][:, :, 2] == 0).all() and (found[5][:, :, 1] == 0).all()
    assert compiled.explain().count("attention 48x128") >= 5


@pytest.mark.whole
def test_of_doubles_in_a_module() -> None:
    weight = random(3 * 32, 32).double()

    def block(x: Tensor) -> Tensor:
        parts = F.linear(x, weight).view(2, 60, 3, 4, 8).permute(2, 0, 3, 1, 4)
        return x + attend(*parts, is_causal=True).transpose(1, 2).reshape(x.shape)

    x = random(2, 60, 32).double()
    compiled = stretto.compile(block, backend="cpu", options=Options(threads=2))
    torch.testing.assert_close(compiled(x), block(x), rtol=1e-10, atol=1e-10)


@pytest.mark.whole
def test_of_any_length() -> None:
    weight = random(3 * 16, 16)

    def block(x: Tensor, flags: Tensor) -> Tensor:
        parts = F.linear(x, weight).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        masked = attend(*parts, flags).transpose(1, 2).reshape(x.shape)
        return masked + attend(*parts, is_causal=True).transpose(1, 2).reshape(x.shape)

    options = Options(threads=2)
    compiled = stretto.compile(block, backend="cpu", dynamic=True, options=options)
    for length in (60, 1, 130, 7):
        x, flags = random(2, length, 16), random(length, length) > -0.5
        torch.testing.assert_close(compiled(x, flags), block(x, flags), rtol=2e-5, atol=2e-5)
    assert "1 signature compiled" in compiled.explain()
    assert "attention x2, add" in compiled.explain() and "attention 48x128" in compiled.explain()
