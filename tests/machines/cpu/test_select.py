"""Templates, packed constants and tiles."""

from __future__ import annotations

import pytest
import torch

from stretto.device.forms import Packing
from stretto.device.operator import Kernel
from stretto.device.tree import leaves
from stretto.machines.cpu.costs import AVX2_COSTS, CPU_COSTS, CpuCosts
from stretto.machines.cpu.select import select
from stretto.machines.cpu.templates.contraction import PackedContraction
from stretto.runtime.constants import pack
from tests.backends import SPREAD
from tests.lowering.programs import lowered


def kernels(
    text: str, units: int = 2, fuse: bool = True, costs: CpuCosts = CPU_COSTS
) -> tuple[list[Kernel], list[Packing]]:
    selected = select(lowered(text), units, fuse, costs)
    tree, packings = selected.tree, selected.interface.packings
    found = [item for leaf in leaves(tree.main.body) for item in leaf if isinstance(item, Kernel)]
    assert len({kernel.name for kernel in found}) == len(found)
    return found, list(packings)


def product(m: int, n: int, k: int, kind: str) -> str:
    """x @ w, where w is a constant, an input, or an input that is turned."""
    parameter, right = {
        "constant": ("", f'%w = constant "w" : f32[{k}, {n}]'),
        "input": (f", %y: f32[{k}, {n}]", f"%w = aten.alias.default(%y) : f32[{k}, {n}]"),
        "turned": (f", %y: f32[{n}, {k}]", f"%w = aten.t.default(%y) : f32[{k}, {n}]"),
    }[kind]
    return f"""
        func @main(%x: f32[{m}, {k}]{parameter}) -> (f32[{m}, {n}]) {{
          {right}
          %m = aten.mm.default(%x, %w) : f32[{m}, {n}]
          return %m
        }}
        """


@pytest.mark.parametrize(
    ("kind", "template"), [("constant", "packed"), ("input", "rows"), ("turned", "dots")]
)
def test_the_template_follows_from_how_the_right_side_lies(kind: str, template: str) -> None:
    (kernel,), packings = kernels(product(8, 128, 64, kind))
    (stage,) = kernel.stages
    assert stage.template.name == template
    assert bool(packings) == (kind == "constant")


@pytest.mark.parametrize(("costs", "columns"), [(CPU_COSTS, 64), (AVX2_COSTS, 16)])
def test_panels_are_as_wide_as_the_registers_allow(costs: CpuCosts, columns: int) -> None:
    (kernel,), _ = kernels(product(64, 128, 64, "constant"), costs=costs)
    (stage,) = kernel.stages
    assert isinstance(stage.template, PackedContraction)
    assert (stage.template.rows, stage.template.columns) == (6, columns)


@pytest.mark.parametrize("units", [1, 2, 3, 7])
def test_tiles_start_at_whole_panels(units: int) -> None:
    (kernel,), _ = kernels(product(20, 200, 64, "constant"), units, costs=SPREAD)
    (stage,) = kernel.stages
    assert isinstance(stage.template, PackedContraction)
    lanes = stage.template.columns
    column = stage.box[1].grid
    assert column is not None
    starts = {kernel.tile(task)[column][0] for task in range(kernel.tasks)}
    assert all(start % lanes == 0 for start in starts)
    points = sum(
        (rows[1] - rows[0]) * (columns[1] - columns[0])
        for rows, columns in (kernel.tile(task) for task in range(kernel.tasks))
    )
    assert points == 20 * 200


def test_small_work_is_one_task_and_large_work_feeds_all_units() -> None:
    (small,), _ = kernels(product(1, 16, 16, "input"), 4)
    (large,), _ = kernels(product(256, 256, 256, "input"), 4)
    assert small.tasks == 1 and large.tasks >= 4
    assert large.seconds * large.tasks > small.seconds * small.tasks


# ---- packing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [32, 40, 1000])
def test_large_weights_are_read_once_by_few_rows(rows: int) -> None:
    """Tasks of two rows each would balance best, and each would read all of the weights."""
    (kernel,), _ = kernels(product(rows, 50257, 768, "constant"))
    tiles = [dim.tiles for dim in kernel.grid]
    assert sum(tiles) > 2
    assert tiles[0] == 1 or rows > 100


def test_one_constant_in_one_layout_is_packed_once() -> None:
    _, packings = kernels("""
        func @main(%x: f32[4, 64], %y: f32[4, 64]) -> (f32[4, 128], f32[4, 128], f32[4, 64]) {
          %w = constant "w" : f32[64, 128]
          %a = aten.mm.default(%x, %w) : f32[4, 128]
          %b = aten.mm.default(%y, %w) : f32[4, 128]
          %t = aten.t.default(%w) : f32[128, 64]
          %c = aten.mm.default(%a, %t) : f32[4, 64]
          return %a, %b, %c
        }
        """)
    assert len(packings) == 2


@pytest.mark.parametrize(("n", "lanes"), [(64, 64), (70, 64), (16, 16), (5, 16), (40, 32)])
def test_panels_hold_the_columns_side_by_side_and_zeros_behind(n: int, lanes: int) -> None:
    _, (packing,) = kernels(product(4, n, 6, "constant"))
    weights = torch.randn(6, n)
    packed = pack(packing, weights)
    assert packing.lanes == lanes and packed.shape[-2:] == (6, lanes)
    columns = packed.reshape(-1, 6, lanes).transpose(0, 1).reshape(6, -1)
    assert torch.equal(columns[:, :n], weights)
    assert not columns[:, n:].any()


def test_panels_of_a_batch_and_of_turned_weights() -> None:
    _, (packing,) = kernels("""
        func @main(%x: f32[3, 4, 6]) -> (f32[3, 4, 20]) {
          %w = constant "w" : f32[3, 20, 6]
          %t = aten.transpose.int(%w, 1, 2) : f32[3, 6, 20]
          %m = aten.bmm.default(%x, %t) : f32[3, 4, 20]
          return %m
        }
        """)
    weights = torch.randn(3, 20, 6)
    packed = pack(packing, weights)
    columns = packed.transpose(1, 2).reshape(3, 6, -1)
    assert torch.equal(columns[:, :, :20], weights.transpose(1, 2))


# ---- convolutions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weight", "groups", "channels", "template"),
    [
        ("f32[8, 4, 3, 3]", 1, 8, "conv"),
        ("f32[8, 2, 3, 3]", 2, 8, "conv"),
        ("f32[4, 1, 3, 3]", 4, 4, "depthwise"),
    ],
)
def test_convolutions(weight: str, groups: int, channels: int, template: str) -> None:
    arguments = f"(1, 1), (1, 1), (1, 1), False, (0, 0), {groups}"
    (kernel,), packings = kernels(
        f"""
        func @main(%x: f32[2, 4, 9, 9]) -> (f32[2, {channels}, 9, 9]) {{
          %w = constant "w" : {weight}
          %y = aten.convolution.default(%x, %w, None, {arguments}) : f32[2, {channels}, 9, 9]
          return %y
        }}
        """,
        fuse=False,
    )
    (stage,) = kernel.stages
    assert stage.template.name == template
    assert len(packings) == (template == "conv")
