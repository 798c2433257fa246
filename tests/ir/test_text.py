"""Printing and parsing: the round trip, and errors with line, column and caret."""

import math

import pytest
import torch

from stretto.errors import VerifyError
from stretto.ir.core import Block, Function, Program, Value
from stretto.ir.ops import LiteralOp, TensorOp
from stretto.ir.size_bounds import maximum
from stretto.ir.sizes import symbol
from stretto.ir.text import parse_program, parse_type, print_op, print_program
from stretto.ir.types import FLAG, INDEX, DType, TensorListType, TensorType

ALL_SYNTAX = """\
func @main(%x: f32[64, 256], %h: bf16[256], %s: u8[2*s0 - 1], %c: bool[]) -> (bf16[256], \
list<f32[2]>) {
  %w = constant "a \\"quoted\\" key" : f32[256, 256]
  %0 = aten.mm.default(%x, %w) : f32[64, 256]
  %1 = literal -3 : i64[]
  %2 = literal True : bool[]
  %3 = literal -inf : f32[]
  %4 = literal 1e-45 : f64[]
  %5, %l = if %c {
    %l_1 = list.new() : list<f32[2]>
    yield %h, %l_1
  } else {
    %z = constant "z" : f32[2]
    %l_2 = list.new(%z, %z) : list<f32[2]>
    %l_3 = list.push(%l_2, %z) : list<f32[2]>
    %6 = list.get(%l_3, %1) : f32[2]
    %7 = list.set(%l_3, %1, %6) : list<f32[2]>
    %8, %9 = list.pop(%7) : list<f32[2]>, f32[2]
    %10 = list.length(%8) : i64[]
    %11 = list.stack(%8) : f32[s1, 2]
    yield %h, %8
  } : bf16[256], list<f32[2]>
  %12 = for %i in (0, %1, -1) carry (%a = %5) {
    %13 = call @f(%a) : bf16[256]
    yield %13
  } : bf16[256]
  %14 = while (%a_1 = %12) {
    yield %c
  } do (%a_2) {
    if %c {
      yield
    } else {
      check %c, "IndexError", "index {} is \\"out\\"", %1
      yield
    }
    check %c, "ValueError", "negative"
    %15 = call @"f.<locals>.g"(%a_2) : bf16[256]
    yield %15
  } : bf16[256]
  return %14, %l
}

func @f(%x: bf16[256]) -> (bf16[256]) {
  return %x
}

func @"f.<locals>.g"(%x: bf16[256]) -> (bf16[256]) {
  return %x
}
"""


def test_every_op_round_trips() -> None:
    program = parse_program(ALL_SYNTAX)
    assert print_program(program) == ALL_SYNTAX


@pytest.mark.parametrize(
    "argument",
    [
        None, True, False, 0, -7, 2**62, 0.1, 1e300, -0.0, math.inf, -math.inf, "none",
        'a "quote"\n\\', "", torch.float32, torch.bool, (), (1,), (1, (2, ()), None),
        (True, 1, 1.0),
        symbol("s0"), symbol("s0") * 2 + 1, symbol("inf"), symbol("nan"),
    ],
)  # fmt: skip
def test_every_kind_of_argument_round_trips(argument: object) -> None:
    op = TensorOp("aten.x.y", (argument,), (("key", argument),), results=(Value(INDEX),))  # type: ignore
    program = Program({"main": Function("main", Block((), [op], op.results))})
    text = print_program(program)
    (found,) = parse_program(text).main.body.ops
    assert isinstance(found, TensorOp)
    assert repr(found.args) == repr((argument,)) and repr(found.kwargs) == repr(op.kwargs)
    assert print_program(parse_program(text)) == text


def test_nan_round_trips() -> None:
    text = "func @main() -> (f32[]) {\n  %0 = literal nan : f32[]\n  return %0\n}\n"
    (op,) = parse_program(text).main.body.ops
    assert isinstance(op, LiteralOp) and math.isnan(op.value)
    assert print_program(parse_program(text)) == text


