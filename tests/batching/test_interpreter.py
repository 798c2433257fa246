"""The interpreter of InstancePrograms."""

from __future__ import annotations

import pytest
import torch

from stretto.batching.interpreter import interpret
from stretto.batching.primitives import OVERFLOW
from stretto.batching.program import (
    Assign,
    Break,
    Continue,
    Fork,
    Function,
    If,
    Input,
    InstanceProgram,
    Leave,
    Literal,
    Loop,
    Operate,
    Operation,
    Raise,
    Read,
    Return,
    Scope,
    Statement,
    Variable,
)
from stretto.batching.types import NEVER, Scalar
from tests.batching.programs import f32, tree, tree_lstm


def program(parameters: tuple[Variable, ...], *body: Statement) -> InstanceProgram:
    return InstanceProgram(functions=[Function("f", parameters, NEVER, body)])


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
        Assign(i, "add", (i, Literal(1))),
        Assign(test, "gt", (i, n)),
        If(test, (Break(),), ()),
        Assign(test, "eq", (i, Literal(2))),
        If(test, (Continue(),), ()),
        Assign(test, "eq", (i, Literal(7))),
        If(test, (Leave(1),), ()),
        Assign(total, "add", (total, i)),
    )
    made = program(
        (n,),
        Assign(i, "copy", (Literal(0),)),
        Assign(total, "copy", (Literal(0),)),
        Scope(1, (Loop(body), Assign(total, "neg", (total,)))),
        Return(total),
    )
    assert interpret(made, [0]) == 0
    assert interpret(made, [4]) == -(1 + 3 + 4)
    assert interpret(made, [100]) == 1 + 3 + 4 + 5 + 6


def test_operators_reads_and_forks() -> None:
    x, y = Variable("x", f32(3)), Variable("y", f32())
    value, other = Variable("value", Scalar.FLOAT), Variable("other", Scalar.INT)
    operation = Operation(torch.sum, (Input(0),), (), (f32(),))
    made = program(
        (x,),
        Fork(
            (
                (Operate((y,), operation, (x,)), Read(value, y)),
                (Assign(other, "copy", (Literal(2),)),),
            )
        ),
        Assign(value, "mul", (value, other)),
        Return(value),
    )
    assert interpret(made, [torch.ones(3)]) == 6.0


def test_errors_of_an_instance() -> None:
    n = Variable("n", Scalar.INT)
    made = program((n,), Raise(ValueError, ("n is ", n)))
    with pytest.raises(ValueError, match="n is 5"):
        interpret(made, [5])
    made = program((n,), Assign(n, "mul", (n, n)), Return(n))
    assert interpret(made, [-(2**31)]) == 2**62
    with pytest.raises(OverflowError, match=OVERFLOW):
        interpret(made, [2**32])
