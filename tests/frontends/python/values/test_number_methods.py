"""What Python's numbers have and tensors lack: methods, attributes, and rounding to digits."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import stretto
from tests.frontends.python.checks import check, refused

FLOATS = tuple(
    (torch.tensor(v, dtype=torch.float64),)
    for v in (3.0, -2.5, 0.5, 2.675, 0.15, -0.04, 1e17, 4.35, 1e-9, math.inf)
)
INTS = tuple((torch.tensor(v),) for v in (5, 300, -7, 0, -(1 << 63), (1 << 62) + 1))

OF_FLOATS: dict[str, Callable[[Any], Any]] = {
    "is_integer": lambda v: v.is_integer(),
    "conjugate": lambda v: v.conjugate(),
    "real": lambda v: v.real,
    "imag": lambda v: v.imag,
    "round to digits": lambda v: [round(v, digits) for digits in (0, 1, 2, 5)],
    "__round__": lambda v: v.__round__(1),
}
OF_INTS: dict[str, Callable[[Any], Any]] = {
    "bit_length": lambda v: v.bit_length(),
    "bit_count": lambda v: v.bit_count(),
    "conjugate": lambda v: v.conjugate(),
    "parts": lambda v: (v.real, v.imag, v.numerator, v.denominator),
    "rounding": lambda v: (round(v), round(v, 1), v.__round__(), v.__trunc__(), v.__ceil__()),
}
KNOWN_ONLY: dict[str, Callable[[Any], Any]] = {
    "hex": lambda v: float(v).hex(),
    "as_integer_ratio": lambda v: v.as_integer_ratio(),
    "to_bytes": lambda v: int(v).to_bytes(8, "big"),
}
ATTRIBUTES = (
    "is_integer", "hex", "bit_length", "real", "imag", "numerator", "shape", "dtype", "sum", "T",
)  # fmt: skip


@pytest.mark.parametrize("name", OF_FLOATS)
def test_of_floats(name: str) -> None:
    def fn(x: Tensor) -> Any:
        return OF_FLOATS[name](x.item())

    check(fn, *FLOATS)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=8, max_size=8))
@settings(max_examples=25, deadline=None)
def test_rounding_to_digits(numbers: list[float]) -> None:
    ties = [round(number % 1000, 3) + 0.0005 for number in numbers]
    for values in (numbers, [number % 1000 for number in numbers], ties):
        found = _ROUNDED(torch.tensor(values, dtype=torch.float64))
        assert found == [[round(v, digits) for digits in range(23)] for v in values]


_ROUNDED = stretto.compile(
    lambda x: [[round(v, digits) for digits in range(23)] for v in x.tolist()],
    backend="interpreter",
)


@pytest.mark.parametrize("name", OF_INTS)
def test_of_ints(name: str) -> None:
    def fn(x: Tensor) -> Any:
        return OF_INTS[name](x.item())

    check(fn, *INTS)


@pytest.mark.parametrize("name", KNOWN_ONLY)
def test_what_needs_the_value(name: str) -> None:
    """It is refused, and right where the value is known."""

    def fn(x: Tensor) -> Any:
        return KNOWN_ONLY[name](x.item())

    assert "is needed here" in refused(fn, torch.tensor(26)).message

    def of_counter(x: Tensor) -> Any:
        for i in range(3):
            known = KNOWN_ONLY[name](i)
        return x, known

    check(of_counter, (torch.ones(2),))


def test_which_attributes_there_are() -> None:
    def asked(x: Tensor) -> Any:
        i, v = int(x[0]), x[1].item()
        return (
            [hasattr(i, name) for name in ATTRIBUTES],
            [hasattr(v, name) for name in ATTRIBUTES],
            getattr(v, "shape", 7),
            [hasattr(x, name) for name in ATTRIBUTES if name != "imag"],
        )

    check(asked, (torch.tensor([1.0, 2.5]),))


def test_what_no_number_has() -> None:
    def missing(x: Tensor) -> Any:
        return operator.attrgetter("no_such_thing")(x.item())

    with pytest.raises(AttributeError, match="'float' object has no attribute 'no_such_thing'"):
        stretto.compile(missing, backend="interpreter")(torch.tensor(1.0))
    with pytest.raises(AttributeError, match="'float' object has no attribute 'sum'"):
        stretto.compile(lambda x: x.item().sum(), backend="interpreter")(torch.tensor(1.0))


def test_a_tensor_of_a_number_without_source() -> None:
    function = eval("lambda x: torch.tensor(x.item() + 1)", {"torch": torch})
    message = refused(function, torch.tensor(1.0)).message
    assert "in code whose source cannot be read" in message


def test_of_a_size_that_the_call_knows() -> None:
    def of_a_size(x: Tensor) -> Any:
        return x * x.shape[0].to_bytes(2, "big")[1]

    fast = stretto.compile(of_a_size, backend="interpreter", dynamic=True)
    with pytest.raises(stretto.CaptureError, match="'to_bytes' of a value of type int"):
        fast(torch.ones(6))
    fast = stretto.compile(of_a_size, backend="interpreter", fallback=True)
    for size in (6, 2, 9):
        assert torch.equal(fast(torch.ones(size)), of_a_size(torch.ones(size)))
