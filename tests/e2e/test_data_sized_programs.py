"""Programs that are ordinary once data may decide sizes: routing, decoding, pruning and so on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto

D, H = 16, 24


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(D, 8)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(D, H), nn.ReLU(), nn.Linear(H, D)) for _ in range(8)
        )

    def forward(self, x: Tensor) -> Tensor:
        choice = self.gate(x).argmax(1)
        out = torch.zeros_like(x)
        for e in range(8):
            idx = (choice == e).nonzero().squeeze(1)
            out.index_add_(0, idx, self.experts[e](x[idx]))
        return out


def ctc(logits: Tensor) -> Tensor:
    """The best class of each step, without repetitions and blanks."""
    best = logits.argmax(1)
    u = torch.unique_consecutive(best)
    return u[u != 0]


class Speculative(nn.Module):
    """Accepts the longest prefix of a draft that the target model would have chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(32, 16)
        self.draft = nn.Linear(16, 32)
        self.rnn = nn.Linear(32, 16)
        self.out = nn.Linear(16, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        out = tokens.new_zeros(64)
        out[0] = tokens
        n = 1
        while n < 40:
            t = out[n - 1]
            drafts = []
            for _ in range(4):
                t = self.draft(self.emb(t)).argmax(0)
                drafts.append(t)
            d = torch.stack(drafts)
            seq = torch.cat([out[n - 1 : n].reshape(1), d])
            e = self.emb(seq)
            want = self.out(torch.tanh(self.rnn(torch.cat([e, e.cumsum(0)], 1)))).argmax(1)
            ok = int((want[:-1] == d).long().cumprod(0).sum())
            out[n : n + ok] = d[:ok]
            out[n + ok] = want[ok]
            n = n + ok + 1
        return out[:40]


def suppressed(boxes: Tensor, scores: Tensor) -> Tensor:
    """Non-maximum suppression: the positions of the boxes that are kept."""
    order = scores.argsort(descending=True, stable=True)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    kept = []
    while order.numel() > 0:
        i = order[0]
        kept.append(i)
        rest = order[1:]
        b = boxes[rest]
        a = boxes[i]
        w = (torch.minimum(a[2], b[:, 2]) - torch.maximum(a[0], b[:, 0])).clamp(min=0)
        h = (torch.minimum(a[3], b[:, 3]) - torch.maximum(a[1], b[:, 1])).clamp(min=0)
        inter = w * h
        order = rest[inter / (area[i] + area[rest] - inter) <= 0.5]
    return torch.stack(kept)


def beams(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Of all continuations, those whose score is near the best."""
    scores = torch.zeros(1)
    h = x.reshape(1, -1)
    for _ in range(5):
        h = torch.tanh(h @ w)
        logp = torch.log_softmax(h, 1)
        cand = (scores[:, None] + logp).reshape(-1)
        keep = (cand > cand.amax() - 1.0).nonzero().squeeze(1)
        scores = cand[keep]
        h = h[keep // 16]
    return scores, h


def made(name: str) -> tuple[Callable[..., Any], list[tuple[Tensor, ...]]]:
    """A program, and several inputs for it."""
    torch.manual_seed(0)
    corners = torch.rand(3, 12, 2)
    boxes = torch.cat([corners, corners + torch.rand(3, 12, 2)], 2)
    match name:
        case "experts":
            return Experts(), [(torch.randn(64, D) * 3,), (torch.zeros(64, D),)]
        case "ctc":
            few = torch.randn(40, 3)
            return ctc, [(few,), (few.sort(1)[0],), (torch.randn(40, 9),)]
        case "speculative":
            return Speculative(), [(torch.tensor(n),) for n in (0, 3, 17)]
        case "suppressed":
            return suppressed, [(one, torch.rand(12)) for one in boxes]
        case _:
            return beams, [(torch.randn(16), torch.randn(16, 16) * 0.3) for _ in range(3)]


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((n, "interpreter") for n in ("experts", "ctc", "speculative", "suppressed", "beams")),
        ("ctc", "emulator"),
        ("suppressed", "emulator"),
        ("ctc", "cpu"),
        ("suppressed", "cpu"),
        *(
            pytest.param(n, "cpu", marks=pytest.mark.whole)
            for n in ("experts", "speculative", "beams")
        ),
    ],
)
def test_program(name: str, backend: str) -> None:
    function, inputs = made(name)
    compiled = stretto.compile(function, backend=backend)
    with torch.no_grad():
        for arguments in inputs:
            found, expected = compiled(*arguments), function(*arguments)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
