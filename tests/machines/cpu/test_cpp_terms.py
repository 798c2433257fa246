"""The text of expressions and positions."""

from __future__ import annotations

import math

import pytest

from stretto.device.expr import Access, Apply, Buffer, Const, Expr, Index, Load, Position, Reg, Var
from stretto.errors import CodegenError
from stretto.ir.types import DType
from stretto.machines.cpu.printer.cpp_terms import ScalarPrinter, cast_term, constant, identifier
from stretto.machines.statements import FunctionDefinition, StatementBuilder, write_cpp_function
from stretto.machines.terms import Term, variable
from stretto.text import Writer


class Named:
    """Buffers and registers under their own names."""

    def buffer(self, buffer: Buffer) -> Term:
        return variable(buffer.name)

    def reg(self, reg: Reg) -> Term:
        return variable(reg.name)


X = Buffer("x", DType.F32, (4, 6))
H = Buffer("h", DType.BF16, (4, 6))


def load(buffer: Buffer, row: Index | Var | int, column: Index | Var | int) -> Load:
    return Load(Access(buffer, (4, 6), (Index.of(row), Index.of(column))))


def text(expr: Expr) -> tuple[list[str], str]:
    """The statements before an expression, and its text."""
    out, writer = StatementBuilder(), Writer()
    found = ScalarPrinter(Named(), out).expr(expr)
    write_cpp_function("f", FunctionDefinition((), tuple(out.statements)), writer)
    return [line.strip() for line in writer.text().splitlines()[2:-1]], found.text


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1.5, DType.F32, "1.5f"),
        (1.5, DType.F64, "1.5"),
        (1e300, DType.F32, "stretto::Limits<float>::infinity()"),
        (-math.inf, DType.F64, "-stretto::Limits<double>::infinity()"),
        (math.nan, DType.F32, "stretto::Limits<float>::nan()"),
        (-0.0, DType.F32, "-0.0f"),
        (True, DType.BOOL, "true"),
        (7, DType.I64, "int64_t(7)"),
        (-(2**63), DType.I64, "INT64_MIN"),
        (200, DType.U8, "uint8_t(200)"),
    ],
)
def test_literals(value: float, dtype: DType, expected: str) -> None:
    assert constant(value, dtype).text == expected


def test_positions() -> None:
    printer = ScalarPrinter(Named(), StatementBuilder())
    i0, i1, n = Index.of(Var(0)), Index.of(Var(1)), Index.of(Reg("n"))
    assert printer.index(i0 * 6 + i1 + 2).text == "i0 * 6 + i1 + 2"
    assert printer.index(Index()).text == "0"
    assert printer.index(n + -1).text == "n + -1"
    assert printer.index((i0 * 4 + i1) // 3).text == "stretto::index_div(i0 * 4 + i1, 3)"
    assert printer.index(i1 % 5).text == "stretto::index_mod(i1, 5)"
    assert printer.index((i0 * 6) // 3).text == "i0 * 2"


def test_a_shared_part_becomes_one_local() -> None:
    square = Apply("exp", (load(X, Var(0), Var(1)),), DType.F32)
    lines, value = text(Apply("mul", (square, square), DType.F32))
    assert lines == [
        "const float v0 = x[i0 * 6 + i1];",
        "const float v1 = stretto::exp(v0);",
        "const float v2 = float(v1 * v1);",
    ]
    assert value == "v2"


def test_an_arm_that_loads_is_evaluated_only_when_taken() -> None:
    inside = Apply("ge", (Position(Index.of(Var(0)) + -1), Const(0, DType.I64)), DType.BOOL)
    arm = load(X, Index.of(Var(0)) + -1, 0)
    lines, _ = text(Apply("where", (inside, arm, Const(0.0, DType.F32)), DType.F32))
    (condition, chosen) = lines
    assert "x[" not in condition
    assert chosen == "const float v1 = (v0 ? x[i0 * 6 + -6] : 0.0f);"


def test_half_precision_is_computed_in_float() -> None:
    rounded = Apply("cast", (Apply("add", (load(H, 0, 0), load(H, 0, 1)), DType.F32),), DType.BF16)
    lines, _ = text(rounded)
    assert lines[0] == "const float v0 = stretto::to_float(h[0]);"
    assert lines[-1] == "const float v3 = stretto::to_float(stretto::to_bf16(float(v2)));"


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (DType.F32, DType.BOOL, "v != 0"),
        (DType.F32, DType.I64, "stretto::to_integer<int64_t>(v)"),
        (DType.I64, DType.I8, "int8_t(v)"),
        (DType.I64, DType.F16, "stretto::to_float(stretto::to_half(float(v)))"),
        (DType.BOOL, DType.F64, "double(v)"),
    ],
)
def test_casts(source: DType, target: DType, expected: str) -> None:
    assert cast_term(variable("v"), source, target).text == expected


def test_identifiers() -> None:
    assert identifier("main.f.<locals>.g.3") == "main_f__locals__g_3"
    with pytest.raises(CodegenError, match="empty name"):
        identifier("")
