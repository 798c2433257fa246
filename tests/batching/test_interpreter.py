"""The interpreter of InstancePrograms."""

from __future__ import annotations

import pytest
import torch

from stretto.batching.instance_program import (
    AssignStatement,
    BreakStatement,
    ContinueStatement,
    ForkStatement,
    IfStatement,
    InstanceFunction,
    InstanceProgram,
    LeaveStatement,
    Literal,
    LoopStatement,
    OperandPlaceholder,
    OperateStatement,
    Operation,
    RaiseStatement,
    ReadStatement,
    ReturnStatement,
    ScopeStatement,
    Statement,
    Variable,
)
from stretto.batching.interpreter import interpret
from stretto.batching.primitives import OVERFLOW
from stretto.batching.types import NEVER, Scalar
from tests.batching.programs import f32, tree, tree_lstm


def program(parameters: tuple[Variable, ...], *body: Statement) -> InstanceProgram:
    return InstanceProgram(functions=[InstanceFunction("f", parameters, NEVER, body)])


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
        AssignStatement(i, "add", (i, Literal(1))),
        AssignStatement(test, "gt", (i, n)),
        IfStatement(test, (BreakStatement(),), ()),
        AssignStatement(test, "eq", (i, Literal(2))),
        IfStatement(test, (ContinueStatement(),), ()),
        AssignStatement(test, "eq", (i, Literal(7))),
        IfStatement(test, (LeaveStatement(1),), ()),
        AssignStatement(total, "add", (total, i)),
    )
    made = program(
        (n,),
        AssignStatement(i, "copy", (Literal(0),)),
        AssignStatement(total, "copy", (Literal(0),)),
        ScopeStatement(1, (LoopStatement(body), AssignStatement(total, "neg", (total,)))),
        ReturnStatement(total),
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
        ForkStatement(
            (
                (OperateStatement((y,), operation, (x,)), ReadStatement(value, y)),
                (AssignStatement(other, "copy", (Literal(2),)),),
            )
        ),
        AssignStatement(value, "mul", (value, other)),
        ReturnStatement(value),
    )
    assert interpret(made, [torch.ones(3)]) == 6.0


def test_errors_of_an_instance() -> None:
    n = Variable("n", Scalar.INT)
    made = program((n,), RaiseStatement(ValueError, ("n is ", n)))
    with pytest.raises(ValueError, match="n is 5"):
        interpret(made, [5])
    made = program((n,), AssignStatement(n, "mul", (n, n)), ReturnStatement(n))
    assert interpret(made, [-(2**31)]) == 2**62
    with pytest.raises(OverflowError, match=OVERFLOW):
        interpret(made, [2**32])
