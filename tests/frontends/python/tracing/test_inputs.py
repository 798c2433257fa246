"""Inputs of all kinds: layouts, sizes, dtypes, grad modes, threads."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from stretto.frontends.python import capture
from stretto.options import Options
from tests.frontends.python.checks import assert_same, check, run_captured


def f(x: Tensor) -> Tensor:
    for row in x:
        if row.sum() > 0:
            x = x + row.mean().to(x.dtype)
    return x * 2


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4, 6)[::2, 1:4],
        torch.randn(3, 5).t(),
        torch.randn(1, 4).expand(5, 4),
        torch.zeros(0, 3),
        torch.zeros(3, 0),
        torch.full((3, 2), float("nan")),
        torch.full((3, 2), float("inf")),
    ],
)
def test_layouts_and_sizes(x: Tensor) -> None:
    check(f, (x,))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
    ],
)
def test_dtypes(dtype: torch.dtype) -> None:
    def g(x: Tensor) -> Tensor:
        y = x.to(torch.float32).relu()
        return (y + 1).to(dtype) if y.sum() > 1 else x

    check(g, (torch.tensor([0, 1, 3]).to(dtype),), (torch.tensor([0, 0, 0]).to(dtype),))


def test_inputs_that_require_grad_and_inference_mode() -> None:
    model = nn.Linear(3, 3)
    x = torch.randn(4, 3, requires_grad=True)
    captured = capture(model, (x,), {}, Options())
    assert_same(run_captured(captured, (x,), {}).detach(), model(x).detach())
    with torch.inference_mode():
        captured = capture(model, (torch.randn(4, 3),), {}, Options())
        assert_same(run_captured(captured, (x,), {}), model(x))


def test_same_tensor_twice() -> None:
    def g(x: Tensor, y: Tensor) -> Tensor:
        return x + y * 2

    x = torch.randn(3)
    captured = check(g, (x, x))
    assert len(captured.inputs) == 2


def test_threads_capture_side_by_side() -> None:
    outcomes = list[object]()

    def work() -> None:
        x = torch.randn(5, 3)
        captured = capture(f, (x,), {}, Options())
        outcomes.append(torch.equal(run_captured(captured, (x,), {}), f(x)))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 3
