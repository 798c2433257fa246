"""Blocks of every kind for numbers of rows at which kernels take other ways, on several units.

Products are packed, read as they lie, or made of dot products; wide enough that units share their
columns where there are few rows, and with more rows than a unit takes at once.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import stretto
from stretto.errors import CaptureError
from stretto.options import Options
from tests.batching.test_frontend import same
from tests.sampling import sampled

ROWS = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 33, 255)
KINDS = (
    "linear", "odd linear", "deep", "matrix", "matrices", "scores", "lstm", "norm", "softmax",
    "sum", "largest", "mean of squares", "pointwise", "lookup", "select", "concatenation",
)  # fmt: skip
DIM = 48


class Model(nn.Module):
    """One block for each kind of operator."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(DIM, 320)
        self.odd = nn.Linear(DIM, 37)
        self.down = nn.Linear(8 * DIM, DIM)
        self.cell = nn.LSTMCell(DIM, DIM)
        self.norm = nn.LayerNorm(DIM)
        self.words = nn.Embedding(11, DIM)

    def forward(self, kind: str, x: Any, m: Any, word: int) -> Any:
        if kind == "linear":
            return torch.tanh(self.wide(x))
        if kind == "odd linear":
            return self.odd(x)
        if kind == "deep":
            return self.down(torch.cat([m.reshape(-1), x * 2, x * 3, x * 4]))
        if kind == "matrix":
            return m @ x
        if kind == "matrices":
            return m @ m.mT
        if kind == "scores":
            return self.wide.weight @ x
        if kind == "lstm":
            h, c = self.cell(x, (x * 0.5, m[0]))
            return h + c
        if kind == "norm":
            return self.norm(x)
        if kind == "softmax":
            return F.softmax(m, dim=-1)
        if kind == "sum":
            return m.sum(0)
        if kind == "largest":
            return m.max(1).values
        if kind == "mean of squares":
            return (x * x).mean()
        if kind == "pointwise":
            return torch.sigmoid(x) * torch.tanh(m) + x
        if kind == "lookup":
            return self.words.weight[word] + x
        if kind == "select":
            return torch.where(x > 0, x, m[1])
        return torch.cat([x, m[2], self.words.weight[word]])


def instances(rows: int, rng: random.Random) -> list[tuple[Any, ...]]:
    """`rows` instances of each kind, in any order."""
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    found = [
        (
            kind,
            torch.randn(DIM, generator=generator),
            torch.randn(5, DIM, generator=generator),
            rng.randrange(11),
        )
        for kind in KINDS
        for _ in range(rows)
    ]
    rng.shuffle(found)
    return found


@pytest.mark.whole
@pytest.mark.parametrize("units", sampled((1, 2, 4), (2,)))
def test_every_number_of_rows(units: int) -> None:
    torch.manual_seed(0)
    model = Model().eval()
    exact = Model().double().eval()
    exact.load_state_dict(model.state_dict())
    many = stretto.batch(model, options=Options(threads=units))
    rng = random.Random(units)
    assert many([], [], [], []) == []
    for rows in (3, *ROWS):
        given = instances(rows, rng)
        found = many(*zip(*given, strict=True))
        with torch.no_grad():
            for (kind, x, m, word), result in zip(given, found, strict=True):
                expected = exact(kind, x.double(), m.double(), word).float()
                torch.testing.assert_close(
                    result,
                    expected,
                    rtol=1e-4,
                    atol=1e-5,
                    msg=lambda text, k=kind, n=rows: f"{k}, {n} rows: {text}",
                )


@pytest.mark.whole
def test_attributes_are_those_of_a_tensor() -> None:
    def function(x: torch.Tensor) -> Any:
        sign = -1 if x.requires_grad or x.is_cuda or x.grad is not None else 1
        return x.data * sign, x.ndim, x.real * 2, x.dtype == torch.float32, str(x.device)

    for shapes in ((3, 1, 5, 0), (2, 2)):
        items = [torch.rand(n) for n in shapes]
        with torch.no_grad():
            assert same([function(item) for item in items], stretto.batch(function)(items))
        with pytest.raises(CaptureError, match="attribute is_leaf of a tensor"):
            stretto.batch(lambda x: x if x.is_leaf else -x)(items)
