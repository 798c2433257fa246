"""ResNeXt-29 for CIFAR (Xie et al., Aggregated Residual Transformations, section 5.3): three
stages of three blocks, 16 branches of 64 channels. The branches are written as separate chains of
convolutions and a concatenation (figure 3 b), or as grouped convolutions (figure 3 c)."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from .entry import Made, generator
from .weights import seed_weights


@dataclass(frozen=True, slots=True)
class ResNeXtConfig:
    """width: channels of one branch in the first stage; they double from stage to stage."""

    branches: int = 16
    width: int = 64
    stem: int = 64
    stages: int = 3
    blocks: int = 3
    image: int = 32
    classes: int = 10
    grouped: bool = False
    batch: int = 1

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def small(cls) -> Self:
        return cls(branches=3, width=4, stem=8, stages=2, blocks=1, image=8)


def _convolved(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1):
    padding = kernel // 2
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    def __init__(
        self, inputs: int, outputs: int, width: int, stride: int, branches: int, grouped: bool
    ) -> None:
        super().__init__()

        def chain(width: int, groups: int) -> nn.Module:
            narrow, wide = _convolved(inputs, width, 1), _convolved(width, width, 3, stride, groups)
            return nn.Sequential(narrow, nn.ReLU(), wide, nn.ReLU())

        chains = [(width * branches, branches)] if grouped else [(width, 1)] * branches
        self.chains = nn.ModuleList(chain(*sizes) for sizes in chains)
        self.joined = _convolved(width * branches, outputs, 1)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else _convolved(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.cat([chain(x) for chain in self.chains], dim=1)
        return torch.relu(self.joined(found) + self.shortcut(x))


class ResNeXt(nn.Module):
    """image [B, 3, H, W] -> logits [B, classes]."""

    def __init__(self, config: ResNeXtConfig) -> None:
        super().__init__()
        self.stem = _convolved(3, config.stem, 3)
        self.blocks = nn.ModuleList()
        inputs, width = config.stem, config.width
        for stage in range(config.stages):
            for block in range(config.blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                outputs = 4 * config.stem * 2**stage
                made = Block(inputs, outputs, width, stride, config.branches, config.grouped)
                self.blocks.append(made)
                inputs = outputs
            width *= 2
        self.fc = nn.Linear(inputs, config.classes)

    def forward(self, image: Tensor) -> Tensor:
        x = torch.relu(self.stem(image))
        for block in self.blocks:
            x = block(x)
        return self.fc(x.mean(dim=(2, 3)))


def make(config: ResNeXtConfig, seed: int = 0) -> Made:
    model = ResNeXt(config)
    seed_weights(model, seed)
    shape = (config.batch, 3, config.image, config.image)
    return model, (torch.randn(shape, generator=generator(seed + 1)),)
