"""Statistics of images whose channels are contiguous: sums of many short runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stretto.device.operator import Operator
from stretto.interp.interpreter import run
from stretto.kernels.channels_last import channels_last
from tests.backends import assert_close, built
from tests.lowering.programs import items_of, lowered
from tests.machines.cpu.test_pixels import hidden
from tests.machines.operators import Operators
from tests.support import program_of

NORM = """
    func @main[0 <= n, 1 <= h, 1 <= w](%x: f32[n, 3, h, w]) -> (f32[n, 5, h, w]) {
      %u = constant "u" : f32[12, 3, 1, 1]
      %s = constant "s" : f32[12]
      %t = constant "t" : f32[5, 12, 3, 3]
      %a = aten.convolution.default(%x, %u, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)
        : f32[n, 12, h, w]
      %b = aten.group_norm.default(%a, 4, %s, %s, 0.00001, False) : f32[n, 12, h, w]
      %c = aten.convolution.default(%b, %t, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
        : f32[n, 5, h, w]
      return %c
    }
    """


@pytest.mark.whole
@pytest.mark.parametrize("units", [1, 3])
def test_group_norm_between_convolutions(units: int) -> None:
    ops = Operators()
    for channels, groups, batch, image in (
        (1, 1, 2, (5, 7)),
        (3, 3, 1, (4, 1)),
        (15, 5, 1, (9, 2)),
        (34, 2, 3, (1, 3)),
        (130, 1, 1, (3, 3)),
        (24, 3, 0, (6, 6)),
        (16, 2, 1, (70, 80)),
        (6, 2, 1, (1, 4100)),
    ):
        height, width = image
        y = hidden(ops, ops.x(batch, 3, *image), ops.w(channels, 3, 1, 1))
        sizes = batch, channels, height * width
        weight, bias = ops.w(channels), ops.w(channels)
        z, *_ = ops.call("native_group_norm.default", y, weight, bias, *sizes, groups, 1e-5)
        last = hidden(ops, ops("silu.default", z), ops.w(5, channels, 3, 3), padding=(1, 1))
        ops.keep(f"{channels} channels, {groups} groups, {image}", last)
    ops.check(units, scale=8)


@pytest.mark.whole
def test_other_combinations_over_channels_and_pixels() -> None:
    ops = Operators()
    for dtype in (torch.float32, torch.float64):
        x = ops.x(2, 3, 6, 5, dtype=dtype)
        y = hidden(ops, x, ops.w(12, 3, 3, 3, dtype=dtype), padding=(1, 1))
        z = hidden(ops, y, ops.w(12, 12, 1, 1, dtype=dtype))
        for name in ("sum.dim_IntList", "amax.default", "mean.dim"):
            ops.keep(f"{name} {dtype}", ops(name, z, (1, 2, 3)), ops(name, z, (3, 1)))
            ops.keep(f"{name} {dtype}, both", ops(name, ops("mul.Tensor", y, z), (1, 2)))
        ops.keep(f"argmax {dtype}", ops("argmax.default", z))
    ops.check(scale=8)


def test_every_size_of_a_symbolic_image() -> None:
    program = program_of(NORM)
    made = built(program, 2)
    for n, h, w in ((1, 1, 1), (2, 2, 3), (0, 4, 4), (1, 17, 8), (3, 1, 9), (1, 2, 4200)):
        given = [torch.randn(n, 3, h, w)]
        expected = run(program, given)
        assert_close(made.cpu()(given), expected, scale=8)
        if n * h * w < 20:
            assert_close(made.emulator(seed=h)(given), expected, scale=8)


def test_sums_read_pixels_in_the_order_in_which_they_lie() -> None:
    text = lowered(NORM)
    items = items_of(replace(text, tree=channels_last(text.tree)))
    sums = [one for one in items if isinstance(one, Operator) and one.name == "sum"]
    assert sums
    assert all(one.reduce[-1] == 3 for one in sums)


def test_sums_of_large_images_are_as_good_as_in_double() -> None:
    ops = Operators()
    x = torch.rand(1, 1, 512, 600, generator=ops.generator) + 1.0
    y = hidden(ops, ops.parameter(x), ops.constant(torch.ones(8, 1, 1, 1)))
    z = hidden(ops, y, ops.constant(torch.ones(4, 8, 1, 1) / 8))
    ops.keep("sum", ops("sum.dim_IntList", y, (1, 2, 3)), z)
    total, _ = built(ops.program(), 2).cpu()([x])
    torch.testing.assert_close(total.double(), 8 * x.double().sum()[None], rtol=1e-7, atol=0)
