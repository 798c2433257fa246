"""Operands that lie across the result are transposed block by block."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import stretto
from stretto.machines.cpu.template import MOST
from stretto.options import Debug, Options
from tests.sampling import every

SHAPES = (
    (128, 32, 32),
    (64, 33, 17),
    (7, 9, 100),
    (20, 1, 8),
    (3, 16, 65),
    (1, 70, 70),
    (8, 0, 9),
    (11, 14, 7),
    (5, 4, 6),
)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8)


def turned(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two operands that lie across their result, of which one is also read as it lies."""
    last = x.permute(1, 2, 0).contiguous()
    return last * 2, x.permute(2, 0, 1) + x.permute(2, 0, 1).flip(0).contiguous()


def text_of(function: Callable[..., object], folder: Path, *inputs: Tensor) -> str:
    stretto.compile(function, inputs, options=Options(threads=2, debug=Debug(dump_dir=folder)))
    return next(folder.rglob("*.cpp")).read_text()


@pytest.mark.parametrize("dtype", every(2, DTYPES), ids=str)
def test_as_eager(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    compiled = stretto.compile(turned, options=Options(threads=2))
    for shape in SHAPES[:: 1 if dtype is torch.float32 else 3]:
        x = (torch.randn(shape) * 20).to(dtype)
        for found, expected in zip(compiled(x), turned(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_sizes_that_a_call_decides() -> None:
    compiled = stretto.compile(turned, dynamic=True, options=Options(threads=2))
    for shape in ((40, 20, 33), (17, 5, 64), (65, 31, 30), (16, 128, 3)):
        x = torch.randn(shape)
        for found, expected in zip(compiled(x), turned(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_what_an_arm_reads_stays_where_it_is(tmp_path: Path) -> None:
    """Padding reads beyond the tensor nowhere: only in the arm that is taken."""

    def padded(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x.t(), (3, 5, 2, 40)).contiguous() + 1

    x = torch.randn(33, 50)
    compiled = stretto.compile(padded, options=Options(threads=2))
    torch.testing.assert_close(compiled(x), padded(x))
    assert "stretto::transpose" not in text_of(padded, tmp_path, x)


def test_blocks_are_transposed_where_that_pays(tmp_path: Path) -> None:
    x = torch.randn(24, 48)
    assert "stretto::transpose" in text_of(lambda x: x.t().exp(), tmp_path / "turned", x)
    assert "stretto::transpose" not in text_of(lambda x: x.exp(), tmp_path / "as it lies", x)
    assert "stretto::transpose" not in text_of(lambda x: x[:, :3].t().exp(), tmp_path / "small", x)


def test_of_many_operands_some_are_read_where_they_lie(tmp_path: Path) -> None:
    """Each transposed block takes some of the stack."""

    def combined(*xs: Tensor) -> Tensor:
        total = xs[0].t().contiguous()
        for number, x in enumerate(xs[1:]):
            total = total + x.t() * (number + 2)
        return total

    torch.manual_seed(0)
    xs = [torch.randn(40, 70) for _ in range(7)]
    compiled = stretto.compile(combined, options=Options(threads=2))
    torch.testing.assert_close(compiled(*xs), combined(*xs))
    text = text_of(combined, tmp_path, *xs)
    assert 0 < text.count("stretto::transpose") <= MOST
