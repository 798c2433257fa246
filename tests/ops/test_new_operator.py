"""An operator of one's own, whole, in one file: what CONTRIBUTING.md says of adding an operator.

`demo.scaled_rows(x, dim, index, scale)` picks rows of a tensor and scales them. torch is told what
it computes, the table of operators what it may do, and the lowering how it becomes expressions.
"""

import pytest
import torch
from torch import Tensor

import stretto
from stretto.device.operator import LibraryCall
from stretto.device.tree import leaves
from stretto.interp.interpreter import run
from stretto.ir.ops import TensorOp
from stretto.lowering.emit import apply
from stretto.lowering.lazy import Lazy, cast, variables
from stretto.lowering.lower_program import lower
from stretto.lowering.rules import TensorOpCall, rule
from stretto.operators.indexing import as_index, position_of
from stretto.ops.properties import Fails, describe, properties, stop_reason
from stretto.ops.table import PositionArgument, Reach, ShiftDims
from stretto.passes.batch_loops import BatchLoops
from stretto.passes.manager import run_passes
from tests.passes.test_batch_rules import inside_loops, make_program

TARGET = "demo.scaled_rows.default"

# ---- the operator ----------------------------------------------------------------------------

library = torch.library.Library("demo", "DEF")
library.define("scaled_rows(Tensor self, int dim, Tensor index, Scalar scale) -> Tensor")


def _scaled_rows(self: Tensor, dim: int, index: Tensor, scale: float) -> Tensor:
    counted_from_the_end = index < 0
    return self.index_select(dim, index + self.shape[dim] * counted_from_the_end) * scale


library.impl("scaled_rows", _scaled_rows, "CompositeExplicitAutograd")
describe(TARGET, positions=PositionArgument(Reach.DIM, wraps=True), batching=ShiftDims())


@rule(TARGET)
def _lower(call: TensorOpCall) -> Lazy:
    lazy = call.tensor("self")
    dim = call.axis(lazy.rank)
    index = call.tensor("index")
    positions = position_of(call, call.arguments["index"], index, dim, lazy.shape[dim])
    indices = list(variables(call.shape))
    indices[dim] = as_index(positions, indices[dim])
    picked = call.cheap("self").view(call.shape, *indices)
    scale = cast(call.scalar("scale"), call.dtype)
    return Lazy(call.dtype, call.shape, apply("mul", picked.expr, scale))


# ---- what it is then -------------------------------------------------------------------------


def model(x: Tensor, index: Tensor) -> Tensor:
    return torch.relu(torch.ops.demo.scaled_rows(x, 0, index, 2.0)) + 1


@pytest.mark.parametrize("backend", ["interpreter", "emulator"])
def test_it_is_captured_and_run(backend: str) -> None:
    x, index = torch.randn(5, 3), torch.tensor([4, 0, -1])
    compiled = stretto.compile(model, backend=backend)
    torch.testing.assert_close(compiled(x, index), model(x, index))


def test_its_positions_are_checked() -> None:
    compiled = stretto.compile(model, backend="emulator")
    with pytest.raises(IndexError, match="index 7 is out of bounds for dimension 0 with size 5"):
        compiled(torch.randn(5, 3), torch.tensor([4, 7, 1]))


def test_it_is_lowered_to_operators_and_fuses() -> None:
    program = make_program(TARGET, ("x", 0, "I1", 2.0))
    items = [item for body in leaves(lower(program).tree.main.body) for item in body]
    assert not any(isinstance(item, LibraryCall) for item in items)


def test_it_is_batched_over_the_iterations_of_a_loop() -> None:
    program = make_program(TARGET, ("x", -1, "I1", 2.0))
    after = run_passes(program, (BatchLoops(),))
    assert TARGET not in inside_loops(after)
    inputs = [torch.randn(3, 2, 4), torch.randint(0, 3, (3, 2))]
    for one, other in zip(run(program, inputs), run(after, inputs), strict=True):
        assert isinstance(one, Tensor) and isinstance(other, Tensor)
        torch.testing.assert_close(one, other)


def test_passes_leave_it_where_it_is_since_it_may_fail() -> None:
    assert properties(TARGET).fails is Fails.POSITIONS
    (op,) = (
        op
        for op in make_program(TARGET, ("x", 0, "I1", 2.0)).walk()
        if isinstance(op, TensorOp) and op.target == TARGET
    )
    assert stop_reason(op) == Fails.POSITIONS.value
