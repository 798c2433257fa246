"""Rows of a task in blocks without unused rows: any tile, any number of warps."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stretto.device.operator import Kernel, Stage, TileDim
from stretto.device.regions import kernel_regions
from stretto.machines.cuda.printer.kernel import print_kernel
from stretto.machines.cuda.template import power
from stretto.machines.cuda.templates.reduction import Reduce
from tests.lowering.programs import lowered
from tests.machines.cuda.triton_runner import evaluate, interpret, kernels_of

CELL = """
    func @main(%x: f32[1, {depth}], %h: f32[1, {depth}], %c: f32[1, {rows}]) -> (f32[1, {rows}], f32[1, {rows}]) {{
      %w = constant "w" : f32[{rows}, {depth}]
      %v = constant "v" : f32[{rows}, {depth}]
      %b = constant "b" : f32[{rows}]
      %p = aten.linear.default(%x, %w, %b) : f32[1, {rows}]
      %q = aten.linear.default(%h, %v) : f32[1, {rows}]
      %s = aten.add.Tensor(%p, %q) : f32[1, {rows}]
      %t = aten.tanh.default(%s) : f32[1, {rows}]
      %n = aten.mul.Tensor(%t, %c) : f32[1, {rows}]
      return %n, %t
    }}
    """  # noqa: E501


def cell(rows: int, tile: int, depth: int = 256) -> Kernel:
    """The kernel of a cell, cut into tasks of `tile` rows."""
    program = lowered(CELL.format(rows=rows, depth=depth))
    (kernel,) = (item for leaf in kernels_of(program) for item in leaf if isinstance(item, Kernel))
    (dim,) = (n for n, dim in enumerate(kernel.grid) if dim.extent == rows)
    grid = (*kernel.grid[:dim], TileDim(rows, tile), *kernel.grid[dim + 1 :])

    def cut(stage: Stage) -> Stage:
        if not isinstance(stage.template, Reduce):
            return stage
        return replace(stage, template=Reduce(power(tile), min(power(depth), 1024), 0, 128))

    return replace(kernel, grid=grid, stages=tuple(map(cut, kernel.stages)))


def tensors_of(kernel: Kernel) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    buffers = {region.buffer for region in kernel_regions(kernel)}
    shapes = {b.name: [d for d in b.shape if isinstance(d, int)] for b in buffers}
    return {
        name: torch.randn(shape, generator=generator).reshape(-1) / 4
        for name, shape in sorted(shapes.items())
    }


@pytest.mark.parametrize("warps", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("rows", "tile", "depth"),
    [
        (256, 20, 256),
        (37, 20, 256),
        (37, 37, 300),
        (56, 22, 128),
        (56, 28, 128),
        (45, 5, 256),
        (7, 3, 256),
    ],
)
def test_any_number_of_rows(rows: int, tile: int, depth: int, warps: int) -> None:
    kernel = cell(rows, tile, depth)
    expected = tensors_of(kernel)
    found = {name: tensor.clone() for name, tensor in expected.items()}
    evaluate(kernel, expected)
    assert interpret(kernel, found, warps=warps) == 0
    for stage in kernel.stages:
        name = stage.operator.out.buffer.name
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-5)


def blocks(kernel: Kernel, warps: int) -> list[tuple[int, int]]:
    """The warps and the rows of each that blocks of weights have."""
    body = print_kernel(kernel, warps).text("k")
    return [(int(a), int(b)) for a, b in re.findall(r"stretto_rows\((\d+), (\d+)\)", body)]


@pytest.mark.parametrize(
    ("tile", "warps", "expected"),
    [
        (20, 8, [(8, 2), (8, 1)]),  # 24 rows instead of 32
        (20, 4, [(4, 4), (4, 1)]),
        (44, 4, [(4, 8), (4, 4)]),
        (28, 4, [(4, 8)]),  # 16, 8 and 4 would be three
        (30, 4, [(4, 8)]),  # eight of each warp in any case
        (16, 8, [(8, 2)]),
        (4, 8, [(8, 1)]),  # four warps without a row
    ],
)
def test_blocks_have_few_unused_rows(
    tile: int, warps: int, expected: list[tuple[int, int]]
) -> None:
    assert blocks(cell(256, tile), warps) == expected


def test_what_pieces_have_in_common_is_loaded_once() -> None:
    whole, cut = (
        print_kernel(cell(256, tile), 8).text("k").count("stretto_each_warp(8)")
        for tile in (16, 20)
    )
    assert whole == cut == 4  # two inputs in two chunks


def test_a_product_whose_rows_share_weights_stays() -> None:
    program = lowered("""
        func @main(%x: f32[3, 256]) -> (f32[3, 512]) {
          %w = constant "w" : f32[512, 256]
          %y = aten.linear.default(%x, %w) : f32[3, 512]
          return %y
        }
        """)
    (kernel,) = (
        item for leaf in kernels_of(program, 25) for item in leaf if isinstance(item, Kernel)
    )
    assert any(getattr(stage.template, "unroll", 0) for stage in kernel.stages)
    assert len(blocks(kernel, 8)) == 1
