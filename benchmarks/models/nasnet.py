"""NASNet-A (Zoph et al., Learning Transferable Architectures, figures 2 and 4).

Its cells have five pairs of operators that mostly do not depend on each other.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .entry import Made, generator
from .weights import seed_weights


@dataclass(frozen=True, slots=True)
class NASNetConfig:
    """filters: of the first normal cells; repeats: normal cells between two reductions. mobile:
    use ImageNet's stem, with a step of 2 and two reduction cells, instead of CIFAR's."""

    filters: int = 32
    repeats: int = 6
    stem: int = 96
    image: int = 32
    classes: int = 10
    mobile: bool = False
    batch: int = 1

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def mobile_size(cls) -> Self:
        return cls(filters=44, repeats=4, stem=32, image=224, classes=1000, mobile=True)

    @classmethod
    def small(cls) -> Self:
        return cls(filters=4, repeats=1, stem=6, image=8)

    @classmethod
    def small_mobile(cls) -> Self:
        return cls(filters=4, repeats=1, stem=4, image=35, mobile=True)


class Separable(nn.Sequential):
    """Twice relu, depthwise and pointwise convolution and batch norm; the first has the stride."""

    def __init__(self, channels: int, kernel: int, stride: int = 1) -> None:
        layers = list[nn.Module]()
        for step in (stride, 1):
            layers += [
                nn.ReLU(),
                nn.Conv2d(
                    channels, channels, kernel, step, kernel // 2, groups=channels, bias=False
                ),
                nn.Conv2d(channels, channels, 1, bias=False),
                nn.BatchNorm2d(channels),
            ]
        super().__init__(*layers)


class Halved(nn.Module):
    """Halve the size without dropping every other pixel: two shifted grids, each with a
    convolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.even = nn.Conv2d(inputs, outputs // 2, 1, 2, bias=False)
        self.odd = nn.Conv2d(inputs, outputs - outputs // 2, 1, 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(x)
        shifted = F.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:]
        return self.bn(torch.cat([self.even(x), self.odd(shifted)], dim=1))


def _pointwise(inputs: int, outputs: int) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, 1, bias=False)
    return nn.Sequential(nn.ReLU(), conv, nn.BatchNorm2d(outputs))


class Cell(nn.Module):
    """(previous, current) -> next. `halves`: the previous one has twice the current one's size."""

    outputs: int

    def __init__(self, previous: int, current: int, filters: int, halves: bool) -> None:
        super().__init__()
        self.squeeze = _pointwise(current, filters)
        self.adjust = Halved(previous, filters) if halves else _pointwise(previous, filters)


def _mean(x: Tensor, stride: int = 1) -> Tensor:
    return F.avg_pool2d(x, 3, stride, 1, count_include_pad=False)


class Normal(Cell):
    def __init__(self, previous: int, current: int, filters: int, halves: bool) -> None:
        super().__init__(previous, current, filters, halves)
        self.outputs = 6 * filters
        self.a5, self.c5 = Separable(filters, 5), Separable(filters, 5)
        self.b3, self.d3, self.e3 = (Separable(filters, 3) for _ in range(3))

    def forward(self, previous: Tensor, current: Tensor) -> Tensor:
        left, right = self.adjust(previous), self.squeeze(current)
        found = [
            left,
            self.a5(right) + self.b3(left),
            self.c5(left) + self.d3(left),
            _mean(right) + left,
            _mean(left) + _mean(left),
            self.e3(right) + right,
        ]
        return torch.cat(found, dim=1)


class Reduction(Cell):
    def __init__(self, previous: int, current: int, filters: int, halves: bool) -> None:
        super().__init__(previous, current, filters, halves)
        self.outputs = 4 * filters
        self.a5, self.b7 = Separable(filters, 5, 2), Separable(filters, 7, 2)
        self.c7, self.d5 = Separable(filters, 7, 2), Separable(filters, 5, 2)
        self.e3 = Separable(filters, 3)

    def forward(self, previous: Tensor, current: Tensor) -> Tensor:
        left, right = self.adjust(previous), self.squeeze(current)
        first = self.a5(right) + self.b7(left)
        largest = F.max_pool2d(right, 3, 2, 1)
        second = largest + self.c7(left)
        third = _mean(right, 2) + self.d5(left)
        return torch.cat([second, third, _mean(first) + second, self.e3(first) + largest], dim=1)


class NASNet(nn.Module):
    """image [B, 3, H, W] -> logits [B, classes]."""

    def __init__(self, config: NASNetConfig) -> None:
        super().__init__()
        stride, padding = (2, 0) if config.mobile else (1, 1)
        conv = nn.Conv2d(3, config.stem, 3, stride, padding, bias=False)
        self.stem = nn.Sequential(conv, nn.BatchNorm2d(config.stem))
        plan = [(Reduction, config.filters // 4), (Reduction, config.filters // 2)]
        plan = plan if config.mobile else []
        for stage in range(3):
            filters = config.filters * 2**stage
            plan += [(Reduction, filters)] if stage else []
            plan += [(Normal, filters)] * config.repeats
        self.cells = nn.ModuleList()
        previous = current = config.stem
        halves = False
        for kind, filters in plan:
            cell = kind(previous, current, filters, halves)
            self.cells.append(cell)
            previous, current, halves = current, cell.outputs, kind is Reduction
        self.fc = nn.Linear(current, config.classes)

    def forward(self, image: Tensor) -> Tensor:
        previous = current = self.stem(image)
        for cell in self.cells:
            previous, current = current, cell(previous, current)
        return self.fc(torch.relu(current).mean(dim=(2, 3)))


def make(config: NASNetConfig, seed: int = 0) -> Made:
    model = NASNet(config)
    seed_weights(model, seed)
    shape = (config.batch, 3, config.image, config.image)
    return model, (torch.randn(shape, generator=generator(seed + 1)),)
