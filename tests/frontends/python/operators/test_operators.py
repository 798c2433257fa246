"""Operators whose capture needs more than their ATen call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import stretto
from stretto.errors import StrettoError
from tests.frontends.python.checks import check, refused

A, B = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.5])


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.cos_(),
        lambda x: x.div_(2),
        lambda x: x.add_(0.5),
        lambda x: x.mul_(torch.tensor([0.5])),
        lambda x: torch.exp(x, out=x),
        lambda x: x.copysign_(x),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_a_result_that_cannot_be_cast_is_eagers_error(
    change: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    x = torch.tensor([1, 2, 3]).to(dtype)
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type") as wanted:
        change(x.clone())
    with pytest.raises(RuntimeError) as found:
        stretto.compile(change, backend="interpreter")(x.clone())
    assert not isinstance(found.value, StrettoError)
    assert str(found.value).partition("\n")[0] in str(wanted.value)


def test_in_place_operators_of_python() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a, b, c = x > 1, x > 2, (y * 2).long()
        a &= y > 0
        b |= a
        b ^= y > 3
        c <<= 2
        c >>= 1
        return a, b, c

    check(f, (A, B), (B, A))


def test_flags_that_compare_whole_tensors() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[bool, bool, Tensor]:
        if torch.equal(x, y):
            x = x + 1
        elif torch.allclose(x, y, atol=1.0):
            x = x + 2
        else:
            x = x + 3
        return x.equal(y), x.allclose(y, rtol=0.5), x

    check(f, (A, B), (A, A), (A, B * 5), (A, A * float("nan")))


def test_shapes_that_differ_are_not_equal() -> None:
    check(lambda x, y: (torch.equal(x, y), x), (A, A[:2]))


def test_quantiles() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.cat([x, x * 2]).reshape(2, 3)
        return y.quantile(0.3), torch.nanquantile(y, torch.tensor([0.25, 0.75]), dim=1)

    check(f, (A,), (B,))
    compiled = stretto.compile(f, backend="cpu")
    for one, other in zip(compiled(A), f(A), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.unsqueeze_(0),
        lambda x: x.as_strided_((2,), (1,)),
        lambda x: x.clone().swapaxes_(0, 0),
        lambda x: x.squeeze_((0,)),
    ],
)
def test_shapes_cannot_change_in_place(change: Callable[[Tensor], Tensor]) -> None:
    error = refused(change, A)
    assert error.message == "this operator changes the shape of a tensor in place"


def test_a_split_at_values_has_no_shape() -> None:
    error = refused(lambda x, n: torch.tensor_split(x, n), A, torch.tensor(2))
    assert error.message == "a shape depends on the content of a tensor"


def test_a_lazy_module_is_called_before_it_is_compiled() -> None:
    module = nn.LazyLinear(2).eval()
    error = refused(module, A)
    assert error.message == "a parameter of a lazy module has no shape yet"
    assert error.remedy is not None and "call the module once" in error.remedy
    with torch.no_grad():
        module(A)
    check(module, (A,), (B,))


def test_a_flag_as_index() -> None:
    """A mask without dims chooses all of a tensor or nothing of it."""

    def f(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        total, y, z = x.sum(), x.clone(), n.clone()
        total[total > 3] = -1.0
        y[x[0] > 0] = x * 2
        y[y[1] < 0] = torch.ones(1, 3)
        z[z > 1] = 7
        x[n > 1] = 0.5
        return total, y, z

    check(f, (A, torch.tensor(2)), (-A, torch.tensor(1)), (A * 0, torch.tensor(0)))


def test_a_flag_does_not_say_how_much_is_read() -> None:
    assert refused(lambda x: x[x[0] > 0], A).message == "a shape depends on the content of a tensor"


class Classifier(nn.Module):
    """The tail of MobileNetV3, EfficientNet and MnasNet: dropout and activations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Hardswish(inplace=True),
            nn.Conv2d(4, 4, 1), nn.SiLU(inplace=True), nn.Dropout2d(0.2, inplace=True),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Dropout(p=0.2, inplace=True), nn.Linear(4, 4), nn.ReLU6(inplace=True),
            nn.AlphaDropout(0.1, inplace=True), nn.FeatureAlphaDropout(0.1, inplace=True),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y = self.features(x).mean((2, 3))
        z = torch.dropout_(y, 0.5, False)
        return self.classifier(y) + z


def test_dropout_in_place_in_eval_mode() -> None:
    x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    check(Classifier().eval(), (x,), (x * 2,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_embedding_bag(dtype: torch.dtype, mode: str, backend: str) -> None:
    weight = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    scales = torch.tensor([0.5, 2.0, 1.0, -1.0, 0.25, 4.0]).to(dtype)

    def bags(index: Tensor, offsets: Tensor) -> list[Tensor]:
        def bag(*args: Tensor, **kwargs: object) -> Tensor:
            return functional.embedding_bag(*args, mode=mode, **kwargs)  # type: ignore[arg-type]

        found = [bag(index, weight, offsets), bag(index.view(2, 3), weight)]
        found += [bag(index, weight, offsets, padding_idx=4)]
        if mode == "sum":
            found += [bag(index, weight, offsets, per_sample_weights=scales)]
        return found

    run = stretto.compile(bags, backend=backend)
    for index in ([1, 2, 4, 8, 4, 3], [0, 0, 4, 4, 7, 7]):
        arguments = torch.tensor(index), torch.tensor([0, 2])
        for found, wanted in zip(run(*arguments), bags(*arguments), strict=True):
            assert found.dtype == dtype
            assert torch.allclose(found.float(), wanted.float(), rtol=2e-2, atol=2e-2)
    with pytest.raises(RuntimeError):
        run(torch.tensor([1, 2, 9, 8, 4, 3]), torch.tensor([0, 2]))
