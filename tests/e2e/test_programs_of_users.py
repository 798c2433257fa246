"""Small programs as users write them, whose sizes differ from call to call or are decided by data,
on the CPU machine. Each is compared with eager PyTorch for several sizes, 0 and 1 among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from tests.frontends.python.checks import assert_same
from tests.sampling import sampled


def power_iteration(a: Tensor) -> Any:
    v = torch.ones(a.shape[0]) / max(a.shape[0], 1) ** 0.5
    eigenvalue = torch.zeros(())
    step = 0
    for step in range(50):  # noqa: B007
        w = a @ v
        new = v @ w
        v = w / (w.norm() + 1e-9)
        if (new - eigenvalue).abs() < 1e-3:
            break
        eigenvalue = new
    return eigenvalue, v, step


class TwoOfFour(nn.Module):
    """The two best of four experts for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slots = (chosen == number).nonzero(as_tuple=True)
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, slots, None])
        return out


def masked(x: Tensor, m: Tensor) -> Any:
    x = x.clone()
    x[m] = 0
    y = x[~m]
    y += 1
    x[~m] = y * 2
    return x, m.sum().item(), y.shape[0]


def viterbi(emissions: Tensor, transitions: Tensor) -> Any:
    score, back = emissions[0], []
    for emission in emissions[1:]:
        best, place = (score[:, None] + transitions).max(0)
        back.append(place)
        score = best + emission
    tag = score.argmax()
    path = [tag]
    for places in reversed(back):
        tag = places[tag]
        path.append(tag)
    return torch.stack(path[::-1]), score.max()


def clusters(x: Tensor, k: int) -> Any:
    centres = x[:k]
    for _ in range(5):
        nearest = torch.cdist(x, centres).argmin(1)
        new = torch.stack(
            [x[nearest == j].mean(0) if (nearest == j).any() else centres[j] for j in range(k)]
        )
        if torch.allclose(new, centres):
            break
        centres = new
    return centres, nearest


def top_p(logits: Tensor, p: float) -> Tensor:
    shares, order = logits.softmax(-1).sort(descending=True)
    n = int(((shares.cumsum(-1) - shares) < p).sum())
    return order[:n][torch.multinomial(shares[:n] / shares[:n].sum(), 1)]


def runs(x: Tensor) -> Any:
    """How long each run of equal signs is, and where it begins."""
    signs = x > 0
    begins = torch.cat([torch.ones(1, dtype=torch.bool), signs[1:] != signs[:-1]])
    places = begins.nonzero().squeeze(1)
    return places, torch.diff(places, append=torch.full((1,), x.shape[0]))


def smoothed(x: Tensor) -> Tensor:
    while (x[2:] - 2 * x[1:-1] + x[:-2]).abs().sum() > 1.0:
        x = torch.cat([x[:1], (x[2:] + x[:-2]) / 2, x[-1:]])
    return x


def diffusion(n: int) -> Tensor:
    x = torch.randn(n, 3, generator=None)
    for t in reversed(range(9)):
        x = x * 0.9
        if t > 0:
            x = x + 0.1 * torch.randn(x.shape)
    return x


def sizes(*every: int) -> list[tuple[Tensor]]:
    return [(torch.randn(size),) for size in every]


def made(name: str) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    """A program, and its calls."""
    torch.manual_seed(0)
    match name:
        case "power_iteration":
            matrices = [torch.rand(n, n) for n in (5, 8, 1, 0, 12)]
            return power_iteration, [(a @ a.T,) for a in matrices]
        case "two_of_four":
            return TwoOfFour().eval(), [(torch.randn(n, 8),) for n in (5, 9, 1, 0, 20)]
        case "masked":
            return masked, [(torch.randn(n, 3), torch.rand(n) > 0.5) for n in (5, 6, 1, 0, 30)]
        case "viterbi":
            return viterbi, [(torch.randn(n, 4), torch.randn(4, 4)) for n in (5, 8, 1, 2, 20)]
        case "clusters":
            return clusters, [(torch.randn(n, 2), k) for n, k in ((10, 3), (15, 3), (7, 3))]
        case "top_p":
            return top_p, [(x, p) for (x,), p in zip(sizes(9, 20, 1), (0.9, 0.5, 0.5), strict=True)]
        case "runs":
            return runs, sizes(9, 12, 1, 30)
        case "smoothed":
            return smoothed, sizes(9, 12, 3, 30)
        case _:
            return diffusion, [(4,), (7,), (1,), (0,)]


NAMES = (
    *("power_iteration", "two_of_four", "masked", "viterbi", "clusters", "top_p", "runs"),
    *("smoothed", "diffusion"),
)


@pytest.mark.parametrize("name", sampled(NAMES, ("masked", "runs", "smoothed", "diffusion")))
def test_program(name: str) -> None:
    function, calls = made(name)
    fast = stretto.compile(function)
    with torch.no_grad():
        for args in calls:
            torch.manual_seed(1)
            wanted = function(*args)
            torch.manual_seed(1)
            assert_same(fast(*args), wanted)
    assert len(fast.signatures) <= 3, fast.explain()
