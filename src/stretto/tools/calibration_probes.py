"""Programs that `stretto calibrate` times: each module is named after its parameter."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Tensors = tuple[torch.Tensor, ...]


class Repeated(nn.Module):
    """A function applied repeatedly to its own result, so that all its data is in the cache."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], trips: int) -> None:
        super().__init__()
        self.function = function
        self.trips = trips

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.trips):
            x = self.function(x)
        return x


class Rows(Repeated):
    """One row times square weights that stay in a unit's own cache, in the shared cache, or in
    neither."""

    def __init__(self, size: int, trips: int) -> None:
        super().__init__(nn.Linear(size, size, bias=False), trips)
        self.size = size


def polynomial(x: torch.Tensor) -> torch.Tensor:
    """A polynomial without loops, so that it becomes one kernel. Values remain between 0 and 1."""
    return quartic(quartic(quartic(quartic(x, x), x), x), x) * 0.5


def quartic(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (((y * x + 0.03) * x + 0.05) * x + 0.07) * x + 0.09


def functions(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.sigmoid(x))


def halved(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5


ELEMENTS = 1 << 15
"""Number of elements of the pointwise probes: their operands fit in a unit's own cache."""


class UnitProbe(nn.Module):
    """Kernels each of which depends on one parameter, run on one unit."""

    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Linear(512, 512, bias=False)
        self.wide_product = nn.Linear(256, 2048, bias=False)
        self.own = Rows(384, 16)
        self.shared = Rows(1536, 8)
        self.memory = Rows(5120, 2)
        self.elements = Repeated(polynomial, 8)
        self.functions = Repeated(functions, 8)
        self.loads = Repeated(halved, 8)
        self.factor_square = nn.Conv2d(64, 64, 3, padding=1)
        self.factor_wide = nn.Conv2d(128, 128, 3, padding=1)
        self.factor_step = nn.Conv2d(64, 128, 3, padding=1, stride=2)
        self.factor_point = nn.Conv2d(64, 256, 1)
        self.factor_first = nn.Conv2d(3, 64, 7, padding=3, stride=2)
        self.factor_depth = nn.Conv2d(64, 64, 3, padding=1, groups=64)
        self.factor_groups = nn.Conv2d(64, 64, 3, padding=1, groups=8)
        self.factor_line = nn.Conv1d(64, 64, 5, padding=2)

    def forward(self, *x: torch.Tensor) -> Tensors:
        """Compute all probes. x: the result of `inputs`."""
        rows, own, shared, memory, points, image, small, colours, line, left, right = x
        return (
            self.product(rows),
            self.wide_product(left),
            self.own(own),
            self.shared(shared),
            self.memory(memory),
            self.elements(points),
            self.functions(points),
            self.loads(points),
            self.factor_square(image),
            self.factor_wide(small),
            self.factor_step(image),
            self.factor_point(image),
            self.factor_first(colours),
            self.factor_depth(image),
            self.factor_groups(image),
            self.factor_line(line),
            left @ right.T,
            left @ right,
        )

    def inputs(self) -> Tensors:
        shapes = (
            *((256, 512), (1, 384), (1, 1536), (1, 5120), (ELEMENTS,), (1, 64, 56, 56)),
            *((1, 128, 28, 28), (1, 3, 112, 112), (1, 64, 1024), (256, 256), (256, 256)),
        )
        return tuple(torch.rand(shape) for shape in shapes)


class WaitProbe(nn.Module):
    """Products divided among several units, each of which needs the whole result of the previous
    one."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = Rows(512, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.chain(x)

    def inputs(self) -> Tensors:
        return (torch.rand(1, 512),)


def little(x: torch.Tensor) -> torch.Tensor:
    """A program in which only the launch takes time."""
    return x + 1.0


def with_library_call(x: torch.Tensor) -> torch.Tensor:
    """The same program with a small call of torch."""
    return torch.lgamma(x + 1.0)
