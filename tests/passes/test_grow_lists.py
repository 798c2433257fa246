"""What a cat puts behind a list of rows is put to the end of that list."""

from __future__ import annotations

from stretto.passes.grow_lists import GrowLists
from tests.passes.loops import check
from tests.support import check_unchanged

GROWS = """
func @main[1 <= m](%x: f32[6, 4, 2], %k0: f32[2, 2, 4]) -> (f32[2, r, 4]) {
  %e = list.new() : list<f32[2, 4]>
  %l0 = list.extend(%e, %k0) : list<f32[2, 4]>
  %l = for %i in (0, 6, 1) carry (%k = %l0) {
    %s = list.stack(%k) : f32[m, 2, 4]
    %c = aten.permute.default(%s, (1, 0, 2)) : f32[2, m, 4]
    %a = aten.select.int(%x, 0, %i) : f32[4, 2]
    %b = aten.view.default(%a, (2, 1, 4)) : f32[2, 1, 4]
    %d = aten.cat.default((%c, %b), 1) : f32[2, m + 1, 4]
    %p = aten.permute.default(%d, (1, 0, 2)) : f32[m + 1, 2, 4]
    %n = list.new() : list<f32[2, 4]>
    %o = list.extend(%n, %p) : list<f32[2, 4]>
    yield %o
  } : list<f32[2, 4]>
  %t = list.stack(%l) : f32[r, 2, 4]
  %u = aten.permute.default(%t, (1, 0, 2)) : f32[2, r, 4]
  return %u
}
"""


def test_new_rows_are_put_to_the_end() -> None:
    """The rows of the list are a dim of the tensor other than the first."""
    check(
        GROWS,
        GrowLists(),
        """
func @main[1 <= m](%x: f32[6, 4, 2], %k0: f32[2, 2, 4]) -> (f32[2, r, 4]) {
  %e = list.new() : list<f32[2, 4]>
  %l0 = list.extend(%e, %k0) : list<f32[2, 4]>
  %l = for %i in (0, 6, 1) carry (%k = %l0) {
    %s = list.stack(%k) : f32[m, 2, 4]
    %c = aten.permute.default(%s, (1, 0, 2)) : f32[2, m, 4]
    %a = aten.select.int(%x, 0, %i) : f32[4, 2]
    %b = aten.view.default(%a, (2, 1, 4)) : f32[2, 1, 4]
    %g = aten.permute.default(%b, (1, 0, 2)) : f32[1, 2, 4]
    %o = list.extend(%k, %g) : list<f32[2, 4]>
    %w = list.stack(%o) : f32[m + 1, 2, 4]
    %d = aten.permute.default(%w, (1, 0, 2)) : f32[2, m + 1, 4]
    %p = aten.permute.default(%d, (1, 0, 2)) : f32[m + 1, 2, 4]
    %n = list.new() : list<f32[2, 4]>
    yield %o
  } : list<f32[2, 4]>
  %t = list.stack(%l) : f32[r, 2, 4]
  %u = aten.permute.default(%t, (1, 0, 2)) : f32[2, r, 4]
  return %u
}
""",
    )


def test_rows_of_another_order_are_no_growth() -> None:
    """The new rows come first, or along another dim than that of the list."""
    check_unchanged(GROWS.replace("(%c, %b), 1", "(%b, %c), 1"), GrowLists())
