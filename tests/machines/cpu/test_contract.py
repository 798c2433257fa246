"""Contractions and convolutions as C++: shapes that no tile divides, every kind of operand."""

from __future__ import annotations

import random

import pytest
import torch

from stretto.ir.core import Value
from tests.machines.operators import Operators
from tests.sampling import every, sampled

SIZES = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 48, 63, 64, 65, 70)


@pytest.mark.whole
@pytest.mark.parametrize("seed", sampled([1, 5], [1]))
def test_products_of_matrices_that_no_tile_divides(seed: int) -> None:
    ops, choose = Operators(), random.Random(seed)
    for _ in range(4):
        m, n, k = (choose.choice(SIZES) for _ in range(3))
        size = f"{m}x{n}x{k}"
        ops.keep(f"inputs {size}", ops("mm.default", ops.x(m, k), ops.x(k, n)))
        ops.keep(f"constant right {size}", ops("mm.default", ops.x(m, k), ops.w(k, n)))
        ops.keep(f"constant left {size}", ops("mm.default", ops.w(m, k), ops.x(k, n)))
        linear = ops("linear.default", ops.x(m, k), ops.w(n, k), ops.w(n))
        ops.keep(f"linear {size}", linear)
        right = ops("t.default", ops.x(n, k))
        ops.keep(f"right turned {size}", ops("mm.default", ops.x(m, k), right))
        ops.keep(f"both turned {size}", ops("mm.default", ops("t.default", ops.x(k, m)), right))
    ops.check()


def test_products_without_a_term_and_without_an_element() -> None:
    ops = Operators()
    for m, n, k in ((3, 4, 0), (5, 70, 0), (0, 3, 4), (3, 0, 4), (0, 0, 0)):
        ops.keep(f"mm {m}x{n}x{k}", ops("mm.default", ops.x(m, k), ops.x(k, n)))
        ops.keep(f"constant {m}x{n}x{k}", ops("mm.default", ops.x(m, k), ops.w(k, n)))
        linear = ops("linear.default", ops.x(m, k), ops.w(n, k), ops.w(n))
        ops.keep(f"linear {m}x{n}x{k}", linear)
    ops.check()


@pytest.mark.whole
def test_batches() -> None:
    ops, choose = Operators(), random.Random(2)
    for _ in range(3):
        g = choose.choice((1, 2, 3, 8))
        m, n, k = (choose.choice((1, 2, 5, 7, 16, 17, 33, 64)) for _ in range(3))
        a, at = ops.x(g, m, k), ops("transpose.int", ops.x(g, k, m), 1, 2)
        b, bt = ops.x(g, k, n), ops("transpose.int", ops.x(g, n, k), 1, 2)
        c = ops.w(g, k, n)
        for name, left, right in (("ab", a, b), ("abt", a, bt), ("atb", at, b), ("atbt", at, bt)):
            ops.keep(f"{name} {g}x{m}x{n}x{k}", ops("bmm.default", left, right))
        ops.keep(f"constant {g}x{m}x{n}x{k}", ops("bmm.default", a, c))
        ops.keep(f"vector {g}x{m}x{k}", ops("matmul.default", a, ops.x(k)))
        ops.keep(f"shared {g}x{m}x{k}", ops("matmul.default", a, ops.w(k, n)))
        ops.keep(f"one left {g}x{m}x{n}x{k}", ops("matmul.default", ops.w(m, k), b))
        ops.keep(f"one left turned {g}x{m}x{n}x{k}", ops("matmul.default", ops.x(m, k), bt))
        ops.keep("dot", ops("dot.default", ops.x(k), ops.x(k)))
    ops.check()


@pytest.mark.whole
@pytest.mark.parametrize(
    "dtype", every(2, [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64])
)
def test_dtypes(dtype: torch.dtype) -> None:
    ops = Operators()
    for m, n, k in ((3, 5, 7), (17, 33, 16), (1, 64, 64), (20, 130, 40)):
        x = ops.x(m, k, dtype=dtype)
        ops.keep(f"inputs {m}x{n}x{k}", ops("mm.default", x, ops.x(k, n, dtype=dtype)))
        ops.keep(f"constant {m}x{n}x{k}", ops("mm.default", x, ops.w(k, n, dtype=dtype)))
    image, weight = ops.x(2, 3, 9, 8, dtype=dtype), ops.w(5, 3, 3, 3, dtype=dtype)
    if dtype.is_floating_point:
        convolve(ops, "convolution", image, weight, None, (1, 1), (1, 1))
    ops.check(scale=2)


