"""Convolutions with contiguous channels, as C++, as text and in the emulator."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from stretto.device.operator import Kernel, Operator
from stretto.device.text import parse_program, print_program
from stretto.device.tree import leaves
from stretto.errors import ScheduleError
from stretto.interp.interpreter import run
from stretto.ir.core import Value
from stretto.kernels.channels_last import channels_last
from stretto.machines.cpu.select import select
from stretto.machines.cpu.templates import TEMPLATES
from stretto.schedule.scheduler import schedule
from tests.backends import assert_close, built
from tests.lowering.programs import items_of, lowered
from tests.machines.operators import Operators
from tests.sampling import sampled
from tests.support import program_of

CHAIN = """
    func @main(%x: f32[2, {0}, 9, 9]) -> (f32[2, 8, 9, 9]) {{
      %w = constant "w" : f32[{1}, {2}, 3, 3]
      %v = constant "v" : f32[8, {1}, 1, 1]
      %y = aten.convolution.default(%x, %w, None, {3}, {4}) : f32[2, {1}, 9, 9]
      %z = aten.convolution.default(%y, %v, None, {5}, 1) : f32[2, 8, 9, 9]
      return %z
    }}
    """
PADDED, PLAIN = "(1, 1), (1, 1), (1, 1), False, (0, 0)", "(1, 1), (0, 0), (1, 1), False, (0, 0)"
PROGRAMS = {
    "pixels": CHAIN.format(3, 20, 3, PADDED, 1, PLAIN),
    "groups": CHAIN.format(8, 20, 4, PADDED, 2, PLAIN),
    "group_pixels": CHAIN.format(32, 32, 4, PADDED, 8, PLAIN),
    "depthwise_pixels": CHAIN.format(20, 20, 1, PADDED, 20, PLAIN),
}


def hidden(
    ops: Operators,
    image: Value,
    weight: Value,
    stride: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0),
    dilation: tuple[int, ...] = (1, 1),
    groups: int = 1,
) -> Value:
    """A convolution that is no result."""
    zeros = (0,) * len(stride)
    arguments = (stride, padding, dilation, False, zeros, groups)
    return ops("convolution.default", image, weight, None, *arguments)


@pytest.mark.parametrize(
    ("seed", "dtype"),
    sampled([(n, torch.float32) for n in (1, 2, 3)] + [(4, torch.float64)], [(1, torch.float32)]),
)
def test_chains_of_convolutions_of_odd_sizes(seed: int, dtype: torch.dtype) -> None:
    ops, choose = Operators(), random.Random(seed)
    for groups in (1, 1, 2, 3):
        channels = groups * choose.choice((4, 5, 17))
        wanted = groups * choose.choice((1, 16, 33, 65))
        kernel = choose.choice((1, 2, 3, 5)), choose.choice((1, 2, 3, 4))
        stride = choose.choice((1, 1, 2, 3)), choose.choice((1, 2))
        padding = choose.choice((0, 1, 2)), choose.choice((0, 1, 3))
        dilation = 1, choose.choice((1, 2))
        first = choose.choice((1, 3, 4, 16))
        shape = choose.choice((1, 2)), first, choose.choice((7, 11, 16)), choose.choice((9, 13))
        name = f"{groups} groups {channels} -> {wanted} {kernel} {stride} {padding} {dilation}"
        weights = (
            ops.w(*size, dtype=dtype, scale=0.3)
            for size in (
                (channels, first, 3, 3),
                (wanted, channels // groups, *kernel),
                (3, wanted, 1, 1),
            )
        )
        y = hidden(ops, ops.x(*shape, dtype=dtype), next(weights), (1, 1), (1, 1))
        y = ops("relu.default", y)
        z = hidden(ops, y, next(weights), stride, padding, dilation, groups)
        ops.keep(f"mean {name}", ops("mean.dim", z, (2, 3)))
        hidden_sum = hidden(ops, z, next(weights))
        ops.keep(f"last {name}", ops("sigmoid.default", hidden_sum))
    ops.check(scale=4)


@pytest.mark.whole
def test_depthwise_chains_pools_and_channels_put_together() -> None:
    ops = Operators()
    for channels, kernel, step in ((1, 3, 1), (5, 3, 2), (24, 5, 2), (72, 3, 1)):
        image = ops.x(2, 3, 13, 12)
        y = ops("relu.default", hidden(ops, image, ops.w(channels, 3, 1, 1)))
        taps, pad = ops.w(channels, 1, kernel, kernel), kernel // 2
        z = hidden(ops, y, taps, (step, step), (pad, pad), groups=channels)
        pooled = ops("max_pool2d_with_indices.default", z, (3, 3), (2, 2), (1, 1))
        ops.keep(f"pool {channels}", hidden(ops, pooled, ops.w(7, channels, 1, 1)))
        both = ops("cat.default", (z, ops("relu.default", z)), 1)
        ops.keep(f"both {channels}", hidden(ops, both, ops.w(20, 2 * channels, 3, 3)))
    ops.check(scale=4)


@pytest.mark.whole
@pytest.mark.parametrize("dtype", sampled([torch.float64, torch.float32], [torch.float32]))
def test_groups_of_few_channels(dtype: torch.dtype) -> None:
    ops = Operators()
    for each, groups, size, step in ((4, 4, 13, 2), (8, 4, 3, 1), (4, 12, 1, 1), (8, 3, 9, 1)):
        channels = each * groups
        y = hidden(ops, ops.x(2, 3, size, size, dtype=dtype), ops.w(channels, 3, 1, 1, dtype=dtype))
        taps = ops.w(channels, each, 3, 3, dtype=dtype, scale=0.3)
        z = hidden(ops, ops("relu.default", y), taps, (step, step), (1, 1), groups=groups)
        last = hidden(ops, ops("relu.default", z), ops.w(5, channels, 1, 1, dtype=dtype))
        ops.keep(f"{groups} groups of {each}, {size} x {size}", last)
    ops.check(scale=4)


@pytest.mark.whole
@pytest.mark.parametrize("each", [1, 4, 8])
@pytest.mark.parametrize("kernel", [(3, 3), (5, 7), (2, 5), (1, 1), (4, 3)])
def test_groups_in_all_geometries(each: int, kernel: tuple[int, int]) -> None:
    ops, choose = Operators(), random.Random(each * 100 + kernel[0] * 10 + kernel[1])
    for width in (1, 2, 3, 5, 6, 7, 8, 11, 15, 30, 61):
        step, dilation = choose.choice(((1, 1), (2, 2), (1, 2), (3, 3))), choose.choice((1, 1, 2))
        padding = tuple(choose.choice((0, dilation * (n // 2), n)) for n in kernel)
        channels = choose.choice((5, 24, 35)) if each == 1 else 16 * choose.choice((1, 3))
        height = choose.choice((1, 4, 9))
        reach = [dilation * (n - 1) - 2 * p for n, p in zip(kernel, padding, strict=True)]
        shape = max(height, reach[0] + 1), max(width, reach[1] + 1)
        y = ops("relu.default", hidden(ops, ops.x(2, 3, *shape), ops.w(channels, 3, 1, 1)))
        taps = ops.w(channels, each, *kernel, scale=0.3)
        z = hidden(ops, y, taps, step, padding, (dilation, dilation), groups=channels // each)
        last = hidden(ops, ops("relu.default", z), ops.w(5, channels, 1, 1))
        ops.keep(f"{channels} channels, {shape}, {step}, {padding}, {dilation}", last)
    ops.check(scale=8)


@pytest.mark.parametrize("each", [1, 4])
def test_taps_far_apart_and_channels_beyond_the_zeros_at_hand(each: int) -> None:
    ops = Operators()
    for channels, size, kernel, padding, dilation in (
        (16, (3, 700), (1, 23), (0, 90), (1, 30)),
        (16, (90, 31), (5, 3), (40, 1), (20, 1)),
        (16, (2, 900), (3, 40), (1, 20), (1, 1)),
        (2080, (2, 3), (3, 3), (1, 1), (1, 1)),
    ):
        y = ops("relu.default", hidden(ops, ops.x(1, 3, *size), ops.w(channels, 3, 1, 1)))
        taps = ops.w(channels, each, *kernel, scale=0.3)
        z = hidden(ops, y, taps, (1, 1), padding, dilation, groups=channels // each)
        last = hidden(ops, ops("relu.default", z), ops.w(3, channels, 1, 1, scale=0.1))
        ops.keep(f"{channels} channels, {size}, {kernel}", last)
    ops.check(scale=16)


def test_numbers_of_channels_that_are_no_whole_vectors() -> None:
    ops = Operators()
    for size, channels in ((1, 200), (2, 72), (5, 112), (7, 160), (4, 81), (3, 8), (11, 24)):
        image = ops.x(1, 3, size, size)
        y = ops("relu.default", hidden(ops, image, ops.w(channels, 3, 3, 3), padding=(1, 1)))
        z = ops("relu.default", hidden(ops, y, ops.w(channels, channels, 1, 1, scale=0.3)))
        ops.keep(f"{channels} channels", hidden(ops, z, ops.w(17, channels, 1, 1, scale=0.3)))
    ops.check(scale=8)


def test_images_of_one_dim() -> None:
    ops = Operators()
    y = hidden(ops, ops.x(2, 4, 70), ops.w(20, 4, 10, scale=0.3), (5,), (0,), (1,))
    z = hidden(ops, ops("gelu.default", y), ops.w(70, 20, 3), (2,), (1,), (1,))
    ops.keep("last", hidden(ops, z, ops.w(3, 70, 1), (1,), (0,), (1,)))
    ops.check(scale=4)


@pytest.mark.parametrize("units", [1, 3])
def test_whole_rows_of_taps_that_cross_an_edge(units: int) -> None:
    ops = Operators()
    cases = (
        # channels, image, taps, step, padding: taps as wide as the image, wider, beyond its edges
        (3, (9, 8), (7, 7), (2, 2), (3, 3)),
        (1, (9, 8), (5, 5), (2, 2), (6, 6)),
        (16, (9, 8), (3, 3), (2, 2), (2, 2)),
        (2, (6, 5), (2, 5), (1, 1), (1, 4)),
        (2, (6, 4), (3, 5), (1, 3), (0, 3)),
        (1, (61, 23), (41, 11), (2, 2), (20, 5)),
        (1, (5, 130), (3, 47), (3, 1), (2, 50)),
        (16, (7, 1), (2, 2), (1, 1), (0, 1)),
        (1, (3, 70), (4, 3), (1, 1), (9, 1)),
        (20, (2, 200), (3, 3), (3, 1), (7, 2)),
    )
    for first, image, taps, step, pad in cases:
        y = hidden(ops, ops.x(1, first, *image), ops.w(20, first, *taps), step, pad)
        ops.keep(f"{first} x {image}, {taps}", hidden(ops, y, ops.w(5, 20, 1, 1)))
    ops.check(units, scale=8)


def test_more_taps_than_are_found_at_once() -> None:
    ops = Operators()
    for first, image, taps, pad in (
        (5, (33, 12), (21, 11), (10, 5)),
        (17, (8, 60), (2, 51), (1, 25)),
        (4, (3, 3), (16, 32), (15, 31)),
    ):
        y = hidden(ops, ops.x(1, 3, *image), ops.w(first, 3, 1, 1))
        z = hidden(ops, y, ops.w(33, first, *taps, scale=0.1), (1, 1), pad)
        ops.keep(f"{first} x {image}, {taps}", hidden(ops, z, ops.w(5, 33, 1, 1)))
    ops.check(scale=8)


# ---- forms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_text_and_emulator(name: str) -> None:
    template = "pixels" if name == "groups" else name
    program = schedule(select(lowered(PROGRAMS[name]), 2).tree, 2)
    text = print_program(program)
    assert f"stage {template}(" in text
    assert parse_program(text, TEMPLATES) == program
    source = program_of(PROGRAMS[name])
    given = [torch.randn(*map(int, source.main.params[0].tensor.static_shape()))]
    assert_close(built(source, 2).emulator()(given), run(source, given), scale=4)


def test_a_text_without_a_product_is_no_such_convolution() -> None:
    text = print_program(schedule(select(lowered(PROGRAMS["pixels"]), 2).tree, 2))
    with pytest.raises(ScheduleError, match="template pixels: .*contiguous channels"):
        parse_program(text.replace("mul(", "add("), TEMPLATES)


def shapes(text: str) -> list[tuple[str, tuple[object, ...]]]:
    """The results of operators: their buffers' kinds and dims."""
    tree = channels_last(lowered(text).tree)
    items = items_of(replace(lowered(text), tree=tree))
    outs = [item.out.buffer for item in items if isinstance(item, Operator)]
    return [(buffer.kind, buffer.shape) for buffer in outs]


