"""The interpreter of InstancePrograms."""

from __future__ import annotations

import pytest
import torch

from stretto.batching.instance_program import InstanceProgram, instance_program
from stretto.batching.interpreter import interpret
from stretto.batching.primitives import OVERFLOW
from stretto.ir.core import Block, Literal, Op, Variable
from stretto.ir.data import (
    AssignOp,
    BreakOp,
    ContinueOp,
    ForkOp,
    InstanceFunction,
    LeaveOp,
    LoopOp,
    OperandPlaceholder,
    OperateOp,
    Operation,
    RaiseOp,
    ReadOp,
    ReturnOp,
    ScopeOp,
    body_of,
)
from stretto.ir.ops import IfOp
from stretto.ir.types import NEVER, Scalar
from tests.batching.programs import f32, tree, tree_lstm


def program(parameters: tuple[Variable, ...], *body: Op) -> InstanceProgram:
    return instance_program(functions=[InstanceFunction("f", Block(parameters, list(body)), NEVER)])


def test_recursion_over_a_tree() -> None:
    made = tree_lstm()
    h, c = interpret(made, [tree(3)])
    left, right = interpret(made, [tree(2, 2)]), interpret(made, [tree(2, 3)])
    expected = made.blocks[1](*left, *right)
    torch.testing.assert_close((h, c), expected)


def test_loops_scopes_and_their_ends() -> None:
    n, i, total = (Variable(name, Scalar.INT) for name in ("n", "i", "total"))
    test = Variable("test", Scalar.BOOL)
    body = (
        AssignOp("add", (i, Literal(1)), results=(i,)),
        AssignOp("gt", (i, n), results=(test,)),
        IfOp(test, body_of((BreakOp(),)), Block()),
        AssignOp("eq", (i, Literal(2)), results=(test,)),
        IfOp(test, body_of((ContinueOp(),)), Block()),
        AssignOp("eq", (i, Literal(7)), results=(test,)),
        IfOp(test, body_of((LeaveOp(1),)), Block()),
        AssignOp("add", (total, i), results=(total,)),
    )
    made = program(
        (n,),
        AssignOp("copy", (Literal(0),), results=(i,)),
        AssignOp("copy", (Literal(0),), results=(total,)),
        ScopeOp(1, body_of((LoopOp(body_of(body)), AssignOp("neg", (total,), results=(total,))))),
        ReturnOp(total),
    )
    assert interpret(made, [0]) == 0
    assert interpret(made, [4]) == -(1 + 3 + 4)
    assert interpret(made, [100]) == 1 + 3 + 4 + 5 + 6


def test_operators_reads_and_forks() -> None:
    x, y = Variable("x", f32(3)), Variable("y", f32())
    value, other = Variable("value", Scalar.FLOAT), Variable("other", Scalar.INT)
    operation = Operation(torch.sum, (OperandPlaceholder(0),), (), (f32(),))
    made = program(
        (x,),
        ForkOp(
            (
                body_of((OperateOp(operation, (x,), results=(y,)), ReadOp(y, results=(value,)))),
                body_of((AssignOp("copy", (Literal(2),), results=(other,)),)),
            )
        ),
        AssignOp("mul", (value, other), results=(value,)),
        ReturnOp(value),
    )
    assert interpret(made, [torch.ones(3)]) == 6.0


def test_errors_of_an_instance() -> None:
    n = Variable("n", Scalar.INT)
    made = program((n,), RaiseOp(ValueError, ("n is ", n)))
    with pytest.raises(ValueError, match="n is 5"):
        interpret(made, [5])
    made = program((n,), AssignOp("mul", (n, n), results=(n,)), ReturnOp(n))
    assert interpret(made, [-(2**31)]) == 2**62
    with pytest.raises(OverflowError, match=OVERFLOW):
        interpret(made, [2**32])
