"""The layout of tables: what the host program and the level program agree on."""

from __future__ import annotations

import pytest
import torch

from stretto.batching.host.tables import BlockOutput, layout
from stretto.batching.instance_program import instance_program
from stretto.errors import CodegenError
from stretto.ir.core import Block, Variable
from stretto.ir.data import AssignOp, InstanceFunction, ReturnOp
from stretto.ir.types import NEVER, RowsType, Scalar
from tests.batching.programs import block, f32, tree_lstm


def test_pools_of_a_tree_lstm() -> None:
    made = layout(tree_lstm(4))
    assert made.pools == (f32(4),)
    assert made.blocks[0].pools == (None,)
    assert made.blocks[1].outputs == (BlockOutput(0), BlockOutput(0))
    assert (made.max_outputs, made.max_rows, made.width) == (2, 0, 7)


def test_shared_tensors_have_permanent_rows() -> None:
    first, second, other = torch.ones(3), torch.zeros(3), torch.ones(2)
    x, y = Variable("x", f32(3)), Variable("y", f32(2))
    tensors = ((x, first), (y, other), (x, second), (x, first))
    body = [AssignOp("shared", (), tensor, results=(variable,)) for variable, tensor in tensors]
    program = instance_program(
        functions=[InstanceFunction("f", Block((), [*body, ReturnOp(x)]), NEVER)]
    )
    made = layout(program)
    assert made.pools == (f32(3), f32(2))
    assert [(item.tensor is second, item.pool, item.row) for item in made.shared] == [
        (False, 0, 0),
        (False, 1, 0),
        (True, 0, 1),
    ]
    assert made.permanent == (2, 1)


def test_rows_have_the_length_of_an_operand() -> None:
    rows = RowsType(f32(3))
    blocks = [
        block(torch.tanh, (rows,), rows),
        block(lambda x, y: (y + 1, x * 2), (rows, rows), rows, rows),
        block(lambda x, n: x[0] * n, (rows, Scalar.INT), f32(3)),
    ]
    made = layout(
        instance_program(functions=[InstanceFunction("f", Block(()), NEVER)], blocks=blocks)
    )
    assert [item.outputs for item in made.blocks] == [
        (BlockOutput(0, 0),),
        (BlockOutput(0, 0), BlockOutput(0, 0)),
        (BlockOutput(0),),
    ]
    assert made.blocks[2].rows == (0,)
    assert (made.max_outputs, made.max_rows) == (2, 2)


def test_rows_that_no_operand_has() -> None:
    bad = block(lambda n: torch.zeros(n, 3), (Scalar.INT,), RowsType(f32(3)))
    program = instance_program(functions=[InstanceFunction("f", Block(()), NEVER)], blocks=[bad])
    with pytest.raises(CodegenError, match="makes rows, as many as none of its operands has"):
        layout(program)
