"""Native probes of containers: each kind of comparison notices what differs, without an error."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

from stretto.frontends.python.guards.guards import GuardedItems, ProbeKind, Probes
from stretto.options import Options
from stretto.runtime.probes import ProbeTable, load

A, B = object(), object()


def entry(probes: Probes) -> Callable[[], Any]:
    table = {"a": A, "b": B}
    probes.entry(table, "a", A)
    return lambda: table.update(a=B)


def deleted_entry(probes: Probes) -> Callable[[], Any]:
    table = {"a": A, "b": B}
    probes.entry(table, "a", A)
    return lambda: table.pop("a")


def no_entry(probes: Probes) -> Callable[[], Any]:
    table = {"b": B}
    probes.no_entry(table, "a")
    return lambda: table.update(a=A)


def size_of_dict(probes: Probes) -> Callable[[], Any]:
    table = OrderedDict(a=A)
    probes.add_numbers(ProbeKind.DICT_SIZE, table, 0, 1)
    return table.clear


def size_of_list(probes: Probes) -> Callable[[], Any]:
    items = [A]
    probes.add_numbers(ProbeKind.LIST_SIZE, items, 0, 1)
    return lambda: items.append(B)


def size_of_set(probes: Probes) -> Callable[[], Any]:
    items = {A, B}
    probes.add_numbers(ProbeKind.SET_SIZE, items, 0, 2)
    return lambda: items.remove(A)


def item_of_list(probes: Probes) -> Callable[[], Any]:
    items = [A, B]
    probes.box(GuardedItems(items, None, [A, B]))
    return items.reverse


def shorter_list(probes: Probes) -> Callable[[], Any]:
    items = [A, B]
    probes.box(GuardedItems(items, None, [A, B]))
    return items.pop


def value_in_dict(probes: Probes) -> Callable[[], Any]:
    table = {"a": A, "b": B}
    probes.box(GuardedItems(table, ["a", "b"], [A, B]))
    return lambda: table.update(b=A)


def order_in_dict(probes: Probes) -> Callable[[], Any]:
    table = {"a": A, "b": B}
    probes.box(GuardedItems(table, ["a", "b"], [A, B]))

    def change() -> None:
        table["a"] = table.pop("a")

    return change


def shorter_dict(probes: Probes) -> Callable[[], Any]:
    table = {"a": A, "b": B}
    probes.box(GuardedItems(table, ["a", "b"], [A, B]))
    return table.clear


def class_of_object(probes: Probes) -> Callable[[], Any]:
    class First: ...

    class Second: ...

    item = First()
    probes.add(ProbeKind.TYPE, item, None, First)
    return lambda: setattr(item, "__class__", Second)


CASES = (
    entry, deleted_entry, no_entry, size_of_dict, size_of_list, size_of_set, item_of_list,
    shorter_list, value_in_dict, order_in_dict, shorter_dict, class_of_object,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_change_is_noticed(case: Callable[[Probes], Callable[[], Any]]) -> None:
    probes = Probes()
    entry(probes)  # of another container: holds all the time
    change = case(probes)
    value_in_dict(probes)
    table = ProbeTable(load(Options()), probes.rows, probes.kept)
    assert table()
    assert table()
    change()
    assert not table()
    assert not table()


def test_an_entry_that_moved_is_the_same_entry() -> None:
    table = {"a": A, "b": B}
    probes = Probes()
    probes.entry(table, "a", A)
    probes.entry(table, "b", B)
    check = ProbeTable(load(Options()), probes.rows, probes.kept)
    assert check()
    table["a"] = table.pop("a")
    assert check()
    assert check()
    table.update({str(number): A for number in range(100)})
    assert check()
    del table["b"]
    assert not check()
    table["b"] = B
    assert check()
    table["a"] = B
    assert not check()


def test_a_key_that_is_equal_but_another_object() -> None:
    table = {"".join(("na", "me")): A}
    probes = Probes()
    probes.entry(table, "name", A)
    check = ProbeTable(load(Options()), probes.rows, probes.kept)
    assert check() and check()
    table["name"] = B
    assert not check()


def test_equal_comparisons_are_made_once() -> None:
    probes = Probes()
    table = {"a": A, "b": A}
    for _ in range(2):
        probes.entry(table, "a", A)
        probes.box(GuardedItems(table, ["a", "b"], [A, A]))
    assert [kind for kind, *_ in probes.rows] == [
        ProbeKind.ENTRY,
        ProbeKind.FIRST_PAIR,
        ProbeKind.PAIR,
        ProbeKind.FIRST_PAIR,
        ProbeKind.PAIR,
    ]
    check = ProbeTable(load(Options()), probes.rows, probes.kept)
    assert check()
    table["b"] = B
    assert not check()
