"""Convolutions through the whole compiler: shapes that no tile divides, fused, merged, grouped."""

import pytest
import torch
from torch import Tensor, nn

import stretto


def check(module: nn.Module, x: Tensor, threads: int) -> None:
    module = module.eval()
    with torch.no_grad():
        fast = stretto.compile(module, options=stretto.Options(threads=threads))
        expected = module.double()(x.double())
        module.float()
        torch.testing.assert_close(fast(x).double(), expected, rtol=1e-4, atol=1e-5)


class Shared(nn.Module):
    """Two convolutions of one input, of different widths: merged, and each consumed on its own."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, first, 1)
        self.second = nn.Conv2d(8, second, 1)
        self.last = nn.Conv2d(first, second, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.last(torch.relu(self.first(x))) + self.second(x))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("first", "second"), [(4, 16), (8, 8), (5, 15), (44, 44), (24, 48)])
def test_convolutions_that_share_their_input(first: int, second: int, threads: int) -> None:
    torch.manual_seed(0)
    check(Shared(first, second), torch.randn(1, 8, 9, 9), threads)


GEOMETRIES = [
    # in, out, kernel, stride, padding, dilation, groups, size
    (3, 8, 7, 2, 3, 1, 1, 16),
    (8, 16, 1, 2, 0, 1, 1, 2),
    (4, 4, 3, 2, 1, 1, 1, 2),
    (4, 4, 3, 1, 1, 1, 1, 1),
    (4, 6, 3, 1, 2, 2, 2, 11),
    (6, 6, 3, 1, 1, 1, 6, 13),
    (2, 3, (5, 3), (2, 1), (2, 1), 1, 1, 10),
    (3, 70, 3, 1, 1, 1, 1, 43),
]


class Several(nn.Module):
    """One output per geometry, so that all are built at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(i, o, k, s, p, d, g) for i, o, k, s, p, d, g, _ in GEOMETRIES
        )

    def forward(self, *images: Tensor) -> list[Tensor]:
        return [torch.relu(layer(x)) for layer, x in zip(self.layers, images, strict=True)]


@pytest.mark.parametrize("threads", [1, 2])
def test_geometries(threads: int) -> None:
    torch.manual_seed(0)
    module = Several().eval()
    images = [torch.randn(2, case[0], case[7], case[7]) for case in GEOMETRIES]
    with torch.no_grad():
        fast = stretto.compile(module, options=stretto.Options(threads=threads))
        results = fast(*images)
        expected = module.double()(*(image.double() for image in images))
    for result, reference in zip(results, expected, strict=True):
        torch.testing.assert_close(result.double(), reference, rtol=1e-4, atol=1e-5)
