"""Templates and tilings for GPUs."""

from __future__ import annotations

from math import prod

import pytest

from stretto.device.operator import Kernel, Operator
from stretto.device.text import parse_program, print_program
from stretto.device.tree import leaves
from stretto.ir.types import DType
from stretto.kernels.contraction import product_of
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.machines.cuda.select import select
from stretto.machines.cuda.template import Stencil
from stretto.machines.cuda.templates import TEMPLATES, choose
from stretto.machines.cuda.templates.dot import block_dtype
from stretto.machines.cuda.templates.reduction import Reduce
from stretto.schedule.scheduler import schedule
from tests.lowering.programs import items_of, lowered


def kernels(text: str, units: int = 132, fused: bool = True) -> list[Kernel]:
    tree = select(lowered(text), units, fused).tree
    found = [item for leaf in leaves(tree.main.body) for item in leaf if isinstance(item, Kernel)]
    assert len({kernel.name for kernel in found}) == len(found)
    return found


def linear(m: int, n: int, k: int, dtype: str = "f32") -> str:
    return f"""
        func @main(%x: {dtype}[{m}, {k}]) -> ({dtype}[{m}, {n}]) {{
          %w = constant "w" : {dtype}[{n}, {k}]
          %y = aten.linear.default(%x, %w) : {dtype}[{m}, {n}]
          return %y
        }}
        """


def convolution(groups: int) -> str:
    arguments = f"(1, 1), (1, 1), (1, 1), False, (0, 0), {groups}"
    return f"""
        func @main(%x: f32[2, 32, 14, 14]) -> (f32[2, 64, 14, 14]) {{
          %w = constant "w" : f32[64, {32 // groups}, 3, 3]
          %y = aten.convolution.default(%x, %w, None, {arguments}) : f32[2, 64, 14, 14]
          return %y
        }}
        """


def first_operator(text: str) -> Operator:
    return next(item for item in items_of(lowered(text)) if isinstance(item, Operator))


@pytest.mark.parametrize(
    ("m", "n", "k", "template"),
    [(1, 512, 512, "reduce"), (4, 512, 512, "reduce"), (5, 512, 512, "dot"), (512, 1, 64, "reduce"),
     (64, 64, 8, "reduce"), (64, 64, 64, "dot")],
)  # fmt: skip
def test_the_template_follows_from_the_sizes(m: int, n: int, k: int, template: str) -> None:
    (kernel,) = kernels(linear(m, n, k))
    assert {stage.template.name for stage in kernel.stages} == {template}


def test_few_rows_share_their_weights() -> None:
    stencil = Stencil.of(first_operator(linear(3, 512, 512)), CUDA_COSTS)
    several, one = (choose(stencil, sizes).template for sizes in ((3, 4), (1, 4)))
    assert isinstance(several, Reduce) and several.unroll == 1
    assert isinstance(one, Reduce) and one.unroll == 0


@pytest.mark.parametrize("units", [1, 2, 7, 132])
def test_much_work_is_for_all_units(units: int) -> None:
    for text in (linear(1, 4096, 4096), linear(512, 512, 512), convolution(1)):
        (kernel,) = kernels(text, units)
        assert kernel.tasks >= 0.7 * units
        assert kernel.tasks <= 16 * units
        assert kernel.seconds > 0


def test_little_work_is_one_task() -> None:
    (kernel,) = kernels("""
        func @main(%x: f32[12, 16]) -> (f32[12, 16]) {
          %y = aten.softmax.int(%x, 1) : f32[12, 16]
          return %y
        }
        """)
    assert kernel.tasks == 1 and len(kernel.stages) == 3


def test_unfused_operators_are_kernels_of_their_own() -> None:
    text = """
        func @main(%x: f32[12, 16]) -> (f32[12, 16]) {
          %y = aten.softmax.int(%x, 1) : f32[12, 16]
          return %y
        }
        """
    assert [len(kernel.stages) for kernel in kernels(text, fused=False)] == [1, 1, 1]


def test_blocks_are_powers_of_two() -> None:
    for text in (linear(3, 77, 130), linear(70, 77, 130), convolution(2), convolution(32)):
        for kernel in kernels(text):
            for stage in kernel.stages:
                sizes = dict(stage.template.choices)
                sizes.pop("unroll", None)
                assert all(size & (size - 1) == 0 for size in sizes.values())


# ---- products --------------------------------------------------------------------------------


def test_roles_of_the_dims() -> None:
    found = product_of(first_operator(linear(5, 6, 7)))
    assert found is not None
    assert (found.batch, found.rows, found.columns) == ((), (0,), (1,))


def test_channels_of_a_group_are_rows_of_a_piece() -> None:
    found = product_of(first_operator(convolution(2)))
    assert found is not None
    assert found.rows == (1,) and found.columns == (0, 2, 3)
    assert found.pieces == ((1, 32),)
    (kernel,) = kernels(convolution(2))
    (stage,) = kernel.stages
    grid = stage.box[1].grid
    assert stage.template.name == "dot"
    assert grid is not None and 32 % kernel.grid[grid].tile == 0


def test_every_channel_its_own_group_is_a_reduction() -> None:
    text = convolution(32).replace("f32[64, 1, 3, 3]", "f32[32, 1, 3, 3]").replace("64", "32")
    (kernel,) = kernels(text)
    assert kernel.stages[0].template.name == "reduce"


def test_half_precision_goes_into_the_product_as_it_is() -> None:
    for dtype in ("bf16", "f16"):
        operator = first_operator(linear(5, 6, 7, dtype))
        found = product_of(operator)
        assert found is not None
        assert block_dtype(found.factors(operator)) is DType(dtype)
    operator = first_operator(linear(5, 6, 7))
    found = product_of(operator)
    assert found is not None and block_dtype(found.factors(operator)) is None


def test_tiles_cover_the_grid() -> None:
    for kernel in kernels(linear(70, 77, 130)):
        points = {tuple(point) for task in range(kernel.tasks) for point in [kernel.tile(task)]}
        assert len(points) == kernel.tasks
        total = sum(prod(last - first for first, last in tile) for tile in points)
        assert total == prod(dim.extent for dim in kernel.grid if isinstance(dim.extent, int))


def test_the_text_of_every_template_is_read_back() -> None:
    texts: list[str] = []
    relu = "func @main(%x: f32[9]) -> (f32[9]) { %y = aten.relu.default(%x) : f32[9] return %y }"
    for text in (linear(3, 512, 512), linear(512, 512, 512), convolution(2), relu):
        program = schedule(select(lowered(text), 132).tree, 132)
        texts.append(print_program(program))
        assert parse_program(texts[-1], TEMPLATES) == program
    assert all(any(f"stage {name}(" in text for text in texts) for name in ("map", "reduce", "dot"))
