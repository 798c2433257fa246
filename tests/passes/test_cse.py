"""Common subexpression elimination."""

import textwrap

from stretto.ir.text import print_program
from stretto.ir.verifier import verify
from stretto.passes.cse import EliminateCommonSubexpressions
from tests.support import check_pass, check_unchanged, program_of

CSE = EliminateCommonSubexpressions()


def test_an_arm_reads_what_stands_before_the_if() -> None:
    check_pass(
        """
        func @main(%x: f32[3], %c: bool[]) -> (f32[3]) {
          %a = aten.exp.default(%x) : f32[3]
          %r = if %c {
            %b = aten.exp.default(%x) : f32[3]
            yield %b
          } else {
            %d = aten.neg.default(%a) : f32[3]
            yield %d
          } : f32[3]
          %e = aten.exp.default(%x) : f32[3]
          %s = aten.add.Tensor(%r, %e) : f32[3]
          return %s
        }
        """,
        CSE,
        """
        func @main(%x: f32[3], %c: bool[]) -> (f32[3]) {
          %a = aten.exp.default(%x) : f32[3]
          %r = if %c {
            yield %a
          } else {
            %d = aten.neg.default(%a) : f32[3]
            yield %d
          } : f32[3]
          %s = aten.add.Tensor(%r, %a) : f32[3]
          return %s
        }
        """,
    )


def test_what_an_arm_computes_is_not_there_after_the_if() -> None:
    check_unchanged(
        """
        func @main(%x: f32[3], %c: bool[]) -> (f32[3], f32[3]) {
          %r = if %c {
            %b = aten.exp.default(%x) : f32[3]
            yield %b
          } else {
            %d = aten.exp.default(%x) : f32[3]
            yield %d
          } : f32[3]
          %e = aten.exp.default(%x) : f32[3]
          return %r, %e
        }
        """,
        CSE,
    )


def test_constants_and_literals_in_a_loop() -> None:
    check_pass(
        """
        func @main(%x: f32[3]) -> (f32[3]) {
          %w = constant "w" : f32[3]
          %z = literal 0.0 : f32[]
          %y = aten.mul.Tensor(%x, %w) : f32[3]
          %r = for %i in (0, 3, 1) carry (%a = %y) {
            %v = constant "w" : f32[3]
            %b = aten.mul.Tensor(%a, %v) : f32[3]
            %n = literal -0.0 : f32[]
            %p = literal 0.0 : f32[]
            %d = aten.sub.Tensor(%b, %n) : f32[3]
            %e = aten.sub.Tensor(%d, %p) : f32[3]
            yield %e
          } : f32[3]
          %s = aten.add.Tensor(%r, %z) : f32[3]
          return %s
        }
        """,
        CSE,
        """
        func @main(%x: f32[3]) -> (f32[3]) {
          %w = constant "w" : f32[3]
          %z = literal 0.0 : f32[]
          %y = aten.mul.Tensor(%x, %w) : f32[3]
          %r = for %i in (0, 3, 1) carry (%a = %y) {
            %b = aten.mul.Tensor(%a, %w) : f32[3]
            %n = literal -0.0 : f32[]
            %d = aten.sub.Tensor(%b, %n) : f32[3]
            %e = aten.sub.Tensor(%d, %z) : f32[3]
            yield %e
          } : f32[3]
          %s = aten.add.Tensor(%r, %z) : f32[3]
          return %s
        }
        """,
    )


def test_calls_of_a_recursive_function_with_equal_arguments() -> None:
    check_pass(
        """
        func @main(%n: i64[]) -> (i64[]) {
          %a = call @f(%n) : i64[]
          %b = call @f(%n) : i64[]
          %s = aten.add.Tensor(%a, %b) : i64[]
          return %s
        }
        func @f(%n: i64[]) -> (i64[]) {
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %r = if %c {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %k = call @f(%m) : i64[]
            yield %k
          } else {
            yield %n
          } : i64[]
          return %r
        }
        """,
        CSE,
        """
        func @main(%n: i64[]) -> (i64[]) {
          %a = call @f(%n) : i64[]
          %s = aten.add.Tensor(%a, %a) : i64[]
          return %s
        }
        func @f(%n: i64[]) -> (i64[]) {
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %r = if %c {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %k = call @f(%m) : i64[]
            yield %k
          } else {
            yield %n
          } : i64[]
          return %r
        }
        """,
    )


