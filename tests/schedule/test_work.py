"""Which calls of a program with symbolic sizes are too small for several units."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stretto.device.program import DeviceProgram, Small
from stretto.device.text import parse_program, print_program
from stretto.device.verifier import verify
from stretto.errors import VerifyError
from stretto.ir.sizes import Size, symbol
from stretto.machines.cpu.costs import CPU_COSTS
from stretto.machines.cpu.printer.cpp_file import print_program as print_cpp
from stretto.machines.cpu.templates import TEMPLATES
from tests.backends import Built, assert_close, built
from tests.support import program_of

MAP = """
    func @main{0}(%x: f32[{1}, 256]) -> (f32[{1}, 256]) {{
      %a = aten.tanh.default(%x) : f32[{1}, 256]
      return %a
    }}
    """
PRODUCTS = """
    func @main[0 <= n, 0 <= t](%x: f32[n, 128], %y: f32[t]) -> (f32[n, 128]) {
      %w = constant "w" : f32[128, 128]
      %r = for %i in (0, t, 1) carry (%h = %x) {
        %a = aten.mm.default(%h, %w) : f32[n, 128]
        %b = aten.tanh.default(%a) : f32[n, 128]
        yield %b
      } : f32[n, 128]
      return %r
    }
    """


def made(text: str) -> Built:
    return built(program_of(text), 2, spread=False)


def small(device: DeviceProgram) -> Small:
    assert device.small is not None
    return device.small


def values(work: Size, **sizes: int) -> int:
    return work.evaluate(lambda s: sizes[s.name])


def test_a_program_for_many_sizes_has_several_units_and_says_when_they_are_of_use() -> None:
    device = made(MAP.format("[0 <= n]", "n")).device
    assert device.units == 2
    found = small(device)
    assert found.limit == pytest.approx(CPU_COSTS.wake_seconds * 2e12, rel=0.2)
    assert values(found.work, n=2000) == 1000 * values(found.work, n=2)
    assert values(found.work, n=1) < found.limit < values(found.work, n=1000)
    text = print_program(device)
    assert "small calls " in text and parse_program(text, TEMPLATES) == device
    assert "stretto_is_small" in print_cpp(device).text


def test_fixed_sizes_are_decided_before() -> None:
    device = made(MAP.format("", 2000)).device
    assert device.units == 2 and device.small is None
    assert made(MAP.format("", 2)).device.units == 1


def test_a_program_without_kernels_has_one_unit() -> None:
    text = """
    func @main[0 <= n](%x: f32[n, 4], %t: i64[]) -> (i64[]) {
      %r = aten.add.Scalar(%t, 1) : i64[]
      return %r
    }
    """
    assert made(text).device.units == 1


def test_work_grows_with_the_trips_of_loops() -> None:
    device = made(PRODUCTS).device
    if device.units > 1:
        found = small(device)
        assert values(found.work, n=8, t=30) > 20 * values(found.work, n=8, t=1)


@pytest.mark.parametrize("n", [0, 1, 3, 700])
def test_small_calls_and_large_ones_are_right(n: int) -> None:
    x = torch.randn(n, 256)
    assert_close(made(MAP.format("[0 <= n]", "n")).cpu()([x]), [x.tanh()])


def test_an_estimate_of_a_size_that_no_input_has_is_refused() -> None:
    device = made(MAP.format("[0 <= n]", "n")).device
    wrong = replace(device, small=Small(symbol("m") * 3, 10))
    with pytest.raises(VerifyError, match="the estimate of a call uses the size 1 <= m"):
        verify(wrong)