@pytest.mark.parametrize(
    "type",
    [
        TensorType(DType.F32),
        TensorType(DType.I8, (0, 3)),
        TensorListType(TensorType(DType.BOOL, (1,))),
        TensorType(DType.F16, (symbol("s0"), maximum(2, symbol("s0") - 1), 3)),
    ],
)
def test_types_round_trip(type: TensorType | TensorListType) -> None:
    assert parse_type(str(type)) == type


def test_names_are_unique_whatever_the_hints() -> None:
    values = [Value(INDEX, hint) for hint in ("x", "x", "x_1", "", "0", "a b", "a-b", "for")]
    program = Program({"main": Function("main", Block(tuple(values), [], tuple(values)))})
    text = print_program(program)
    assert text.splitlines()[0].startswith(
        "func @main(%x: i64[], %x_1: i64[], %x_1_1: i64[], %0: i64[], %v0: i64[], %a_b: i64[], "
        "%a_b_1: i64[], %for: i64[]) ->"
    )
    assert print_program(parse_program(text)) == text


def test_an_op_that_is_not_valid_still_prints() -> None:
    op = TensorOp("aten.neg.default", (Value(FLAG, "lost"),), results=(Value(FLAG, "y"),))
    function = Function("main", Block((), [op]))
    assert print_op(op, function) == "%y = aten.neg.default(%undefined.lost) : bool[]"


def test_blocks_of_a_single_op_are_left_out() -> None:
    function = parse_program(ALL_SYNTAX).main
    texts = [print_op(op, function) for op in function.body.ops if op.blocks]
    assert texts == [
        "%5, %l = if %c { ... } else { ... } : bf16[256], list<f32[2]>",
        "%12 = for %i in (0, %1, -1) carry (%a = %5) { ... } : bf16[256]",
        "%14 = while (%a_1 = %12) { ... } do (%a_2) { ... } : bf16[256]",
    ]


@pytest.mark.parametrize(
    ("body", "line", "column", "reason"),
    [
        ("%y = aten.neg.default(%z) : f32[]", 2, 25, "%z is not defined here"),
        ("%x = literal 1 : i64[]", 2, 3, "%x is defined twice"),
        ("%y = neg(%x) : f32[]", 2, 8, "`neg` is not an operator"),
        ("%y = aten.neg.default(%x) : f33[]", 2, 31, "`f33` is not a type"),
        ("%y = aten.neg.default(%x)", 3, 3, "expected `:`"),
        ("%y = literal None : f32[]", 2, 16, "expected a number"),
        ("%y = list.get(%x) : f32[]", 2, 19, "expected 2 operands, found 1"),
        ("%y = aten.neg.default(torch.what) : f32[]", 2, 25, "`torch.what` is not an argument"),
        ("%y = if %x { yield %x } : f32[]", 2, 27, "expected `else`"),
        ("%y = for %i in (0, 1, %x) carry () { yield } : f32[]", 2, 25, "the step is an int"),
        ("%y = list.new() : list<list<f32[]>>", 2, 36, "a list holds tensors"),
    ],
)
def test_a_mistake_is_shown_where_it_is(body: str, line: int, column: int, reason: str) -> None:
    text = f"func @main(%x: f32[]) -> (f32[]) {{\n  {body}\n  return %x\n}}\n"
    with pytest.raises(VerifyError) as caught:
        parse_program(text)
    first, source, underline = caught.value.message.splitlines()
    assert first == f"line {line}, column {column}: {reason}"
    assert source == text.splitlines()[line - 1]
    assert underline.index("^") == column - 1


def test_results_must_be_what_the_first_line_says() -> None:
    with pytest.raises(VerifyError, match="does not return the types"):
        parse_program("func @main(%x: f32[]) -> (f32[2]) {\n  return %x\n}")


def test_an_unfinished_text_points_to_its_end() -> None:
    with pytest.raises(VerifyError, match="line 2, column 13: expected a value"):
        parse_program("func @main(%x: f32[]) -> () {\n  return %x,")
