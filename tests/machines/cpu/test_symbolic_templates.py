"""Templates of the CPU whose sizes and strides are known at the call only."""

from __future__ import annotations

import pytest
import torch

from stretto.device.text import parse_form, parse_program, print_form, print_program
from stretto.device.verifier import verify, verify_form
from stretto.errors import ScheduleError, VerifyError
from stretto.interp.interpreter import run
from stretto.lowering.lower_program import lower
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


@pytest.mark.whole
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


def test_reads_outside_are_refused(products: Built) -> None:
    text = print_program(products.device)
    old, new = "in1[i0, i1, i3]", "in1[i0, i1 + 1, i3]"
    assert old in text, text
    with pytest.raises(VerifyError, match="not proved to access"):
        verify(parse_program(text.replace(old, new), TEMPLATES))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ge:bool(<i2 + i5 + -1>", "ge:bool(<i2 + i5>"),
        ("lt:bool(<i2 + i5 + -1>, <9>)", "lt:bool(<i2 + i5 + -1>, <10>)"),
    ],
)
def test_reads_that_guards_do_not_keep_inside_are_refused(
    products: Built, old: str, new: str
) -> None:
    """Such an operator is no convolution either, so that no template of one computes it."""
    text = print_program(products.device)
    assert old in text, text
    with pytest.raises(ScheduleError, match="the operator is no convolution"):
        parse_program(text.replace(old, new), TEMPLATES)
    text = print_form(lower(program_of(PRODUCTS)))
    assert old in text, text
    with pytest.raises(VerifyError, match="not proved to access"):
        verify_form(parse_form(text.replace(old, new)))


HALF_H, HALF_W = "((h - 1) // 2) + 1", "((w - 1) // 2) + 1"
IMAGES = f"""
    func @main[0 <= b, 2 <= h, 2 <= w](%x: f32[b, 4, h, w]) -> (
        f32[b, 6, h, w], f32[b, 4, {HALF_H}, {HALF_W}], f32[b, 6, h, w],
        f32[b, 4, {HALF_H}, {HALF_W}], i64[b, 4, {HALF_H}, {HALF_W}], f32[b, 4, h // 2, w // 2],
        f32[b, 6, h - 1]
    ) {{
      %f = constant "f" : f32[6, 4, 3, 3]
      %a = aten.convolution.default(
        %x, %f, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1) : f32[b, 6, h, w]
      %t = constant "t" : f32[4, 1, 3, 3]
      %d = aten.convolution.default(
        %x, %t, None, (2, 2), (1, 1), (1, 1), False, (0, 0), 4) : f32[b, 4, {HALF_H}, {HALF_W}]
      %g = constant "g" : f32[6, 4, 1, 1]
      %p = aten.convolution.default(
        %x, %g, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1) : f32[b, 6, h, w]
      %m, %i = aten.max_pool2d_with_indices.default(%x, (3, 3), (2, 2), (1, 1))
        : f32[b, 4, {HALF_H}, {HALF_W}], i64[b, 4, {HALF_H}, {HALF_W}]
      %v = aten.avg_pool2d.default(%x, (2, 2), (2, 2)) : f32[b, 4, h // 2, w // 2]
      %r = aten.select.int(%x, 3, 0) : f32[b, 4, h]
      %k = constant "k" : f32[6, 4, 2]
      %c = aten.convolution.default(
        %r, %k, None, (1,), (0,), (1,), False, (0,), 1) : f32[b, 6, h - 1]
      return %a, %d, %p, %m, %i, %v, %c
    }}
    """


@pytest.fixture(scope="module")
def images() -> Built:
    return built(program_of(IMAGES), 2)


@pytest.fixture(scope="module")
def image_machine(images: Built) -> CpuExecutable:
    return images.cpu()


@pytest.mark.whole
@pytest.mark.parametrize(
    ("b", "h", "w"), [(0, 2, 2), (1, 2, 3), (2, 8, 8), (3, 9, 2), (1, 33, 70), (2, 64, 5)]
)
def test_images_of_every_size(
    image_machine: CpuExecutable, images: Built, b: int, h: int, w: int
) -> None:
    text = print_program(images.device)
    assert "stage conv(" in text and "stage depthwise(" in text and "library" not in text
    given = [torch.randn(b, 4, h, w)]
    expected = run(program_of(IMAGES), given)
    if h < 10:
        assert_close(images.emulator(seed=h)(given), expected, scale=10)
    assert_close(image_machine(given), expected, scale=10)


def test_convolutions_in_a_row_that_each_halve_the_image_have_templates() -> None:
    half, quarter = "(h - 1) // 2 + 1", "(h - 1) // 4 + 1"
    text = f"""
    func @main[1 <= h](%x: f32[1, 8, h, h]) -> (f32[1, 8, {quarter}, {quarter}]) {{
      %f = constant "f" : f32[8, 8, 3, 3]
      %a = aten.convolution.default(
        %x, %f, None, (2, 2), (1, 1), (1, 1), False, (0, 0), 1) : f32[1, 8, {half}, {half}]
      %b = aten.convolution.default(
        %a, %f, None, (2, 2), (1, 1), (1, 1), False, (0, 0), 1) : f32[1, 8, {quarter}, {quarter}]
      return %b
    }}
    """
    made = built(program_of(text), 2)
    assert print_program(made.device).count("stage pixels(") == 2
    machine = made.cpu()
    for size in (1, 2, 3, 4, 5, 17, 30):
        given = [torch.randn(1, 8, size, size)]
        assert_close(machine(given), run(program_of(text), given), scale=10)


def test_sums_of_any_length_keep_their_digits() -> None:
    """Of rows, and of columns side by side."""
    text = """
        func @main[1 <= m, 1 <= n](%x: f32[n, m]) -> (f32[n], f32[m]) {
          %a = aten.sum.dim_IntList(%x, (1,)) : f32[n]
          %b = aten.sum.dim_IntList(%x, (0,)) : f32[m]
          return %a, %b
        }
        """
    machine = built(program_of(text), 2).cpu()
    for rows, columns in ((1, 1), (3, 200), (4097, 3), (200_000, 2), (2, 200_000), (9000, 70)):
        x = torch.rand(rows, columns, generator=torch.Generator().manual_seed(rows)) + 1
        expected = [x.double().sum(dim).float() for dim in (1, 0)]
        for found, wanted in zip(machine([x]), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0.0)
