"""Symbolic dims: formulas, renaming, and which types agree."""

import pytest

from stretto.errors import VerifyError
from stretto.ir.dims import base_names, evaluate, rename_dim
from stretto.ir.parser import parse_program, parse_type
from stretto.ir.symbols import bound_symbols, match_types, rename_type, symbols_of_block
from stretto.ir.types import Dim, Symbol


@pytest.mark.parametrize(
    ("formula", "sizes", "value"),
    [
        ("s0", {"s0": 3}, 3),
        ("2*s0 - 1", {"s0": 3}, 5),
        ("s0 + s1", {"s0": 3, "s1": 4}, 7),
        ("((s0 + 1)//2)", {"s0": 4}, 2),
        ("Max(0, s0 - 5)", {"s0": 3}, 0),
        ("Min(100, s0) - 1", {"s0": 3}, 2),
        ("Max(s0, s1, 9)", {"s0": 3, "s1": 4}, 9),
        ("s0**2", {"s0": 3}, 9),
        ("Mod(s0, 4)", {"s0": 7}, 3),
        ("-s0 + 9", {"s0": 7}, 2),
    ],
)
def test_formulas_evaluate(formula: str, sizes: dict[str, int], value: int) -> None:
    assert evaluate(Symbol(formula), sizes) == value
    assert set(base_names(Symbol(formula))) == set(sizes)


@pytest.mark.parametrize(
    "formula", ["__import__('os')", "s0.real", "[s0]", "s0 if s0 else 1", "f(s0, s0)", "s0 +"]
)
def test_other_python_is_refused(formula: str) -> None:
    with pytest.raises(VerifyError):
        evaluate(Symbol(formula), {"s0": 1})


def test_an_unbound_name_is_refused() -> None:
    with pytest.raises(VerifyError, match="`s1` is not bound"):
        evaluate(Symbol("s0 + s1"), {"s0": 1})


@pytest.mark.parametrize(
    ("dim", "renaming", "result"),
    [
        (4, {"s0": 2}, 4),
        (Symbol("s0"), {"s0": 2}, 2),
        (Symbol("2*s0 + 1"), {"s0": 2}, 5),
        (Symbol("s0 + s1"), {"s0": Symbol("z")}, Symbol("s1 + z")),
        (Symbol("2*s0"), {"s0": Symbol("t + 1")}, Symbol("2*t + 2")),
        (Symbol("2*s0"), {"2*s0": Symbol("t")}, Symbol("t")),
        (Symbol("s0"), {"s1": 2}, Symbol("s0")),
    ],
)
def test_renaming_keeps_formulas_canonical(dim: Dim, renaming: dict[str, Dim], result: Dim) -> None:
    assert rename_dim(dim, renaming) == result


def test_types_agree_up_to_names() -> None:
    pattern = [parse_type("f32[a, b]"), parse_type("list<f32[a]>")]
    renaming: dict[str, Dim] = {}
    assert match_types(pattern, [parse_type("f32[7, c]"), parse_type("list<f32[7]>")], renaming)
    assert renaming == {"a": 7, "b": Symbol("c")}
    assert rename_type(pattern[1], renaming) == parse_type("list<f32[7]>")
    for other in ("list<f32[8]>", "f32[7]", "list<f64[7]>", "list<f32[7, 1]>"):
        assert not match_types(pattern, [parse_type("f32[7, c]"), parse_type(other)], {})
    assert not match_types(pattern, pattern[:1], {})
    assert not match_types([parse_type("f32[3]")], [parse_type("f32[s0]")], {})


def test_symbols_of_a_block() -> None:
    body = parse_program(
        """
        func @main(%l: list<f32[p]>, %x: f32[a]) -> () {
          %y = list.stack(%l) : f32[n, p]
          %z = aten.new_zeros.default(%x, (2, `2*k`)) : f32[2, 2*k]
          return
        }
        """
    ).main.body
    assert symbols_of_block(body) == {"p", "a", "n", "k"}
    assert bound_symbols(body) == {"n", "p"}
