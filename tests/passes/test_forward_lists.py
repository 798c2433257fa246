"""List forwarding: readers of lists that a loop copied out of a tensor read the tensor."""

import pytest

from stretto.ir.ops import ForOp, ListGetOp
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.forward_lists import ForwardLists
from tests.passes.loops import apply, loops_of, targets
from tests.support import check_pass, check_unchanged, program_of

COPY = """
func @main(%x: f32[4, 3], %h0: f32[3]) -> ({type}) {{
  %none = list.new() : list<f32[3]>
  %h, %all = for %t in ({bounds}) carry (%p = %h0, %l = %none) {{
    %x_t = aten.select.int(%x, 0, {position}) : f32[3]
    %n = aten.mul.Tensor(%p, %x_t) : f32[3]
    %m = list.push(%l, %x_t) : list<f32[3]>
    yield %n, %m
  }} : f32[3], list<f32[3]>
  {reader}
  return %r
}}
"""


def copy(reader: str, type: str, bounds: str = "0, 4, 1", position: str = "%t") -> str:
    return COPY.format(reader=reader, type=type, bounds=bounds, position=position)


STACK = "%s = list.stack(%all) : f32[{0}, 3]\n%r = aten.relu.default(%s) : f32[{0}, 3]"


def test_stack() -> None:
    check_pass(
        copy(STACK.format(4), "f32[4, 3]"),
        ForwardLists(),
        copy("%r = aten.relu.default(%x) : f32[4, 3]", "f32[4, 3]"),
    )


@pytest.mark.parametrize(("bounds", "trips"), [("0, 3, 1", 3), ("1, 4, 1", 3), ("3, -1, -1", 4)])
def test_a_part_or_another_order_is_no_copy(bounds: str, trips: int) -> None:
    check_unchanged(copy(STACK.format(trips), f"f32[{trips}, 3]", bounds), ForwardLists())


def test_another_item_is_no_copy() -> None:
    text = copy(STACK.format(4), "f32[4, 3]", position="%k").replace("(%x:", "(%k: i64[], %x:")
    check_unchanged(text, ForwardLists())


COPY_AGAIN = """
  %s = list.stack(%all) : f32[4, 3]
  %two = list.new() : list<f32[3]>
  %again = for %u in (0, 4, 1) carry (%q = %two) {
    %s_u = aten.select.int(%s, 0, %u) : f32[3]
    %o = list.push(%q, %s_u) : list<f32[3]>
    yield %o
  } : list<f32[3]>
  %z = list.stack(%again) : f32[4, 3]
  %r = aten.relu.default(%z) : f32[4, 3]"""


def test_a_copy_of_a_copy_reads_the_first_tensor() -> None:
    program = program_of(copy(COPY_AGAIN, "f32[4, 3]"))
    after = apply(program, ForwardLists(), EliminateDeadCode())
    (relu,) = after.main.body.ops
    assert relu.operands == (after.main.params[0],)


def test_length() -> None:
    text = copy("%r = list.length(%all) : i64[]", "i64[]")
    after = apply(program_of(text), ForwardLists(), EliminateDeadCode())
    assert [op.name for op in after.main.body.ops] == ["literal"]


SUM = """
  %r = for %k in ({0}) carry (%a = %h0) {{
    %item = list.get(%all, %k) : f32[3]
    %b = aten.add.Tensor(%a, %item) : f32[3]
    yield %b
  }} : f32[3]"""


def test_items_read_by_another_loop() -> None:
    text = copy(SUM.format("3, -1, -1"), "f32[3]")
    after = apply(program_of(text), ForwardLists(), EliminateDeadCode())
    (loop,) = loops_of(after.main.body)
    assert targets(loop.body) == ["aten.select.int", "aten.add.Tensor"]


def test_items_that_may_be_out_of_range_are_checked_still() -> None:
    text = copy(SUM.format("0, %c, 1"), "f32[3]").replace("%h0: f32[3])", "%h0: f32[3], %c: i64[])")
    check_unchanged(text, ForwardLists())


def test_inside_an_arm_in_a_loop() -> None:
    copied = copy(STACK.format(4), "f32[4, 3]").split("{\n", 1)[1].rsplit("return", 1)[0]
    after = apply(
        program_of(f"""
        func @main(%x: f32[4, 3], %h0: f32[3], %flag: bool[]) -> (f32[4, 3]) {{
          %zeros = aten.zeros_like.default(%x) : f32[4, 3]
          %end = for %i in (0, 2, 1) carry (%y = %zeros) {{
            %z = if %flag {{
              {copied}
              %sum = aten.add.Tensor(%r, %y) : f32[4, 3]
              yield %sum
            }} else {{
              yield %y
            }} : f32[4, 3]
            yield %z
          }} : f32[4, 3]
          return %end
        }}
        """),
        ForwardLists(),
        EliminateDeadCode(),
    )
    ops = list(after.walk())
    assert sum(isinstance(op, ForOp) for op in ops) == 1
    assert not any(isinstance(op, ListGetOp) for op in ops)


def test_a_tensor_that_the_loop_changes_is_no_source() -> None:
    check_unchanged(
        """
        func @main(%x: f32[4, 3]) -> (f32[4, 3]) {
          %none = list.new() : list<f32[3]>
          %y, %all = for %t in (0, 4, 1) carry (%p = %x, %l = %none) {
            %item = aten.select.int(%p, 0, %t) : f32[3]
            %m = list.push(%l, %item) : list<f32[3]>
            %q = aten.sin.default(%p) : f32[4, 3]
            yield %q, %m
          } : f32[4, 3], list<f32[3]>
          %r = list.stack(%all) : f32[4, 3]
          return %r
        }
        """,
        ForwardLists(),
    )
