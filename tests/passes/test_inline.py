"""Inlining of calls."""

from stretto.ir.call_graph import recursive_functions
from stretto.passes.inline import InlineFunctions
from tests.support import check_pass, check_unchanged, program_of

INLINE = InlineFunctions()

HELPERS = """
        func @twice(%x: f32[3], %c: bool[]) -> (f32[3]) {
          %a = call @once(%x, %c) : f32[3]
          %b = call @once(%a, %c) : f32[3]
          return %b
        }

        func @once(%x: f32[3], %c: bool[]) -> (f32[3]) {
          %r = if %c {
            %s = aten.sin.default(%x) : f32[3]
            yield %s
          } else {
            yield %x
          } : f32[3]
          return %r
        }
"""


def test_calls_in_a_loop_of_functions_that_call_and_branch() -> None:
    check_pass(
        """
        func @main(%x: f32[3], %c: bool[]) -> (f32[3]) {
          %r = for %i in (0, 2, 1) carry (%a = %x) {
            %b = call @once(%a, %c) : f32[3]
            yield %b
          } : f32[3]
          return %r
        }
        """
        + HELPERS,
        INLINE,
        """
        func @main(%x: f32[3], %c: bool[]) -> (f32[3]) {
          %r = for %i in (0, 2, 1) carry (%a = %x) {
            %r_1 = if %c {
              %s = aten.sin.default(%a) : f32[3]
              yield %s
            } else {
              yield %a
            } : f32[3]
            yield %r_1
          } : f32[3]
          return %r
        }

        func @twice(%x: f32[3], %c: bool[]) -> (f32[3]) {
          %r = if %c {
            %s = aten.sin.default(%x) : f32[3]
            yield %s
          } else {
            yield %x
          } : f32[3]
          %r_1 = if %c {
            %s_1 = aten.sin.default(%r) : f32[3]
            yield %s_1
          } else {
            yield %r
          } : f32[3]
          return %r_1
        }

        func @once(%x: f32[3], %c: bool[]) -> (f32[3]) {
          %r = if %c {
            %s = aten.sin.default(%x) : f32[3]
            yield %s
          } else {
            yield %x
          } : f32[3]
          return %r
        }
        """,
    )


RECURSIVE = """
        func @main(%n: i64[]) -> (i64[]) {
          %y = call @even(%n) : i64[]
          return %y
        }
        func @even(%n: i64[]) -> (i64[]) {
          %y = call @odd(%n) : i64[]
          return %y
        }
        func @odd(%n: i64[]) -> (i64[]) {
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %r = if %c {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %y = call @even(%m) : i64[]
            yield %y
          } else {
            yield %n
          } : i64[]
          return %r
        }
"""


def test_mutual_recursion_stays() -> None:
    check_unchanged(RECURSIVE, INLINE)
    assert recursive_functions(program_of(RECURSIVE)) == {"even", "odd"}


def test_symbols_get_names_of_their_own() -> None:
    check_pass(
        """
        func @main(%l: list<f32[3]>, %x: f32[s0, 3]) -> (f32[t, 3], f32[3], f32[s0, 3], f32[3]) {
          %a, %b = call @f(%l, %x) : f32[t, 3], f32[3]
          %c = call @g(%x) : f32[s0, 3]
          %z = aten.zeros.default((2, 3)) : f32[2, 3]
          %d, %e = call @f(%l, %z) : f32[t2, 3], f32[3]
          return %a, %b, %c, %e
        }
        func @g(%x: f32[n, 3]) -> (f32[n, 3]) {
          %y = aten.expand.default(%x, (n, 3)) : f32[n, 3]
          return %y
        }
        func @f(%l: list<f32[3]>, %x: f32[k, 3]) -> (f32[s0, 3], f32[3]) {
          %s = list.stack(%l) : f32[s0, 3]
          %m = list.stack(%l) : f32[inner, 3]
          %o = aten.cat.default((%s, %m, %x)) : f32[inner + k + s0, 3]
          %t = aten.sum.dim_IntList(%o, (0,)) : f32[3]
          return %s, %t
        }
        """,
        INLINE,
        """
        func @main(%l: list<f32[3]>, %x: f32[s0, 3]) -> (f32[t, 3], f32[3], f32[s0, 3], f32[3]) {
          %s = list.stack(%l) : f32[t, 3]
          %m = list.stack(%l) : f32[inner_1, 3]
          %o = aten.cat.default((%s, %m, %x)) : f32[inner_1 + s0 + t, 3]
          %t = aten.sum.dim_IntList(%o, (0,)) : f32[3]
          %y = aten.expand.default(%x, (s0, 3)) : f32[s0, 3]
          %z = aten.zeros.default((2, 3)) : f32[2, 3]
          %s_1 = list.stack(%l) : f32[t2, 3]
          %m_1 = list.stack(%l) : f32[inner_2, 3]
          %o_1 = aten.cat.default((%s_1, %m_1, %z)) : f32[inner_2 + t2 + 2, 3]
          %t_1 = aten.sum.dim_IntList(%o_1, (0,)) : f32[3]
          return %s, %t, %y, %t_1
        }
        func @g(%x: f32[n, 3]) -> (f32[n, 3]) {
          %y = aten.expand.default(%x, (n, 3)) : f32[n, 3]
          return %y
        }
        func @f(%l: list<f32[3]>, %x: f32[k, 3]) -> (f32[s0, 3], f32[3]) {
          %s = list.stack(%l) : f32[s0, 3]
          %m = list.stack(%l) : f32[inner, 3]
          %o = aten.cat.default((%s, %m, %x)) : f32[inner + k + s0, 3]
          %t = aten.sum.dim_IntList(%o, (0,)) : f32[3]
          return %s, %t
        }
        """,
    )


def test_a_result_whose_dim_is_a_formula_stays() -> None:
    check_unchanged(
        """
        func @main(%l: list<f32[3]>) -> (f32[t, 3]) {
          %a = call @f(%l) : f32[t, 3]
          return %a
        }
        func @f(%l: list<f32[3]>) -> (f32[2*s0, 3]) {
          %s = list.stack(%l) : f32[s0, 3]
          %o = aten.cat.default((%s, %s)) : f32[2*s0, 3]
          return %o
        }
        """,
        INLINE,
    )


def test_inlining_stops_at_the_limit() -> None:
    text = (
        """
        func @main(%x: f32[3], %c: bool[]) -> (f32[3]) {
          %a = call @once(%x, %c) : f32[3]
          %b = call @once(%a, %c) : f32[3]
          return %b
        }
        """
        + HELPERS
    )
    program = program_of(text)
    InlineFunctions(limit=5).apply(program)
    assert [op.name for op in program.main.body.ops] == ["if", "call"]