def test_images_between_convolutions_change_their_layout() -> None:
    assert shapes(PROGRAMS["pixels"]) == [
        ("local", (2, 9, 9, 3)),
        ("local", (2, 9, 9, 20)),
        ("local", (2, 9, 9, 8)),
        ("output", (2, 8, 9, 9)),
    ]


def test_one_convolution_alone_reads_and_writes_what_it_is_given() -> None:
    text = """
    func @main(%x: f32[2, 3, 9, 9]) -> (f32[2, 8, 7, 7]) {
      %w = constant "w" : f32[8, 3, 3, 3]
      %y = aten.convolution.default(%x, %w, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)
        : f32[2, 8, 7, 7]
      return %y
    }
    """
    assert shapes(text) == [("output", (2, 8, 7, 7))]


def test_images_that_are_seen_by_other_dims_stay_as_they_are() -> None:
    text = """
    func @main(%x: f32[2, 3, 9, 9]) -> (f32[2, 567]) {
      %w = constant "w" : f32[7, 3, 3, 3]
      %y = aten.convolution.default(%x, %w, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
        : f32[2, 7, 9, 9]
      %r = aten.relu.default(%y) : f32[2, 7, 9, 9]
      %v = aten.view.default(%r, (2, 567)) : f32[2, 567]
      %e = aten.exp.default(%v) : f32[2, 567]
      return %e
    }
    """
    source = program_of(text)
    given = [torch.randn(2, 3, 9, 9)]
    assert_close(built(source, 2).cpu()(given), run(source, given), scale=4)


def test_tasks_share_pixels_among_several_vectors_of_channels() -> None:
    """A task of few channels reads all pixels for these alone: images are cut into rows, and where
    tasks can differ in their channels only, as those of a mean do, they are few."""
    text = """
    func @main(%x: f32[1, 64, 25, 25]) -> (f32[1, 128]) {
      %w = constant "w" : f32[128, 128, 3, 3]
      %v = constant "v" : f32[128, 64, 3, 3]
      %h = aten.convolution.default(%x, %v, None, (1, 1), (2, 2), (2, 2), False, (0, 0), 1)
        : f32[1, 128, 25, 25]
      %y = aten.convolution.default(%h, %w, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
        : f32[1, 128, 25, 25]
      %m = aten.mean.dim(%y, (2, 3)) : f32[1, 128]
      return %m
    }
    """
    chosen = select(lowered(text), 2)
    kernels = [k for f in chosen.tree.functions for body in leaves(f.body) for k in body]
    grids = [kernel.grid for kernel in kernels if isinstance(kernel, Kernel)]
    _, first, mean = [[(dim.extent, dim.tile) for dim in grid] for grid in grids]
    assert first == [(25, 13), (25, 25), (128, 128)] and mean == [(128, 64)]
