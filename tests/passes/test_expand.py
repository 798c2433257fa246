"""Operators that are written as others: the same results, also for groups without rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import stretto

torch.manual_seed(0)
MATRICES = torch.randn(4, 8, 12)
SIZES = [(3, 0, 2, 4), (0, 0, 0, 0), (9, 0, 0, 0), (0, 0, 0, 7), (1, 1, 1, 1), (0, 13, 0, 2)]


def grouped(x: Tensor, ends: Tensor) -> Tensor:
    return torch.relu(F.grouped_mm(x, MATRICES, offs=ends))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("backend", ["cpu", "emulator", "cuda-emulated"])
def test_products_of_groups(backend: str, threads: int) -> None:
    total = 15
    compiled = stretto.compile(grouped, backend=backend, options=stretto.Options(threads=threads))
    for sizes in SIZES:
        x = torch.randn(total, 8)
        ends = torch.tensor(sizes).cumsum(0).to(torch.int32)
        rows = int(ends[-1])
        found = compiled(x, ends)
        assert found.shape == (total, 12)
        torch.testing.assert_close(found[:rows], grouped(x, ends)[:rows])
    assert "library calls: none" in str(compiled.explain()) or backend != "cpu"


@pytest.mark.parametrize("ends", [(-3, 2, 1, 4), (5, 3, 2, 8), (99, 99, 99, 99), (1, 99, 3, 4)])
def test_groups_that_are_wrong_read_nothing_outside(ends: tuple[int, ...]) -> None:
    found = stretto.compile(grouped)(torch.randn(6, 8), torch.tensor(ends, dtype=torch.int32))
    assert found.shape == (6, 12) and bool(torch.isfinite(found).all())


@pytest.mark.parametrize("bounds", [(0.0, 3.0), (-1.5, 2.25), (0.1, 0.7), (-5.0, 0.0)])
@pytest.mark.parametrize("bins", [1, 4, 7, 100])
def test_histograms(bins: int, bounds: tuple[float, float]) -> None:
    least, most = bounds

    def counts(x: Tensor) -> Tensor:
        return torch.histc(x, bins=bins, min=least, max=most)

    compiled = stretto.compile(counts)
    edges = torch.linspace(least, most, bins + 1)
    random = torch.randn(500) * (most - least) + least
    for x in (random, random.view(20, 25).T, edges, torch.empty(0), torch.tensor([least, most])):
        torch.testing.assert_close(compiled(x), counts(x), rtol=0, atol=0)


def test_histograms_of_the_bounds_of_the_data() -> None:
    x = torch.randn(50)
    found = stretto.compile(lambda x: torch.histc(x, 5))(x)
    torch.testing.assert_close(found, torch.histc(x, 5))
