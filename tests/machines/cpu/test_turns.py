"""Products of one row go over their weights from the first to the last, then back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import stretto
from stretto.machines.cpu.machine import source_of
from stretto.options import Options
from tests.backends import assert_close

TURN = "STRETTO_BACK"


def weights(rows: int, columns: int) -> Tensor:
    generator = torch.Generator().manual_seed(columns)
    return torch.randn(rows, columns, generator=generator) / rows**0.5


def text_of(compiled: stretto.call.compiled.Compiled) -> str:
    return source_of(compiled.signatures[-1].stages).text


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("columns", [385, 448, 1000])
def test_each_run_gives_the_same(columns: int, threads: int) -> None:
    """Panels of 64 or 16 columns, the last one incomplete: odd numbers of them, and even ones."""
    weight = weights(300, columns)

    def function(x: Tensor) -> Tensor:
        return torch.relu(x @ weight + 1)

    compiled = stretto.compile(function, options=Options(threads=threads))
    for seed in range(5):
        x = torch.randn(1, 300, generator=torch.Generator().manual_seed(seed))
        assert_close([compiled(x)], [function(x)], scale=10)
        assert torch.equal(compiled(x), compiled(x))
    assert text_of(compiled).count(TURN) == 1


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_parts_of_one_product(threads: int) -> None:
    """They are stages of one kernel, which come in the other order, too."""
    weight = weights(4 * 320, 320)

    def function(x: Tensor) -> Tensor:
        h = torch.zeros(320)
        for t in range(x.shape[0]):
            a, b, c, d = (x[t] + F.linear(h, weight)).chunk(4)
            h = torch.tanh(torch.sigmoid(a) * torch.tanh(b) + torch.sigmoid(c) * d)
        return h

    compiled = stretto.compile(function, dynamic=False, options=Options(threads=threads))
    for steps in (1, 2, 7):
        x = torch.randn(steps, 4 * 320, generator=torch.Generator().manual_seed(steps))
        for _ in range(3):
            assert_close([compiled(x)], [function(x)], scale=10)
    assert TURN in text_of(compiled)
    assert "part == 3" in text_of(compiled)


def test_products_of_products_keep_their_order() -> None:
    first, second = weights(256, 300), weights(300, 280)

    def function(x: Tensor) -> Tensor:
        return (x @ first) @ second

    compiled = stretto.compile(function, options=Options(threads=1))
    for seed in range(4):
        x = torch.randn(1, 256, generator=torch.Generator().manual_seed(seed))
        assert_close([compiled(x)], [function(x)], scale=10)


def test_what_a_cache_holds_goes_forward() -> None:
    weight = weights(64, 128)
    compiled = stretto.compile(lambda x: x @ weight, options=Options(threads=1))
    x = torch.randn(1, 64)
    assert_close([compiled(x)], [x @ weight], scale=10)
    assert TURN not in text_of(compiled)
