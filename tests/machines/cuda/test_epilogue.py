"""What follows a product in its blocks: odd sizes in the interpreter, and what is printed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stretto.device.operator import Kernel
from stretto.machines.cuda.printer.kernel import epilogue, print_kernel
from stretto.machines.cuda.templates.dot import Dot
from tests.backends import run
from tests.lowering.programs import lowered
from tests.machines.cuda.triton_runner import compiled, kernels_of, run_straight
from tests.support import program_of


def linear(m: int, n: int, k: int, dtype: str = "f32") -> str:
    kind = f"{dtype}[{m}, {n}]"
    return f"""
        func @main(%x: {dtype}[{m}, {k}], %w: {dtype}[{n}, {k}], %b: {dtype}[{n}], %r: {kind}) -> ({kind}, {kind}) {{
          %y = aten.linear.default(%x, %w, %b) : {kind}
          %z = aten.relu.default(%y) : {kind}
          %s = aten.add.Tensor(%z, %r) : {kind}
          %t = aten.mul.Tensor(%y, %r) : {kind}
          return %s, %t
        }}
        """  # noqa: E501


def convolution(batch: int, size: int) -> str:
    arguments = "(1, 1), (1, 1), (1, 1), False, (0, 0), 1"
    kind = f"f32[{batch}, 24, {size}, {size}]"
    return f"""
        func @main(%x: f32[{batch}, 8, {size}, {size}], %w: f32[24, 8, 3, 3], %b: f32[24], %r: {kind}) -> ({kind}) {{
          %y = aten.convolution.default(%x, %w, %b, {arguments}) : {kind}
          %s = aten.add.Tensor(%y, %r) : {kind}
          %z = aten.relu.default(%s) : {kind}
          return %z
        }}
        """  # noqa: E501


PROGRAMS = {
    "matrices": linear(17, 33, 70),
    "small": linear(9, 9, 20),
    "several blocks": linear(150, 140, 40),
    "halves": linear(33, 40, 50, "bf16"),
    "images": convolution(2, 7),
    "one image": convolution(1, 9),
}


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_products_with_what_follows(name: str, cut: bool) -> None:
    program = program_of(PROGRAMS[name])
    generator = torch.Generator().manual_seed(1)
    inputs = [
        torch.randn(p.type.static_shape(), generator=generator).to(p.type.dtype.torch)  # pyright: ignore
        for p in program.main.params
    ]
    found = run_straight(program, inputs, 7 if cut else 132, spread=cut)
    tolerance = 5e-2 if name == "halves" else 1e-4
    for one, other in zip(found, run(program, inputs), strict=True):
        assert isinstance(other, torch.Tensor)
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def kernel_of(text: str) -> Kernel:
    (leaf,) = kernels_of(lowered(text))
    (kernel,) = (item for item in leaf if isinstance(item, Kernel))
    return kernel


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_not_read_again(name: str) -> None:
    kernel = kernel_of(PROGRAMS[name])
    assert isinstance(kernel.stages[0].template, Dot)
    assert epilogue(kernel.stages, 0) == kernel.stages[1:]
    body = print_kernel(kernel).text("k")
    assert "debug_barrier" not in body
    result = kernel.stages[0].operator.out.buffer
    place = print_kernel(kernel).buffers.index(result)
    assert f"tl.load(p{place} " not in body


@pytest.mark.parametrize("name", ["matrices", "several blocks", "images"])
def test_no_spills(name: str, tmp_path: Path) -> None:
    assert compiled(kernel_of(PROGRAMS[name]), tmp_path).spill_bytes == 0


def test_what_reads_other_elements_waits() -> None:
    kernel = kernel_of("""
        func @main(%x: f32[16, 32], %w: f32[16, 32]) -> (f32[16, 16]) {
          %y = aten.linear.default(%x, %w) : f32[16, 16]
          %f = aten.flip.default(%y, (1,)) : f32[16, 16]
          %z = aten.add.Tensor(%y, %f) : f32[16, 16]
          return %z
        }
        """)
    assert epilogue(kernel.stages, 0) == ()
    assert "debug_barrier" in print_kernel(kernel).text("k")
