"""Branches, loops and calls: where carried values live, and what is copied."""

from __future__ import annotations

import pytest

from stretto.device.expr import Buffer, Reg
from stretto.device.operator import Operator
from stretto.device.tree import Call, For, If, Let, While, leaves
from tests.lowering.programs import items_of, lowered, nodes, operators


def loop(body: str, carry: str, results: str) -> str:
    return f"""
        func @main(%x: f32[4, 2], %y: f32[4, 2], %s: f32[1, 2], %n: i64[]) -> ({results}) {{
          %r = for %i in (0, %n, 1) carry ({carry}) {{
            {body}
          }} : {results}
          return %r
        }}
        """


MATRIX = "f32[4, 2]"


def test_a_carried_tensor_rotates() -> None:
    result = lowered(loop(f"%b = aten.exp.default(%a) : {MATRIX}\n yield %b", "%a = %x", MATRIX))
    (node,) = nodes(result, For)
    ((current, following),) = node.rotate
    assert operators(result) == ["init", "b", "r"]
    (body,) = leaves(node.body)
    (step,) = body
    assert isinstance(step, Operator) and step.out.buffer == following
    assert {load.access.buffer for load in step.reads()} == {current}


def test_what_is_passed_through_does_not_rotate() -> None:
    result = lowered(loop("yield %a", "%a = %x", MATRIX))
    (node,) = nodes(result, For)
    assert node.rotate == () and operators(result) == ["init", "r"]


UPDATE = "stretto.narrow_scatter(%a, %s, 0, %i)"


@pytest.mark.parametrize(
    ("body", "in_place"),
    [
        (f"%b = {UPDATE} : {MATRIX}\n yield %b", True),
        (f"%o = aten.exp.default(%a) : {MATRIX}\n %b = {UPDATE} : {MATRIX}\n yield %b", True),
        (
            f"%b = {UPDATE} : {MATRIX}\n"
            f"%c = stretto.narrow_scatter(%b, %s, 0, 0) : {MATRIX}\n yield %c",
            True,
        ),
        (
            f"%b = {UPDATE} : {MATRIX}\n %c = aten.add.Tensor(%a, %b) : {MATRIX}\n yield %c",
            False,
        ),
        (f"%o = aten.exp.default(%a) : {MATRIX}\n yield %o", False),
    ],
)
def test_a_cache_is_updated_in_its_own_buffer(body: str, in_place: bool) -> None:
    result = lowered(loop(body, "%a = %x", MATRIX))
    (node,) = nodes(result, For)
    assert (node.rotate == ()) is in_place


def test_an_older_part_of_the_cache_is_kept_before_the_update() -> None:
    result = lowered("""
        func @main(%x: f32[4, 2], %s: f32[1, 2], %n: i64[]) -> (f32[4, 2], f32[2]) {
          %z = constant "z" : f32[2]
          %r, %q = for %i in (0, %n, 1) carry (%a = %x, %h = %z) {
            %old = aten.select.int(%a, 0, %i) : f32[2]
            %b = stretto.narrow_scatter(%a, %s, 0, %i) : f32[4, 2]
            %c = aten.mul.Tensor(%old, 2.0) : f32[2]
            yield %b, %c
          } : f32[4, 2], f32[2]
          return %r, %q
        }
        """)
    (node,) = nodes(result, For)
    names = [i.name for leaf in leaves(node.body) for i in leaf if isinstance(i, Operator)]
    assert names == ["old", "update", "c"]


def test_what_lies_outside_of_a_loop_is_never_updated_in_place_inside() -> None:
    result = lowered("""
        func @main(%x: f32[4, 2], %s: f32[1, 2], %n: i64[]) -> (f32[4, 2]) {
          %e = aten.exp.default(%x) : f32[4, 2]
          %r = for %i in (0, %n, 1) carry (%a = %x) {
            %b = stretto.narrow_scatter(%e, %s, 0, %i) : f32[4, 2]
            %c = aten.add.Tensor(%a, %b) : f32[4, 2]
            yield %c
          } : f32[4, 2]
          return %r
        }
        """)
    (stored,) = (i for i in items_of(result) if isinstance(i, Operator) and i.name == "e")
    (update,) = (i for i in items_of(result) if isinstance(i, Operator) and i.name == "update")
    assert update.out.buffer != stored.out.buffer


