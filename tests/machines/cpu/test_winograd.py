"""Convolutions of 3 x 3 taps by tiles of pixels: what applies, what is computed, special values."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace
from math import prod

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.device.expr import Buffer
from stretto.device.forms import Packing
from stretto.device.text import parse_program, print_program
from stretto.errors import ScheduleError
from stretto.interp.interpreter import run
from stretto.ir.types import DType
from stretto.machines.cpu.select import select
from stretto.machines.cpu.templates import TEMPLATES
from stretto.options import Options
from stretto.runtime.constants import POINTS, filtered, pack
from stretto.schedule.scheduler import schedule
from tests.backends import SPREAD, assert_close, built
from tests.lowering.programs import lowered
from tests.machines.cpu.test_pixels import hidden
from tests.machines.operators import Operators
from tests.sampling import sampled
from tests.support import program_of

TEXT = """
    func @main[{sizes}](%x: f32[{n}, 3, {h}, {w}]) -> (f32[{n}, 5, {h}, {w}]) {{
      %u = constant "u" : f32[32, 3, 1, 1]
      %v = constant "v" : f32[48, 32, {taps}]
      %t = constant "t" : f32[5, 48, 1, 1]
      %a = aten.convolution.default(%x, %u, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)
        : f32[{n}, 32, {h}, {w}]
      %b = aten.convolution.default(%a, %v, None, (1, 1), {pad}, (1, 1), False, (0, 0), 1)
        : f32[{n}, 48, {h}, {w}]
      %c = aten.convolution.default(%b, %t, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)
        : f32[{n}, 5, {h}, {w}]
      return %c
    }}
    """
TAPS = {"taps": "3, 3", "pad": "(1, 1)"}
FIXED = TEXT.format(sizes="", n=2, h=7, w=5, **TAPS).replace("[]", "")


class Chain(nn.Module):
    """A convolution of 3 x 3 taps between two that only choose the layout of its images."""

    def __init__(self, inner: int = 32, outer: int = 48) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, inner, 1)
        self.taps = nn.Conv2d(inner, outer, 3, padding=1)
        self.last = nn.Conv2d(outer, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.taps(torch.relu(self.first(x)))))


def templates_of(compiled: stretto.call.compiled.Compiled) -> str:
    device = compiled.signatures[-1].stages.device
    assert device is not None
    return print_program(device)


IMAGES = (
    # channels, batch, image, padding
    (32, 16, 1, 2, 2, 1),
    (48, 208, 2, 9, 14, 1),
    (64, 80, 1, 15, 31, 0),
    (32, 112, 1, 3, 40, 2),
    (640, 32, 1, 5, 4, 1),
    (16, 16, 1, 7, 11, 1),
)
LARGER_TILES = (
    (32, 16, 1, 4, 4, 1),
    (48, 208, 2, 9, 15, 1),
    (64, 80, 1, 18, 33, 0),
    (32, 112, 1, 3, 41, 2),
    (1024, 32, 1, 9, 16, 1),
    (32, 32, 0, 8, 8, 1),
    (16, 48, 2, 13, 6, 1),
)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("units", "dtype", "tile"),
    sampled(
        [
            (units, dtype, tile)
            for units, dtype in ((1, torch.float32), (3, torch.float32), (2, torch.float64))
            for tile in (2, 4)
        ],
        [(3, torch.float32, 2), (3, torch.float32, 4), (2, torch.float64, 4)],
    ),
)
def test_images_of_odd_sizes_and_paddings(units: int, dtype: torch.dtype, tile: int) -> None:
    ops = Operators()
    images = IMAGES if tile == 2 else LARGER_TILES
    for inner, outer, batch, height, width, pad in images:
        image = ops.x(batch, 3, height, width, dtype=dtype)
        y = ops("relu.default", hidden(ops, image, ops.w(inner, 3, 1, 1, dtype=dtype)))
        taps = ops.w(outer, inner, 3, 3, dtype=dtype, scale=inner**-0.5 / 3)
        z = ops("relu.default", hidden(ops, y, taps, padding=(pad, pad)))
        last = hidden(ops, z, ops.w(7, outer, 1, 1, dtype=dtype, scale=0.3))
        ops.keep(f"{inner} to {outer}, {height} x {width}, pad {pad}", last)
    program = ops.program()
    made = built(program, units, costs=replace(SPREAD, most_filtered=tile, memory_bandwidth=1e12))
    text = print_program(made.device)
    assert text.count("stage winograd(") >= 5
    panels = [f" f{bits}[{(tile + 2) ** 2}, " for bits in (32, 64)]
    assert sum(text.count(panel) for panel in panels) >= 5
    found, expected = made.cpu()(ops.inputs), run(program, ops.inputs)
    assert_close(found, expected, scale=8 if tile == 2 else 64)


@pytest.mark.parametrize("units", [1, 3])
def test_groups_of_channels(units: int) -> None:
    """Each group is a convolution of its own; an infinity spreads in its group alone."""
    torch.manual_seed(0)
    for inner, outer, groups, size, pad in (
        (96, 192, 3, 9, 1),
        (320, 160, 5, 8, 2),
        (64, 32, 2, 7, 0),
    ):
        taps = nn.Conv2d(inner, outer, 3, padding=pad, groups=groups)
        net = nn.Sequential(nn.Conv2d(8, inner, 1), nn.ReLU(), taps, nn.ReLU()).eval()
        x = torch.randn(2, 8, size, size + 3)
        with torch.no_grad():
            fast = stretto.compile(net, options=Options(threads=units))
            exact = copy.deepcopy(net).double()(x.double())
            assert float((fast(x) - exact).abs().max() / exact.max()) < 1e-5
            x[0, 3, 2, 4] = torch.inf
            assert torch.equal(fast(x).isfinite(), net(x).isfinite())
        assert "stage winograd(" in templates_of(fast)


@pytest.mark.whole
def test_every_size_of_a_symbolic_image() -> None:
    text = TEXT.format(sizes="0 <= n, 1 <= h, 1 <= w", n="n", h="h", w="w", **TAPS)
    program = program_of(text)
    made = built(program, 2)
    assert "stage winograd(" in print_program(made.device)
    machine = made.cpu()
    for n, h, w in ((1, 1, 1), (2, 2, 3), (0, 4, 4), (1, 17, 8), (3, 5, 1), (1, 1, 9)):
        given = [torch.randn(n, 3, h, w)]
        expected = run(program, given)
        assert_close(machine(given), expected, scale=8)
        if h * w < 20:
            assert_close(made.emulator(seed=h)(given), expected, scale=8)


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_reach_their_neighbours_only(special: float) -> None:
    torch.manual_seed(0)
    taps = nn.Sequential(
        nn.Conv2d(32, 32, 1, groups=32, bias=False), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()
    )
    net = nn.Sequential(*taps, nn.MaxPool2d(1)).eval()
    fast = stretto.compile(net, options=Options(threads=2))
    for places in ([(0, 0)], [(5, 6)], [(3, 3), (8, 2)], [(10, 12)]):
        x = torch.randn(1, 32, 11, 13)
        for y, at in places:
            x[0, 3, y, at] = special
        with torch.no_grad():
            torch.testing.assert_close(fast(x), net(x), equal_nan=True, rtol=1e-4, atol=1e-4)
    assert "stage winograd(" in templates_of(fast)


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite(special: float) -> None:
    torch.manual_seed(0)
    net = Chain().eval()
    with torch.no_grad():
        net.taps.weight[3, 5, 1, 1] = special
    fast = stretto.compile(net.taps, options=Options(threads=2))
    whole = stretto.compile(net, options=Options(threads=2))
    x = torch.randn(1, 4, 12, 12)
    with torch.no_grad():
        hidden = torch.relu(net.first(x))
        tolerance = {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(fast(hidden), net.taps(hidden), equal_nan=True, **tolerance)
        torch.testing.assert_close(whole(x), net(x), equal_nan=True, **tolerance)
    assert "stage winograd(" in templates_of(whole)


@pytest.mark.parametrize("units", [1, 2])
def test_a_thread_of_the_caller_with_a_small_stack(units: int) -> None:
    torch.manual_seed(0)
    net, x = Chain(64, 64).eval(), torch.randn(1, 4, 40, 40)
    fast = stretto.compile(net, options=Options(threads=units))
    found = list[Tensor]()
    with torch.no_grad():
        fast(x)
        before = threading.stack_size(256 << 10)
        try:
            thread = threading.Thread(target=lambda: found.append(_no_grad(fast, x)))
            thread.start()
        finally:
            threading.stack_size(before)
        thread.join()
        torch.testing.assert_close(found[0], net(x), rtol=1e-4, atol=1e-4)
    assert "stage winograd(" in templates_of(fast)


def _no_grad(function: stretto.call.compiled.Compiled, x: Tensor) -> Tensor:
    with torch.no_grad():
        return function(x)


def test_weights_that_change_are_transformed_again() -> None:
    torch.manual_seed(0)
    net, x = Chain().eval(), torch.randn(1, 4, 12, 12)
    fast = stretto.compile(net, options=Options(threads=2))
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4)
            net.taps.weight.mul_(-0.5)
    assert "stage winograd(" in templates_of(fast)


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(32, 32, 3, stride=2),
        nn.Conv2d(32, 32, 3, dilation=2),
        nn.Conv2d(32, 32, (3, 1)),
        nn.Conv2d(32, 32, 5),
        nn.Conv2d(32, 32, 3, groups=4),
        nn.Conv2d(32, 40, 3),
    ],
)
def test_other_convolutions_have_other_templates(module: nn.Conv2d) -> None:
    net = nn.Sequential(nn.Conv2d(3, 32, 1), module, nn.Conv2d(module.out_channels, 4, 1)).eval()
    fast, x = stretto.compile(net, options=Options(threads=1)), torch.randn(1, 3, 9, 9)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4)
    assert "stage winograd(" not in templates_of(fast)


def test_text_and_emulator() -> None:
    program = schedule(select(lowered(FIXED), 2).tree, 2)
    text = print_program(program)
    assert "stage winograd(" in text
    assert parse_program(text, TEMPLATES) == program
    source = program_of(FIXED)
    given = [torch.randn(2, 3, 7, 5)]
    assert_close(built(source, 2).emulator()(given), run(source, given), scale=8)
    with pytest.raises(ScheduleError, match="template winograd: .*3 x 3 taps"):
        parse_program(text.replace("stage pixels(", "stage winograd("), TEMPLATES)


@pytest.mark.parametrize("tile", [0, 2, 4])
def test_digits_that_tiles_lose(tile: int) -> None:
    """The bound that the documentation states, as a share of the largest result."""
    torch.manual_seed(0)
    for inner, outer, size in ((32, 64, 24), (256, 64, 12)):
        net = Chain(inner, outer).eval()
        net.last = nn.Conv2d(outer, outer, 1, bias=False)
        with torch.no_grad():
            net.last.weight.copy_(torch.eye(outer)[..., None, None])
            x = torch.randn(1, 4, size, size)
            fast = stretto.compile(net, options=Options(threads=2, winograd=tile))
            found = fast(x).double()
            exact = copy.deepcopy(net.taps).double()(torch.relu(net.first(x)).double()).relu()
        assert ("stage winograd(" in templates_of(fast)) == (tile > 0)
        error = float((found - exact).abs().max() / exact.max())
        assert error <= {0: 16, 2: 16, 4: 64}[tile] * torch.finfo(torch.float32).eps


def test_options_that_are_no_sizes_of_tiles() -> None:
    for wrong in (1, 3, 6, True, 2.0, "4"):
        with pytest.raises(ValueError, match="Options.winograd must be 0, 2 or 4"):
            Options(winograd=wrong)  # pyright: ignore[reportArgumentType]


def test_larger_tiles_are_the_published_algorithm_with_other_points() -> None:
    """The transforms, as polynomials that are interpolated, of an image and taps of one dim."""
    torch.manual_seed(0)
    points = torch.tensor([0.0, *(s * p for p in POINTS[4] for s in (1, -1))], dtype=torch.float64)
    powers = points[:, None] ** torch.arange(6, dtype=torch.float64)
    taps = torch.randn(3, 3, dtype=torch.float64)
    one = filtered(taps[None, None], 4)[0, 0]
    assert one.shape == (6, 6)
    norm = torch.tensor(
        [prod(float(p - q) for q in points if q != p) for p in points], dtype=torch.float64
    )
    plain = powers[:, :3] @ taps @ powers[:, :3].T
    torch.testing.assert_close(one[:5, :5], plain / norm[:, None] / norm[None])
    torch.testing.assert_close(one[5, 5], taps[2, 2])


def test_packed_filters_are_their_transform() -> None:
    weights = torch.randn(20, 3, 3, 3)
    buffer = Buffer("packed", DType.F32, (16, 2, 3, 16), "constant", 1)
    source = Buffer("source", DType.F32, (20, 3, 3, 3), "constant", 0)
    packing = Packing(buffer, source, 0, ((16, 1),), (20, 48), ((3, 16),), 16, 2)
    packed = pack(packing, weights)
    rows = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    wanted = torch.einsum("yi,xj,ocij->yxoc", rows, rows, weights).reshape(16, 20, 3)
    assert packed.shape == (16, 2, 3, 16)
    found = packed.permute(0, 1, 3, 2).reshape(16, 32, 3)
    torch.testing.assert_close(found[:, :20], wanted)
    assert not found[:, 20:].any()
