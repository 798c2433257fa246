"""Dead code elimination."""

from stretto.passes.dce import EliminateDeadCode
from tests.support import check_pass, check_unchanged, program_of

DCE = EliminateDeadCode()


def test_results_of_an_if_go_one_by_one() -> None:
    check_pass(
        """
        func @main(%x: f32[3], %c: bool[]) -> (f32[3]) {
          %u = aten.exp.default(%x) : f32[3]
          %p, %q = if %c {
            %a = aten.sin.default(%x) : f32[3]
            %b = aten.neg.default(%u) : f32[3]
            yield %a, %b
          } else {
            yield %x, %u
          } : f32[3], f32[3]
          return %p
        }
        """,
        DCE,
        """
        func @main(%x: f32[3], %c: bool[]) -> (f32[3]) {
          %p = if %c {
            %a = aten.sin.default(%x) : f32[3]
            yield %a
          } else {
            yield %x
          } : f32[3]
          return %p
        }
        """,
    )


CHECKS = """
    func @main(%x: f32[3], %c: bool[], %n: i64[]) -> (f32[3]) {
      if %c {
        for %i in (0, %n, 1) carry () {
          %y = aten.sin.default(%x) : f32[3]
          %o = call @f(%y) : f32[3]
          yield
        }
        yield
      } else {
        yield
      }
      return %x
    }

    func @f(%x: f32[3]) -> (f32[3]) {
      %s = aten.sum.default(%x) : f32[]
      %h = aten.gt.Scalar(%s, 0) : bool[]
      check %h, "ValueError", "negative"
      return %x
    }
    """


def test_checks_and_what_decides_whether_they_run_stay() -> None:
    check_unchanged(CHECKS, DCE)


def test_only_the_values_that_a_check_needs_are_carried() -> None:
    check_pass(
        """
        func @main(%x: f32[3], %n: i64[]) -> (f32[3]) {
          %r, %m = while (%a = %x, %b = %n) {
            %c = aten.gt.Scalar(%b, 0) : bool[]
            yield %c
          } do (%a_1, %b_1) {
            %d = aten.sin.default(%a_1) : f32[3]
            %o = aten.sub.Tensor(%b_1, 1) : i64[]
            %h = aten.lt.Scalar(%o, 9) : bool[]
            check %h, "ValueError", "large"
            yield %d, %o
          } : f32[3], i64[]
          return %x
        }
        """,
        DCE,
        """
        func @main(%x: f32[3], %n: i64[]) -> (f32[3]) {
          %m = while (%b = %n) {
            %c = aten.gt.Scalar(%b, 0) : bool[]
            yield %c
          } do (%b_1) {
            %o = aten.sub.Tensor(%b_1, 1) : i64[]
            %h = aten.lt.Scalar(%o, 9) : bool[]
            check %h, "ValueError", "large"
            yield %o
          } : i64[]
          return %x
        }
        """,
    )


def test_a_list_that_nobody_reads_is_not_pushed_to() -> None:
    check_pass(
        """
        func @main(%x: f32[3], %n: i64[]) -> (f32[3]) {
          %l = list.new() : list<f32[3]>
          %r, %m, %k = for %i in (0, %n, 1) carry (%a = %x, %b = %l, %j = %n) {
            %c = aten.sin.default(%a) : f32[3]
            %d = list.push(%b, %c) : list<f32[3]>
            %o = aten.add.Tensor(%j, %i) : i64[]
            yield %c, %d, %o
          } : f32[3], list<f32[3]>, i64[]
          return %r
        }
        """,
        DCE,
        """
        func @main(%x: f32[3], %n: i64[]) -> (f32[3]) {
          %r = for %i in (0, %n, 1) carry (%a = %x) {
            %c = aten.sin.default(%a) : f32[3]
            yield %c
          } : f32[3]
          return %r
        }
        """,
    )


