"""The barriers between the stages of a task."""

from __future__ import annotations

from stretto.device.analyses import meetings
from stretto.device.operator import Kernel, Stage
from stretto.machines.cuda.templates.pointwise import Map
from stretto.machines.cuda.templates.reduction import Reduce
from tests.machines.cuda.test_select import kernels, linear

GATE = """
    func @main(%x: f32[256]) -> (f32[512]) {
      %w = constant "w" : f32[512, 256]
      %y = aten.linear.default(%x, %w) : f32[512]
      %s = aten.sigmoid.default(%y) : f32[512]
      %t = aten.mul.Tensor(%s, %y) : f32[512]
      return %t
    }
"""


def the_kernel(text: str) -> Kernel:
    (kernel,) = kernels(text)
    return kernel


def test_pointwise_stages_take_rows_from_registers() -> None:
    kernel = the_kernel(GATE)
    product, *behind = kernel.stages
    assert isinstance(product.template, Reduce) and product.template.holds_rows
    assert behind and all(isinstance(stage.template, Map) for stage in behind)
    assert meetings(kernel.stages) == 0


def test_rows_that_warps_share_go_through_memory() -> None:
    stages = the_kernel(GATE).stages
    shared = [Stage(one.operator, one.box, _shared(one)) for one in stages]
    assert meetings(shared) > 0


def _shared(stage: Stage) -> Reduce | Map:
    found = stage.template
    assert isinstance(found, Reduce | Map)
    return Reduce(found.rows, found.depth) if isinstance(found, Reduce) else found


def test_what_takes_nothing_of_the_task_needs_no_barrier() -> None:
    first, *_ = the_kernel(GATE).stages
    assert meetings([first]) == meetings([first, first]) == 0
    assert meetings([]) == 0


def test_a_single_product() -> None:
    assert meetings(the_kernel(linear(1, 512, 256)).stages) == 0
