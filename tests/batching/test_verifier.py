"""The rules of InstancePrograms: one program that breaks each, and the text of programs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stretto.batching.instance_program import (
    BlockStep,
    InstanceProgram,
    StaticBlock,
    instance_program,
)
from stretto.batching.printer import print_function, print_program
from stretto.batching.verifier import holds, verify
from stretto.errors import VerifyError
from stretto.ir.core import Block, Literal, Op, Variable
from stretto.ir.data import (
    AssignOp,
    BreakOp,
    ContinueOp,
    ForkOp,
    InstanceFunction,
    InvokeOp,
    LeaveOp,
    LoopOp,
    OperandPlaceholder,
    OperateOp,
    Operation,
    PhaseOp,
    RaiseOp,
    ReadOp,
    RecordOp,
    ReturnOp,
    ScopeOp,
    body_of,
)
from stretto.ir.ops import IfOp
from stretto.ir.types import DataType, ListType, RecordType, Scalar, TupleType, UnionType
from tests.batching.programs import block, f32, tree_lstm

N, M, FLAG = Variable("n", Scalar.INT), Variable("m", Scalar.INT), Variable("flag", Scalar.BOOL)
X, Y = Variable("x", f32(3)), Variable("y", f32(3))
ONE = Literal(1)
TANH = Operation(torch.tanh, (OperandPlaceholder(0),), (), (f32(3),))
DONE = ReturnOp(Literal(None))


def program(
    *body: Op, result: DataType = Scalar.NONE, blocks: tuple[StaticBlock, ...] = ()
) -> InstanceProgram:
    function = InstanceFunction("f", Block((N, FLAG, X), list(body)), result)
    return instance_program(functions=[function], blocks=list(blocks))


SET = AssignOp("copy", (ONE,), results=(M,))
USE = AssignOp("add", (N, M), results=(N,))
BROKEN: dict[str, tuple[str, tuple[Op, ...]]] = {
    "never": ("%m is used on a path", (USE, DONE)),
    "one arm": ("%m is used on a path", (IfOp(FLAG, body_of((SET,)), Block()), USE, DONE)),
    "before a break": (
        "%m is used on a path",
        (LoopOp(body_of((IfOp(FLAG, body_of((BreakOp(),)), Block()), SET))), USE, DONE),
    ),
    "before a leave": (
        "%m is used on a path",
        (ScopeOp(1, body_of((IfOp(FLAG, body_of((LeaveOp(1),)), Block()), SET))), USE, DONE),
    ),
    "other body of a fork": (
        "%m is used on a path",
        (ForkOp((body_of((SET,)), body_of((USE,)))), DONE),
    ),
    "break outside": ("Break is not inside of what it ends", (BreakOp(),)),
    "continue outside": (
        "Continue is not inside of what it ends",
        (ScopeOp(1, body_of((ContinueOp(),))),),
    ),
    "leave outside": (
        "Leave 2 is not inside of what it ends",
        (ScopeOp(1, body_of((LeaveOp(2),))),),
    ),
    "leave a fork": (
        "Leave leaves a body of a fork",
        (ScopeOp(1, body_of((ForkOp((body_of((LeaveOp(1),)),)),))), DONE),
    ),
    "break a fork": (
        "Break leaves a body of a fork",
        (LoopOp(body_of((ForkOp((body_of((BreakOp(),)),)),))), DONE),
    ),
    "return from a fork": ("Return leaves a body of a fork", (ForkOp((body_of((DONE,)),)),)),
    "raise in a fork": (
        "a body of a fork does not reach its end",
        (ForkOp((body_of((RaiseOp(ValueError, ()),)),)), DONE),
    ),
    "condition": ("bool is needed, not int", (IfOp(N, Block(), Block()), DONE)),
    "read of several": ("not of one element", (ReadOp(X, results=(N,)), DONE)),
    "read into a tensor": ("is needed, not f32", (ReadOp(X, results=(Y,)), DONE)),
    "primitive": ("is not a primitive", (AssignOp("twice", (N,), results=(N,)), DONE)),
    "copy": ("n of type int gets f32", (AssignOp("copy", (X,), results=(N,)), DONE)),
    "operand": ("an operand has type str", (OperateOp(TANH, (Literal("a"),), results=(Y,)), DONE)),
    "places": ("an operator has places", (OperateOp(TANH, (), results=(Y,)), DONE)),
    "results": ("0 targets for 1 results", (OperateOp(TANH, (X,), results=()), DONE)),
    "result type": ("n of type int gets f32", (OperateOp(TANH, (X,), results=(N,)), DONE)),
    "block": ("there is no block 1", (RecordOp(1, (X,), results=(Y,)), DONE)),
    "block operands": ("2 operands for", (RecordOp(0, (X, X), results=(Y,)), DONE)),
    "block operand": ("is int, not f32", (RecordOp(0, (N,), results=(Y,)), DONE)),
    "function": ("there is no function g", (InvokeOp("g", ()), DONE)),
    "arguments": ("called with 1 arguments", (InvokeOp("f", (N,)), DONE)),
    "argument": ("flag of type bool gets int", (InvokeOp("f", (N, N, X)), DONE)),
    "call result": ("n of type int gets None", (InvokeOp("f", (N, FLAG, X), results=(N,)), DONE)),
    "return": ("the result of type None gets int", (ReturnOp(N),)),
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
    verify(program(IfOp(FLAG, body_of((SET,)), body_of((SET,))), USE))
    verify(program(IfOp(FLAG, body_of((SET,)), body_of((RaiseOp(ValueError, ()),))), USE))
    verify(
        program(
            LoopOp(body_of((SET, IfOp(FLAG, body_of((BreakOp(),)), body_of((ContinueOp(),)))))),
            USE,
        )
    )
    verify(
        program(ScopeOp(1, body_of((IfOp(FLAG, body_of((SET, LeaveOp(1))), Block()), SET))), USE)
    )
    verify(program(ForkOp((body_of((SET,)), Block())), USE))


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
            verify(instance_program(cells=[missing]))


def test_types_hold_narrower_ones() -> None:
    either = UnionType(frozenset({Scalar.INT, Scalar.NONE}))
    assert holds(either, Scalar.INT) and not holds(Scalar.INT, either)
    assert holds(TupleType((either, f32())), TupleType((Scalar.NONE, f32())))
    assert not holds(TupleType((either,)), TupleType((either, either)))


def test_text_of_a_program() -> None:
    made = tree_lstm()
    verify(made)
    assert print_program(made) == (
        'class $Node object ("left": 0, "right": 0, "word": 1)\n'
        "cell None | record0\n"
        "cell int\n"
        "block @leaf(%0: int) {\n"
        "  %1, %2 = operate $embed(%0) : f32[4], f32[4]\n"
        "  return %1, %2\n"
        "}\n"
        "block @inner(%0: f32[4], %1: f32[4], %2: f32[4], %3: f32[4]) {\n"
        "  %4, %5 = operate $combine(%0, %1, %2, %3) : f32[4], f32[4]\n"
        "  return %4, %5\n"
        "}\n"
        "instance func @forward(%node: record0) -> (f32[4], f32[4]) {\n"
        '  %word = data.get(%node) with "word" : int\n'
        '  %left = data.get(%node) with "left" : None | record0\n'
        "  %is_leaf = data.is(%left, None) : bool\n"
        "  if %is_leaf {\n"
        "    %h, %c = record 0(%word) : f32[4], f32[4]\n"
        "    %made = data.tuple(%h, %c) : (f32[4], f32[4])\n"
        "    return %made\n"
        "  } else {\n"
        '    %left_1 = data.get(%node) with "left" : None | record0\n'
        "    %left_2 = data.cast(%left_1) with type(record0) : record0\n"
        "    %left_state = invoke @forward(%left_2) : (f32[4], f32[4])\n"
        '    %right = data.get(%node) with "right" : None | record0\n'
        "    %right_1 = data.cast(%right) with type(record0) : record0\n"
        "    %right_state = invoke @forward(%right_1) : (f32[4], f32[4])\n"
        "    %left_h = data.item(%left_state) with 0 : f32[4]\n"
        "    %left_c = data.item(%left_state) with 1 : f32[4]\n"
        "    %right_h = data.item(%right_state) with 0 : f32[4]\n"
        "    %right_c = data.item(%right_state) with 1 : f32[4]\n"
        "    %h, %c = record 1(%left_h, %left_c, %right_h, %right_c) : f32[4], f32[4]\n"
        "    %made = data.tuple(%h, %c) : (f32[4], f32[4])\n"
        "    return %made\n"
        "  }\n"
        "}\n"
    )


def test_text_of_statements() -> None:
    weight = torch.zeros(3, 3)
    linear = Operation(
        torch.nn.functional.linear, (OperandPlaceholder(0), weight), (("bias", None),), (f32(3),)
    )
    made = program(
        ScopeOp(
            1,
            body_of(
                (
                    LoopOp(
                        body_of(
                            (
                                IfOp(FLAG, Block(), body_of((LeaveOp(1),))),
                                IfOp(FLAG, body_of((BreakOp(),)), body_of((ContinueOp(),))),
                            )
                        )
                    ),
                    ForkOp((body_of((OperateOp(linear, (X,), results=(Y,)),)), Block())),
                )
            ),
        ),
        PhaseOp(1),
        RaiseOp(ValueError, ("n is ", N)),
    )
    assert print_function(made.main) == (
        "instance func @f(%n: int, %flag: bool, %x: f32[3]) -> None {\n"
        "  scope 1 {\n"
        "    loop {\n"
        "      if %flag {\n"
        "      } else {\n"
        "        leave 1\n"
        "      }\n"
        "      if %flag {\n"
        "        break\n"
        "      } else {\n"
        "        continue\n"
        "      }\n"
        "    }\n"
        "    fork {\n"
        "      %y = operate $linear(%x, $float32.3x3, bias=None) : f32[3]\n"
        "    } and {\n"
        "    }\n"
        "  }\n"
        "  phase 1\n"
        '  raise $ValueError("n is ", %n)\n'
        "}\n"
    )
