"""Convolutions by lines of pixels: what applies, what is computed, special values."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.device.expr import Buffer
from stretto.device.forms import Packing
from stretto.device.text import parse_program, print_program
from stretto.device.verifier.symbols import check_interface
from stretto.errors import ScheduleError, VerifyError
from stretto.interp.interpreter import run
from stretto.ir.types import DType
from stretto.machines.cpu.select import select
from stretto.machines.cpu.templates import TEMPLATES
from stretto.options import Options
from stretto.runtime.constants import filtered_lines, pack
from stretto.schedule.scheduler import schedule
from tests.backends import SPREAD, assert_close, built
from tests.lowering.programs import lowered
from tests.machines.cpu.test_pixels import hidden
from tests.machines.cpu.test_winograd import TEXT, templates_of
from tests.machines.operators import Operators
from tests.sampling import sampled
from tests.support import program_of

STAGE = "stage winograd_lines("

CASES = (
    # channels, batch, image, taps, steps, padding
    (16, 32, 1, (17, 17), (1, 7), (1, 1), (0, 3)),
    (32, 48, 2, (17, 13), (7, 1), (1, 1), (3, 0)),
    (48, 32, 1, (9, 14), (5, 5), (1, 1), (2, 2)),
    (32, 16, 1, (40, 31), (21, 11), (2, 1), (10, 5)),
    (32, 208, 2, (11, 13), (3, 3), (1, 2), (1, 1)),
    (64, 80, 1, (23, 10), (5, 2), (1, 3), (0, 1)),
    (16, 16, 0, (8, 8), (1, 3), (1, 1), (0, 1)),
    (16, 16, 1, (2, 70), (2, 9), (3, 1), (0, 4)),
    (1024, 16, 1, (5, 6), (1, 3), (1, 1), (0, 1)),
    (16, 16, 1, (4, 2200), (3, 3), (2, 1), (1, 0)),
)


def net_of(taps: nn.Conv2d) -> nn.Sequential:
    """A convolution between two that only choose the layout of its images."""
    first = nn.Conv2d(4, taps.in_channels, 1)
    last = nn.Conv2d(taps.out_channels, taps.out_channels, 1, bias=False)
    with torch.no_grad():
        last.weight.copy_(torch.eye(taps.out_channels)[..., None, None])
    return nn.Sequential(first, nn.ReLU(), taps, nn.ReLU(), last).eval()


@pytest.mark.whole
@pytest.mark.parametrize(
    ("units", "dtype", "side"),
    sampled(
        [
            (units, dtype, side)
            for units, dtype in ((1, torch.float32), (3, torch.float32), (2, torch.float64))
            for side in (2, 4)
        ],
        [(3, torch.float32, 2), (3, torch.float32, 4), (2, torch.float64, 4)],
    ),
)
def test_taps_steps_and_paddings(units: int, dtype: torch.dtype, side: int) -> None:
    ops = Operators()
    for inner, outer, batch, size, kernel, step, pad in CASES:
        image = ops.x(batch, 3, *size, dtype=dtype)
        y = ops("relu.default", hidden(ops, image, ops.w(inner, 3, 1, 1, dtype=dtype)))
        scale = (inner * kernel[0] * kernel[1]) ** -0.5
        taps = ops.w(outer, inner, *kernel, dtype=dtype, scale=scale)
        z = ops("relu.default", hidden(ops, y, taps, step, pad))
        last = hidden(ops, z, ops.w(7, outer, 1, 1, dtype=dtype, scale=0.3))
        ops.keep(f"{inner} to {outer}, {size}, {kernel}, {step}, {pad}", last)
    program = ops.program()
    made = built(program, units, costs=replace(SPREAD, most_filtered=side, memory_bandwidth=1e12))
    text = print_program(made.device)
    assert text.count(STAGE) >= 7
    assert "line = 2" in text and "line = 3" in text
    found, expected = made.cpu()(ops.inputs), run(program, ops.inputs)
    assert_close(found, expected, scale=8 if side == 2 else 64)


@pytest.mark.parametrize("units", [1, 3])
def test_groups_of_channels(units: int) -> None:
    """Each group is a convolution of its own; an infinity spreads in its group alone."""
    torch.manual_seed(0)
    for taps in (
        nn.Conv2d(96, 192, 5, padding=2, groups=3),
        nn.Conv2d(64, 32, (3, 7), padding=(0, 3), groups=2, stride=(2, 1)),
        nn.Conv2d(64, 64, (7, 1), padding=(3, 0), groups=4),
    ):
        net, x = net_of(taps), torch.randn(2, 4, 9, 12)
        with torch.no_grad():
            fast = stretto.compile(net[:4], options=Options(threads=units))
            exact = copy.deepcopy(net[:4]).double()(x.double())
            assert float((fast(x) - exact).abs().max() / exact.max()) < 1e-5
            x[0, 3, 2, 4] = torch.inf
            assert torch.equal(fast(x).isfinite(), net[:4](x).isfinite())
        assert STAGE in templates_of(fast)


TAPS = {"taps": "3, 5", "pad": "(1, 2)"}
FIXED = TEXT.format(sizes="", n=2, h=7, w=5, **TAPS).replace("[]", "")


@pytest.mark.whole
def test_every_size_of_a_symbolic_image() -> None:
    program = program_of(TEXT.format(sizes="0 <= n, 1 <= h, 1 <= w", n="n", h="h", w="w", **TAPS))
    made = built(program, 2)
    assert STAGE in print_program(made.device)
    machine = made.cpu()
    for n, h, w in ((1, 1, 1), (2, 2, 3), (0, 4, 4), (1, 17, 8), (3, 5, 1), (1, 1, 9), (1, 3, 300)):
        given = [torch.randn(n, 3, h, w)]
        expected = run(program, given)
        assert_close(machine(given), expected, scale=64)
        if h * w < 20:
            assert_close(made.emulator(seed=h)(given), expected, scale=8)


@pytest.mark.whole
@pytest.mark.parametrize("kernel", [(1, 7), (7, 1), (5, 5)])
@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_reach_their_neighbours_only(
    special: float, kernel: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    padding = kernel[0] // 2, kernel[1] // 2
    taps = nn.Sequential(
        nn.Conv2d(32, 32, 1, groups=32, bias=False), nn.Conv2d(32, 64, kernel, padding=padding)
    )
    net = nn.Sequential(*taps, nn.ReLU(), nn.MaxPool2d(1)).eval()
    fast = stretto.compile(net, options=Options(threads=2))
    for places in ([(0, 0)], [(5, 6)], [(3, 3), (8, 2)], [(10, 12)]):
        x = torch.randn(1, 32, 11, 13)
        for y, at in places:
            x[0, 3, y, at] = special
        with torch.no_grad():
            torch.testing.assert_close(fast(x), net(x), equal_nan=True, rtol=1e-4, atol=1e-4)
    assert STAGE in templates_of(fast)


@pytest.mark.parametrize("kernel", [(1, 7), (7, 1), (5, 5)])
def test_weights_that_are_not_finite_or_change(kernel: tuple[int, int]) -> None:
    torch.manual_seed(0)
    net = net_of(nn.Conv2d(32, 48, kernel, padding=(kernel[0] // 2, kernel[1] // 2)))[:4]
    fast, x = stretto.compile(net, options=Options(threads=2)), torch.randn(1, 4, 12, 12)
    tolerance = {"rtol": 1e-4, "atol": 1e-4}
    with torch.no_grad():
        for value in (0.5, torch.inf, -1.0, torch.nan):
            net[2].weight[3, 5, kernel[0] // 2, kernel[1] // 2] = value
            net[2].bias.mul_(-0.5)
            torch.testing.assert_close(fast(x), net(x), equal_nan=True, **tolerance)
    assert STAGE in templates_of(fast)


def test_a_thread_of_the_caller_with_a_small_stack() -> None:
    torch.manual_seed(0)
    net, x = net_of(nn.Conv2d(64, 64, 5, padding=2)), torch.randn(1, 4, 40, 40)
    found = list[Tensor]()

    def called() -> None:
        with torch.no_grad():
            found.append(fast(x))

    with torch.no_grad():
        fast = stretto.compile(net, (x,), options=Options(threads=1))
        before = threading.stack_size(256 << 10)
        try:
            thread = threading.Thread(target=called)
            thread.start()
        finally:
            threading.stack_size(before)
        thread.join()
        torch.testing.assert_close(found[0], net(x), rtol=1e-4, atol=1e-4)
    assert STAGE in templates_of(fast)


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(32, 32, 3),
        nn.Conv2d(32, 32, 5, stride=2),
        nn.Conv2d(32, 32, 5, dilation=2),
        nn.Conv2d(32, 32, (3, 1), stride=(2, 1)),
        nn.Conv2d(32, 32, 5, groups=4),
        nn.Conv2d(32, 40, 5),
    ],
)
def test_other_convolutions_have_other_templates(module: nn.Conv2d) -> None:
    net = nn.Sequential(nn.Conv2d(3, 32, 1), module, nn.Conv2d(module.out_channels, 4, 1)).eval()
    fast, x = stretto.compile(net, options=Options(threads=1)), torch.randn(1, 3, 11, 11)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4)
    assert STAGE not in templates_of(fast)


def test_text_and_emulator() -> None:
    program = schedule(select(lowered(FIXED), 2).tree, 2)
    text = print_program(program)
    assert STAGE in text
    assert parse_program(text, TEMPLATES) == program
    source = program_of(FIXED)
    given = [torch.randn(2, 3, 7, 5)]
    assert_close(built(source, 2).emulator()(given), run(source, given), scale=8)
    with pytest.raises(ScheduleError, match="template winograd_lines: .*lines of pixels"):
        wrong = text.replace("stage pixels(", "stage winograd_lines(line = 2")
        parse_program(wrong, TEMPLATES)


@pytest.mark.whole
@pytest.mark.parametrize("side", [0, 2, 4])
def test_digits_that_lines_lose(side: int) -> None:
    """The bound that the documentation states, as a share of the largest result."""
    torch.manual_seed(0)
    for taps in (
        nn.Conv2d(32, 64, (21, 11), stride=(2, 1), padding=(10, 5)),
        nn.Conv2d(256, 64, (1, 7), padding=(0, 3)),
        nn.Conv2d(64, 64, 5, padding=2),
    ):
        net, x = net_of(taps), torch.randn(1, 4, 24, 24)
        with torch.no_grad():
            fast = stretto.compile(net, options=Options(threads=2, winograd=side))
            exact = copy.deepcopy(net).double()(x.double())
            error = float((fast(x) - exact).abs().max() / exact.max())
        assert (STAGE in templates_of(fast)) == (side > 0)
        assert error <= {0: 32, 2: 16, 4: 32}[side] * torch.finfo(torch.float32).eps


def test_lines_that_are_whole_are_cut_by_channels() -> None:
    """Rows of 17 are five tiles of 4: two units have half of the channels each."""
    taps = nn.Conv2d(128, 192, (7, 1), padding=(3, 0))
    fast = stretto.compile(net_of(taps), options=Options(threads=2))
    fast(torch.randn(1, 4, 17, 17))
    told = fast.explain()
    assert "winograd_lines 2" in told and "17x17x96 of 17x17x192" in told


def test_packed_lines_are_their_transform() -> None:
    """In a depth of taps across, groups and channels; the last group is filled up with zeros."""
    weights = torch.randn(20, 3, 2, 5)
    rows = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    filled = torch.nn.functional.pad(weights, (0, 1)).unflatten(3, (2, 3))
    wanted = torch.einsum("pj,ocygj->pygco", rows, filled).reshape(4, 12, 20)
    torch.testing.assert_close(filtered_lines(weights, 2, 3), filled @ rows.T)
    for dim, source in ((3, weights), (2, weights.transpose(2, 3).contiguous())):
        buffer = Buffer("packed", DType.F32, (4, 2, 12, 16), "constant", 1)
        of = Buffer("source", DType.F32, tuple(source.shape), "constant", 0)
        depth = ((2, 8), (2, 4), (3, 16))
        packing = Packing(buffer, of, 0, ((4, 1),), (20, 48), depth, 16, 2, line=dim)
        found = pack(packing, source).permute(0, 2, 1, 3).reshape(4, 12, 32)
        torch.testing.assert_close(found[..., :20], wanted)
        assert not found[..., 20:].any()


def test_packings_of_lines_are_verified() -> None:
    made = built(program_of(FIXED), 2)
    packings = made.interface.packings
    (line,) = [packing for packing in packings if packing.line]
    check_interface(made.interface, made.device)
    for wrong in (replace(line, tile=3), replace(line, line=1), replace(line, tile=0)):
        changed = tuple(wrong if one is line else one for one in packings)
        with pytest.raises(VerifyError, match="cannot be transformed"):
            check_interface(replace(made.interface, packings=changed), made.device)
