"""Recursive modules over trees, computed by levels, against eager."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.errors import RunError
from stretto.options import Options
from tests.e2e.machines import spread

SLOTS = 29


class Encoder(nn.Module):
    """kind: "plain", "embedding" (with a row of a table at each node, from a loop), "states" (two
    results that meet), "arms" (leaves of two kinds, and a selection)."""

    def __init__(self, kind: str, hidden: int) -> None:
        super().__init__()
        self.kind = kind
        self.joined = nn.Linear(2 * hidden, hidden)
        self.gate = nn.Linear(hidden, hidden)
        self.words = nn.Embedding(10, hidden)

    def encode(
        self, node: Tensor, rows: Tensor, left: Tensor, right: Tensor, words: Tensor
    ) -> tuple[Tensor, Tensor]:
        if left[node] < 0:
            if self.kind == "arms" and words[node] > 5:
                return torch.tanh(rows[node]), rows[node] * 2
            return rows[node], torch.sigmoid(rows[node])
        first, one = self.encode(left[node], rows, left, right, words)
        second, other = self.encode(right[node], rows, left, right, words)
        h = torch.tanh(self.joined(torch.cat([first, second])))
        if self.kind == "embedding":
            h = h + self.words(words[node])
        if self.kind == "states":
            h, one = h * torch.sigmoid(self.gate(one)), torch.softmax(other, 0)
        if self.kind == "arms":
            h = torch.where(words[node] > 3, h, second)
        return h, one * other + h

    def forward(
        self, rows: Tensor, left: Tensor, right: Tensor, words: Tensor, root: Tensor
    ) -> tuple[Tensor, Tensor]:
        h, state = self.encode(root, rows, left, right, words)
        if self.kind == "embedding":
            for step in range(3):
                if rows[0].sum() * step > -step:
                    h = h * 0.5 + self.encode(root, rows * step, left, right, words)[0]
        return h + 1, state


def arguments(leaves: int, seed: int, hidden: int) -> tuple[Tensor, ...]:
    """A random tree, or a chain for seed 0; children come before their parent."""
    draw = random.Random(seed)
    left, right, roots = [-1] * leaves, [0] * leaves, list(range(leaves))
    while len(roots) > 1:
        for children in (left, right):
            children.append(roots.pop(draw.randrange(len(roots)) if seed else -1))
        roots.append(len(left) - 1)
    source = torch.Generator().manual_seed(seed)
    tables = (torch.tensor(item + [0] * (SLOTS - len(item))) for item in (left, right))
    words = torch.randint(10, (SLOTS,), generator=source)
    rows = torch.randn(SLOTS, hidden, generator=source)
    return rows, *tables, words, torch.tensor(len(left) - 1)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("kind", "backend", "units"),
    [
        ("plain", "cpu", 1),
        ("embedding", "cpu", 2),
        ("states", "cpu", 3),
        ("arms", "cpu", 2),
        ("arms", "emulator", 3),
    ],
)
def test_trees_of_all_shapes(kind: str, backend: str, units: int) -> None:
    torch.manual_seed(0)
    model = Encoder(kind, 16 if backend == "cpu" else 4).eval()
    hidden = model.gate.in_features
    with torch.no_grad(), spread():
        compiled = stretto.compile(model, backend=backend, options=Options(threads=units))
        for leaves, seed in ((1, 0), (2, 0), (7, 0), (7, 1), (13, 2)):
            given = arguments(leaves, seed, hidden)
            torch.testing.assert_close(compiled(*given), model(*given), rtol=1e-5, atol=1e-5)
        (entry,) = compiled.signatures
        assert "encode_walk" in entry.stages.program.functions
        rows, left, right, words, root = arguments(7, 1, hidden)
        right[root] = 99
        with pytest.raises(IndexError, match="index 99 is out of bounds for dimension 0"):
            compiled(rows.abs(), left, right, words, root)


@pytest.mark.whole
def test_a_recursion_without_end_is_stopped() -> None:
    model = Encoder("plain", 4).eval()
    options = Options(threads=1, max_depth=200)
    with torch.no_grad(), spread():
        compiled = stretto.compile(model, backend="cpu", options=options)
        rows, left, right, words, root = arguments(7, 1, 4)
        with pytest.raises(RunError, match="recursion is deeper than 200 calls"):
            compiled(rows, torch.zeros_like(left), right, words, root)
        given = arguments(5, 1, 4)
        torch.testing.assert_close(compiled(*given), model(*given), rtol=1e-5, atol=1e-5)
