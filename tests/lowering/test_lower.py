"""What is stored and what is computed at its uses; positions and their checks; outputs."""

from __future__ import annotations

import pytest
import torch

from stretto.device.expr import Apply, Reg, limit_register
from stretto.device.forms import OutputList, OutputTensor
from stretto.device.operator import LibraryCall, Operator
from stretto.device.tree import Check, Let
from stretto.errors import CodegenError
from tests.lowering.programs import items_of, lowered, operators


def test_a_chain_of_maps_is_one_operator() -> None:
    result = lowered("""
        func @main(%x: f32[8]) -> (f32[4, 2]) {
          %a = aten.exp.default(%x) : f32[8]
          %b = aten.mul.Tensor(%a, 2.0) : f32[8]
          %c = aten.view.default(%b, (2, 4)) : f32[2, 4]
          %d = aten.t.default(%c) : f32[4, 2]
          return %d
        }
        """)
    (operator,) = items_of(result)
    assert isinstance(operator, Operator) and operator.out.buffer.kind == "output"
    assert not result.tree.main.locals


def test_what_is_dear_and_used_twice_is_stored_once() -> None:
    text = """
        func @main(%x: f32[8]) -> (f32[8], f32[8]) {{
          %a = aten.{}.default(%x) : f32[8]
          %b = aten.mul.Tensor(%a, 2.0) : f32[8]
          %c = aten.add.Tensor(%a, 1.0) : f32[8]
          return %b, %c
        }}
        """
    assert len(operators(lowered(text.format("exp")))) == 3
    assert len(operators(lowered(text.format("neg")))) == 2


def test_what_a_loop_reads_is_stored_before_it() -> None:
    result = lowered("""
        func @main(%x: f32[8], %n: i64[]) -> (f32[8]) {
          %a = aten.neg.default(%x) : f32[8]
          %y = for %i in (0, %n, 1) carry (%h = %x) {
            %b = aten.add.Tensor(%h, %a) : f32[8]
            yield %b
          } : f32[8]
          return %y
        }
        """)
    assert operators(result) == ["a", "init", "b", "y"]


def test_a_result_that_is_a_view_or_an_input_is_copied() -> None:
    result = lowered("""
        func @main(%x: f32[2, 3]) -> (f32[3, 2], f32[2, 3], f32[2, 3]) {
          %t = aten.t.default(%x) : f32[3, 2]
          return %t, %x, %x
        }
        """)
    outs = [item.out.buffer.name for item in items_of(result) if isinstance(item, Operator)]
    assert outs == ["out0", "out1", "out2"]


def test_integers_without_dims_are_registers_and_do_not_grow_without_bound() -> None:
    steps = "".join(
        f"""
          %a{n} = aten.mul.Tensor(%b{n}, %b{n}) : i64[]
          %b{n + 1} = aten.remainder.Scalar(%a{n}, 97) : i64[]"""
        for n in range(40)
    )
    result = lowered(f"""
        func @main(%b0: i64[]) -> (i64[]) {{{steps}
          return %b40
        }}
        """)
    items = items_of(result)
    assert all(isinstance(item, Let) for item in items[:-1])
    assert 20 <= len(items) <= 81


# ---- positions -------------------------------------------------------------------------------

SELECT = """
    func @main(%x: f32[{size}, 3], %n: i64[]) -> (f32[3]) {{
      %y = for %i in (0, {trips}, 1) carry (%h = %x0) {{
        %s = aten.select.int(%x, 0, {position}) : f32[3]
        yield %s
      }} : f32[3]
      return %y
    }}
    """


@pytest.mark.parametrize(
    ("trips", "position", "checks"),
    [
        ("4", "%i", 0),
        ("5", "%i", 1),
        ("%n", "%i", 1),
        ("4", "%n", 2),
        ("4", "3", 0),
        ("4", "-1", 0),
    ],
)
def test_positions_are_checked_only_where_they_may_be_out_of_range(
    trips: str, position: str, checks: int
) -> None:
    text = SELECT.format(size=4, trips=trips, position=position)
    text = text.replace("%y = for", '%x0 = constant "c" : f32[3]\n      %y = for')
    found = [item for item in items_of(lowered(text)) if isinstance(item, Check)]
    assert [check.code for check in found] == ["index"] * checks


def test_one_position_is_checked_once() -> None:
    result = lowered("""
        func @main(%x: f32[4, 3], %y: f32[4, 3], %n: i64[]) -> (f32[3]) {
          %a = aten.select.int(%x, 0, %n) : f32[3]
          %b = aten.select.int(%y, 0, %n) : f32[3]
          %c = aten.add.Tensor(%a, %b) : f32[3]
          return %c
        }
        """)
    assert sum(isinstance(item, Check) for item in items_of(result)) == 2


