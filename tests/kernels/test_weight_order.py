"""Weights that are laid out in the order in which the images of convolutions are read."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db

import stretto
from stretto.device.expr import Load
from stretto.device.operator import Kernel
from stretto.kernels.contraction import factors, stride

Case = tuple[nn.Module, tuple[int, ...]]


class Chain(nn.Module):
    """A layer between two others, so that its image and its result may be laid out anew."""

    def __init__(self, first: nn.Module, layer: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.last = first, layer, last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.layer(torch.relu(self.first(x)))))


def chain(
    inputs: int, outputs: int, kernel: Any, *, signals: bool = False, **keywords: Any
) -> nn.Module:
    kind = nn.Conv1d if signals else nn.Conv2d
    layer = kind(inputs, outputs, kernel, **keywords)
    return Chain(kind(2, inputs, 1), layer, kind(outputs, 3, 1)).eval().requires_grad_(False)


def compiled(module: Any, units: int) -> Any:
    options = stretto.Options(units=units)
    return stretto.compile(module, backend="cuda-emulated", options=options)


def check(module: nn.Module, fast: Any, x: Tensor) -> None:
    expected = module.double()(x.double())
    module.float()
    torch.testing.assert_close(fast(x).double(), expected, rtol=1e-4, atol=1e-5)


def kernels(fast: Any) -> list[Kernel]:
    return list(fast.signatures[0].stages.product.plan.program.kernels)


GEOMETRIES: list[tuple[int, int, Any, dict[str, Any], tuple[int, ...]]] = [
    (16, 16, 3, {"padding": 1}, (1, 9, 7)),
    (20, 24, 3, {"padding": 2, "dilation": 2, "stride": (2, 1)}, (2, 9, 8)),
    (6, 5, (5, 3), {"padding": (2, 0), "bias": False}, (1, 11, 6)),
    (16, 32, 3, {"groups": 4, "padding": 1}, (1, 6, 7)),
    (12, 12, 3, {"groups": 12, "padding": 1, "stride": 2}, (1, 13, 10)),
    (8, 16, 3, {"groups": 8}, (1, 5, 5)),
    (7, 9, 7, {"padding": 3, "stride": 2}, (1, 17, 5)),
    (16, 16, 1, {"stride": 2}, (3, 5, 5)),
    (40, 33, 3, {"padding": 1}, (1, 1, 1)),
    (16, 16, 5, {"signals": True, "padding": 2}, (2, 19)),
    (10, 10, 4, {"signals": True, "groups": 10, "stride": 3}, (1, 31)),
]


@pytest.mark.parametrize("units", [1, 5])
@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "keywords", "size"), GEOMETRIES, ids=lambda value: str(value)
)
def test_geometries(
    inputs: int, outputs: int, kernel: Any, keywords: dict[str, Any], size: tuple[int, ...],
    units: int,
) -> None:  # fmt: skip
    torch.manual_seed(0)
    module = chain(inputs, outputs, kernel, **keywords)
    check(module, compiled(module, units), torch.randn(size[0], 2, *size[1:]))


def test_weights_and_images_are_contiguous_along_the_channels() -> None:
    torch.manual_seed(0)
    module = chain(16, 32, 3, padding=1)
    fast = compiled(module, 5)
    check(module, fast, torch.randn(1, 2, 8, 8))
    (operator,) = (
        stage.operator
        for kernel in kernels(fast)
        for stage in kernel.stages
        if stage.operator.name == "convolution" and len(stage.operator.reduce) == 3
        if 3 in stage.operator.reduce
    )
    pair = factors(operator)
    assert pair is not None
    channel = len(operator.dims) + 2
    weight, image = pair[0], pair[1]
    assert isinstance(weight, Load) and ".packed" in weight.access.buffer.name
    assert stride(weight.access, channel) == 1
    loads = [load for load in operator.reads() if load != weight]
    assert [stride(load.access, channel) for load in loads] == [1], image


def test_a_weight_with_one_tap_stays_where_it_is() -> None:
    module = chain(16, 32, 1)
    fast = compiled(module, 5)
    check(module, fast, torch.randn(1, 2, 4, 4))
    assert not fast.signatures[0].stages.selected.interface.packings


@pytest.mark.parametrize("change", ["in place", "data", "storage"])
def test_weights_that_change_are_laid_out_again(change: str) -> None:
    torch.manual_seed(0)
    module = chain(16, 16, 3, padding=1)
    fast, x = compiled(module, 3), torch.randn(1, 2, 6, 6)
    check(module, fast, x)
    weight = module.get_parameter("layer.weight")
    match change:
        case "in place":
            weight.mul_(-2)
        case "data":
            weight.data[3] += 1
        case _:
            weight.untyped_storage().copy_(torch.randn_like(weight).untyped_storage())
    check(module, fast, x)


def test_no_image() -> None:
    module = chain(16, 16, 3, padding=1)
    fast = compiled(module, 3)
    assert fast(torch.randn(0, 2, 6, 6)).shape == (0, 3, 6, 6)


@pytest.mark.whole
def test_sizes_that_change() -> None:
    """One program for images of all sizes."""
    torch.manual_seed(0)
    module = chain(16, 20, 3, padding=1, stride=2)
    options = stretto.Options(units=3)
    fast = stretto.compile(module, backend="cuda-emulated", options=options, dynamic=True)
    for size in ((1, 2, 9, 12), (2, 2, 5, 3), (1, 2, 1, 17)):
        check(module, fast, torch.randn(size))


class Branches(nn.Module):
    """Convolutions in branches of branches, and in a loop that may run no iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 16, 3, padding=1)
        self.one = nn.Conv2d(16, 16, 3, padding=1)
        self.two = nn.Conv2d(16, 16, 5, padding=2, groups=2)

    def forward(self, x: Tensor, keep: Tensor, count: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        if keep[0] > 0:
            if keep[1] > 0:
                x = x + torch.relu(self.one(x))
            else:
                x = torch.relu(self.two(x)) - x
        n = 0
        while n < count:
            x = torch.tanh(self.one(x))
            n = n + 1
        return x.mean((2, 3))


@pytest.mark.parametrize("units", [1, 4])
def test_convolutions_under_control_flow(units: int) -> None:
    torch.manual_seed(0)
    module = Branches().eval().requires_grad_(False)
    fast = compiled(module, units)
    for first, second, count in ((1, 1, 0), (1, -1, 2), (-1, 1, 1)):
        args = torch.randn(1, 2, 7, 5), torch.tensor([first, second]), torch.tensor(count)
        torch.testing.assert_close(fast(*args), module(*args), rtol=1e-4, atol=1e-5)


def samples() -> list[tuple[str, Any]]:
    """torch's own samples of convolutions: 4 of each kind, from all over the list."""
    found: list[tuple[str, Any]] = []
    for operator in op_db:
        if operator.name in ("nn.functional.conv1d", "nn.functional.conv2d"):
            every = [s for s in operator.sample_inputs("cpu", torch.float32) if s.input.dim() > 2]
            found += [(operator.name, sample) for sample in every[:: max(len(every) // 8, 1)]]
    return found


SAMPLES = samples()


@pytest.mark.parametrize("number", range(len(SAMPLES)))
def test_samples(number: int) -> None:
    name, sample = SAMPLES[number]
    weight, *rest = sample.args
    operator = getattr(torch.nn.functional, name.rpartition(".")[2])

    def function(x: Tensor) -> Tensor:
        return torch.relu(operator(x * 2, weight, *rest, **sample.kwargs)) - 1

    x = sample.input.detach()
    with torch.no_grad():
        torch.testing.assert_close(
            compiled(function, 3)(x), function(x), rtol=1e-4, atol=1e-4, equal_nan=True
        )
