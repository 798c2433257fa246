"""Infinities, NaN, signed zeros and the ends of each dtype's range, against eager.

The first part is a sample of what `--part special` of `make fuzz` tries: each float dtype,
operators of torch's database. The second part is what that found.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import stretto
from checks.fuzz.outcome import FAILURES
from tests.sampling import every

LARGE = 3e38


def chosen() -> list[str]:
    """Names of operators whose rules compute with what may leave a dtype's range."""
    return [
        *("var", "std", "var_mean", "std_mean", "norm", "linalg.vector_norm", "logsumexp"),
        *("softmax", "log_softmax", "nn.functional.layer_norm", "nn.functional.instance_norm"),
        *("nn.functional.max_pool2d", "nn.functional.max_pool3d", "nn.functional.normalize"),
        *("nn.functional.interpolate.linear", "nn.functional.interpolate.trilinear"),
        *("nn.functional.batch_norm", "nn.functional.cosine_similarity", "cumsum", "prod"),
        *("nn.functional.gelu", "nn.functional.softplus", "nn.functional.logsigmoid", "hypot"),
        *("logaddexp", "atan2", "fmod", "remainder", "pow", "_softmax_backward_data"),
    ]


@pytest.mark.parametrize("name", every(2, chosen()))
def test_sample(name: str) -> None:
    pytest.importorskip("expecttest", reason="torch's sample inputs need the package expecttest")
    from checks.fuzz.operators import operators, special_samples

    samples = [sample for sample in special_samples(2) if sample.name == name]
    assert samples
    job = operators(samples, ("emulator",), 60.0)
    for sample in samples:
        outcome = job.run(sample, lambda _: None)
        assert outcome.verdict not in FAILURES, f"{outcome}\n{outcome.detail}"


def pooled(x: Tensor) -> tuple[Tensor, ...]:
    image, volume = x[None], x[None, None]
    return (
        *F.max_pool1d(x, 3, return_indices=True),
        *F.max_pool2d(image, 2, padding=1, return_indices=True),
        *F.max_pool3d(volume, (1, 3, 2), ceil_mode=True, return_indices=True),
    )


def moments(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.var(1),
        x.std(1, correction=0),
        x.std(),
        torch.var_mean(x[1:2])[0],
        *torch.std_mean(x[1:2]),
    )


def norms(x: Tensor) -> tuple[Tensor, ...]:
    return (
        *(x.norm(p, dim=1) for p in (0, 0.5, 1, 2, 3, inf, -inf)),
        *(x[:, :1].norm(p, dim=1) for p in (0, 0.5, 1, 2, 3, inf, -inf)),
        x[0, 0].norm(),
        F.normalize(x[:, :1], dim=1),
    )


def resized(x: Tensor) -> tuple[Tensor, ...]:
    volume = x.reshape(1, 1, *x.shape, 1)
    return (
        F.interpolate(x[None], size=7, mode="linear", align_corners=True),
        F.interpolate(x[None], scale_factor=1.5, mode="linear"),
        F.interpolate(volume, size=(4, 7, 2), mode="trilinear"),
        F.interpolate(volume, scale_factor=(2, 1.5, 2), mode="trilinear", align_corners=True),
    )


def normalised(x: Tensor) -> Tensor:
    return F.instance_norm(x[None] * 1000)


def slope(x: Tensor) -> Tensor:
    return torch.ops.aten._softmax_backward_data(x, x.flip(0), 0, x.dtype)


@pytest.mark.parametrize("backend", ["interpreter", "emulator", "cpu"])
@pytest.mark.parametrize("function", [pooled, moments, norms, resized, normalised, slope])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_at_the_ends_of_the_range(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype, backend: str
) -> None:
    large = LARGE if dtype.itemsize > 2 or dtype is torch.bfloat16 else 6e4
    rows = [
        *([1.0, nan, large, nan, 2.0], [large, -large / 5, 1.0, 0.0, -0.0]),
        *([-inf] * 5, [inf, 1.0, inf, 2.0, 1e-7], [1e-7, -1e-7, 3.0, 4.0, 60.0]),
    ]
    x = torch.tensor(rows).to(dtype)
    compiled = stretto.compile(function, backend=backend)
    torch.testing.assert_close(compiled(x), function(x), equal_nan=True)


