"""Constant folding."""

import torch

from stretto.ir.ops import ConstantOp
from stretto.passes.fold import FoldConstants
from tests.support import check_pass, check_unchanged, program_of

FOLD = FoldConstants()


def test_views_and_cats_of_parameters_become_constants() -> None:
    text = """
        func @main(%x: f32[2, 4]) -> (f32[2, 6]) {
          %w = constant "w" : f32[3, 4]
          %v = constant "v" : f32[3, 4]
          %c = aten.cat.default((%w, %v)) : f32[6, 4]
          %t = aten.permute.default(%c, (1, 0)) : f32[4, 6]
          %y = aten.mm.default(%x, %t) : f32[2, 6]
          return %y
        }
    """
    check_pass(
        text,
        FOLD,
        """
        func @main(%x: f32[2, 4]) -> (f32[2, 6]) {
          %w = constant "w" : f32[3, 4]
          %v = constant "v" : f32[3, 4]
          %c = constant "folded_0" : f32[6, 4]
          %t = constant "folded_1" : f32[4, 6]
          %y = aten.mm.default(%x, %t) : f32[2, 6]
          return %y
        }
        """,
    )
    program = program_of(text)
    FOLD.apply(program)
    expected = torch.cat([program.constants["w"], program.constants["v"]]).T
    assert torch.equal(program.constants["folded_1"], expected)


def test_what_would_grow_stays() -> None:
    text = """
        func @main() -> (f32[64, 64]) {
          %w = constant "w" : f32[64]
          %e = aten.expand.default(%w, (64, 64)) : f32[64, 64]
          return %e
        }
    """
    check_unchanged(text, FoldConstants(max_bytes=1000))
    assert FoldConstants(max_bytes=64 * 64 * 4).apply(program_of(text))


def test_numbers_fold_to_literals_and_conditions_to_their_arm() -> None:
    check_pass(
        """
        func @main(%x: f32[3]) -> (f32[3]) {
          %a = literal 2 : i64[]
          %b = aten.mul.Tensor(%a, %a) : i64[]
          %c = aten.gt.Scalar(%b, 3) : bool[]
          %r = if %c {
            %s = aten.mul.Scalar(%x, %b) : f32[3]
            yield %s
          } else {
            %t = aten.neg.default(%x) : f32[3]
            yield %t
          } : f32[3]
          return %r
        }
        """,
        FOLD,
        """
        func @main(%x: f32[3]) -> (f32[3]) {
          %a = literal 2 : i64[]
          %b = literal 4 : i64[]
          %c = literal True : bool[]
          %s = aten.mul.Scalar(%x, 4) : f32[3]
          return %s
        }
        """,
    )


def test_bounds_and_loops_of_no_or_one_iteration() -> None:
    check_pass(
        """
        func @main(%x: f32[3]) -> (f32[3], f32[3], f32[3], f32[3]) {
          %n = literal 1 : i64[]
          %f = literal False : bool[]
          %p = for %i in (0, %n, 1) carry (%a = %x) {
            %b = aten.mul.Scalar(%a, %i) : f32[3]
            yield %b
          } : f32[3]
          %q = for %j in (%n, 0, 2) carry (%d = %x) {
            %e = aten.neg.default(%d) : f32[3]
            yield %e
          } : f32[3]
          %r = for %k in (%n, 4, 1) carry (%g = %x) {
            %h = aten.neg.default(%g) : f32[3]
            yield %h
          } : f32[3]
          %s = while (%u = %x) {
            yield %f
          } do (%v) {
            yield %v
          } : f32[3]
          return %p, %q, %r, %s
        }
        """,
        FOLD,
        """
        func @main(%x: f32[3]) -> (f32[3], f32[3], f32[3], f32[3]) {
          %n = literal 1 : i64[]
          %f = literal False : bool[]
          %i = literal 0 : i64[]
          %b = aten.mul.Scalar(%x, %i) : f32[3]
          %r = for %k in (1, 4, 1) carry (%g = %x) {
            %h = aten.neg.default(%g) : f32[3]
            yield %h
          } : f32[3]
          return %b, %x, %r, %x
        }
        """,
    )


def test_a_constant_without_dims_is_a_number() -> None:
    program = program_of(
        """
        func @main(%x: f32[3]) -> (f32[3]) {
          %w = constant "w" : f32[]
          %y = aten.mul.Tensor(%x, %w) : f32[3]
          return %y
        }
        """
    )
    assert FOLD.apply(program)
    literal = program.main.body.ops[0]
    assert not isinstance(literal, ConstantOp) and literal.result.hint == "w"


def test_what_would_stop_the_run_or_is_random_stays() -> None:
    check_unchanged(
        """
        func @main(%n: i64[]) -> (i64[]) {
          %a = literal 7 : i64[]
          %z = literal 0 : i64[]
          %w = constant "w" : f32[3]
          %c = aten.gt.Scalar(%n, 100) : bool[]
          %r = if %c {
            %d = aten.remainder.Tensor(%a, %z) : i64[]
            %e = aten.select.int(%w, 0, %a) : f32[]
            %f = aten.bernoulli.default(%w) : f32[3]
            yield %d
          } else {
            yield %n
          } : i64[]
          return %r
        }
        """,
        FOLD,
    )


def test_symbols_and_recursive_calls_stay() -> None:
    check_unchanged(
        """
        func @main(%x: f32[s0], %n: i64[]) -> (f32[s0]) {
          %z = aten.zeros.default((s0,)) : f32[s0]
          %y = aten.add.Tensor(%x, %z) : f32[s0]
          %c = aten.gt.Scalar(%n, 0) : bool[]
          %r = if %c {
            %o = literal 0 : i64[]
            %p = call @main(%y, %o) : f32[s0]
            yield %p
          } else {
            yield %y
          } : f32[s0]
          return %r
        }
        """,
        FOLD,
    )