# ---- memory of dynamic size ------------------------------------------------------------------

DYNAMIC = """
    func @main(%x: f32[3], %n: i64[]) -> (f32[3, s0], list<f32[3]>) {
      %l0 = list.new() : list<f32[3]>
      %l = for %i in (0, %n, 1) carry (%k = %l0) {
        %k2 = list.push(%k, %x) : list<f32[3]>
        yield %k2
      } : list<f32[3]>
      %s = list.stack(%l) : f32[s0, 3]
      %t = aten.t.default(%s) : f32[3, s0]
      %e = aten.exp.default(%t) : f32[3, s0]
      return %e, %l
    }
    """


def test_memory_of_dynamic_size_is_checked_and_laid_out_with_that_dim_first() -> None:
    result = lowered(DYNAMIC)
    tensor, items = result.interface.outputs
    assert isinstance(tensor, OutputTensor) and isinstance(items, OutputList)
    assert tensor.shape[0] == 3 and isinstance(tensor.shape[1], Reg)
    assert tensor.buffer.shape == (tensor.shape[1], 3)
    checks = [item for item in items_of(result) if isinstance(item, Check)]
    assert {check.subject for check in checks if check.code == "list_full"} == {
        tensor.buffer.slot,
        items.buffer.slot,
    }
    limits = {limit_register(tensor.buffer.slot).name, limit_register(items.buffer.slot).name}
    assert limits <= {name for check in checks for name in _registers(check.condition)}


def _registers(expr: object) -> list[str]:
    from stretto.device.expr import expr_regs

    assert isinstance(expr, Apply)
    return [reg.name for reg in expr_regs(expr)]


def test_two_dims_of_dynamic_size() -> None:
    text = DYNAMIC.replace("f32[3, s0], list", "f32[s0, s0], list").replace(
        "%e = aten.exp.default(%t) : f32[3, s0]", "%e = aten.mm.default(%s, %t) : f32[s0, s0]"
    )
    with pytest.raises(CodegenError, match="two dims that data decide"):
        lowered(text)


# ---- library calls ---------------------------------------------------------------------------


def test_what_has_no_rule_becomes_a_library_call_on_whole_buffers() -> None:
    result = lowered("""
        func @main(%x: f32[4, 6], %n: i64[], %p: f32[]) -> (f32[6, 4], f32[6, 4]) {
          %t = aten.t.default(%x) : f32[6, 4]
          %a = aten.special_i0.default(%t) : f32[6, 4]
          %b = aten.renorm.default(%a, %p, 0, 2.5) : f32[6, 4]
          return %a, %b
        }
        """)
    calls = [item for item in items_of(result) if isinstance(item, LibraryCall)]
    assert [call.reason for call in calls] == ["no native lowering"] * 2
    (copy,) = (item for item in items_of(result) if isinstance(item, Operator))
    assert calls[0].args == (copy.out.buffer,) and calls[0].outs[0].name == "out0"
    number = calls[1].args[1]
    assert isinstance(number, Reg) and number.dtype.torch is torch.float32
    assert calls[1].operands == (calls[0].outs[0], number, *calls[1].outs)


def test_a_library_call_on_a_dynamic_dim_that_is_not_the_first() -> None:
    text = DYNAMIC.replace("aten.exp.default", "aten.special_i0.default")
    with pytest.raises(CodegenError, match="in a dim other than the first"):
        lowered(text)


def test_scores_of_which_data_decide_two_dims_have_no_buffer() -> None:
    text = DYNAMIC.replace("f32[3, s0], list", "f32[s0, 3], list").replace(
        "%e = aten.exp.default(%t) : f32[3, s0]",
        "%e = aten.scaled_dot_product_attention.default(%s, %s, %s) : f32[s0, 3]",
    )
    (call,) = (item for item in items_of(lowered(text)) if isinstance(item, LibraryCall))
    assert call.reason == "these arguments have no native lowering"


def test_functions_that_main_does_not_reach_are_left_out() -> None:
    result = lowered("""
        func @main(%x: f32[4]) -> (f32[4]) {
          return %x
        }
        func @f(%l: list<f32[4]>) -> (i64[]) {
          %n = list.length(%l) : i64[]
          return %n
        }
        """)
    assert [function.name for function in result.tree.functions] == ["main"]
