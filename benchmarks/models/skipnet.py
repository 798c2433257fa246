"""SkipNet: a ResNet-101 whose recurrent gate reads each block's output and decides whether to run
the next.

Why about 23 of 33 blocks run: the gate's LSTM has one unit that follows its input at once
(forget gate closed, input and output gates open), and each block's projection to the gate
has a bias on that unit, positive for two blocks of three. The pooled features are added to
the bias with random weights, so the values decide, and an input can reverse a decision.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from .entry import FLOAT_BYTES, Made, Phase, generator
from .lstm import LSTMCell
from .weights import seed_weights


@dataclass(frozen=True, slots=True)
class SkipNetConfig:
    """`width` is the first stage's inner channel count; a stage's output has 4 x its width."""

    blocks: tuple[int, ...] = (3, 4, 23, 3)
    width: int = 64
    image: int = 224
    classes: int = 1000
    gate_size: int = 10

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def small(cls) -> Self:
        return cls(blocks=(1, 2, 2, 1), width=2, image=32, classes=4, gate_size=4)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 convolutions; the caller adds the shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return self.bn3(self.conv3(x))


class SkipNet(nn.Module):
    """image [1, 3, S, S] -> logits [1, classes]."""

    def __init__(self, config: SkipNetConfig) -> None:
        super().__init__()
        self.gate_size = config.gate_size
        self.conv = nn.Conv2d(3, config.width, 7, stride=2, padding=3, bias=False)
        self.bn = nn.BatchNorm2d(config.width)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.blocks = nn.ModuleList()
        self.gate_inputs = nn.ModuleList()
        channels = config.width
        for stage, count in enumerate(config.blocks):
            width = config.width * 2**stage
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                self.blocks.append(Bottleneck(channels, width, stride))
                channels = 4 * width
                self.gate_inputs.append(nn.Conv2d(channels, config.gate_size, 1))
        del self.gate_inputs[-1]  # no decision follows the last block
        self.gate_cell = LSTMCell(config.gate_size, config.gate_size)
        self.gate_output = nn.Conv2d(config.gate_size, 1, 1)
        self.fc = nn.Linear(channels, config.classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.bn(self.conv(image))))
        x = torch.relu(self.blocks[0](x) + self.blocks[0].shortcut(x))
        h = x.new_zeros(x.shape[0], self.gate_size)
        c = x.new_zeros(x.shape[0], self.gate_size)
        for block, gate_input in zip(self.blocks[1:], self.gate_inputs, strict=True):
            seen = gate_input(x.mean(dim=(2, 3), keepdim=True)).flatten(1)
            h, c = self.gate_cell(seen, h, c)
            gate = torch.sigmoid(self.gate_output(h[:, :, None, None]))
            identity = block.shortcut(x)
            if gate > 0.5:
                x = torch.relu(identity + block(x))
            else:
                x = identity
        return self.fc(x.mean(dim=(2, 3)))


def make(config: SkipNetConfig, seed: int = 0) -> Made:
    model = SkipNet(config)
    seed_weights(model, seed, gain=1.4)
    _seed_residuals(model)
    _seed_gates(model, config.gate_size)
    shape = (1, 3, config.image, config.image)
    return model, (torch.randn(shape, generator=generator(seed + 1)),)


@torch.no_grad()
def _seed_residuals(model: SkipNet) -> None:
    """Make branches add less than their input, so that values do not grow without limit over 33
    blocks."""
    for block in model.blocks:
        assert isinstance(block, Bottleneck)
        block.bn3.weight.mul_(0.25)
        if isinstance(block.shortcut, nn.Sequential):
            block.shortcut[0].weight.mul_(0.7)


@torch.no_grad()
def _seed_gates(model: SkipNet, size: int) -> None:
    for projection, runs in zip(model.gate_inputs, gate_plan(len(model.gate_inputs)), strict=True):
        assert isinstance(projection, nn.Conv2d) and projection.bias is not None
        projection.weight.mul_(0.3)
        projection.bias[0] = 1.0 if runs else -1.0
    cell = model.gate_cell
    for gate, bias in enumerate((4.0, -4.0, 0.0, 4.0)):  # input, forget, candidate, output
        row = gate * size
        cell.input_map.bias[row], cell.hidden_map.bias[row] = bias, 0.0
        cell.input_map.weight[row].mul_(0.1)
        cell.hidden_map.weight[row].mul_(0.1)
    cell.input_map.weight[2 * size, 0] = 2.0
    model.gate_output.weight.mul_(0.2)
    model.gate_output.weight[0, 0] = 4.0
    assert model.gate_output.bias is not None
    model.gate_output.bias.zero_()


def gate_plan(gates: int) -> list[bool]:
    """Return the gates that the biases favour: with 32 gates 22 of the gated blocks run, 23 with
    the first one."""
    return [i % 3 != 1 or i == gates - 1 for i in range(gates)]


def work(config: SkipNetConfig) -> tuple[Phase, ...]:
    """The stem, the shortcuts, and the blocks that run by plan; gates are too small to count."""
    size, channels = config.image // 4, config.width
    flops = 2.0 * (config.image // 2) ** 2 * 147 * channels
    weights = 147.0 * channels
    plan = iter([True, *gate_plan(sum(config.blocks) - 1)])
    for stage, count in enumerate(config.blocks):
        width = config.width * 2**stage
        for i in range(count):
            before = size
            size //= 2 if stage > 0 and i == 0 else 1
            if channels != 4 * width:
                flops += 2.0 * size**2 * channels * 4 * width
                weights += 4.0 * channels * width
            if next(plan):
                flops += 2.0 * (before**2 * channels * width + size**2 * 13 * width**2)
                weights += channels * width + 13.0 * width**2
            channels = 4 * width
    weights += channels * config.classes
    return (Phase("convolutions", flops, weights * FLOAT_BYTES, weights * FLOAT_BYTES),)