@pytest.mark.whole
def test_two_products_in_one_map() -> None:
    ops = Operators()
    for m, n, k in ((1, 64, 64), (5, 48, 20), (16, 33, 17)):
        h = ops.x(m, n)
        a = ops("linear.default", ops.x(m, k), ops.w(n, k), ops.w(n))
        b = ops("linear.default", h, ops.w(n, n), None)
        gate = ops("sigmoid.default", ops("add.Tensor", a, b))
        ops.keep(f"gated {m}x{n}x{k}", ops("mul.Tensor", gate, h))
        ops.keep("both", ops("mul.Tensor", ops("tanh.default", a), ops("relu.default", b)), a)
    ops.check()


@pytest.mark.whole
@pytest.mark.parametrize("units", sampled([1, 2, 3], [2]))
def test_cells_whose_gates_are_slices_of_one_product(units: int) -> None:
    ops = Operators()
    for m, n in ((1, 64), (3, 7)):
        x, h, c = ops.x(m, n), ops.x(m, n), ops.x(m, n)
        of_x = ops("linear.default", x, ops.w(4 * n, n, scale=0.3), ops.w(4 * n))
        of_h = ops("linear.default", h, ops.w(4 * n, n, scale=0.3), None)
        i, f, g, o = ops.chunks(ops("add.Tensor", of_x, of_h), 4)
        i, f, o = (ops("sigmoid.default", gate) for gate in (i, f, o))
        kept = ops("mul.Tensor", f, c)
        c = ops("add.Tensor", kept, ops("mul.Tensor", i, ops("tanh.default", g)))
        ops.keep(f"lstm {m}x{n}", ops("mul.Tensor", o, ops("tanh.default", c)), c)
        of_x = ops.chunks(ops("linear.default", x, ops.w(3 * n, n, scale=0.3), ops.w(3 * n)), 3)
        of_h = ops.chunks(ops("linear.default", h, ops.w(3 * n, n, scale=0.3), None), 3)
        r, z = (
            ops("sigmoid.default", ops("add.Tensor", a, b))
            for a, b in zip(of_x[:2], of_h[:2], strict=True)
        )
        new = ops("tanh.default", ops("add.Tensor", of_x[2], ops("mul.Tensor", r, of_h[2])))
        mixed = ops("mul.Tensor", z, ops("sub.Tensor", h, new))
        ops.keep(f"gru {m}x{n}", ops("add.Tensor", new, mixed))
    ops.check(units)


@pytest.mark.whole
@pytest.mark.parametrize("spread", [True, False])
def test_attention(spread: bool) -> None:
    ops = Operators()
    for heads, steps, size in ((2, 5, 8), (4, 17, 16), (1, 1, 4)):
        width = heads * size
        x = ops.x(steps, width)
        qkv = ops("linear.default", x, ops.w(3 * width, width, scale=0.3), ops.w(3 * width))
        parts = [ops("view.default", part, (steps, heads, size)) for part in ops.chunks(qkv, 3)]
        q, k, v = (ops("transpose.int", part, 0, 1) for part in parts)
        scores = ops("bmm.default", q, ops("transpose.int", k, 1, 2))
        weights = ops("_softmax.default", ops("mul.Tensor", scores, size**-0.5), -1, False)
        merged = ops("transpose.int", ops("bmm.default", weights, v), 0, 1)
        merged = ops("reshape.default", merged, (steps, width))
        y = ops("add.Tensor", ops("linear.default", merged, ops.w(width, width), None), x)
        normal = ops("native_layer_norm.default", y, (width,), ops.w(width), ops.w(width), 1e-5)
        ops.keep(f"attention {heads}x{steps}x{size}", y, normal)
    ops.check(spread=spread)


# ---- convolutions ----------------------------------------------------------------------------


def convolve(
    ops: Operators,
    name: str,
    image: Value,
    weight: Value,
    bias: Value | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...] | None = None,
    groups: int = 1,
) -> Value:
    ones = (1,) * len(stride)
    zeros = (0,) * len(stride)
    arguments = (stride, padding, dilation or ones, False, zeros, groups)
    result = ops("convolution.default", image, weight, bias, *arguments)
    ops.keep(name, result)
    return result