@pytest.mark.parametrize("backend", ["interpreter", "emulator", "cpu"])
@pytest.mark.parametrize("width", [2, 3, 8])
@pytest.mark.parametrize("large", [LARGE, 1e30, 1e20, -1e20, inf])
def test_rows_whose_variance_overflows(large: float, width: int, backend: str) -> None:
    x = torch.zeros(3, width)
    x[0, 0], x[1] = large, large
    x[2] = torch.arange(width)

    def norms(x: Tensor) -> tuple[Tensor, Tensor]:
        return F.layer_norm(x, x.shape[-1:]), F.group_norm(x[:, None], 1)

    compiled = stretto.compile(norms, backend=backend)
    torch.testing.assert_close(compiled(x), norms(x), equal_nan=True)


@pytest.mark.parametrize("backend", ["interpreter", "emulator", "cpu"])
@pytest.mark.parametrize("width", [3, 7, 10, 33, 100])
def test_nothing_is_left_of_rows_of_equal_elements(width: int, backend: str) -> None:
    """1 / sqrt(eps) would make the rounding of a mean seen."""
    x = torch.tensor([3.1, 0.1, 1.7, -1e5, 0.0])[:, None, None].expand(5, 2, width).contiguous()

    def norms(x: Tensor) -> tuple[Tensor, ...]:
        return F.layer_norm(x, x.shape[-1:]), F.group_norm(x, 1), *torch.var_mean(x, -1)

    result = stretto.compile(norms, backend=backend)(x)
    for part in result[:3]:
        assert not part.any()
    assert torch.equal(result[3], x[..., 0])


WITHOUT_DIMS: dict[str, Callable[[Tensor], Tensor | tuple[Tensor, ...]]] = {
    "softmax": lambda x: (x.softmax(0), x.log_softmax(0), x.logsumexp(0), F.softmin(x, dim=0)),
    "sums": lambda x: (x.sum(), x.mean(), x.prod(), x.cumsum(0), x.cumprod(0), x.nansum()),
    "moments": lambda x: (x.var(correction=0), x.std(0, correction=0), x.norm(), x.norm(3, 0)),
    "extrema": lambda x: (x.max(), x.amin(), x.argmax(), *x.max(0), *x.min(0), *x.aminmax()),
    "orders": lambda x: (*x.sort(), *x.topk(1), x.argsort(), *x.cummax(0), x.median()),
    "moves": lambda x: (x.flip(0), x.roll(1), x.reshape(1), x.expand(2), x.movedim(0, 0)),
    "places": lambda x: (
        x.index_select(0, torch.tensor(0)),
        x.gather(0, torch.tensor(0)),
        x.take(torch.tensor(0)),
        x.scatter(0, torch.tensor(0), 2.0),
        x.index_fill(0, torch.tensor([0]), 3.0),
    ),
    "tests": lambda x: (x.any(), x.all(), x.isnan().sum(), x.count_nonzero(), x == x.floor()),
    "activations": lambda x: (F.gelu(x), F.silu(x), F.softplus(x), F.hardswish(x), F.elu(x)),
    "normal": lambda x: (F.normalize(x, dim=0), x - x.mean(), x / x.abs().sum()),
}


@pytest.mark.parametrize("name", WITHOUT_DIMS)
def test_tensors_without_dims(name: str) -> None:
    function = WITHOUT_DIMS[name]
    compiled = stretto.compile(function, backend="emulator")
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for number in (0.0, -0.0, 1.0, -2.5, inf, -inf, nan, 1e-40):
            x = torch.tensor(number).to(dtype)
            torch.testing.assert_close(compiled(x), function(x), equal_nan=True, msg=f"{x}")
