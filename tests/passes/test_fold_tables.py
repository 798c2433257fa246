"""Table folding: products with rows of constant tables are looked up."""

import pytest

from stretto.ir.ops import WhileOp
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.fold_tables import FoldTables
from stretto.passes.pipeline import loop_passes
from tests.passes.loops import apply, check, contractions
from tests.support import check_unchanged, program_of

LOOKUP = """
func @main(%ids: i64[2, 3], %other: f32[4, 5]) -> (f32[2, 3, 6]) {
  %t = constant "t" : f32[4, 5]
  %w = constant "w" : f32[6, 5]
  %b = constant "b" : f32[6]
  %e = aten.embedding.default(%t, %ids) : f32[2, 3, 5]
  %y = aten.linear.default(%e, %w, %b) : f32[2, 3, 6]
  return %y
}
"""


def test_product_of_a_looked_up_row() -> None:
    check(
        LOOKUP,
        FoldTables(),
        """
        func @main(%ids: i64[2, 3], %other: f32[4, 5]) -> (f32[2, 3, 6]) {
          %t = constant "t" : f32[4, 5]
          %w = constant "w" : f32[6, 5]
          %b = constant "b" : f32[6]
          %e = aten.embedding.default(%t, %ids) : f32[2, 3, 5]
          %p = constant "product_table.0" : f32[4, 6]
          %y = aten.embedding.default(%p, %ids) : f32[2, 3, 6]
          return %y
        }
        """,
    )


@pytest.mark.parametrize("limits", [{"limit_bytes": 95}, {"limit_flops": 239.0}])
def test_large_tables_stay(limits: dict[str, int]) -> None:
    check_unchanged(LOOKUP, FoldTables(**limits))


def test_a_table_that_is_not_constant_stays() -> None:
    check_unchanged(
        LOOKUP.replace("embedding.default(%t,", "embedding.default(%other,"), FoldTables()
    )


DECODER = """
func @main(%h0: f32[1, 5], %token0: i64[1], %n: i64[]) -> (f32[1, 5], i64[1]) {
  %t = constant "t" : f32[4, 5]
  %w = constant "w" : f32[5, 5]
  %u = constant "u" : f32[5, 5]
  %v = constant "v" : f32[4, 5]
  %zero = literal 0 : i64[]
  %h, %token, %k = while (%p = %h0, %q = %token0, %i = %zero) {
    %more = aten.lt.Tensor(%i, %n) : bool[]
    yield %more
  } do (%r, %s, %j) {
    %e = aten.embedding.default(%t, %s) : f32[1, 5]
    %a = aten.linear.default(%e, %w) : f32[1, 5]
    %b = aten.linear.default(%r, %u) : f32[1, 5]
    %c = aten.add.Tensor(%a, %b) : f32[1, 5]
    %d = aten.tanh.default(%c) : f32[1, 5]
    %scores = aten.linear.default(%d, %v) : f32[1, 4]
    %best = aten.argmax.default(%scores, 1) : i64[1]
    %next = aten.add.Tensor(%j, 1) : i64[]
    yield %d, %best, %next
  } : f32[1, 5], i64[1], i64[]
  return %h, %token
}
"""


def test_in_a_decoder() -> None:
    after = apply(program_of(DECODER), *loop_passes())
    (loop,) = [op for op in after.main.body.ops if isinstance(op, WhileOp)]
    assert len(contractions(loop.body)) == 2
    assert "t" not in after.constants


def test_in_an_arm_of_a_recursive_function() -> None:
    after = apply(
        program_of("""
        func @main(%ids: i64[4], %n: i64[]) -> (f32[6]) {
          %r = call @visit(%ids, %n) : f32[6]
          return %r
        }
        func @visit(%ids: i64[4], %n: i64[]) -> (f32[6]) {
          %t = constant "t" : f32[4, 5]
          %w = constant "w" : f32[5, 6]
          %id = aten.select.int(%ids, 0, %n) : i64[]
          %e = aten.embedding.default(%t, %id) : f32[5]
          %y = aten.matmul.default(%e, %w) : f32[6]
          %leaf = aten.le.Scalar(%n, 0) : bool[]
          %r = if %leaf {
            yield %y
          } else {
            %m = aten.sub.Tensor(%n, 1) : i64[]
            %s = call @visit(%ids, %m) : f32[6]
            %z = aten.add.Tensor(%s, %y) : f32[6]
            yield %z
          } : f32[6]
          return %r
        }
        """),
        FoldTables(),
        EliminateDeadCode(),
    )
    assert list(after.constants) == ["product_table.0"]