def test_carried_numbers_are_assigned_all_at_once() -> None:
    result = lowered("""
        func @main(%p: i64[], %q: i64[], %n: i64[]) -> (i64[], i64[]) {
          %a, %b = for %i in (0, %n, 1) carry (%x = %p, %y = %q) {
            yield %y, %x
          } : i64[], i64[]
          return %a, %b
        }
        """)
    (node,) = nodes(result, For)
    (body,) = leaves(node.body)
    assigned = [item.reg for item in body if isinstance(item, Let)]
    assert len(assigned) == 4 and len(set(assigned)) == 4  # two temporaries, then the two


def test_while_and_if_test_registers() -> None:
    result = lowered("""
        func @main(%x: f32[4], %c: bool[]) -> (f32[4]) {
          %no = literal False : bool[]
          %y, %d = while (%a = %x, %k = %c) {
            yield %k
          } do (%b, %e) {
            %s = aten.sum.default(%b) : f32[]
            %t = aten.lt.Scalar(%s, 0.0) : bool[]
            %f = if %t {
              %g = aten.neg.default(%b) : f32[4]
              yield %g
            } else {
              yield %b
            } : f32[4]
            yield %f, %no
          } : f32[4], bool[]
          return %y
        }
        """)
    (loop_node,), (branch,) = nodes(result, While), nodes(result, If)
    assert loop_node.condition.dtype.value == "bool" and isinstance(branch.condition, Reg)
    (_, following), *_ = loop_node.rotate
    (computed,) = (i for leaf in leaves(branch.then) for i in leaf)
    assert isinstance(computed, Operator) and computed.out.buffer == following


def test_a_call_passes_addresses_and_numbers() -> None:
    result = lowered("""
        func @main(%x: f32[6, 4], %n: i64[]) -> (f32[4], i64[]) {
          %row = aten.select.int(%x, 0, 2) : f32[4]
          %y, %k = call @f(%row, %n) : f32[4], i64[]
          return %y, %k
        }
        func @f(%x: f32[4], %n: i64[]) -> (f32[4], i64[]) {
          %y, %k = call @f(%x, %n) : f32[4], i64[]
          return %y, %k
        }
        """)
    (call,) = nodes(result, Call)
    (argument, given), (place, taken) = call.tensors
    assert isinstance(argument, Buffer) and argument.kind == "param"
    assert given.buffer.name == "in0" and given.offset.const == 8  # no copy of the row
    assert place in result.tree.function("f").written and taken.buffer.name == "out0"
    assert len(call.registers) == len(call.results) == 1
    assert operators(result) == ["k"]


# ---- lists -----------------------------------------------------------------------------------


def list_program(body: str, results: str) -> str:
    return f"""
        func @main(%x: f32[2], %c: bool[], %n: i64[]) -> ({results}) {{
          %zero = literal 0 : i64[]
          %l0 = list.new(%x) : list<f32[2]>
          {body}
        }}
        """


@pytest.mark.parametrize(
    ("body", "results", "copies"),
    [
        ("%l = list.push(%l0, %x) : list<f32[2]>\n return %l", "list<f32[2]>", 0),
        (
            "%l = list.push(%l0, %x) : list<f32[2]>\n return %l, %l0",
            "list<f32[2]>, list<f32[2]>",
            1,
        ),
        ("%l = list.set(%l0, %zero, %x) : list<f32[2]>\n return %l", "list<f32[2]>", 0),
        (
            "%l, %i = list.pop(%l0) : list<f32[2]>, f32[2]\n return %l, %l0",
            "list<f32[2]>, list<f32[2]>",
            0,
        ),
        (
            """
            %l = if %c {
              %a = list.push(%l0, %x) : list<f32[2]>
              yield %a
            } else {
              yield %l0
            } : list<f32[2]>
            return %l
            """,
            "list<f32[2]>",
            0,
        ),
        (
            """
            %l = if %c {
              %a = list.push(%l0, %x) : list<f32[2]>
              yield %a
            } else {
              yield %l0
            } : list<f32[2]>
            return %l, %l0
            """,
            "list<f32[2]>, list<f32[2]>",
            2,
        ),
        (
            """
            %l = for %i in (0, %n, 1) carry (%k = %l0) {
              %k2 = list.push(%k, %x) : list<f32[2]>
              yield %k2
            } : list<f32[2]>
            return %l
            """,
            "list<f32[2]>",
            0,
        ),
        (
            """
            %r = for %i in (0, %n, 1) carry (%h = %x) {
              %k2 = list.push(%l0, %h) : list<f32[2]>
              %g = list.get(%k2, %zero) : f32[2]
              yield %g
            } : f32[2]
            return %r
            """,
            "f32[2]",
            1,
        ),
    ],
)
def test_a_list_is_copied_only_while_another_one_needs_its_memory(
    body: str, results: str, copies: int
) -> None:
    assert operators(lowered(list_program(body, results))).count("copy") == copies