def test_carried_values_that_feed_a_live_one_stay() -> None:
    check_unchanged(
        """
        func @main(%x: f32[3]) -> (f32[3]) {
          %r, %s = for %i in (0, 4, 1) carry (%a = %x, %b = %x) {
            %c = aten.sin.default(%b) : f32[3]
            %d = aten.cos.default(%b) : f32[3]
            yield %c, %d
          } : f32[3], f32[3]
          return %r
        }
        """,
        DCE,
    )


def test_what_a_while_decides_on_is_live_with_any_of_its_results() -> None:
    check_pass(
        """
        func @main(%x: f32[3], %n: i64[]) -> (f32[3]) {
          %z = literal 0 : i64[]
          %r, %k, %s = while (%a = %x, %i = %z, %q = %x) {
            %e = aten.exp.default(%q) : f32[3]
            %t = aten.lt.Tensor(%i, %n) : bool[]
            yield %t
          } do (%b, %j, %p) {
            %c = aten.sin.default(%b) : f32[3]
            %o = aten.add.Tensor(%j, 1) : i64[]
            %d = aten.neg.default(%p) : f32[3]
            yield %c, %o, %d
          } : f32[3], i64[], f32[3]
          return %r
        }
        """,
        DCE,
        """
        func @main(%x: f32[3], %n: i64[]) -> (f32[3]) {
          %z = literal 0 : i64[]
          %r, %k = while (%a = %x, %i = %z) {
            %t = aten.lt.Tensor(%i, %n) : bool[]
            yield %t
          } do (%b, %j) {
            %c = aten.sin.default(%b) : f32[3]
            %o = aten.add.Tensor(%j, 1) : i64[]
            yield %c, %o
          } : f32[3], i64[]
          return %r
        }
        """,
    )


def test_loops_and_branches_without_live_results_go() -> None:
    check_pass(
        """
        func @main(%x: f32[s0], %c: bool[]) -> (f32[s0]) {
          %w = for %i in (0, 8, 1) carry (%a = %x) {
            %b = aten.sin.default(%a) : f32[s0]
            yield %b
          } : f32[s0]
          if %c {
            yield
          } else {
            %d = aten.sin.default(%x) : f32[s0]
            yield
          }
          %e = aten.cos.default(%x) : f32[s0]
          return %e
        }
        """,
        DCE,
        """
        func @main(%x: f32[s0], %c: bool[]) -> (f32[s0]) {
          %e = aten.cos.default(%x) : f32[s0]
          return %e
        }
        """,
    )


def test_what_may_not_end_stays() -> None:
    """With what decides whether it ends, and whether it is run, also in functions."""
    check_pass(
        """
        func @main(%x: f32[s0], %c: bool[]) -> (f32[s0]) {
          %y = call @waits(%c, %x) : f32[s0]
          if %c {
            %w, %v = while (%a = %x, %f = %c) {
              yield %f
            } do (%b, %g) {
              %s = aten.sin.default(%b) : f32[s0]
              %n = literal False : bool[]
              yield %s, %n
            } : f32[s0], bool[]
            yield
          } else {
            yield
          }
          return %x
        }
        func @waits(%c: bool[], %x: f32[s0]) -> (f32[s0]) {
          %v = while (%f = %c) {
            yield %f
          } do (%g) {
            %n = literal False : bool[]
            yield %n
          } : bool[]
          return %x
        }
        """,
        DCE,
        """
        func @main(%x: f32[s0], %c: bool[]) -> (f32[s0]) {
          %y = call @waits(%c, %x) : f32[s0]
          if %c {
            %v = while (%f = %c) {
              yield %f
            } do (%g) {
              %n = literal False : bool[]
              yield %n
            } : bool[]
            yield
          } else {
            yield
          }
          return %x
        }
        func @waits(%c: bool[], %x: f32[s0]) -> (f32[s0]) {
          %v = while (%f = %c) {
            yield %f
          } do (%g) {
            %n = literal False : bool[]
            yield %n
          } : bool[]
          return %x
        }
        """,
    )


