"""Custom operators of `torch.library` whose result has a size that data decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same

_library = torch.library.Library("stretto_test_sized", "FRAGMENT")
_library.define("kept(Tensor scores, float least) -> Tensor")
_library.define("chosen_rows(Tensor x, Tensor scores, *, float least=0.0) -> Tensor")
_library.define("pairs(Tensor x, int[] starts) -> (Tensor, Tensor)")
_library.impl("kept", lambda s, t: (s > t).nonzero()[:, 0], "CPU")
_library.impl("chosen_rows", lambda x, s, least=0.0: x[s > least].clone(), "CPU")
_library.impl("pairs", lambda x, starts: (x[x > 0], (x > 0).nonzero()), "CPU")


def _new_size() -> Any:
    return torch.library.get_ctx().new_dynamic_size()


@torch.library.register_fake("stretto_test_sized::kept", lib=_library)
def _kept(scores: Tensor, least: float) -> Tensor:
    return scores.new_empty((_new_size(),), dtype=torch.long)


@torch.library.register_fake("stretto_test_sized::chosen_rows", lib=_library)
def _chosen_rows(x: Tensor, scores: Tensor, least: float = 0.0) -> Tensor:
    return x.new_empty((_new_size(), x.shape[1]))


@torch.library.register_fake("stretto_test_sized::pairs", lib=_library)
def _pairs(x: Tensor, starts: list[int]) -> tuple[Tensor, Tensor]:
    size = _new_size()
    return x.new_empty((size,)), x.new_empty((size, 1), dtype=torch.long)


@torch.library.custom_op("stretto_test_sized::suppressed", mutates_args=())
def suppressed(boxes: Tensor, scores: Tensor, most: float) -> Tensor:
    """Non-maximum suppression on a line."""
    order = scores.argsort(descending=True)
    kept: list[Tensor] = []
    for i in order:
        if all(abs(float(boxes[i] - boxes[j])) > most for j in kept):
            kept.append(i)
    return torch.stack(kept) if kept else order[:0].clone()


@suppressed.register_fake
def _suppressed(boxes: Tensor, scores: Tensor, most: float) -> Tensor:
    return boxes.new_empty((_new_size(),), dtype=torch.long)


OPS: Any = torch.ops.stretto_test_sized
X, S = torch.linspace(-1, 1, 12).reshape(6, 2), torch.tensor([0.3, -1, 0.9, 0.1, -2, 0.5])
CASES = ((X, S), (X * 2, -S), (X, S - 9), (X, S + 9), (X, S))


def indexed(x: Tensor, s: Tensor) -> tuple[Tensor, int]:
    kept = OPS.kept(s, 0.0)
    return x[kept] * 2, kept.numel()


def with_keyword(x: Tensor, s: Tensor) -> Tensor:
    rows = OPS.chosen_rows(x, s, least=0.2)
    return torch.softmax(rows @ x.t(), -1).sum(0) if len(rows) > 1 else rows


def nms(x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    likely = s > -1.5
    boxes, scores = x[likely][:, 0], s[likely]
    kept = suppressed(boxes, scores, 0.5)
    return boxes[kept], scores[kept][:2]


def in_a_loop(x: Tensor, s: Tensor) -> Tensor:
    total = x.sum(0)
    while (s > 0).any():
        total = total * 0.5 + OPS.chosen_rows(x, s).sum(0)
        s = s - 0.4
    return total


def in_an_arm(x: Tensor, s: Tensor) -> Tensor:
    if s.sum() > 0:
        return OPS.kept(s, 0.0).float().sum() + x
    return x


PROGRAMS: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    indexed, with_keyword, nms, in_a_loop, in_an_arm,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("backend", ["interpreter", "emulator"])
def test_each_as_eager(program: Callable[[Tensor, Tensor], Any], backend: str) -> None:
    fast = stretto.compile(program, backend=backend)
    for args in CASES:
        assert_same(fast(*args), program(*args))


def test_on_the_cpu_with_other_sizes() -> None:
    fast = stretto.compile(nms)
    for args in (*CASES, (X[:3], S[:3]), (X.repeat(2, 1), S.repeat(2)), (X[:3], S[:3])):
        assert_same(fast(*args), nms(*args))


def test_several_results_are_refused() -> None:
    def several(x: Tensor) -> Any:
        return OPS.pairs(x, [1, 2])

    with pytest.raises(stretto.CaptureError, match="depends on the content of a tensor"):
        stretto.compile(several, backend="interpreter")(S)
    fast = stretto.compile(several, backend="interpreter", fallback=True)
    assert_same(fast(S), several(S))
