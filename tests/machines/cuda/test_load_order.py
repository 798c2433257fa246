"""Loads of a task come first, and each once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.device.expr import Buffer
from stretto.ir.types import DType
from stretto.machines import statements as code
from stretto.machines.cuda.printer.load_order import MOST_BYTES, loads_first
from stretto.machines.cuda.printer.scalar import BARRIER
from stretto.machines.terms import Operand, Term, call, literal, variable

X = Buffer("x", DType.F32, (64,), "input", 0)
Y = Buffer("y", DType.F32, (64,), "local")
GIVEN = Buffer("given", DType.F32, (64,), "param")
W = Buffer("w", DType.F32, (64,), "constant", 1)


def named(name: str, value: Operand, shape: tuple[int, ...] = ()) -> code.Assign:
    return code.Assign(variable(name), literal(value), shape=shape)


def load(
    name: str, buffer: Buffer, address: str | None = None, shape: tuple[int, ...] = (4096,)
) -> code.Assign:
    pointer = variable(address or f"p_{buffer.name}")
    return named(name, replace(call("tl.load", pointer), reads=(buffer,)), shape)


def total(name: str, *values: str) -> code.Assign:
    return named(name, call("stretto_row_sum", *map(variable, values)))


OTHER = Buffer("other", DType.F32, (64,), "input", 2)
BEGIN = (load("q", OTHER, shape=(64,)), total("s", "q"))
"""Something that a load may pass: a sum of what was loaded."""


def store(buffer: Buffer, value: str) -> code.Store:
    return code.Store(buffer, variable(f"p_{buffer.name}"), variable(value))


def names(body: code.Statements) -> list[str]:
    """What the statements assign, in order; others by the name of their class."""
    found = (code.defines(one) or (type(one).__name__,) for one in loads_first(body))
    return [name for one in found for name in one]


def test_a_load_passes_what_it_needs_nothing_of() -> None:
    body = (load("a", X), total("s", "a"), load("b", Y), total("t", "s", "b"), code.Return())
    assert names(body) == ["a", "b", "s", "t", "Return"]


def test_its_address_comes_with_it() -> None:
    address = named("p", variable("p_x") + 8)
    body = (load("a", Y), total("s", "a"), address, load("b", X, "p"), total("t", "b"))
    assert names(body) == ["a", "p", "b", "s", "t"]


def test_an_address_that_is_loaded_comes_before() -> None:
    body = (load("a", Y), total("s", "a"), load("i", X), load("b", W, "i"), total("t", "b"))
    assert names(body) == ["a", "i", "b", "s", "t"]


def test_what_is_computed_of_loads_stays() -> None:
    body = (load("a", Y), total("s", "a"), total("t", "a", "s"), load("b", X))
    assert names(body) == ["a", "b", "s", "t"]


LOOP = code.CountedLoop(variable("n"), literal(0), literal(4), body=(store(X, "s"),))
CALLED = code.Do(call("tl.atomic_add", variable("p_x"), variable("s")))


@pytest.mark.parametrize(
    ("between", "passes"),
    [
        (BARRIER, False),
        (store(X, "s"), False),
        (store(Y, "s"), True),
        (store(GIVEN, "s"), False),
        (LOOP, False),
        (replace(LOOP, body=(store(Y, "s"),)), True),
        (code.Branch(variable("c"), (store(X, "s"),)), False),
        (CALLED, False),
    ],
)
def test_what_a_load_does_not_pass(between: code.Statement, passes: bool) -> None:
    found = names((*BEGIN, between, load("b", X)))
    assert (found.index("b") < found.index("s")) is passes


def test_a_constant_passes_stores_to_what_a_function_is_given() -> None:
    assert names((*BEGIN, store(GIVEN, "s"), load("b", W))) == ["q", "b", "s", "Store"]
    assert names((*BEGIN, store(X, "s"), load("b", GIVEN))) == ["q", "s", "Store", "b"]


def test_no_more_than_there_are_registers_for() -> None:
    size = MOST_BYTES // 4  # the first one takes all
    several = [load(f"b{n}", X, f"p{n}", (size,)) for n in range(3)]
    body = (*BEGIN, *several, load("c", X, "pc", (64,)))
    assert names(body) == ["q", "b0", "c", "s", "b1", "b2"]


def test_what_is_read_for_each_row_stays_behind_the_depth() -> None:
    """So pointwise stages have the layout of the former; see load_order.py."""
    deep, each = (128, 4, 2), (32, 4, 2)
    late = load("w", W, "s", shape=deep)  # its address is computed of loads
    body = (*BEGIN, load("a", X, shape=deep), total("t", "a"), load("b", Y, shape=each))
    assert names((*body, total("u", "b"), late))[:4] == ["q", "a", "b", "s"]
    assert names((*BEGIN, late, load("b", Y, shape=each))) == ["q", "s", "w", "b"]
    assert names((*BEGIN, late, load("b", Y, shape=(32, 4)))) == ["q", "b", "s", "w"]


def test_what_is_loaded_again_has_one_name() -> None:
    body = (load("a", X), total("s", "a"), load("b", X), total("t", "b"), store(Y, "t"))
    assert loads_first(body) == (load("a", X), total("s", "a"), store(Y, "s"))


def test_what_was_stored_in_between_is_loaded_again() -> None:
    body = (load("a", X), total("s", "a"), store(X, "s"), load("b", X), total("t", "b"))
    assert names(body) == ["a", "s", "Store", "b", "t"]


def test_a_variable_that_changes_is_no_name() -> None:
    changing = (named("a", 0), load("v", X), code.Assign(variable("a"), variable("a") + 1))
    found = names((*changing, load("w", X, "a"), named("b", 0), total("t", "v", "w", "b")))
    assert found.index("w") > max(n for n, name in enumerate(found) if name == "a")
    assert "b" in found


def test_what_is_computed_of_a_variable_that_changes_is_computed_again() -> None:
    """The totals of an argmax over equal values: each chunk is compared with what there is then."""
    again = code.Assign(variable("a"), call("larger", variable("a"), variable("s")))
    body = (load("q", OTHER), named("a", 0), total("s", "q", "a"), again, total("t", "q", "a"))
    assert names(body) == ["q", "a", "s", "a", "t"]


def test_effects_stay_where_they_are() -> None:
    checked: Term = call("stretto_checked", variable("i"), effect=True)
    body = (*BEGIN, named("p", checked), load("b", X, "p"), named("r", checked))
    assert names(body) == ["q", "s", "p", "b", "r"]
