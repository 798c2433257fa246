"""Which operators become one kernel, and that every element is computed by exactly one task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from stretto.device.costs import CostModel
from stretto.device.evaluate import span_range
from stretto.device.operator import Kernel, Operator, Stage, TileDim
from stretto.device.tree import Check, Let, leaves
from stretto.kernels.fuse import apart_reason, fuse, independent, split
from stretto.kernels.groups import Group, Grouped, single
from stretto.remarks import Remarks
from tests.lowering.programs import lowered


def grouped(text: str, units: int = 4) -> list[Grouped]:
    """The groups of a program without control flow; its work counts as large."""
    (items,) = leaves(lowered(text).tree.main.body)
    costs = CostModel(small_work=0)

    def judge(groups: list[Group], operator: Operator, joined: Group) -> str | None:
        return apart_reason(groups, operator, joined, units, costs)

    found = list(fuse(items, judge, Remarks()))
    assert sum(len(group.members) for group in found if isinstance(group, Group)) == sum(
        isinstance(item, Operator) for item in items
    )
    for group in found:
        if isinstance(group, Group):
            assert_each_element_once(group)
    return found


def assert_each_element_once(group: Group) -> None:
    """Cuts the grid into odd tiles and counts what the tasks compute of each member."""
    grid = tuple(TileDim(extent, 3) for extent in group.grid)
    stages = tuple(Stage(m.operator, box) for m in group.members for box in m.boxes)
    kernel = Kernel("k", grid, stages)
    for member in group.members:
        counts: Counter[tuple[int, ...]] = Counter()
        for task in range(kernel.tasks):
            for box in member.boxes:
                spans = [span_range(span, kernel.tile(task), {}) for span in box]
                counts.update(points(spans))
        wanted = points([(0, dim) for dim in member.operator.dims if isinstance(dim, int)])
        assert counts == Counter(dict.fromkeys(wanted, 1)), member.operator.name


def points(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, ...]]:
    if not ranges:
        yield ()
        return
    for first in range(*ranges[0]):
        for rest in points(ranges[1:]):
            yield first, *rest


def names(groups: list[Grouped]) -> list[list[str]]:
    return [[m.operator.name for m in g.members] for g in groups if isinstance(g, Group)]


def test_a_softmax_is_one_kernel_over_rows() -> None:
    (group,) = grouped("""
        func @main(%x: f32[40, 8]) -> (f32[40, 8]) {
          %s = aten._softmax.default(%x, 1, False) : f32[40, 8]
          return %s
        }
        """)
    assert isinstance(group, Group) and group.grid == (40,) and len(group.members) == 3


GATES = """
    func @main(%x: f32[4, 16], %c: f32[4, 16]) -> (f32[4, 16], f32[4, 16]) {
      %w = constant "w" : f32[64, 16]
      %g = aten.linear.default(%x, %w, None) : f32[4, 64]
      %a = aten.slice.Tensor(%g, 1, 0, 16) : f32[4, 16]
      %b = aten.slice.Tensor(%g, 1, 16, 32) : f32[4, 16]
      %d = aten.slice.Tensor(%g, 1, 32, 48) : f32[4, 16]
      %e = aten.slice.Tensor(%g, 1, 48, 64) : f32[4, 16]
      %i = aten.sigmoid.default(%a) : f32[4, 16]
      %f = aten.sigmoid.default(%b) : f32[4, 16]
      %n = aten.tanh.default(%d) : f32[4, 16]
      %o = aten.sigmoid.default(%e) : f32[4, 16]
      %k = aten.mul.Tensor(%f, %c) : f32[4, 16]
      %l = aten.mul.Tensor(%i, %n) : f32[4, 16]
      %c2 = aten.add.Tensor(%k, %l) : f32[4, 16]
      %t = aten.tanh.default(%c2) : f32[4, 16]
      %h = aten.mul.Tensor(%o, %t) : f32[4, 16]
      return %h, %c2
    }
    """


def test_the_gates_of_a_cell_are_four_boxes_of_one_task() -> None:
    (group,) = grouped(GATES, units=1)
    assert isinstance(group, Group) and group.grid == (4, 16)
    product, *rest = group.members
    assert [box[1].offset for box in product.boxes] == [0, 16, 32, 48]
    assert all(len(member.boxes) == 1 for member in rest)


def test_gates_stay_apart_where_a_cell_leaves_too_few_tasks() -> None:
    assert names(grouped(GATES, units=4)) == [["contraction"], ["c2", "h"]]


def test_without_fusion_every_operator_is_a_kernel() -> None:
    (items,) = leaves(lowered(GATES).tree.main.body)
    assert all(len(g.members) == 1 for g in split(items) if isinstance(g, Group))


@pytest.mark.parametrize(
    ("producer", "consumer"),
    [
        # The whole of a dim is needed where the tile of the consumer goes elsewhere.
        ("aten.exp.default(%x) : f32[40, 40]", "aten.cumsum.default(%p, 0) : f32[40, 40]"),
        ("aten.cumsum.default(%x, 1) : f32[40, 40]", "aten.t.default(%p) : f32[40, 40]"),
        ("aten.mean.dim(%x, (1,), True) : f32[40, 1]", "aten.add.Tensor(%x, %p) : f32[40, 40]"),
        ("aten.cumsum.default(%x, 0) : f32[40, 40]", "aten.flip.default(%p, (1,)) : f32[40, 40]"),
    ],
)
def test_pairs_keep_every_element_in_one_task(producer: str, consumer: str) -> None:
    grouped(f"""
        func @main(%x: f32[40, 40]) -> (f32[40, 40]) {{
          %p = {producer}
          %q = {consumer}
          %r = aten.sin.default(%q) : f32[40, 40]
          return %r
        }}
        """)


def test_a_product_is_not_pulled_into_the_one_task_of_an_argmax() -> None:
    groups = grouped("""
        func @main(%x: f32[64, 64], %y: f32[64, 64]) -> (i64[]) {
          %m = aten.mm.default(%x, %y) : f32[64, 64]
          %a = aten.argmax.default(%m) : i64[]
          return %a
        }
        """)
    assert names(groups)[0] == ["contraction"]


def test_neighbouring_elements_of_the_producer_are_in_other_tasks() -> None:
    groups = grouped("""
        func @main(%x: f32[40, 40]) -> (f32[40, 38]) {
          %e = aten.exp.default(%x) : f32[40, 40]
          %a = aten.slice.Tensor(%e, 1, 0, 38) : f32[40, 38]
          %b = aten.slice.Tensor(%e, 1, 2, 40) : f32[40, 38]
          %c = aten.add.Tensor(%a, %b) : f32[40, 38]
          return %c
        }
        """)
    assert all(g.grid == (40,) for g in groups if isinstance(g, Group) and len(g.members) > 1)


def test_stores_at_computed_positions_stay_in_one_task() -> None:
    groups = grouped("""
        func @main(%x: f32[6], %i: i64[3], %v: f32[3]) -> (f32[6]) {
          %z = aten.index_put.default(%x, (%i,), %v, True) : f32[6]
          return %z
        }
        """)
    update = groups[-1]
    assert isinstance(update, Group) and update.grid == ()


# ---- order -----------------------------------------------------------------------------------


def test_nothing_moves_across_a_check_that_guards_it() -> None:
    groups = grouped("""
        func @main(%x: f32[8], %n: i64[]) -> (list<f32[8]>, f32[8]) {
          %l0 = list.new() : list<f32[8]>
          %e = aten.exp.default(%x) : f32[8]
          %l1 = list.push(%l0, %e) : list<f32[8]>
          %l2 = list.push(%l1, %e) : list<f32[8]>
          %g = list.get(%l2, %n) : f32[8]
          %h = aten.sin.default(%g) : f32[8]
          return %l2, %h
        }
        """)
    checks = [n for n, group in enumerate(groups) if isinstance(group, Check)]
    reads = [
        n
        for n, group in enumerate(groups)
        if isinstance(group, Group) and any(m.operator.name == "h" for m in group.members)
    ]
    assert reads and max(checks) < min(reads)


def test_a_push_stays_behind_the_check_for_room() -> None:
    result = lowered("""
        func @main(%x: f32[8], %n: i64[]) -> (list<f32[8]>) {
          %l0 = list.new() : list<f32[8]>
          %e = aten.exp.default(%x) : f32[8]
          %l1 = list.push(%l0, %e) : list<f32[8]>
          %l = for %i in (0, %n, 1) carry (%k = %l1) {
            %k2 = list.push(%k, %x) : list<f32[8]>
            yield %k2
          } : list<f32[8]>
          return %l
        }
        """)
    items = next(leaves(result.tree.main.body))
    check = next(item for item in items if isinstance(item, Check))
    push = next(item for item in items if isinstance(item, Operator) and item.name == "push")
    assert push.out.index[0].is_const  # no register tells that they belong together
    assert not independent(check, single(push))
    order = [type(group) for group in fuse(items, lambda *_: None, Remarks())]
    assert order.index(Check) < max(n for n, kind in enumerate(order) if kind is Group)


def test_items_without_common_memory_are_independent() -> None:
    (items,) = leaves(
        lowered("""
        func @main(%x: f32[8], %y: f32[8]) -> (f32[8], f32[8], f32[8]) {
          %a = aten.exp.default(%x) : f32[8]
          %b = aten.sin.default(%y) : f32[8]
          %c = aten.add.Tensor(%a, %b) : f32[8]
          return %a, %b, %c
        }
        """).tree.main.body
    )
    a, b, c = (single(item) for item in items if isinstance(item, Operator))
    assert independent(a, b) and not independent(a, c) and not independent(c, b)
    assert not any(isinstance(item, Let) for item in items)
