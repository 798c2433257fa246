"""Operators on the emulated GPU against eager PyTorch: dtypes, odd sizes, products, reductions.

The functions of a test are one program, so that it is compiled once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import stretto
from stretto.options import Options
from tests.backends import TOLERANCE
from tests.e2e.machines import CUDA, on_cuda, spread
from tests.e2e.test_convolutions import GEOMETRIES, Several, Shared

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@torch.no_grad()
def check(
    function: Callable[..., Any], *arguments: Tensor, units: int = 5, scale: float = 1.0
) -> None:
    """One launch with the results of eager."""
    compiled = stretto.compile(function, backend=CUDA, options=Options(units=units))
    with spread():
        found = compiled(*arguments)
    wanted = function(*arguments)
    assert on_cuda(compiled).is_single
    assert len(found) == len(wanted)
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.dtype == other.dtype and one.shape == other.shape
        relative, absolute = TOLERANCE.get(other.dtype, (0.0, 0.0))
        torch.testing.assert_close(
            one,
            other,
            rtol=relative * scale,
            atol=absolute * scale,
            equal_nan=True,
            msg=lambda text, n=number: f"result {n}: {text}",
        )


# ---- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats(dtype: torch.dtype) -> None:
    def f(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        z = torch.tanh(x) * y + 0.5
        return (
            z,
            x @ w,
            torch.addmm(y[0, :3], x, w, beta=0.5, alpha=2),
            functional.linear(x, w.t()),
            functional.softmax(z * 4, 1),
            functional.log_softmax(z, 0),
            functional.layer_norm(x, (13,)),
            functional.gelu(x),
            x.sum(0),
            x.mean(),
            x.amax(1),
            x.argmin(1),
            x.cumsum(1),
            x > y,
            torch.where(x > 0, x, y),
            x.to(torch.int32),
            x.float() * 2,
            x.double().exp(),
            x.sign() + y.floor(),
            torch.floor_divide(x, y),
            torch.remainder(x, y),
            torch.fmod(x, y),
            torch.sigmoid(x).round(),
        )

    check(
        f, randn(9, 13, dtype=dtype), randn(9, 13, dtype=dtype, seed=1), randn(13, 3, dtype=dtype)
    )


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(dtype: torch.dtype) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            x + y,
            x * y - 3,
            x // (y.abs() + 1),
            x % (y.abs() + 1),
            x / 3,
            x.sum(0),
            x.amax(1),
            x.argmax(1),
            x.cumsum(1),
            x & y,
            x | y,
            x ^ 5,
            ~x,
            x.clamp(-2, 3) if x.dtype.is_signed else x.clamp(1, 3),
            x == y,
            x.to(torch.bool),
            x.to(torch.float16),
            x.to(torch.int8),
            torch.where(x > y, x, y),
            x.prod(1),
        )

    low = 0 if dtype is torch.uint8 else -9
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(low, 10, (7, 11), generator=generator).to(dtype) for _ in range(2))
    check(f, x, y)


def test_flags() -> None:
    def f(a: Tensor, b: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return (
            a & b,
            a | ~b,
            a ^ b,
            a.any(0),
            a.all(1),
            a.sum(1),
            a.to(torch.float32),
            torch.where(a, x, -x),
            x.masked_fill(b, 7),
            a.cumsum(0),
            a == b,
            a[:, 3] & x.sum(1).gt(0),
        )

    check(f, randn(6, 9) > 0, randn(6, 9, seed=1) > 0, randn(6, 9, seed=2))


def test_numbers_at_the_edges() -> None:
    x = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, 3e38, -1.5, 2.5])

    def f(x: Tensor) -> tuple[Tensor, ...]:
        return (
            x + x,
            x * 0,
            1 / x,
            x.relu(),
            x.clamp(-1, 1),
            torch.maximum(x, x.flip(0)),
            torch.fmax(x, x.flip(0)),
            x.sign(),
            x.round(),
            x.exp(),
            x.abs().sqrt(),
            x.isnan(),
            x.isinf(),
            torch.tanh(x),
            torch.sigmoid(x),
            functional.softplus(x),
            x.max(),
            x[:4].min(),
            torch.where(x > 0, x, 0.0),
            x.to(torch.bfloat16),
            x.to(torch.float16),
        )

    check(f, x, units=2)


# ---- products ------------------------------------------------------------------------------------

SIZES = [
    # rows, depth, columns
    (1, 1, 1),
    (1, 300, 7),
    (3, 5, 130),
    (17, 33, 65),
    (64, 64, 64),
    (130, 70, 33),
    (1, 513, 257),
    (5, 0, 4),
    (0, 4, 3),
]


@pytest.mark.parametrize("units", [1, 16])
def test_products_of_all_sizes(units: int) -> None:
    def f(*operands: Tensor) -> list[Tensor]:
        pairs = list(zip(operands[::2], operands[1::2], strict=True))
        return [torch.relu(a @ b + 1) for a, b in pairs] + [(a @ b).sum(1) for a, b in pairs]

    operands = [t for m, k, n in SIZES for t in (randn(m, k), randn(k, n, seed=1))]
    check(f, *operands, units=units, scale=4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_products_of_other_dtypes(dtype: torch.dtype) -> None:
    def f(a: Tensor, b: Tensor, c: Tensor, v: Tensor) -> list[Tensor]:
        return [a @ b, functional.linear(a, b.t(), v), torch.bmm(c, c.transpose(1, 2)), v @ v]

    shapes = (37, 50), (50, 41), (3, 18, 20), (41,)
    check(f, *(randn(*shape, dtype=dtype) / 4 for shape in shapes), scale=2)


def test_products_in_other_layouts() -> None:
    def f(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
        return [
            a.t() @ b,
            a @ c[:, 2:20].t(),
            torch.einsum("ij,ik->jk", a, b),
            torch.einsum("bij,bjk->bik", c.view(2, 9, 20)[:, :, :9], c.view(2, 9, 20)[:, :9]),
            torch.outer(a[0], b[0]),
            a.mv(c[0, :18]),
            (a[:, :, None] * b[:, None, :]).sum(0),
            torch.baddbmm(c.view(2, 9, 20), c.view(2, 9, 20)[:, :, :5], c.view(2, 9, 20)[:, :5]),
        ]

    check(f, randn(19, 18), randn(19, 23), randn(18, 20), scale=2)


# ---- convolutions --------------------------------------------------------------------------------


def test_convolutions() -> None:
    torch.manual_seed(0)
    images = [torch.randn(2, case[0], case[7], case[7]) for case in GEOMETRIES]
    check(Several().eval(), *images, scale=2)


@pytest.mark.parametrize(("first", "second"), [(4, 16), (5, 15)])
def test_convolutions_that_share_their_input(first: int, second: int) -> None:
    torch.manual_seed(0)
    module = Shared(first, second).eval()
    check(lambda x: (module(x),), torch.randn(1, 8, 9, 9), scale=2)


def test_convolutions_of_other_kinds() -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(
        [
            nn.Conv1d(6, 4, 5, padding=2, groups=2),
            nn.Conv1d(6, 6, 3, dilation=3, groups=6),
            nn.Conv1d(6, 3, 4, stride=3, bias=False),
        ]
    )
    deep = nn.Conv3d(2, 3, 2, padding=1)
    pools = nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2)

    def f(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        found = [layer(x) for layer in layers] + [deep(y)] + [pool(z) for pool in pools]
        return [*found, functional.batch_norm(z, z[0, :, 0, 0], z[0, :, 0, 1].abs() + 1)]

    check(f, randn(2, 6, 17), randn(1, 2, 5, 4, 6), randn(2, 3, 9, 11), scale=2)


# ---- along a dim ---------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize("units", [2, 16])
def test_reductions_of_odd_sizes(units: int) -> None:
    def f(x: Tensor, long: Tensor, image: Tensor) -> tuple[Tensor, ...]:
        found = [op(x, dim) for op in (torch.sum, torch.amax, torch.mean) for dim in (0, 1)]
        return (
            *found,
            x.var(1),
            x.std(0, unbiased=False),
            x.norm(dim=1),
            x.logsumexp(0),
            functional.softmax(x, 0),
            functional.softmax(long, 0),
            long.sum(),
            long.argmax(),
            long.cumsum(0),
            long.prod(),
            x.cumprod(1),
            image.sum((0, 2)),
            image.amax((1, 2)),
            functional.layer_norm(image, image.shape[1:]),
            functional.group_norm(image, 3),
            image.any(2),
            (x > 0).all(0),
        )

    check(f, randn(33, 57), randn(1037) / 8, randn(5, 6, 7), units=units)


def test_ties_and_nan() -> None:
    nan = float("nan")
    x = torch.tensor([[1, 3, 3, 2], [nan, 1, nan, 5], [-1, -1, -1, -1], [0, -0.0, 0, nan]])

    def f(x: Tensor) -> tuple[Tensor, ...]:
        values, places = x.max(1)
        lowest, where = x.min(0)
        return (
            values,
            places,
            lowest,
            where,
            x.argmax(0),
            x.argmin(1),
            x.argmax(),
            x.amax(0),
            x.sum(1),
            functional.softmax(x, 1),
            x.cumsum(0),
        )

    check(f, x, units=3)


def test_results_of_size_zero() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            x + 1,
            x.sum(0),
            x.sum(1),
            x @ y,
            y @ x,
            torch.cat([x, x.new_ones(2, 4)]),
            functional.softmax(x, 1),
            x.mean(0),
            x.argmax(1),
            x.cumsum(0),
        )

    check(f, torch.zeros(0, 4), torch.zeros(4, 0))


# ---- positions -----------------------------------------------------------------------------------


def test_gather_and_scatter() -> None:
    def f(x: Tensor, i: Tensor, rows: Tensor, new: Tensor) -> tuple[Tensor, ...]:
        kept = x.clone()
        kept[rows, 1] = 9.0
        return (
            x.gather(1, i),
            x.gather(0, i[:, :2]),
            x[rows],
            x[:, rows],
            x[rows, rows],
            x[-rows - 1],
            x.index_select(1, rows),
            functional.embedding(rows, x),
            torch.take_along_dim(x, i, 1),
            x.scatter(1, i[:, :1], 7.0),
            x.scatter_add(1, i, new),
            x.index_add(0, rows, new[:3]),
            x.index_put((rows, rows), new[0, 0], accumulate=True),
            x.index_put((rows,), new[:3], accumulate=True),
            x.index_copy(0, rows[:1], new[:1]),
            x.masked_fill(i > 1, -1.0),
            functional.one_hot(rows, 6),
            x.flip(0).roll(1, 1),
            torch.tril(x),
            x.repeat(2, 1)[::3],
            kept,
            torch.stack([x, new]).transpose(0, 2),
            functional.pad(x, (1, 2, 0, 1), value=3.0),
        )

    i = torch.tensor([[0, 3, 1, 0], [1, 1, 1, 1], [3, 2, 1, 0], [2, 2, 0, 0]])
    check(f, randn(4, 4), i, torch.tensor([2, 0, 2]), randn(4, 4, seed=1))


def test_attention_over_a_growing_cache() -> None:
    def f(xs: Tensor, wq: Tensor, wk: Tensor, steps: Tensor) -> tuple[Tensor, ...]:
        keys, values = torch.zeros(9, 2, 6), torch.zeros(9, 2, 6)
        out = torch.zeros(2, 6)
        for t in range(steps):
            x = xs[t] + out.view(12)
            keys[t], values[t] = (x @ wk).view(2, 6), x.view(2, 6)
            scores = torch.einsum("hd,lhd->hl", (x @ wq).view(2, 6), keys) / 6**0.5
            scores = scores.masked_fill(torch.arange(9) > t, -1e9)
            out = torch.einsum("hl,lhd->hd", torch.softmax(scores, 1), values)
        return out, keys

    arguments = randn(9, 12), randn(12, 12) / 3, randn(12, 12, seed=1) / 3
    for steps in (9, 0):
        check(f, *arguments, torch.tensor(steps))
