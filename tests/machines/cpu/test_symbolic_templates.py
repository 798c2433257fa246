"""Templates of the CPU whose sizes and strides are known at the call only."""

from __future__ import annotations

import pytest
import torch

from stretto.device.text import parse_program, print_program
from stretto.device.verifier import verify
from stretto.errors import VerifyError
from stretto.interp.interpreter import run
from stretto.machines.cpu.executable import CpuExecutable
from stretto.machines.cpu.templates import TEMPLATES
from tests.backends import Built, assert_close, built
from tests.support import program_of

PRODUCTS = """
    func @main[0 <= b, 0 <= m, 0 <= n](
        %x: f32[n, 40], %q: f32[2, n, 24], %k: f32[2, m, 24], %v: f32[2, m, 36],
        %y: f32[b, 4, 9, 9]
    ) -> (f32[n, 72], f32[2, n, m], f32[2, n, 36], f32[m, 36], f32[b, 6, 9, 9], f32[b, 4, 5, 5]) {
      %w = constant "w" : f32[40, 72]
      %linear = aten.mm.default(%x, %w) : f32[n, 72]
      %active = aten.relu.default(%linear) : f32[n, 72]
      %t = aten.permute.default(%k, (0, 2, 1)) : f32[2, 24, m]
      %scores = aten.bmm.default(%q, %t) : f32[2, n, m]
      %values = aten.bmm.default(%scores, %v) : f32[2, n, 36]
      %turned = aten.permute.default(%scores, (0, 2, 1)) : f32[2, m, n]
      %back = aten.bmm.default(%turned, %values) : f32[2, m, 36]
      %first = aten.select.int(%back, 0, 1) : f32[m, 36]
      %filter = constant "filter" : f32[6, 4, 3, 3]
      %image = aten.convolution.default(
        %y, %filter, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1
      ) : f32[b, 6, 9, 9]
      %taps = constant "taps" : f32[4, 1, 3, 3]
      %deep = aten.convolution.default(
        %y, %taps, None, (2, 2), (1, 1), (1, 1), False, (0, 0), 4
      ) : f32[b, 4, 5, 5]
      return %active, %scores, %values, %first, %image, %deep
    }
    """


def inputs(b: int, m: int, n: int) -> list[torch.Tensor]:
    shapes = ((n, 40), (2, n, 24), (2, m, 24), (2, m, 36), (b, 4, 9, 9))
    return [torch.randn(shape) for shape in shapes]


@pytest.fixture(scope="module")
def products() -> Built:
    return built(program_of(PRODUCTS), 2)


@pytest.fixture(scope="module")
def machine(products: Built) -> CpuExecutable:
    return products.cpu()


def test_products_of_symbolic_sizes_have_the_templates_of_products(products: Built) -> None:
    text = print_program(products.device)
    for name in ("packed", "dots", "rows", "conv", "depthwise"):
        assert f"stage {name}(" in text, text
    assert parse_program(text, TEMPLATES) == products.device


@pytest.mark.parametrize(
    ("b", "m", "n"),
    [(0, 0, 0), (1, 1, 1), (2, 0, 3), (1, 5, 0), (3, 2, 13), (1, 17, 6), (2, 33, 70)],
)
def test_they_compute_what_the_interpreter_does(
    machine: CpuExecutable, products: Built, b: int, m: int, n: int
) -> None:
    given = inputs(b, m, n)
    expected = run(program_of(PRODUCTS), given)
    assert_close(products.emulator(seed=n)(given), expected, scale=10)
    assert_close(machine(given), expected, scale=10)


@pytest.mark.parametrize(
    ("old", "new"),
    [("ge:bool(<i2 + i5 + -1>", "ge:bool(<i2 + i5>"), ("in1[i0, i1, i3]", "in1[i0, i1 + 1, i3]")],
)
def test_reads_that_guards_do_not_keep_inside_are_refused(
    products: Built, old: str, new: str
) -> None:
    text = print_program(products.device)
    assert old in text, text
    with pytest.raises(VerifyError, match="not proved to access"):
        verify(parse_program(text.replace(old, new), TEMPLATES))
