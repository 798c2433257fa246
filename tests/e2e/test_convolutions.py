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


@pytest.mark.whole
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


@pytest.mark.whole
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


OUTSIDE = [
    # in, out, kernel, stride, padding, groups, height, width
    (16, 16, 1, 3, (1, 0), 1, 1, 3),
    (16, 16, 1, 3, (1, 0), 2, 1, 9),
    (16, 16, 1, 5, (2, 2), 4, 1, 1),
    (16, 16, 1, 3, (0, 1), 16, 4, 1),
    (3, 5, 1, 4, (1, 1), 1, 1, 1),
    (8, 12, (1, 3), 3, (1, 1), 1, 1, 7),
    (8, 8, (3, 1), 3, (1, 1), 8, 7, 1),
    (16, 32, (1, 1), (7, 1), (3, 2), 1, 1, 2),
    (1, 1, 1, (1, 4), (0, 3), 1, 3, 1),
    (1, 3, 1, (4, 1), (3, 0), 1, 1, 5),
]


class Outside(nn.Module):
    """Some windows, or all of them, lie in the padding of images with one row or column."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Conv2d(3, case[0], 1) for case in OUTSIDE)
        self.layers = nn.ModuleList(
            nn.Conv2d(i, o, k, s, p, groups=g, bias=False) for i, o, k, s, p, g, *_ in OUTSIDE
        )
        self.last = nn.ModuleList(nn.Conv2d(case[1], 3, 1) for case in OUTSIDE)

    def forward(self, *images: Tensor) -> list[Tensor]:
        """Each layer with an input of its own, and between others (channels then come last)."""
        chosen = list(zip(self.first, self.layers, self.last, images, strict=True))
        plain = [layer(x.repeat(1, 6, 1, 1)[:, : layer.in_channels]) for _, layer, _, x in chosen]
        hidden = [last(torch.relu(layer(torch.relu(first(x))))) for first, layer, last, x in chosen]
        return [*plain, *hidden]


@pytest.mark.whole
@pytest.mark.parametrize("backend", ["cpu", "emulator", "cuda-emulated"])
def test_windows_that_lie_in_the_padding(backend: str) -> None:
    """Such an image has one row, of which an index does not say that another one was meant."""
    torch.manual_seed(0)
    module = Outside().eval()
    images = [torch.randn(2, 3, case[6], case[7]) for case in OUTSIDE]
    with torch.no_grad():
        fast = stretto.compile(module, backend=backend, options=stretto.Options(threads=2))
        for found, expected in zip(fast(*images), module(*images), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("stride", "padding", "length"), [(3, 1, 1), (5, 2, 1), (2, 1, 1)])
def test_windows_of_signals_that_lie_in_the_padding(stride: int, padding: int, length: int) -> None:
    torch.manual_seed(0)
    for module in (nn.Conv1d(4, 6, 1, stride, padding), nn.Conv3d(4, 6, 1, stride, padding)):
        shape = (2, 4, *[length] * (module.weight.dim() - 2))
        check(module, torch.randn(shape), 1)
