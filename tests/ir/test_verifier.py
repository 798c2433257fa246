"""One Program per rule that breaks it, and what the error says."""

import textwrap

import pytest
import torch

import stretto.ops.infer  # noqa: F401  (the rules of tensor ops)
from stretto.errors import SourceLocation, VerifyError
from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.ops import LiteralOp
from stretto.ir.text import parse_program
from stretto.ir.types import INDEX
from stretto.ir.verifier import verify

HEAD = (
    "func @main(%x: f32[3], %y: f32[4], %n: i64[], %c: bool[], %l: list<f32[3]>, %s: f32[s0, 3])"
    " -> () {"
)
FUNCTIONS = """
func @f(%a: f32[3], %b: f32[q, 3]) -> (f32[3], f32[q, 3]) {
  return %a, %b
}
"""

BROKEN = {
    "constant_present": '%r = constant "unknown" : f32[3]',
    "constant_type": '%r = constant "w" : f32[2, 4]',
    "literal_type": "%r = literal 1 : f32[]",
    "literal_type.kind": "%r = literal 1.0 : bool[]",
    "literal_type.range": "%r = literal 256 : u8[]",
    "literal_type.negative": "%r = literal -1 : u8[]",
    "literal_type.dims": "%r = literal 1 : i64[1]",
    "functional_operator": "%r = aten.add_.Tensor(%x, %x) : f32[3]",
    "functional_operator.unknown": "%r = aten.no_such.default(%x) : f32[3]",
    "inferred_types": "%r = aten.neg.default(%x) : f32[4]",
    "inferred_types.count": "%r = aten.topk.default(%x, 2) : f32[2]",
    "inferred_types.refused": "%r = aten.add.Tensor(%x, %y) : f32[3]",
    "inferred_types.list": "%r = aten.neg.default(%l) : f32[3]",
    "inferred_types.dynamic": "%r = aten.slice.Tensor(%x, 0, 0, %n) : f32[3]",
    "inferred_types.symbol": "%r = aten.mul.Tensor(%s, 2.0) : f32[s1, 3]",
    "new_types": "%r = list.new(%x, %y) : list<f32[3]>",
    "push_types": "%r = list.push(%l, %y) : list<f32[3]>",
    "push_types.not_a_list": "%r = list.push(%x, %y) : list<f32[3]>",
    "get_types": "%r = list.get(%l, %n) : f32[4]",
    "get_types.index": "%r = list.get(%l, %c) : f32[3]",
    "set_types": "%r = list.set(%l, %n, %y) : list<f32[3]>",
    "set_types.index": "%r = list.set(%l, %x, %x) : list<f32[3]>",
    "pop_types": "%r, %t = list.pop(%l) : list<f32[3]>, f32[4]",
    "length_types": "%r = list.length(%l) : f32[]",
    "length_types.not_a_list": "%r = list.length(%x) : i64[]",
    "stack_types": "%r = list.stack(%l) : f32[s0, 4]",
    "stack_types.dtype": "%r = list.stack(%l) : f16[s0, 3]",
    "if_condition": "%r = if %n { yield %x } else { yield %x } : f32[3]",
    "if_yields": "%r = if %c { yield %x } else { yield %y } : f32[3]",
    "if_yields.count": "%r = if %c { yield %x } else { yield } : f32[3]",
    "while_params": "%r = while (%a = %x) { yield %c } do (%b: f32[4]) { yield %x } : f32[3]",
    "while_params.condition": (
        "%r = while (%a: f32[4] = %x) { yield %c } do (%b) { yield %x } : f32[3]"
    ),
    "while_condition": "%r = while (%a = %x) { yield %n } do (%b) { yield %x } : f32[3]",
    "while_yields": "%r = while (%a = %x) { yield %c } do (%b) { yield %y } : f32[3]",
    "while_results": "%r = while (%a = %x) { yield %c } do (%b) { yield %x } : f32[4]",
    "for_bounds": "%r = for %i in (0, %c, 1) carry (%a = %x) { yield %a } : f32[3]",
    "for_bounds.step": "%r = for %i in (0, 1, 0) carry (%a = %x) { yield %a } : f32[3]",
    "for_params": "%r = for %i in (0, 1, 1) carry (%a: f32[4] = %x) { yield %x } : f32[3]",
    "for_params.index": "%r = for %i: f32[] in (0, 1, 1) carry (%a = %x) { yield %a } : f32[3]",
    "for_yields": "%r = for %i in (0, 1, 1) carry (%a = %x) { yield %y } : f32[3]",
    "for_results": "%r = for %i in (0, 1, 1) carry (%a = %x) { yield %a } : f32[4]",
    "call_function": "%r = call @g(%x) : f32[3]",
    "call_arguments": "%r, %t = call @f(%y, %s) : f32[3], f32[s0, 3]",
    "call_arguments.count": "%r, %t = call @f(%x) : f32[3], f32[s0, 3]",
    "call_results": "%r, %t = call @f(%x, %s) : f32[3], f32[s1, 3]",
    "call_results.count": "%r = call @f(%x, %s) : f32[3]",
}


