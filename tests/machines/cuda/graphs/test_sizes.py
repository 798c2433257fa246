"""One graph for all sizes, those of launches in bodies of conditional nodes too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.e2e.machines import CUDA, spread
from tests.machines.cuda.cuda_fakes import FakeCuda
from tests.machines.cuda.graphs.programs import APART, on_fake_gpu
from tests.machines.cuda.graphs.test_on_driver import same
from tests.machines.cuda.graphs.test_store import process

__all__ = ["process"]  # a fixture of all tests here

Arguments = tuple[Tensor, ...]


def decode(cache: Tensor, x: Tensor, w: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Steps of a small GPT: attention over a cache of any length and what is new, until a token
    ends it; the logits, and how many steps there were."""
    steps = torch.zeros((), dtype=torch.int64)
    logits = x @ out
    while (logits.argmax() != 3) & (steps < 4):
        q = (x @ w).unsqueeze(0)
        scores = (q @ cache.t()) * 0.25
        x = torch.tanh((scores.softmax(1) @ cache)[0] + x @ w.t())
        logits = x @ out
        steps = steps + 1
    return logits, steps


def over_rows(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Loops whose trips are sizes: all rows, all but the first, and one for every two."""
    total = torch.zeros(8)
    for row in range(x.shape[0]):
        total = total * 0.5 + torch.tanh(x[row] @ w)
    for row in range(1, x.shape[0]):
        total = total + x[row] * x[row - 1]
    return total, x + total


def by_halves(x: Tensor, w: Tensor) -> Tensor:
    total = torch.zeros(8)
    for row in range(x.shape[0] // 2):
        total = total * 0.5 + torch.tanh(x[2 * row] @ w)
    return total + x.sum(0)


def branches(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    if y.sum() > 0:
        y = torch.relu(y).cumsum(0) if y.max() > 1 else y * x.mean()
    return y - y.mean(0)


def decode_arguments(length: int) -> Arguments:
    draw = torch.Generator().manual_seed(length)
    cache, x = torch.randn(length, 8, generator=draw), torch.randn(8, generator=draw)
    return cache, x, torch.randn(8, 8, generator=draw) / 3, torch.randn(8, 16, generator=draw)


def row_arguments(rows: int) -> Arguments:
    draw = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 8, generator=draw), torch.randn(8, 8, generator=draw) / 3


CASES = [
    (decode, decode_arguments),
    (over_rows, row_arguments),
    (by_halves, row_arguments),
    (branches, row_arguments),
]


@pytest.mark.whole
def test_a_further_shape_of_a_decode_takes_no_bytes(cuda: FakeCuda) -> None:
    """Of ten further lengths: neither nodes nor tables, words or memory of their own."""
    kept = [decode_arguments(length) for length in (65, *range(64, 4, -6))]
    gpu = on_fake_gpu(cuda, decode, kept[0], dynamic=True)
    same(gpu(*kept[0]), decode(*kept[0]))
    (before,), nodes = stretto.graph_memory(), cuda.library.fake_live_nodes()
    assert before.graph_bytes >= gpu.run.graph_bytes > 0
    taken: list[int] = []
    for inputs in kept[1:]:
        gpu.machine.fake.allocated.clear()
        found = gpu(*inputs)
        same(found, decode(*inputs))
        allocated = sum(nbytes for _, nbytes in gpu.machine.fake.allocated)
        results = sum(result.nbytes for result in found)
        (now,) = stretto.graph_memory()
        taken.append(now.nbytes - before.nbytes + allocated - results)
    assert taken == [0] * 10
    assert cuda.library.fake_live_nodes() == nodes and gpu.run.counts.made == 1
    assert any(line.endswith("inner=1") for line in cuda.log("cuGraphAddKernelNode"))


@pytest.mark.whole
@pytest.mark.parametrize(("function", "make"), CASES, ids=[case[0].__name__ for case in CASES])
def test_bodies_read_sizes(
    cuda: FakeCuda, function: Callable[..., Any], make: Callable[[int], Arguments]
) -> None:
    kept = [make(rows) for rows in (37, 2, 33, 16, 5, 3)]
    gpu = on_fake_gpu(cuda, function, kept[0], dynamic=True)
    for inputs in [*kept, *kept]:
        same(gpu(*inputs), function(*inputs))
    assert gpu.run.counts.made == 1


@pytest.mark.parametrize(("function", "make"), CASES, ids=[case[0].__name__ for case in CASES])
def test_the_same_on_the_emulated_gpu(
    function: Callable[..., Any], make: Callable[[int], Arguments]
) -> None:
    """Also without rows and with one, and on one stream, where the host decides."""
    for enqueue in ("graph", "stream"):
        options = stretto.Options(**{**_settings(APART), "enqueue": enqueue})
        fast = stretto.compile(function, backend=CUDA, options=options, dynamic=True)
        with torch.no_grad(), spread():
            for rows in (9, 4, 11, 1, 2):
                inputs = make(rows)
                torch.testing.assert_close(fast(*inputs), function(*inputs), rtol=1e-4, atol=1e-4)


def _settings(options: stretto.Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.__slots__}
