"""Rules of contractions, convolutions, pools and attention; forms that kernel selection knows."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

from stretto.device.expr import Apply, Const, Load
from stretto.device.operator import Operator
from stretto.device.tree import leaves
from stretto.ir.types import DType
from stretto.lowering.lower_program import lower
from tests.lowering.straight_line import NotNative, build, check, run

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def operators(target: str, *args: Any, **kwargs: Any) -> list[Operator]:
    program, _ = build(target, *args, **kwargs)
    items = [item for leaf in leaves(lower(program).tree.main.body) for item in leaf]
    return [item for item in items if isinstance(item, Operator)]


def is_product_of_loads(operator: Operator) -> bool:
    match operator.value:
        case Apply("mul", (left, right), _):
            sides = [
                s.args[0] if isinstance(s, Apply) and s.function == "cast" else s
                for s in (left, right)
            ]
            return all(isinstance(side, Load) for side in sides)
        case _:
            return False


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "sizes", ((1, 7, 5), (3, 1, 4), (4, 8, 1), (5, 6, 7), (0, 3, 2), (2, 0, 3))
)
def test_products(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, k, n = sizes
    a, b, bias = random(m, k, dtype=dtype), random(k, n, dtype=dtype), random(n, dtype=dtype)
    check("aten.mm.default", a, b)
    check("aten.addmm.default", bias, a, b)
    check("aten.linear.default", a, b.t().contiguous(), bias)
    check("aten.linear.default", a, b.t().contiguous())


def test_scaled_products() -> None:
    a, b, bias = random(4, 5), random(5, 3), random(4, 1)
    check("aten.addmm.default", bias, a, b, beta=2, alpha=0.5)
    check("aten.addmm.default", bias * float("nan"), a, b, beta=0)
    check("aten.addmv.default", random(4), a, random(5), beta=0.5)
    check("aten.baddbmm.default", random(3), random(2, 4, 5), random(2, 5, 3), alpha=3)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (4,)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (6, 4, 5)),
        ((3, 4), (2, 4, 5)),
        ((4,), (2, 4, 5)),
        ((1, 3, 4), (2, 4, 5)),
    ],
)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check("aten.matmul.default", random(*left), random(*right))


def test_vectors() -> None:
    check("aten.mv.default", random(3, 4), random(4))
    check("aten.dot.default", random(4), random(4))
    check("aten.outer.default", random(3), random(4))
    check("aten.bmm.default", random(2, 3, 4), random(2, 4, 5))
    check("aten.mm.default", torch.arange(6).reshape(2, 3), torch.arange(12).reshape(3, 4))


@pytest.mark.parametrize("shape", ((4,), (2, 4), (2, 3, 4), (1, 1, 4)))
def test_linear_of_many_dims(shape: tuple[int, ...]) -> None:
    check("aten.linear.default", random(*shape), random(5, 4), random(5))
    check("aten.linear.default", random(*shape), random(5, 4))


def test_a_product_is_one_operator_of_loads() -> None:
    (product,) = operators("aten.mm.default", random(3, 4), random(4, 5))
    assert (product.combine, product.dims, product.reduce) == ("sum", (3, 5), (4,))
    assert is_product_of_loads(product)
    raw, bias = operators("aten.linear.default", random(2, 3, 4), random(5, 4), random(5))
    assert is_product_of_loads(raw) and raw.dims == (6, 5)
    assert bias.combine == "" and bias.dims == (2, 3, 5)


def test_half_precision_is_converted_at_the_load() -> None:
    half = torch.bfloat16
    product, rounding = operators(
        "aten.mm.default", random(3, 4, dtype=half), random(4, 5, dtype=half)
    )
    assert is_product_of_loads(product) and product.value.dtype is DType.F32
    assert rounding.combine == ""


# ---- convolution -----------------------------------------------------------------------------

CONVOLUTIONS: list[dict[str, Any]] = [
    {},
    {"stride": [2, 1]},
    {"padding": [1, 2]},
    {"padding": [0, 1], "stride": [1, 2]},
    {"dilation": [2, 1], "padding": [2, 0]},
    {"stride": [3, 3], "padding": [1, 1], "dilation": [1, 2]},
    {"padding": "same"},
    {"padding": "valid"},
]


def convolution_target(name: str, keywords: dict[str, Any]) -> str:
    return (
        f"aten.{name}.padding"
        if isinstance(keywords.get("padding"), str)
        else f"aten.{name}.default"
    )


@pytest.mark.parametrize("bias", (True, False))
@pytest.mark.parametrize("keywords", CONVOLUTIONS)
def test_conv2d(keywords: dict[str, Any], bias: bool) -> None:
    target = convolution_target("conv2d", keywords)
    added = random(4) if bias else None
    check(target, random(2, 3, 7, 8), random(4, 3, 3, 2), added, **keywords)
    check(target, random(3, 7, 8), random(4, 3, 3, 2), added, **keywords)


@pytest.mark.parametrize("groups", (1, 2, 4))
def test_groups(groups: int) -> None:
    weight = random(8, 4 // groups, 3, 3)
    check(
        "aten.conv2d.default", random(2, 4, 6, 5), weight, random(8), padding=[1, 1], groups=groups
    )
    check("aten.conv1d.default", random(2, 4, 6), weight[..., 0], random(8), groups=groups)


@pytest.mark.parametrize("dtype", FLOATS)
def test_convolution_dtypes(dtype: torch.dtype) -> None:
    image, weight = random(1, 3, 5, 5, dtype=dtype), random(4, 3, 3, 3, dtype=dtype)
    arguments = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    check("aten.convolution.default", image, weight, None, *arguments)
    check("aten.convolution.default", image, weight, random(4, dtype=dtype), *arguments)


def test_conv1d_and_conv3d() -> None:
    check("aten.conv1d.default", random(2, 3, 9), random(4, 3, 3), random(4), [2], [1], [2])
    check("aten.conv3d.default", random(1, 2, 4, 5, 6), random(3, 2, 2, 3, 2), padding=[1, 0, 1])


def test_the_form_of_a_convolution() -> None:
    (operator,) = operators(
        "aten.conv2d.default", random(2, 3, 7, 8), random(4, 3, 3, 2), None, [1, 1], [0, 1]
    )
    assert operator.name == "convolution" and operator.combine == "sum"
    assert operator.dims == (2, 4, 7 - 3 + 1, 8 + 2 - 2 + 1) and operator.reduce == (3, 3, 2)
    match operator.value:
        case Apply("mul", (Load(), Apply("where", (condition, Load(), Const(0.0)), _)), DType.F32):
            assert isinstance(condition, Apply) and condition.function == "and"
            assert [arg.function for arg in condition.args if isinstance(arg, Apply)] == [
                "ge",
                "lt",
            ]
        case other:
            pytest.fail(f"not the canonical form: {other}")
    (plain,) = operators("aten.conv2d.default", random(2, 3, 7, 8), random(4, 3, 3, 2))
    assert is_product_of_loads(plain)


def test_transposed_convolution_is_a_library_call() -> None:
    with pytest.raises(NotNative):
        arguments = ([1, 1], [0, 0], [1, 1], True, [0, 0], 1)
        run("aten.convolution.default", random(1, 3, 5, 5), random(3, 4, 3, 3), None, *arguments)


# ---- pools -----------------------------------------------------------------------------------

POOLS: list[list[Any]] = [
    [[2, 2]],
    [[3, 2], [1, 2]],
    [[3, 3], [2, 2], [1, 1]],
    [[2, 3], [2, 2], [0, 1]],
]


@pytest.mark.parametrize("ceil", (False, True))
@pytest.mark.parametrize("arguments", POOLS)
def test_max_pool(arguments: list[Any], ceil: bool) -> None:
    x = random(2, 3, 7, 8)
    x[0, 1, 2] = -float("inf")
    given = [
        *arguments,
        *([[]] if len(arguments) == 1 else []),
        *([[0, 0]] if len(arguments) < 3 else []),
    ]
    check("aten.max_pool2d.default", x, *given, [1, 1], ceil)
    check("aten.max_pool2d.default", x, *given, [2, 1], ceil)
    check("aten.max_pool2d_with_indices.default", x, *given, [1, 1], ceil)
    check("aten.max_pool2d_with_indices.default", x[0], *given, [1, 1], ceil)


@pytest.mark.parametrize("divisor", (None, 5))
@pytest.mark.parametrize("count_padding", (False, True))
@pytest.mark.parametrize("ceil", (False, True))
@pytest.mark.parametrize("arguments", POOLS)
def test_avg_pool(
    arguments: list[Any], ceil: bool, count_padding: bool, divisor: int | None
) -> None:
    x = random(2, 3, 7, 8)
    given = [
        *arguments,
        *([[]] if len(arguments) == 1 else []),
        *([[0, 0]] if len(arguments) < 3 else []),
    ]
    check("aten.avg_pool2d.default", x, *given, ceil, count_padding, divisor)
    check("aten.avg_pool2d.default", x[0].bfloat16(), *given, ceil, count_padding, divisor)


@pytest.mark.parametrize("size", ([1, 1], [2, 4], [3, 5], [7, 8], [9, 3]))
def test_adaptive_avg_pool(size: list[int]) -> None:
    check("aten._adaptive_avg_pool2d.default", random(2, 3, 7, 8), size)
    check("aten.adaptive_avg_pool1d.default", random(2, 3, 8), size[:1])


def test_pools_of_one_dim() -> None:
    x = random(2, 3, 9)
    check("aten.max_pool1d.default", x, [3], [2], [1])
    check("aten.avg_pool1d.default", x, [3], [2], [1], True, False)


# ---- attention -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_attention(dtype: torch.dtype) -> None:
    q, k, v = (random(2, 3, n, 4, dtype=dtype) for n in (5, 6, 6))
    target = "aten.scaled_dot_product_attention.default"
    check(target, q, k, v)
    check(target, q, k, v, scale=0.3)
    check(target, q, k, v, None, 0.0, True)
    check(target, q, k, v, random(5, 6, dtype=dtype))
    check(target, q, k, v, random(2, 1, 5, 6) > -1)


def test_attention_with_grouped_heads() -> None:
    q, k, v = random(2, 6, 5, 4), random(2, 3, 7, 4), random(2, 3, 7, 4) + 1
    check("aten.scaled_dot_product_attention.default", q, k, v, enable_gqa=True)


def test_flash_attention_gives_the_logarithm_of_the_sums() -> None:
    q, k, v = (random(2, 3, n, 4) for n in (5, 5, 5))
    found = run("aten._scaled_dot_product_flash_attention_for_cpu.default", q, k, v)
    scores = q @ k.transpose(-1, -2) / 2
    torch.testing.assert_close(found[0], scores.softmax(-1) @ v)
    torch.testing.assert_close(found[1], scores.logsumexp(-1))


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16), ids=str)
@pytest.mark.parametrize("scales", ((0, 1), (0, 2), (0, 0), (1, 0), (2, 0.5)))
def test_addmm_of_infinities_and_nan(scales: tuple[float, float], dtype: torch.dtype):
    """A beta of 0 drops what is added; an alpha of 0 the product, where ATen calls BLAS."""
    keywords = {"alpha": scales[0], "beta": scales[1]}
    a = torch.tensor([[1.0, inf, 3.0], [nan, 1.0, 2.0]], dtype=dtype)
    b = torch.tensor([[1.0, -inf], [2.0, nan], [0.0, 1.0]], dtype=dtype)
    c = torch.tensor([[nan, inf], [1.0, -inf]], dtype=dtype)
    check("aten.addmm.default", c, a, b, **keywords)
    check("aten.addmv.default", c[:, 0], a, b[:, 0], **keywords)
    check("aten.baddbmm.default", c[None], a[None], b[None], **keywords)