def test_functions_and_constants_that_nothing_names() -> None:
    text = """
        func @main(%x: f32[3]) -> (f32[3]) {
          %y = call @odd(%x) : f32[3]
          return %y
        }
        func @odd(%x: f32[3]) -> (f32[3]) {
          %s = aten.sum.default(%x) : f32[]
          %c = aten.gt.Scalar(%s, 100) : bool[]
          %r = if %c {
            %y = call @even(%x) : f32[3]
            yield %y
          } else {
            yield %x
          } : f32[3]
          return %r
        }
        func @even(%x: f32[3]) -> (f32[3]) {
          %y = call @odd(%x) : f32[3]
          return %y
        }
    """
    dead = """
        func @dead(%x: f32[3]) -> (f32[3]) {
          %w = constant "w" : f32[3]
          %y = call @odd(%w) : f32[3]
          return %y
        }
    """
    check_unchanged(text, DCE)
    check_pass(text + dead, DCE, text)
    program = program_of(text + dead)
    assert DCE.apply(program) and not program.constants


def test_an_op_with_one_live_result_is_kept_whole() -> None:
    check_unchanged(
        """
        func @main(%l: list<f32[3]>) -> (f32[3]) {
          %m, %x = list.pop(%l) : list<f32[3]>, f32[3]
          return %x
        }
        """,
        DCE,
    )


def test_positions_are_kept_until_they_have_checks() -> None:
    before = """
        func @main(%x: f32[8], %k: i64[2], %c: bool[]) -> (f32[]) {
          %n = aten.sum.default(%c) : i64[]
          %z = aten.mul.Tensor(%k, 0) : i64[2]
          %a = aten.index_select.default(%x, 0, %z) : f32[2]
          %l = list.new(%c, %c) : list<bool[]>
          %s = aten.sum.default(%a) : f32[]
          if %c {
            %b = aten.select.int(%x, 0, %n) : f32[]
            %d = list.get(%l, %n) : bool[]
            yield
          } else {
            %e = aten.select.int(%x, 0, 3) : f32[]
            yield
          }
          %r = aten.sum.default(%x) : f32[]
          return %r
        }
        """
    check_pass(
        before,
        EliminateDeadCode(keep_stopping=True),
        """
        func @main(%x: f32[8], %k: i64[2], %c: bool[]) -> (f32[]) {
          %n = aten.sum.default(%c) : i64[]
          %z = aten.mul.Tensor(%k, 0) : i64[2]
          %a = aten.index_select.default(%x, 0, %z) : f32[2]
          %l = list.new(%c, %c) : list<bool[]>
          if %c {
            %b = aten.select.int(%x, 0, %n) : f32[]
            %d = list.get(%l, %n) : bool[]
            yield
          } else {
            yield
          }
          %r = aten.sum.default(%x) : f32[]
          return %r
        }
        """,
    )
    check_pass(
        before,
        EliminateDeadCode(),
        """
        func @main(%x: f32[8], %k: i64[2], %c: bool[]) -> (f32[]) {
          %r = aten.sum.default(%x) : f32[]
          return %r
        }
        """,
    )


def test_a_size_lives_as_long_as_a_type_names_it() -> None:
    check_pass(
        """
        func @main[0 <= m <= 4, 0 <= n <= 4](%c: i64[], %d: bool[]) -> (f32[n]) {
          %a = size n = %c : i64[]
          %b = size m = %c : i64[]
          %y = aten.full.default((m,), 1.0) : f32[m]
          %r, %s = if %d {
            %p = aten.full.default((n,), 1.0) : f32[n]
            yield %p, %y
          } else {
            %q = aten.full.default((n,), 2.0) : f32[n]
            yield %q, %y
          } : f32[n], f32[m]
          return %r
        }
        """,
        DCE,
        """
        func @main[0 <= n <= 4](%c: i64[], %d: bool[]) -> (f32[n]) {
          %a = size n = %c : i64[]
          %r = if %d {
            %p = aten.full.default((n,), 1.0) : f32[n]
            yield %p
          } else {
            %q = aten.full.default((n,), 2.0) : f32[n]
            yield %q
          } : f32[n]
          return %r
        }
        """,
    )
