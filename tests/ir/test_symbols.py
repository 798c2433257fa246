"""Sizes of types: renaming, and which types agree."""

import pytest

from stretto.ir.scanner import parse_size
from stretto.ir.sizes import Symbol, symbol
from stretto.ir.symbols import (
    Renaming,
    bound_symbols,
    match_types,
    rename_dim,
    rename_type,
    symbols_of_block,
)
from stretto.ir.text import parse_program, parse_type


@pytest.mark.parametrize(
    ("dim", "renaming", "result"),
    [
        ("4", {"s0": "2"}, "4"),
        ("s0", {"s0": "2"}, "2"),
        ("2*s0 + 1", {"s0": "2"}, "5"),
        ("s0 + s1", {"s0": "z"}, "s1 + z"),
        ("2*s0", {"s0": "t + 1"}, "2*t + 2"),
        ("2*s0", {"2*s0": "t"}, "t"),
        ("s0", {"s1": "2"}, "s0"),
        ("max(s0, s1)", {"s1": "s0 + 1"}, "s0 + 1"),
    ],
)
def test_renaming_keeps_sizes_canonical(dim: str, renaming: dict[str, str], result: str) -> None:
    known: Renaming = {parse_size(a): parse_size(b) for a, b in renaming.items()}  # type: ignore
    assert rename_dim(parse_size(dim), known) == parse_size(result)


def test_types_agree_up_to_names() -> None:
    pattern = [parse_type("f32[a, b]"), parse_type("list<f32[a]>")]
    renaming: Renaming = {}
    assert match_types(pattern, [parse_type("f32[7, c]"), parse_type("list<f32[7]>")], renaming)
    assert renaming == {symbol("a"): 7, symbol("b"): symbol("c")}
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
    assert symbols_of_block(body) == {Symbol(name) for name in "pank"}
    assert bound_symbols(body) == {Symbol("n")}
