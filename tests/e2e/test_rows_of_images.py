"""Linear layers on images whose number a call tells: one product of all their pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stretto
from tests.frontends.python.checks import assert_same


class Block(nn.Module):
    """Liu et al., "A ConvNet for the 2020s", 2022, section 2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wider, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return self.back(F.gelu(self.wider(y))).permute(0, 3, 1, 2) + x


def check(dynamic: bool | None, shapes: tuple[tuple[int, ...], ...], rows: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(32), Block(32)).eval()
    fast = stretto.compile(model, dynamic=dynamic)
    for shape in shapes:
        x = torch.rand(shape[0], 32, *shape[1:])
        assert_same(fast(x), model(x))
    text = fast.explain()
    assert "each size has its own program" not in text
    assert rows in text


def test_any_number_of_images() -> None:
    check(None, ((1, 14, 14), (2, 14, 14), (5, 14, 14), (3, 14, 14)), "196*s0/2")


def test_images_of_any_size() -> None:
    check(True, ((2, 14, 14), (3, 9, 12), (2, 8, 8)), "s0*s1*s2/2")