@pytest.mark.whole
def test_convolutions_of_odd_sizes() -> None:
    ops, choose = Operators(), random.Random(3)
    for _ in range(9):
        groups = choose.choice((1, 1, 2, 3))
        channels, wanted = groups * choose.choice((1, 2, 5)), groups * choose.choice((1, 5, 13))
        kernel = choose.choice((1, 2, 3, 5)), choose.choice((1, 2, 3, 4))
        stride = choose.choice((1, 1, 2, 3)), choose.choice((1, 2))
        padding = choose.choice((0, 1, 2)), choose.choice((0, 1, 3))
        image = ops.x(choose.choice((1, 3)), channels, choose.choice((5, 11, 16)), 13)
        make = ops.w if choose.random() < 0.7 else ops.x
        weight = make(wanted, channels // groups, *kernel)
        name = f"{groups} groups {channels} -> {wanted} {kernel} stride {stride} pad {padding}"
        y = convolve(ops, name, image, weight, ops.w(wanted), stride, padding, (1, 2), groups)
        shape = y.tensor.static_shape()
        ops.keep(f"residual {name}", ops("relu.default", ops("add.Tensor", y, ops.x(*shape))))
    ops.check()


@pytest.mark.whole
def test_convolutions_of_one_dim_and_of_single_channels() -> None:
    ops, choose = Operators(), random.Random(4)
    for _ in range(5):
        width = choose.choice((8, 13, 20, 64))
        weight = ops.w(choose.choice((1, 7, 16)), 3, choose.choice((1, 3, 4)))
        step = (choose.choice((1, 2)),)
        convolve(ops, f"width {width}", ops.x(2, 3, width), weight, None, step, (1,), (2,))
        channels = choose.choice((1, 5, 8))
        image = ops.x(2, channels, 9, width)
        weight = ops.w(channels, 1, choose.choice((1, 3, 5)), 3)
        name = f"depthwise {channels} channels width {width}"
        y = convolve(ops, name, image, weight, None, (step[0], 1), (2, 1), groups=channels)
        ops.keep(f"relu {name}", ops("relu.default", y))
        twice = ops.w(2 * channels, 1, 3, 3)
        convolve(ops, f"two each {name}", image, twice, None, (1, 1), (1, 1), groups=channels)
    ops.check()


@pytest.mark.whole
def test_convolutions_of_views_and_of_computed_images() -> None:
    ops = Operators()
    weight = ops.w(7, 6, 3, 3)

    def test(name: str, image: Value, pad: int = 1, kernel: Value = weight) -> None:
        convolve(ops, name, image, kernel, None, (1, 1), (pad, pad))

    turned = ops("permute.default", ops.x(2, 9, 10, 6), (0, 3, 1, 2))
    test("turned", turned)
    test("relu", ops("relu.default", turned))
    test("some channels", ops("slice.Tensor", ops.x(2, 12, 9, 10), 1, 3, 9), 0)
    test("some columns", ops("slice.Tensor", ops.x(2, 6, 9, 20), 3, 3, 13))
    test("padded", ops("constant_pad_nd.default", ops.x(2, 6, 5, 5), (1, 2, 0, 1), 0.0))
    test("padded by 1.5", ops("constant_pad_nd.default", ops.x(2, 6, 5, 5), (1, 2, 0, 1), 1.5))
    test("flipped", ops("flip.default", ops.x(2, 6, 8, 8), (3,)))
    test("expanded", ops("expand.default", ops.x(2, 1, 8, 8), (2, 6, 8, 8)))
    test("one of three", ops("select.int", ops.x(3, 2, 6, 8, 8), 0, 1))
    test("one pixel", ops.x(2, 6, 3, 3), 0)
    kernel = ops("permute.default", ops.w(6, 7, 3, 3), (1, 0, 2, 3))
    test("weights turned", ops.x(2, 6, 8, 8), kernel=kernel)
    image, kernel = ops.x(2, 6, 5, 5), ops.w(6, 4, 3, 3)
    transposed = (None, (2, 2), (1, 1), (1, 1), True, (1, 1), 1)
    ops.keep("transposed", ops("convolution.default", image, kernel, *transposed))
    ops.check()
