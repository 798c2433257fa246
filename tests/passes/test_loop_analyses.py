"""What the loop passes find out of a loop: recurrences, affine numbers, lengths of lists."""

import pytest

from stretto.ir.core import Op, Program, Value
from stretto.ir.ops import ForOp, ListLengthOp
from stretto.passes.analyses.loop_dependences import (
    Affine,
    Length,
    ListLengths,
    affine_result,
    loop_dependence,
)
from tests.passes.loops import loops_of
from tests.support import program_of


def names(nodes: tuple[Op | Value, ...]) -> list[str]:
    return [node.hint if isinstance(node, Value) else node.results[0].hint for node in nodes]


def test_components_of_a_body() -> None:
    program = program_of("""
        func @main(%x: f32[4], %flag: bool[]) -> (f32[4], f32[4], f32[4]) {
          %a, %b, %c = for %t in (0, 4, 1) carry (%p = %x, %q = %x, %late = %x) {
            %u = aten.sin.default(%x) : f32[4]
            %v = aten.add.Tensor(%p, %u) : f32[4]
            %w = if %flag {
              %i = aten.mul.Tensor(%q, %v) : f32[4]
              yield %i
            } else {
              yield %late
            } : f32[4]
            yield %v, %w, %v
          } : f32[4], f32[4], f32[4]
          return %a, %b, %c
        }
        """)
    (loop,) = loops_of(program.main.body)
    found = loop_dependence(loop)
    assert [names(nodes) for nodes in found.components] == [["u"], ["p", "v"], ["late"], ["q", "w"]]
    assert [number in found.cyclic for number in range(4)] == [False, True, False, True]
    assert found.component(program.main.params[0]) is None


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("%r = aten.add.Tensor(%t, 3)", Affine(2, 4)),
        ("%r = aten.add.Tensor(%t, %k, alpha=2)", Affine(2, 11)),
        ("%r = aten.sub.Tensor(%k, %t)", Affine(-2, 4)),
        ("%r = aten.rsub.Scalar(%t, 7)", Affine(-2, 6)),
        ("%r = aten.mul.Tensor(%k, %t)", Affine(10, 5)),
        ("%r = aten.neg.default(%t)", Affine(-2, -1)),
        ("%r = aten.mul.Tensor(%t, %t)", None),
        ("%r = aten.floor_divide.default(%t, 2)", None),
        ("%r = aten.add.Tensor(%t, %n)", None),
    ],
)
def test_affine(lines: str, expected: Affine | None) -> None:
    program = program_of(f"""
        func @main(%n: i64[]) -> () {{
          for %t in (1, 9, 2) carry () {{
            %k = literal 5 : i64[]
            {lines} : i64[]
            yield
          }}
          return
        }}
        """)
    (loop,) = loops_of(program.main.body)
    known = {loop.index: Affine(2, 1)}
    for op in loop.body.ops[:-1]:
        affine = affine_result(op, known)
        assert affine is not None
        known[op.results[0]] = affine
    assert affine_result(loop.body.ops[-1], known) == expected


def length_program(lines: str) -> Program:
    return program_of(f"""
        func @main[0 <= u](%x: f32[2], %flag: bool[], %n: i64[], %given: list<f32[2]>) -> (i64[]) {{
          %none = list.new() : list<f32[2]>
          %two = list.new(%x, %x) : list<f32[2]>
          {lines}
          %r = list.length(%l) : i64[]
          return %r
        }}
        """)


GROW = """%l = for %i in ({0}) carry (%p = {1}) {{
  %q = list.push(%p, %x) : list<f32[2]>
  {2}
  yield %q2
}} : list<f32[2]>"""
ONCE = "%q2 = list.set(%q, %i, %x) : list<f32[2]>"
TWICE = "%q2 = list.push(%q, %x) : list<f32[2]>"
MAYBE = "%q2 = if %flag {\nyield %q\n} else {\nyield %p\n} : list<f32[2]>"
NESTED = """%q2 = for %j in (0, 3, 1) carry (%r2 = %q) {
  %s = list.push(%r2, %x) : list<f32[2]>
  yield %s
} : list<f32[2]>"""

ANEW = "%q1 = list.new(%x) : list<f32[2]>\n%q2 = list.push(%q1, %x) : list<f32[2]>"
ROWS = """%u = size u = %n : i64[]
%rows = aten.full.default((u, 2), 0.0) : f32[u, 2]
%q2 = list.extend(%q, %rows) : list<f32[2]>"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("%l = list.push(%two, %x) : list<f32[2]>", 3),
        ("%l, %y = list.pop(%two) : list<f32[2]>, f32[2]", 1),
        ("%l = list.push(%given, %x) : list<f32[2]>", None),
        (GROW.format("0, 5, 1", "%two", ONCE), 7),
        (GROW.format("5, 0, -2", "%none", TWICE), 6),
        (GROW.format("0, 5, 1", "%two", NESTED), 22),
        (GROW.format("0, 5, 1", "%two", MAYBE), None),
        (GROW.format("0, %n, 1", "%two", TWICE), None),
        (GROW.format("0, 5, 1", "%two", ANEW), None),
        (GROW.format("0, 5, 1", "%two", ROWS), None),
    ],
)
def test_length(lines: str, expected: int | None) -> None:
    program = length_program(lines)
    assert length_of_result(program) == (None if expected is None else Length(expected))


def test_length_that_is_a_trip_count() -> None:
    program = length_program(GROW.format("0, %n, 1", "%two", ONCE))
    assert length_of_result(program) == Length(2, (0, program.main.params[2], 1))
    assert any(isinstance(op, ForOp) for op in program.main.body.ops)


def length_of_result(program: Program) -> Length | None:
    reader = program.main.body.ops[-1]
    assert isinstance(reader, ListLengthOp)
    return ListLengths.of(program.main.body).length(reader.list)
