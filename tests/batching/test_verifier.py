"""The rules of InstancePrograms: one program that breaks each, and the text of programs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stretto.batching.instance_program import (
    AssignStatement,
    BlockStep,
    BreakStatement,
    CallStatement,
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
    PhaseStatement,
    RaiseStatement,
    ReadStatement,
    RecordStatement,
    ReturnStatement,
    ScopeStatement,
    Statement,
    StaticBlock,
    Variable,
)
from stretto.batching.printer import print_function, print_program
from stretto.batching.types import ListType, RecordType, Scalar, TupleType, Type, UnionType
from stretto.batching.verifier import holds, verify
from stretto.errors import VerifyError
from tests.batching.programs import block, f32, tree_lstm

N, M, FLAG = Variable("n", Scalar.INT), Variable("m", Scalar.INT), Variable("flag", Scalar.BOOL)
X, Y = Variable("x", f32(3)), Variable("y", f32(3))
ONE = Literal(1)
TANH = Operation(torch.tanh, (OperandPlaceholder(0),), (), (f32(3),))
DONE = ReturnStatement(Literal(None))


def program(
    *body: Statement, result: Type = Scalar.NONE, blocks: tuple[StaticBlock, ...] = ()
) -> InstanceProgram:
    function = InstanceFunction("f", (N, FLAG, X), result, body)
    return InstanceProgram(functions=[function], blocks=list(blocks))


SET = AssignStatement(M, "copy", (ONE,))
USE = AssignStatement(N, "add", (N, M))
BROKEN: dict[str, tuple[str, tuple[Statement, ...]]] = {
    "never": ("%m is used on a path", (USE, DONE)),
    "one arm": ("%m is used on a path", (IfStatement(FLAG, (SET,), ()), USE, DONE)),
    "before a break": (
        "%m is used on a path",
        (LoopStatement((IfStatement(FLAG, (BreakStatement(),), ()), SET)), USE, DONE),
    ),
    "before a leave": (
        "%m is used on a path",
        (ScopeStatement(1, (IfStatement(FLAG, (LeaveStatement(1),), ()), SET)), USE, DONE),
    ),
    "other body of a fork": ("%m is used on a path", (ForkStatement(((SET,), (USE,))), DONE)),
    "break outside": ("Break is not inside of what it ends", (BreakStatement(),)),
    "continue outside": (
        "Continue is not inside of what it ends",
        (ScopeStatement(1, (ContinueStatement(),)),),
    ),
    "leave outside": (
        "Leave 2 is not inside of what it ends",
        (ScopeStatement(1, (LeaveStatement(2),)),),
    ),
    "leave a fork": (
        "Leave leaves a body of a fork",
        (ScopeStatement(1, (ForkStatement(((LeaveStatement(1),),)),)), DONE),
    ),
    "break a fork": (
        "Break leaves a body of a fork",
        (LoopStatement((ForkStatement(((BreakStatement(),),)),)), DONE),
    ),
    "return from a fork": ("Return leaves a body of a fork", (ForkStatement(((DONE,),)),)),
    "raise in a fork": (
        "a body of a fork does not reach its end",
        (ForkStatement(((RaiseStatement(ValueError, ()),),)), DONE),
    ),
    "condition": ("bool is needed, not int", (IfStatement(N, (), ()), DONE)),
    "read of several": ("not of one element", (ReadStatement(N, X), DONE)),
    "read into a tensor": ("is needed, not f32", (ReadStatement(Y, X), DONE)),
    "primitive": ("is not a primitive", (AssignStatement(N, "twice", (N,)), DONE)),
    "copy": ("n of type int gets f32", (AssignStatement(N, "copy", (X,)), DONE)),
    "operand": ("an operand has type str", (OperateStatement((Y,), TANH, (Literal("a"),)), DONE)),
    "places": ("an operator has places", (OperateStatement((Y,), TANH, ()), DONE)),
    "results": ("0 targets for 1 results", (OperateStatement((), TANH, (X,)), DONE)),
    "result type": ("n of type int gets f32", (OperateStatement((N,), TANH, (X,)), DONE)),
    "block": ("there is no block 1", (RecordStatement((Y,), 1, (X,)), DONE)),
    "block operands": ("2 operands for", (RecordStatement((Y,), 0, (X, X)), DONE)),
    "block operand": ("is int, not f32", (RecordStatement((Y,), 0, (N,)), DONE)),
    "function": ("there is no function 7", (CallStatement(None, 7, ()), DONE)),
    "arguments": ("called with 1 arguments", (CallStatement(None, 0, (N,)), DONE)),
    "argument": ("flag of type bool gets int", (CallStatement(None, 0, (N, N, X)), DONE)),
    "call result": ("n of type int gets None", (CallStatement(N, 0, (N, FLAG, X)), DONE)),
    "return": ("the result of type None gets int", (ReturnStatement(N),)),
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_each_rule_is_checked(name: str) -> None:
    message, body = BROKEN[name]
    made = program(*body, blocks=(block(torch.tanh, (f32(3),), f32(3)),))
    with pytest.raises(VerifyError, match=message):
        verify(made)


def test_a_function_without_a_return_gives_none() -> None:
    verify(program(SET))
    with pytest.raises(VerifyError, match="without a Return"):
        verify(program(SET, result=Scalar.INT))


def test_what_every_way_assigns_may_be_used() -> None:
    verify(program(IfStatement(FLAG, (SET,), (SET,)), USE))
    verify(program(IfStatement(FLAG, (SET,), (RaiseStatement(ValueError, ()),)), USE))
    verify(
        program(
            LoopStatement((SET, IfStatement(FLAG, (BreakStatement(),), (ContinueStatement(),)))),
            USE,
        )
    )
    verify(program(ScopeStatement(1, (IfStatement(FLAG, (SET, LeaveStatement(1)), ()), SET)), USE))
    verify(program(ForkStatement(((SET,), ())), USE))


def test_rules_of_blocks() -> None:
    whole = block(torch.tanh, (f32(3),), f32(3))
    for broken, message in (
        (replace(whole, outputs=(0,)), "no step of it makes"),
        (replace(whole, outputs=(1, 1)), "returns a value twice"),
        (replace(whole, steps=(BlockStep(TANH, (1,)),)), "before it is made"),
        (replace(whole, inputs=(Scalar.STR,)), "an operand has type str"),
    ):
        with pytest.raises(VerifyError, match=message):
            verify(program(DONE, blocks=(broken,)))


def test_what_a_type_names_exists() -> None:
    for missing in (RecordType(0), TupleType((ListType(3),))):
        with pytest.raises(VerifyError, match="which the program does not have"):
            verify(InstanceProgram(cells=[missing]))


def test_types_hold_narrower_ones() -> None:
    either = UnionType(frozenset({Scalar.INT, Scalar.NONE}))
    assert holds(either, Scalar.INT) and not holds(Scalar.INT, either)
    assert holds(TupleType((either, f32())), TupleType((Scalar.NONE, f32())))
    assert not holds(TupleType((either,)), TupleType((either, either)))


def test_text_of_a_program() -> None:
    made = tree_lstm()
    verify(made)
    assert print_program(made) == (
        "class 0 Node(left: cell 0, right: cell 0, word: cell 1)\n"
        "cell 0: None | record0\n"
        "cell 1: int\n"
        "block 0 leaf(%0: int) -> (%1: f32[4], %2: f32[4])\n"
        "  %1: f32[4], %2: f32[4] = embed(%0)\n"
        "block 1 inner(%0: f32[4], %1: f32[4], %2: f32[4], %3: f32[4]) -> "
        "(%4: f32[4], %5: f32[4])\n"
        "  %4: f32[4], %5: f32[4] = combine(%0, %1, %2, %3)\n"
        "function 0 forward(%node: record0) -> (f32[4], f32[4])\n"
        "  %word: int = get(%node) word\n"
        "  %left: None | record0 = get(%node) left\n"
        "  %is_leaf: bool = is(%left, None)\n"
        "  if %is_leaf:\n"
        "    %h: f32[4], %c: f32[4] = block 0 leaf(%word)\n"
        "    %made: (f32[4], f32[4]) = tuple(%h, %c)\n"
        "    return %made\n"
        "  else:\n"
        "    %left'1: None | record0 = get(%node) left\n"
        "    %left'2: record0 = cast(%left'1) record0\n"
        "    %left_state: (f32[4], f32[4]) = call 0 forward(%left'2)\n"
        "    %right: None | record0 = get(%node) right\n"
        "    %right'1: record0 = cast(%right) record0\n"
        "    %right_state: (f32[4], f32[4]) = call 0 forward(%right'1)\n"
        "    %left_h: f32[4] = item(%left_state) 0\n"
        "    %left_c: f32[4] = item(%left_state) 1\n"
        "    %right_h: f32[4] = item(%right_state) 0\n"
        "    %right_c: f32[4] = item(%right_state) 1\n"
        "    %h, %c = block 1 inner(%left_h, %left_c, %right_h, %right_c)\n"
        "    %made = tuple(%h, %c)\n"
        "    return %made\n"
    )


def test_text_of_statements() -> None:
    weight = torch.zeros(3, 3)
    linear = Operation(
        torch.nn.functional.linear, (OperandPlaceholder(0), weight), (("bias", None),), (f32(3),)
    )
    made = program(
        ScopeStatement(
            1,
            (
                LoopStatement(
                    (
                        IfStatement(FLAG, (), (LeaveStatement(1),)),
                        IfStatement(FLAG, (BreakStatement(),), (ContinueStatement(),)),
                    )
                ),
                ForkStatement(((OperateStatement((Y,), linear, (X,)),), ())),
            ),
        ),
        PhaseStatement(1),
        RaiseStatement(ValueError, ("n is ", N)),
    )
    assert print_function(made, 0) == (
        "function 0 f(%n: int, %flag: bool, %x: f32[3]) -> None\n"
        "  scope 1:\n"
        "    loop:\n"
        "      if not %flag:\n"
        "        leave 1\n"
        "      if %flag:\n"
        "        break\n"
        "      else:\n"
        "        continue\n"
        "    fork:\n"
        "      %y: f32[3] = linear(%x, <float32[3, 3]>, bias=None)\n"
        "    and:\n"
        "      pass\n"
        "  phase 1\n"
        "  raise ValueError('n is ', %n)\n"
    )
