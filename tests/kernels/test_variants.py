"""What chooses among the variants of kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stretto.device.costs import CostModel
from stretto.device.forms import Lowered, Selected
from stretto.device.operator import Kernel
from stretto.device.regions import Body
from stretto.device.tree import Tree, leaves, map_tree
from stretto.interp.interpreter import run
from stretto.kernels.variants import Chooser, OpenBody, OpenKernel, Variant, cheapest_of
from stretto.machines.cpu.costs import CPU_COSTS
from stretto.machines.cpu.select import select as select_cpu
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.machines.cuda.select import select as select_cuda
from stretto.machines.emulator.machine import EmulatedExecutable
from stretto.options import Options
from stretto.schedule.scheduler import schedule
from tests.backends import assert_close
from tests.lowering.programs import lowered
from tests.support import program_of, random_inputs

PROGRAM = """
    func @main(%x: f32[40, 64]) -> (f32[40, 128]) {
      %w = constant "w" : f32[128, 64]
      %y = aten.linear.default(%x, %w) : f32[40, 128]
      %z = aten.softmax.int(%y, 1) : f32[40, 128]
      return %z
    }
    """


def cpu(form: Lowered, choose: Chooser) -> Selected:
    return select_cpu(form, 3, costs=CPU_COSTS.spread(), choose=choose)


def cuda(form: Lowered, choose: Chooser) -> Selected:
    return select_cuda(form, 3, costs=CUDA_COSTS.spread(), choose=choose)


def kernels(selected: Selected) -> list[Kernel]:
    items = [item for leaf in leaves(selected.tree.main.body) for item in leaf]
    return [item for item in items if isinstance(item, Kernel)]


def variants_of_rank(place: int) -> Chooser:
    """Takes the variant at this place of every kernel, or the last one."""

    def choose(tree: Tree[OpenBody], costs: CostModel) -> Tree[Body]:
        def leaf(items: OpenBody) -> Body:
            return tuple(
                item.closed(item.variants[min(place, len(item.variants) - 1)])
                if isinstance(item, OpenKernel)
                else item
                for item in items
            )

        return map_tree(tree, leaf)

    return choose


@pytest.mark.parametrize("place", [0, 1, 2, 5, 1000])
@pytest.mark.parametrize("select", [cpu, cuda])
def test_every_variant_computes_the_same(
    select: Callable[[Lowered, Chooser], Selected], place: int
) -> None:
    selected = select(lowered(PROGRAM), variants_of_rank(place))
    program = program_of(PROGRAM)
    data = random_inputs(program)
    made = EmulatedExecutable(schedule(selected.tree, 3), selected.interface, Options())
    assert_close(made(data), run(program, data))


def test_the_choice_is_the_machine_s_variant() -> None:
    coarse, fine = (kernels(cuda(lowered(PROGRAM), variants_of_rank(n))) for n in (0, 1000))
    assert all(kernel.tasks == 1 for kernel in coarse)
    assert any(kernel.tasks > 3 for kernel in fine)
    assert [kernel.name for kernel in coarse] == [kernel.name for kernel in fine]


def test_a_chooser_sees_the_whole_program() -> None:
    seen: list[int] = []

    def choose(tree: Tree[OpenBody], costs: CostModel) -> Tree[Body]:
        items = [item for leaf in leaves(tree.main.body) for item in leaf]
        seen.append(sum(isinstance(item, OpenKernel) for item in items))
        return variants_of_rank(0)(tree, costs)

    select_cpu(lowered(PROGRAM), 2, fused=False, choose=choose)
    assert seen == [4]


def test_a_later_variant_must_be_faster_by_the_gain() -> None:
    variants = [Variant((), (), 0.0, seconds) for seconds in (1.0, 0.97, 0.9, 0.9)]
    assert cheapest_of(variants, CostModel()) is variants[2]
    assert cheapest_of(variants, CostModel(later_gain=1.05)) is variants[2]
    assert cheapest_of(variants[:2], CostModel(later_gain=1.05)) is variants[0]
    assert cheapest_of(variants[2:], CostModel()) is variants[2]
