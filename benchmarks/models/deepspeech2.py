"""DeepSpeech2: two convolutions over a spectrogram, then LSTM layers, each a loop over time."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from .entry import (
    FLOAT_BYTES,
    Made,
    Phase,
    generator,
    matmul_phase,
    recurrent_phase,
)
from .lstm import LSTMCell
from .weights import seed_weights


@dataclass(frozen=True, slots=True)
class DeepSpeech2Config:
    frames: int = 300
    bins: int = 171
    channels: int = 32
    kernel1: tuple[int, int] = (41, 11)
    kernel2: tuple[int, int] = (21, 11)
    layers: int = 7
    hidden: int = 256
    characters: int = 29
    batch: int = 1

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def small(cls) -> Self:
        return cls(
            frames=12,
            bins=9,
            channels=2,
            kernel1=(5, 3),
            kernel2=(3, 3),
            layers=2,
            hidden=8,
            characters=5,
        )

    def convolved(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(frames, bins) after the first and after the second convolution."""
        first = (-(-self.frames // 2), -(-self.bins // 2))
        return first, (-(-first[0] // 2), first[1])


class DeepSpeech2(nn.Module):
    """spectrogram [B, 1, frames, bins] -> logits [frames / 4, B, characters]."""

    def __init__(self, config: DeepSpeech2Config) -> None:
        super().__init__()
        self.hidden = config.hidden
        self.conv1 = _convolution(1, config.channels, config.kernel1, (2, 2))
        self.bn1 = nn.BatchNorm2d(config.channels)
        self.conv2 = _convolution(config.channels, config.channels, config.kernel2, (2, 1))
        self.bn2 = nn.BatchNorm2d(config.channels)
        self.layers = nn.ModuleList()
        features = config.channels * config.convolved()[1][1]
        for _ in range(config.layers):
            self.layers.append(LSTMCell(features, config.hidden))
            features = config.hidden
        self.fc = nn.Linear(features, config.characters)

    def forward(self, spectrogram: Tensor) -> Tensor:
        x = self.bn1(self.conv1(spectrogram)).clamp(0.0, 20.0)
        x = self.bn2(self.conv2(x)).clamp(0.0, 20.0)
        x = x.permute(2, 0, 1, 3).flatten(2)
        for cell in self.layers:
            h = x.new_zeros(x.shape[1], self.hidden)
            c = x.new_zeros(x.shape[1], self.hidden)
            outputs = []
            for t in range(x.shape[0]):
                h, c = cell(x[t], h, c)
                outputs.append(h)
            x = torch.stack(outputs)
        return self.fc(x)


def _convolution(
    inputs: int, outputs: int, kernel: tuple[int, int], stride: tuple[int, int]
) -> nn.Conv2d:
    padding = (kernel[0] // 2, kernel[1] // 2)
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False)


def make(config: DeepSpeech2Config, seed: int = 0) -> Made:
    model = DeepSpeech2(config)
    seed_weights(model, seed, gain=1.5)
    shape = (config.batch, 1, config.frames, config.bins)
    return model, (torch.randn(shape, generator=generator(seed + 1)),)


def work(config: DeepSpeech2Config) -> tuple[Phase, ...]:
    first, second = config.convolved()
    rows, hidden, channels = config.batch * second[0], config.hidden, config.channels
    features = channels * second[1]
    recurrence = recurrent_phase(
        "recurrence", second[0] * config.layers, config.batch, hidden, 4 * hidden
    )
    return (
        _conv_phase("conv1", config.batch, first, config.kernel1, 1, channels),
        _conv_phase("conv2", config.batch, second, config.kernel2, channels, channels),
        matmul_phase("first inputs", rows, features, 4 * hidden),
        matmul_phase("inputs", rows, hidden, 4 * hidden, repeat=config.layers - 1),
        recurrence,
    )


def _conv_phase(
    name: str, batch: int, size: tuple[int, int], kernel: tuple[int, int], inputs: int, outputs: int
) -> Phase:
    weights = float(kernel[0] * kernel[1] * inputs * outputs)
    flops = 2.0 * batch * size[0] * size[1] * weights
    return Phase(name, flops, weights * FLOAT_BYTES, weights * FLOAT_BYTES)
