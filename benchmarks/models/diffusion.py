"""Ten steps of deterministic diffusion (DDIM, Song et al., equation 12) around a small UNet."""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .entry import Made, generator
from .weights import seed_weights


@dataclass(frozen=True, slots=True)
class DiffusionConfig:
    steps: int = 10
    channels: int = 64
    groups: int = 8
    time: int = 128
    image: int = 32
    batch: int = 1

    @classmethod
    def full(cls) -> Self:
        return cls()

    @classmethod
    def small(cls) -> Self:
        return cls(steps=3, channels=8, groups=2, time=8, image=6)


class Residual(nn.Module):
    """x [B, inputs, H, W], time [1, T] -> [B, outputs, H, W]."""

    def __init__(self, config: DiffusionConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(config.groups, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(config.time, outputs)
        self.norm2 = nn.GroupNorm(config.groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(time)[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.shortcut(x)


class UNet(nn.Module):
    """x [B, 3, H, W], time [1] -> the noise in x [B, 3, H, W]."""

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        channels, time = config.channels, config.time
        self.time = nn.Sequential(nn.Linear(time, time), nn.SiLU(), nn.Linear(time, time))
        self.input = nn.Conv2d(3, channels, 3, padding=1)
        self.down1 = Residual(config, channels, channels)
        self.halve = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.down2 = Residual(config, channels, 2 * channels)
        self.middle = Residual(config, 2 * channels, 2 * channels)
        self.enlarge = nn.Upsample(scale_factor=2)
        self.up = Residual(config, 3 * channels, channels)
        self.norm = nn.GroupNorm(config.groups, channels)
        self.output = nn.Conv2d(channels, 3, 3, padding=1)
        half = time // 2
        self.register_buffer("waves", torch.exp(-torch.arange(half) * (math.log(1e4) / half)))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time * self.waves
        embedded = self.time(torch.cat([angles.sin(), angles.cos()])[None])
        fine = self.down1(self.input(x), embedded)
        coarse = self.middle(self.down2(self.halve(fine), embedded), embedded)
        joined = torch.cat([self.enlarge(coarse), fine], dim=1)
        return self.output(F.silu(self.norm(self.up(joined, embedded))))


class Sampler(nn.Module):
    """noise [B, 3, H, W] -> image [B, 3, H, W]."""

    def __init__(self, config: DiffusionConfig) -> None:
        super().__init__()
        self.steps = config.steps
        self.unet = UNet(config)
        # The share of the image at each step; 1 after the last one.
        kept = torch.cat([torch.linspace(0.1, 0.99, config.steps), torch.ones(1)])
        self.register_buffer("kept", kept)

    def forward(self, x: Tensor) -> Tensor:
        for step in range(self.steps):
            now, then = self.kept[step], self.kept[step + 1]
            noise = self.unet(x, torch.full((1,), float(self.steps - 1 - step), dtype=x.dtype))
            image = (x - (1 - now).sqrt() * noise) / now.sqrt()
            x = then.sqrt() * image + (1 - then).sqrt() * noise
        return x


def make(config: DiffusionConfig, seed: int = 0) -> Made:
    model = Sampler(config)
    seed_weights(model, seed)
    shape = (config.batch, 3, config.image, config.image)
    return model, (torch.randn(shape, generator=generator(seed + 1)),)
