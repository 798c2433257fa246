"""BlockDrop: a ResNet for 32 x 32 images that skips the residual blocks rated below 1/2 by a
policy.

`BlockDrop` takes the policy's probabilities as an input; `BlockDropPolicy` computes them
from the image with a small convolutional network, then runs the same ResNet.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from .entry import FLOAT_BYTES, Made, Phase, generator
from .weights import seed_weights


@dataclass(frozen=True, slots=True)
class BlockDropConfig:
    """`kept` is the number of blocks to run, spread evenly; None is the pattern 0, 1, 0, 1, ..."""

    blocks: tuple[int, ...] = (5, 5, 5)
    channels: tuple[int, ...] = (16, 32, 64)
    image: int = 32
    classes: int = 10
    kept: int | None = None
    batch: int = 1

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def small(cls) -> Self:
        return cls(blocks=(1, 2, 1), channels=(2, 4, 8), image=8, classes=4)

    @classmethod
    def at_rate(cls, percent: int) -> Self:
        """Return the full size with `percent` of the blocks run."""
        return cls(kept=round(sum(cls().blocks) * percent / 100))


class Shortcut(nn.Module):
    """The path beside a block: identity, or half the size and zeros as the new channels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.shrink = inputs != outputs
        self.pool = nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        if self.shrink:
            x = self.pool(x)
            x = torch.cat([x, torch.zeros_like(x)], dim=1)
        return x


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with batch norms; the caller adds the shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = Shortcut(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.bn2(self.conv2(x))


class BlockDrop(nn.Module):
    """(image [B, 3, S, S], keep [blocks] probabilities) -> logits [B, classes]."""

    def __init__(self, config: BlockDropConfig) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, config.channels[0], 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(config.channels[0])
        self.blocks = nn.ModuleList()
        inputs = config.channels[0]
        for count, outputs in zip(config.blocks, config.channels, strict=True):
            for _ in range(count):
                self.blocks.append(BasicBlock(inputs, outputs))
                inputs = outputs
        self.fc = nn.Linear(inputs, config.classes)

    def forward(self, image: Tensor, keep: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.conv(image)))
        for i, block in enumerate(self.blocks):
            identity = block.shortcut(x)
            if keep[i] >= 0.5:
                x = torch.relu(identity + block(x))
            else:
                x = identity
        return self.fc(x.mean(dim=(2, 3)))


class BlockDropPolicy(nn.Module):
    """image [B, 3, S, S] -> logits [B, classes]; a batch shares one decision per block."""

    def __init__(self, config: BlockDropConfig) -> None:
        super().__init__()
        width = config.channels[-1]
        self.conv1 = nn.Conv2d(3, width // 2, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(width // 2, width, 3, stride=2, padding=1)
        self.fc = nn.Linear(width, sum(config.blocks))
        self.resnet = BlockDrop(config)

    def policy(self, image: Tensor) -> Tensor:
        x = torch.relu(self.conv1(image))
        x = torch.relu(self.conv2(x))
        return torch.sigmoid(self.fc(x.mean(dim=(2, 3))).mean(dim=0))

    def forward(self, image: Tensor) -> Tensor:
        return self.resnet(image, self.policy(image))


def keep_pattern(config: BlockDropConfig) -> list[bool]:
    """Return which blocks run: every second one, or `kept` of them spread evenly."""
    total = sum(config.blocks)
    if config.kept is None:
        return [i % 2 == 1 for i in range(total)]
    return [(i + 1) * config.kept // total > i * config.kept // total for i in range(total)]


def make(config: BlockDropConfig, seed: int = 0) -> Made:
    model = BlockDrop(config)
    _seed(model, seed)
    keep = torch.where(torch.tensor(keep_pattern(config)), 0.9, 0.1)
    return model, (_image(config, seed + 1), keep)


def make_with_policy(config: BlockDropConfig, seed: int = 0) -> Made:
    """Make the model and its policy, whose last bias makes this seed's image run as many blocks as
    `config` sets, as training does for its budget. The policy's values decide which blocks run."""
    model = BlockDropPolicy(config)
    _seed(model, seed)
    image = _image(config, seed + 1)
    kept = sum(keep_pattern(config))
    with torch.no_grad():
        model.fc.weight.mul_(4.0)
        scores = model.policy(image).logit().sort(descending=True).values
        edge = torch.cat([scores[:1] + 1.0, scores, scores[-1:] - 1.0])
        model.fc.bias.sub_((edge[kept] + edge[kept + 1]) / 2)
    return model, (image,)


def _seed(model: nn.Module, seed: int) -> None:
    seed_weights(model, seed, gain=1.4)
    with torch.no_grad():
        # Residual branches add less than their input, so that values do not grow with depth.
        for child in model.modules():
            if isinstance(child, BasicBlock):
                child.bn2.weight.mul_(0.4)


def _image(config: BlockDropConfig, seed: int) -> Tensor:
    shape = (config.batch, 3, config.image, config.image)
    return torch.randn(shape, generator=generator(seed))


def work(config: BlockDropConfig) -> tuple[Phase, ...]:
    """The stem and the blocks that run; a block counts its two convolutions."""
    size, inputs = config.image, config.channels[0]
    flops = 2.0 * config.batch * size**2 * 27 * inputs
    weights = 27.0 * inputs
    pattern = iter(keep_pattern(config))
    for count, outputs in zip(config.blocks, config.channels, strict=True):
        for _ in range(count):
            size //= 1 if inputs == outputs else 2
            if next(pattern):
                parameters = 9.0 * outputs * (inputs + outputs)
                flops += 2.0 * config.batch * size**2 * parameters
                weights += parameters
            inputs = outputs
    return (Phase("convolutions", flops, weights * FLOAT_BYTES, weights * FLOAT_BYTES),)


def work_with_policy(config: BlockDropConfig) -> tuple[Phase, ...]:
    width, half = config.channels[-1], config.image // 2
    first, second = 27.0 * width // 2, 9.0 * width * width // 2
    flops = 2.0 * config.batch * (half**2 * first + (half // 2) ** 2 * second)
    weights = (first + second) * FLOAT_BYTES
    return (Phase("policy", flops, weights, weights), *work(config))
