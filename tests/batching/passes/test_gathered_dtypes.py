"""Parameters that become operands of operators."""

from __future__ import annotations

import pytest
import torch

from stretto.batching.instance_program import (
    OperandPlaceholder,
    OperateStatement,
    Operation,
    Variable,
)
from stretto.batching.passes.gathered import _Gatherer  # pyright: ignore[reportPrivateUsage]
from stretto.batching.types import InstanceTensorType
from stretto.ir.types import DType


class Complex(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))


@pytest.mark.parametrize("function", [torch.add, Complex()])
def test_tensors_of_a_dtype_that_no_program_carries_stay(function: object) -> None:
    kind = InstanceTensorType(DType.F32, (2,))
    args = (OperandPlaceholder(0), torch.zeros(2, dtype=torch.complex64))
    operation = Operation(function, args, (), (kind,))  # type: ignore[arg-type]
    statement = OperateStatement((Variable("y", kind),), operation, (Variable("x", kind),))
    (found,) = _Gatherer().body((statement,))
    assert isinstance(found, OperateStatement)
    assert found.operands == statement.operands and found.operation.args[1] is args[1]