def parse(line: str) -> Program:
    text = f"{HEAD}\n  {line}\n  return\n}}\n{FUNCTIONS}"
    return parse_program(text, {"w": torch.zeros(3)})


@pytest.mark.parametrize("rule", BROKEN)
def test_each_rule_is_enforced(rule: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify(parse(BROKEN[rule]))
    assert f"@main breaks the rule `{rule.split('.')[0]}`: " in caught.value.message
    assert caught.value.op is not None and caught.value.op.startswith("%r")


@pytest.mark.parametrize(
    "line",
    [
        "%r = list.stack(%l) : f32[7, 3]",
        "%r = list.stack(%l) : f32[s5, 3]",
        "%r, %t = call @f(%x, %s) : f32[3], f32[s0, 3]",
        "%r = literal -128 : i8[]",
        "%r = literal 255 : u8[]",
        "%r = aten.select.int(%x, 0, %n) : f32[]",
        "%r = stretto.narrow(%x, 0, %n, 2) : f32[2]",
        "%r = stretto.narrow_scatter(%y, %x, 0, %n) : f32[4]",
        "%r = aten.expand.default(%x, (s0, 3)) : f32[s0, 3]",
        "%r = aten.cat.default((%s, %s)) : f32[2*s0, 3]",
        "if %c { yield } else { yield }",
    ],
)
def test_what_is_right_passes(line: str) -> None:
    verify(parse(line))


def test_arms_may_name_their_symbols_otherwise() -> None:
    arms = "{ %a = list.stack(%l) : f32[s1, 3] yield %a } else { yield %s }"
    verify(parse(f"%r = if %c {arms} : f32[s2, 3]"))


def test_a_value_is_read_only_where_it_is_defined() -> None:
    program = parse(
        "%r = if %c { %a = aten.neg.default(%x) : f32[3] yield %a } else { yield %x } : f32[3]"
    )
    main = program.main.body
    main.yields = main.ops[0].blocks[0].yields
    with pytest.raises(VerifyError, match=r"@main breaks the rule `scope`: <%a: f32\[3\]>"):
        verify(program)


def test_a_value_is_not_read_before_its_op() -> None:
    program = parse("%r = aten.neg.default(%x) : f32[3]  %t = aten.neg.default(%r) : f32[3]")
    program.main.body.ops.reverse()
    with pytest.raises(VerifyError, match="rule `scope`") as caught:
        verify(program)
    assert caught.value.op == "%t = aten.neg.default(%r) : f32[3]"


def test_a_function_sees_no_value_of_another() -> None:
    program = parse("%r = aten.neg.default(%x) : f32[3]")
    program.functions["f"].body.yields = (program.main.params[0], *program.main.params[5:])
    with pytest.raises(VerifyError, match="@f breaks the rule `scope`"):
        verify(program)


def test_a_value_has_one_definition() -> None:
    program = parse("%r = aten.neg.default(%x) : f32[3]")
    program.main.body.ops.append(program.main.body.ops[0])
    with pytest.raises(VerifyError, match="rule `one_definition`"):
        verify(program)


def test_arms_have_no_parameters() -> None:
    program = parse("%r = if %c { yield %x } else { yield %x } : f32[3]")
    program.main.body.ops[0].blocks[0].params = (Value(INDEX),)
    with pytest.raises(VerifyError, match="rule `if_params`"):
        verify(program)


def test_there_is_a_main() -> None:
    with pytest.raises(VerifyError, match="no function @main"):
        verify(parse_program(FUNCTIONS))


def test_functions_stand_under_their_names() -> None:
    program = Program({"main": Function("other", Block())})
    with pytest.raises(VerifyError, match="@other is stored under the name @main"):
        verify(program)


def test_an_op_class_needs_rules() -> None:
    class Strange(Op):
        name = "strange"
        operands = ()

    with pytest.raises(VerifyError, match="rule `op_class`"):
        verify(Program({"main": Function("main", Block((), [Strange()]))}))


def test_the_error_names_the_users_line() -> None:
    place = SourceLocation("model.py", 7)
    op = LiteralOp(1, results=(Value(INDEX, "r"),), location=place)
    op.value = 1.5
    with pytest.raises(VerifyError) as caught:
        verify(Program({"main": Function("main", Block((), [op]))}))
    assert caught.value.location == place
    assert textwrap.dedent(str(caught.value)).startswith("model.py:7: @main breaks the rule")
