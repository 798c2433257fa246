"""Parameters that become operands of operators."""

from __future__ import annotations

import pytest
import torch

from stretto.batching.passes.gathered import _Gatherer  # pyright: ignore[reportPrivateUsage]
from stretto.ir.core import Variable
from stretto.ir.data import OperandPlaceholder, OperateOp, Operation
from stretto.ir.types import DType, TensorType


class Complex(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))


@pytest.mark.parametrize("function", [torch.add, Complex()])
def test_tensors_of_a_dtype_that_no_program_carries_stay(function: object) -> None:
    kind = TensorType(DType.F32, (2,))
    args = (OperandPlaceholder(0), torch.zeros(2, dtype=torch.complex64))
    operation = Operation(function, args, (), (kind,))  # type: ignore[arg-type]
    statement = OperateOp(operation, (Variable("x", kind),), results=(Variable("y", kind),))
    (found,) = _Gatherer().body((statement,))
    assert isinstance(found, OperateOp)
    assert found.inputs == statement.inputs and found.operation.args[1] is args[1]