def test_equal_in_python_is_not_equal_to_an_operator() -> None:
    check_unchanged(
        """
        func @main(%x: i64[3], %y: f32[s0]) -> (i64[3], f32[3], f32[s0]) {
          %a = aten.mul.Tensor(%x, 1) : i64[3]
          %b = aten.mul.Tensor(%x, 1.0) : f32[3]
          %d = aten.full.default((s0,), 1.0) : f32[s0]
          return %a, %b, %d
        }
        """,
        CSE,
    )


def test_random_ops_and_new_lists_stay_apart() -> None:
    check_unchanged(
        """
        func @main(%x: f32[3]) -> (f32[3], f32[3], list<f32[]>, list<f32[]>) {
          %a = aten.rand_like.default(%x) : f32[3]
          %b = aten.rand_like.default(%x) : f32[3]
          %l = list.new() : list<f32[]>
          %m = list.new() : list<f32[]>
          return %a, %b, %l, %m
        }
        """,
        CSE,
    )


def test_a_check_is_made_once_where_control_comes_to_it() -> None:
    program = program_of(
        """
        func @main(%x: f32[3], %c: bool[], %d: bool[]) -> (f32[3]) {
          %r = if %d {
            check %c, "ValueError", "in an arm"
            %a = aten.exp.default(%x) : f32[3]
            check %c, "ValueError", "again in the arm"
            yield %a
          } else {
            yield %x
          } : f32[3]
          check %c, "ValueError", "behind the arm"
          check %d, "ValueError", "of another condition"
          check %c, "RuntimeError", "never fails"
          return %r
        }
        """
    )
    assert CSE.apply(program)
    verify(program)
    assert print_program(program) == textwrap.dedent(
        """\
        func @main(%x: f32[3], %c: bool[], %d: bool[]) -> (f32[3]) {
          %r = if %d {
            check %c, "ValueError", "in an arm"
            %a = aten.exp.default(%x) : f32[3]
            yield %a
          } else {
            yield %x
          } : f32[3]
          check %c, "ValueError", "behind the arm"
          check %d, "ValueError", "of another condition"
          return %r
        }
        """
    )


def test_equal_lists_of_arguments() -> None:
    check_pass(
        """
        func @main(%x: f32[2, 3], %w: f32[2, 3]) -> (f32[6], f32[4, 3], f32[4, 3], f32[4, 3]) {
          %a = aten.view.default(%x, (6,)) : f32[6]
          %b = aten.view.default(%x, (6,)) : f32[6]
          %s = aten.add.Tensor(%a, %b) : f32[6]
          %p = aten.cat.default((%x, %w), 0) : f32[4, 3]
          %q = aten.cat.default((%w, %x), 0) : f32[4, 3]
          %r = aten.cat.default((%x, %w), 0) : f32[4, 3]
          return %s, %p, %q, %r
        }
        """,
        CSE,
        """
        func @main(%x: f32[2, 3], %w: f32[2, 3]) -> (f32[6], f32[4, 3], f32[4, 3], f32[4, 3]) {
          %a = aten.view.default(%x, (6,)) : f32[6]
          %s = aten.add.Tensor(%a, %a) : f32[6]
          %p = aten.cat.default((%x, %w), 0) : f32[4, 3]
          %q = aten.cat.default((%w, %x), 0) : f32[4, 3]
          return %s, %p, %q, %p
        }
        """,
    )


def test_sizes_of_one_number_are_one_symbol() -> None:
    check_pass(
        """
        func @main[0 <= k <= 5, 0 <= m <= 4, 0 <= n <= 4](%c: i64[]) -> (f32[n], f32[m], f32[k]) {
          %a = size n = %c : i64[]
          %b = size m = %c : i64[]
          %d = size k = %c : i64[]
          %x = aten.full.default((n,), 1.0) : f32[n]
          %y = aten.full.default((m,), 1.0) : f32[m]
          %z = aten.full.default((k,), 1.0) : f32[k]
          return %x, %y, %z
        }
        """,
        CSE,
        """
        func @main[0 <= k <= 5, 0 <= n <= 4](%c: i64[]) -> (f32[n], f32[n], f32[k]) {
          %a = size n = %c : i64[]
          %d = size k = %c : i64[]
          %x = aten.full.default((n,), 1.0) : f32[n]
          %y = aten.full.default((n,), 1.0) : f32[n]
          %z = aten.full.default((k,), 1.0) : f32[k]
          return %x, %y, %z
        }
        """,
    )
