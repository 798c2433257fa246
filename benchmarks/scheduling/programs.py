"""Programs that the ablations compare: one for each pass or policy under test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models import ZOO
from benchmarks.models.groups import GROUPS

Program = tuple[Callable[..., Any], tuple[Tensor, ...]]
Programs = Mapping[str, Callable[[], Program]]


class Tagger(nn.Module):
    """A product and a sum before a recurrence of products, and another product after it."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.state, self.behind = (nn.Linear(128, 128) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h, total = torch.zeros_like(x[0]), torch.zeros_like(x[0])
        for row in x:
            h = torch.tanh(self.state(h) + self.before(row + total * 0.0).cumsum(0))
            total = total + torch.sigmoid(self.behind(h))
        return total


def fixed_point(x: Tensor, w: Tensor) -> Tensor:
    """Repeat a step until nothing changes."""
    before = x + 1
    while (x - before).abs().max() > 1e-4:
        before = x
        x = torch.tanh(x @ w) * 0.99
    return x


def samples(image: Tensor, grid: Tensor) -> Tensor:
    """Sample images one by one, although all could be sampled at once."""
    parts = [
        nn.functional.grid_sample(image[t], grid[t], align_corners=True)
        for t in range(image.shape[0])
    ]
    return torch.stack(parts)


def converging(x: Tensor, w: Tensor) -> Tensor:
    """Iterate each row by itself until it is small enough; rows take different numbers of steps."""
    rows: list[Tensor] = []
    for t in range(x.shape[0]):
        row = x[t]
        while row.norm() > 0.5:
            row = torch.tanh(row @ w) * 0.9
        rows.append(row)
    return torch.stack(rows)


class Forest(nn.Module):
    """Encode trees one by one, each by recursion over arrays, in which a node without children has
    -1."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(128, 64)

    def encode(self, n: Tensor, x: Tensor, left: Tensor, right: Tensor) -> Tensor:
        child = left[n]
        if child < 0:
            return x[n]
        first = self.encode(child, x, left, right)
        second = self.encode(right[n], x, left, right)
        return torch.tanh(self.cell(torch.cat([first, second])))

    def forward(self, roots: Tensor, x: Tensor, left: Tensor, right: Tensor) -> Tensor:
        trees: list[Tensor] = []
        for t in range(roots.shape[0]):
            trees.append(self.encode(roots[t], x, left, right))
        return torch.stack(trees)


class Adapters(nn.Module):
    """Eight layers; each adds an adapter if the call's flag is set."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
        self.adapters = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))

    def forward(self, x: Tensor, adapted: Tensor) -> Tensor:
        for layer, adapter in zip(self.layers, self.adapters, strict=True):
            y = torch.tanh(layer(x))
            if adapted:
                y = y + adapter(x)
            x = y
        return x


class Clipped(nn.Module):
    """A recurrence of 64 steps that halves a state whose sum is large."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[0])
        for row in x:
            h = h + torch.tanh(self.step(h) + row)
            if h.sum() > 4:
                h = h * 0.5
        return h


class Gated(nn.Module):
    """Negate rows whose sum is positive, one by one, before they are projected."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        rows: list[Tensor] = []
        for row in x:
            if row.sum() > 0:
                row = -row
            rows.append(torch.tanh(self.map(row)))
        return torch.stack(rows)


class Projected(nn.Module):
    """A branch both of whose arms project the input and their result by the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(256, 256), nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            if x.sum() > 0:
                x = self.last(torch.relu(self.first(x)))
            else:
                x = self.last(torch.sigmoid(self.first(x)))
        return x


class Decided(nn.Module):
    """A chain of small products decides whether six other products are wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = nn.ModuleList(nn.Linear(64, 64) for _ in range(96))
        self.work = nn.ModuleList(nn.Linear(96, 96) for _ in range(6))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.chain:
            x = torch.tanh(layer(x))
        if x.sum() < 1e9:
            for layer in self.work:
                y = torch.relu(layer(y))
        return y


def summed(x: Tensor, left: Tensor, right: Tensor, n: Tensor) -> Tensor:
    """The sum of the leaves of a tree; nodes whose left child is negative are leaves."""
    child = left[n]
    if child < 0:
        return x[n]
    return summed(x, left, right, child) + summed(x, left, right, right[n])


def tree(leaves: int) -> tuple[Tensor, ...]:
    """Return the node numbers of a complete binary tree, their children, and its root."""
    nodes = torch.arange(2 * leaves - 1)
    inner = nodes >= leaves  # inner node n has the children 2 (n - leaves) and 2 (n - leaves) + 1
    left = torch.where(inner, 2 * (nodes - leaves), -1)
    return torch.randn(len(nodes)), left, left + 1, nodes[-1]


def forest(leaves: int) -> Program:
    """Eight sub-trees of a complete binary tree."""
    torch.manual_seed(0)
    _, left, right, root = tree(leaves)
    roots = root
    for _ in range(3):
        roots = torch.stack([left[roots], right[roots]], -1)
    return Forest().eval(), (roots.reshape(8), torch.randn(2 * leaves - 1, 64), left, right)


def small(make: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Callable[[], Program]:
    """Return a model with inputs of these shapes; a shape without dims is a flag that is set."""

    def made() -> Program:
        torch.manual_seed(0)
        inputs = tuple(torch.randn(shape) if shape else torch.tensor(True) for shape in shapes)
        return make().eval(), inputs

    return made


def zoo(name: str, preset: str = "full") -> Callable[[], Program]:
    """A model of the zoo."""
    entry = {**ZOO, **GROUPS["static"]}[name]

    def made() -> Program:
        model, inputs = entry.make(entry.presets[preset], 0)
        return model.eval(), inputs

    return made


LOOPS: Programs = {
    "lstm": zoo("lstm"),
    "bilstm": small(lambda: nn.LSTM(128, 128, bidirectional=True), (64, 1, 128)),
    "gru": small(lambda: nn.GRU(32, 32, num_layers=6), (64, 1, 32)),
    "tagger": small(Tagger, (64, 128)),
    "fixed point": lambda: (fixed_point, (torch.randn(16, 64), torch.randn(64, 64) / 9)),
    "converging": lambda: (converging, (torch.randn(64, 96) * 3, torch.randn(96, 96) / 11)),
    "forest": lambda: forest(160),
    "samples": lambda: (samples, (torch.randn(32, 1, 8, 8, 8), torch.rand(32, 1, 8, 8, 2))),
}

BRANCHES: Programs = {
    "adapters": small(Adapters, (16, 64), ()),
    "clipped": small(Clipped, (64, 64)),
    "gated": small(Gated, (64, 64)),
    "projected": small(Projected, (16, 256)),
    "decided": small(Decided, (64,), (32, 96)),
    "rae": zoo("rae"),
    "summed": lambda: (summed, tree(500)),
    "blockdrop": zoo("blockdrop"),
}

KERNELS: Programs = {
    **{name: zoo(name) for name in ("attention", "seq2seq", "rae", "blockdrop", "nasrnn")},
    "nasbench": zoo("nasbench"),
    "wide": zoo("wide", "small"),
}
