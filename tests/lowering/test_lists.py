"""How long lists may become, and which of them share memory."""

from __future__ import annotations

import textwrap

import pytest

from stretto.ir.core import Function, Value
from stretto.ir.rewrite import defined_values
from stretto.lowering.lists.storage import LARGEST_BYTES, ListStorage, list_storage
from tests.support import program_of


def analysed(body: str, results: str = "") -> tuple[ListStorage, dict[str, Value]]:
    """The lists of a function, and its values by name."""
    text = f"""
func @main(%x: f32[2], %n: i64[], %c: bool[]) -> ({results}) {{
{textwrap.indent(textwrap.dedent(body), "  ")}
}}
"""
    function = program_of(text).main
    return list_storage(function), named(function)


def named(function: Function) -> dict[str, Value]:
    return {value.hint: value for value in defined_values(function.body)}


def loop(trips: str, body: str, start: str = "%l0 = list.new() : list<f32[2]>") -> str:
    return f"""
{start}
%l = for %i in (0, {trips}, 1) carry (%k = %l0) {{
{textwrap.indent(textwrap.dedent(body), "  ")}
  yield %next
}} : list<f32[2]>
return
"""


PUSH = "%next = list.push(%k, %x) : list<f32[2]>"
TWO_PUSHES = """
    %k1 = list.push(%k, %x) : list<f32[2]>
    %next = list.push(%k1, %x) : list<f32[2]>
    """
RESET = "%next = list.new(%x, %x, %x) : list<f32[2]>"
PUSH_IN_AN_ARM = """
    %next = if %c {
      %k1 = list.push(%k, %x) : list<f32[2]>
      yield %k1
    } else {
      yield %k
    } : list<f32[2]>
    """
NESTED = """
    %k1 = list.push(%k, %x) : list<f32[2]>
    %next = for %j in (0, 4, 1) carry (%m = %k1) {
      %m1 = list.push(%m, %x) : list<f32[2]>
      yield %m1
    } : list<f32[2]>
    """
POP_PUSH = """
    %k1 = list.push(%k, %x) : list<f32[2]>
    %k2, %item = list.pop(%k1) : list<f32[2]>, f32[2]
    %next = list.push(%k2, %item) : list<f32[2]>
    """


@pytest.mark.parametrize(
    ("trips", "body", "capacity"),
    [
        ("5", PUSH, 5),
        ("0", PUSH, 1),
        ("1", PUSH, 1),
        ("%n", PUSH, None),
        ("5", TWO_PUSHES, 10),
        ("%n", RESET, 3),
        ("7", PUSH_IN_AN_ARM, 7),
        ("3", NESTED, 15),
        ("%n", NESTED, None),
        ("3", POP_PUSH, 3),
    ],
)
def test_capacity_of_a_list_that_a_loop_carries(trips: str, body: str, capacity: int) -> None:
    storage, values = analysed(loop(trips, body))
    assert storage.capacity(values["l"]) == capacity
    assert storage.capacity(values["l0"]) == capacity


def test_lists_that_trade_places_have_room_for_each_other() -> None:
    storage, values = analysed(
        """
        %l0 = list.new(%x) : list<f32[2]>
        %m0 = list.new(%x, %x) : list<f32[2]>
        %l, %m = for %i in (0, 3, 1) carry (%k = %l0, %q = %m0) {
          %k1 = list.push(%k, %x) : list<f32[2]>
          yield %q, %k1
        } : list<f32[2]>, list<f32[2]>
        return
        """
    )
    assert storage.roots[values["l"]] is storage.roots[values["m"]]
    capacity = storage.capacity(values["l"])
    assert capacity is not None and capacity >= 4


def test_lists_apart_do_not_disturb_each_other() -> None:
    storage, values = analysed(
        """
        %l0 = list.new() : list<f32[2]>
        %m0 = list.new(%x, %x) : list<f32[2]>
        %z = literal 0 : i64[]
        %l, %m = for %i in (0, %n, 1) carry (%k = %l0, %q = %m0) {
          %k1 = list.push(%k, %x) : list<f32[2]>
          %q1 = list.set(%q, %z, %x) : list<f32[2]>
          yield %k1, %q1
        } : list<f32[2]>, list<f32[2]>
        return
        """
    )
    assert storage.capacity(values["l"]) is None
    assert storage.capacity(values["m"]) == 2


def test_arms_share_a_group_with_room_for_the_longer() -> None:
    storage, values = analysed(
        """
        %l = if %c {
          %a = list.new(%x) : list<f32[2]>
          yield %a
        } else {
          %b = list.new(%x, %x, %x) : list<f32[2]>
          yield %b
        } : list<f32[2]>
        return %l
        """,
        results="list<f32[2]>",
    )
    assert [storage.capacity(values[name]) for name in ("a", "b", "l")] == [3, 3, 3]
    assert all(storage.is_returned(values[name]) for name in ("a", "b", "l"))
    assert not storage.is_popped(values["l"])


def test_what_may_lose_items() -> None:
    storage, values = analysed(loop("3", POP_PUSH))
    assert storage.is_popped(values["l0"]) and not storage.is_returned(values["l0"])


def test_a_list_that_might_be_huge_grows_in_the_run() -> None:
    trips = LARGEST_BYTES // 8 + 1
    storage, values = analysed(loop(str(trips), PUSH))
    assert storage.capacity(values["l"]) is None
