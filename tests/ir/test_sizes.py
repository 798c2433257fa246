"""The algebra of sizes against Python's ints."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import VerifyError
from stretto.ir.scanner import parse_size
from stretto.ir.size_bounds import (
    at_most,
    bounds,
    maximum,
    minimum,
    substitute_symbols,
    with_maximum_outside,
)
from stretto.ir.sizes import Size, Symbol, ceil_div, symbol, usual_value

SYMBOLS = (Symbol("n"), Symbol("m", 0, 6), Symbol("k", 2, 9))
VALUES = {symbol: st.integers(symbol.low, symbol.high or symbol.low + 12) for symbol in SYMBOLS}
BINDINGS = st.fixed_dictionaries(VALUES)

Formula = tuple[Size, str]
"""A size, and the Python expression that it stands for."""

LEAVES = st.one_of(
    st.sampled_from(SYMBOLS).map(lambda quantity: (Size.of(quantity), quantity.name)),
    st.integers(-5, 9).map(lambda number: (Size.of(number), f"({number})")),
)


def _polynomials(parts: st.SearchStrategy[Formula]) -> st.SearchStrategy[Formula]:
    pairs = st.tuples(parts, parts)
    return st.one_of(
        pairs.map(lambda p: (p[0][0] + p[1][0], f"({p[0][1]} + {p[1][1]})")),
        pairs.map(lambda p: (p[0][0] - p[1][0], f"({p[0][1]} - {p[1][1]})")),
        pairs.map(lambda p: (p[0][0] * p[1][0], f"({p[0][1]} * {p[1][1]})")),
    )


def _all(parts: st.SearchStrategy[Formula]) -> st.SearchStrategy[Formula]:
    pairs = st.tuples(parts, parts)
    divided = st.tuples(parts, st.integers(1, 5))
    by_symbol = st.tuples(parts, st.sampled_from((SYMBOLS[0], SYMBOLS[2])))
    return st.one_of(
        _polynomials(parts),
        divided.map(lambda p: (p[0][0] // p[1], f"({p[0][1]} // {p[1]})")),
        divided.map(lambda p: (p[0][0] % p[1], f"({p[0][1]} % {p[1]})")),
        divided.map(lambda p: (ceil_div(p[0][0], p[1]), f"(-(-{p[0][1]} // {p[1]}))")),
        by_symbol.map(lambda p: (p[0][0] // Size.of(p[1]), f"({p[0][1]} // {p[1].name})")),
        by_symbol.map(lambda p: (p[0][0] % Size.of(p[1]), f"({p[0][1]} % {p[1].name})")),
        pairs.map(lambda p: (maximum(p[0][0], p[1][0]), f"max({p[0][1]}, {p[1][1]})")),
        pairs.map(lambda p: (minimum(p[0][0], p[1][0]), f"min({p[0][1]}, {p[1][1]})")),
    )


POLYNOMIALS = st.recursive(LEAVES, _polynomials, max_leaves=6)
FORMULAS = st.recursive(LEAVES, _all, max_leaves=6)


def _python(text: str, binding: dict[Symbol, int]) -> int:
    return eval(text, {quantity.name: value for quantity, value in binding.items()})


@settings(max_examples=150, deadline=None)
@given(FORMULAS, BINDINGS)
def test_sizes_are_what_python_computes(formula: Formula, binding: dict[Symbol, int]) -> None:
    size, text = formula
    value = _python(text, binding)
    assert size.evaluate(binding.__getitem__) == value
    assert with_maximum_outside(size).evaluate(binding.__getitem__) == value
    assert substitute_symbols(size, dict(binding)) == Size(const=value)
    low, high = bounds(size)
    assert (low is None or low <= value) and (high is None or value <= high)


@settings(max_examples=150, deadline=None)
@given(FORMULAS)
def test_text_is_read_back(formula: Formula) -> None:
    size, _ = formula
    known = {quantity.name: quantity for quantity in SYMBOLS}
    assert parse_size(str(size.dim), known) == with_maximum_outside(size).dim


@settings(max_examples=100, deadline=None)
@given(POLYNOMIALS, POLYNOMIALS, st.lists(BINDINGS, min_size=12, max_size=12))
def test_polynomials_are_equal_when_their_values_are(
    one: Formula, other: Formula, bindings: list[dict[Symbol, int]]
) -> None:
    for first, second in ((one, other), (one, one)):
        text = f"{second[1]} + 0"
        same = all(_python(first[1], b) == _python(text, b) for b in bindings)
        if first[0] == second[0]:
            assert same
        elif same:  # by chance on these points, not on more
            points = [
                {quantity: value**power for power, quantity in enumerate(SYMBOLS, 1)}
                for value in range(1, 40)
            ]
            assert any(_python(first[1], b) != _python(text, b) for b in points)


def test_one_polynomial_has_one_form() -> None:
    n, m = symbol("n"), symbol("m")
    assert (n + m) * (n - m) == n * n - m * m
    assert (n + 1) * (m + 2) - 2 == m * n + 2 * n + m
    assert (n * m * 4) // m == n * 4 and (n * m) % n == Size()
    assert (n - n).dim == 0 and n * 0 == Size()
    assert hash(n * m) == hash(m * n)
    assert ((n - 1) // 2 + 1 - 1) // 2 + 1 == (n - 1) // 4 + 1
    assert (n // 2 + 5) // 3 == (n + 10) // 6


def test_a_size_that_was_seen_is_assumed_within_its_range() -> None:
    n, short = Size.of(Symbol("n", usual=224)), Size.of(Symbol("k", 0, 9))
    assert usual_value((n - 1) // 2 + 1) == 112
    assert usual_value(short) == 9 and usual_value(symbol("m")) == 64 and usual_value(7) == 7


def test_maxima_drop_what_is_surely_smaller() -> None:
    n, k = symbol("n", 1), symbol("k", 0, 8)
    assert maximum(0, n - 1) == n - 1
    assert maximum(0, k - 1) != k - 1
    assert minimum(k, 8) == k and minimum(k, 9, n + 8) == k
    assert maximum(maximum(n, k), 3) == maximum(3, k, n)
    assert str(minimum(n, k)) == "min(n, k)" or str(minimum(n, k)) == "min(k, n)"
    assert with_maximum_outside(k + maximum(-k, -1)) == maximum(0, k - 1)


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        ("n", "n*m"),
        ("(n - 1)*m + m - 1", "n*m - 1"),
        ("n // 2", "n"),
        ("n", "2*((n + 1) // 2)"),
        ("min(n, k)", "k"),
        ("k", "8"),
        ("max(n, k)", "n + k"),
        ("-(-n // 64)*64", "n + 63"),
        ("(n % 4) + 1", "4"),
        ("0", "min(2*n + 2, 3*n)*m"),
    ],
)
def test_comparisons_that_can_be_proved(smaller: str, larger: str) -> None:
    known = {"k": Symbol("k", 0, 8)}
    one, other = parse_size(smaller, known), parse_size(larger, known)
    assert at_most(one, other)
    assert not at_most(Size.of(other) + 1, one)


def test_what_is_not_sure_is_not_claimed() -> None:
    n, k = symbol("n"), symbol("k", 0, 8)
    assert not at_most(n, 64) and not at_most(n, k) and not at_most(n, n * k)
    assert bounds(n * k) == (0, None) and bounds(k * 3 - 2) == (-2, 22)
    assert bounds(n % 4) == (0, 3)


@pytest.mark.parametrize(
    "text", ["__import__('os')", "n.real", "[n]", "n if n else 1", "f(n, n)", "n +", "n ** 2", ""]
)
def test_other_python_is_refused(text: str) -> None:
    with pytest.raises(VerifyError):
        parse_size(text)


def test_a_divisor_that_may_be_zero_is_refused() -> None:
    with pytest.raises(VerifyError, match="may be 0"):
        parse_size("8 // n", {"n": Symbol("n", 0)})


def test_a_quotient_of_a_quotient_has_one_division() -> None:
    n = symbol("n")
    half = (n - 1) // 2 + 1
    assert (half - 1) // 2 + 1 == (n - 1) // 4 + 1
    assert (half + 2) // 3 == (n + 5) // 6
    for value in range(-9, 30):
        assert ((value // 2 + 7) // 5) == (value + 14) // 10


def test_a_sum_of_maxima_in_a_maximum_is_one_maximum() -> None:
    n, m = Size.of(Symbol("n", 0)), Size.of(Symbol("m", 0))
    inner = maximum(n - 1, 0) - minimum(n, 1)  # how long `x[1:-1]` is, as torch writes it
    assert with_maximum_outside(maximum(inner, 0)) == maximum(n - 2, 0)
    apart = maximum(maximum(n - 1, 0) + maximum(m, 5), 7)
    assert with_maximum_outside(apart) == apart
