"""The data model of user classes: what Python calls by itself is traced as what the user calls.

Each use of `data_model` is compiled as it is, in arms that are taken and not taken, in the test and
in the body of a loop, and in a recursive function. The compiled function does what Python does, or
it is refused; the uses that are refused are listed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.e2e.data_model import USES, Use
from tests.frontends.python.checks import assert_same


def plain(use: Use) -> Use:
    return use


def in_arms(use: Use) -> Use:
    def fn(x: Tensor) -> Any:
        if x[2] > 0:
            y = use(x)
        else:
            y = use(-x) + 1
        if x[2] > 5:
            y = use(y.reshape(-1)[:3])
        return y

    return fn


def in_one_arm(use: Use) -> Use:
    def fn(x: Tensor) -> Any:
        y = x
        if x[2] > 0:
            y = x + use(x).sum()
        return y

    return fn


def in_test(use: Use) -> Use:
    def fn(x: Tensor) -> Any:
        count = x.new_zeros(())
        while (use(x + count) * 0).sum() + count < 3 + (x.sum() > 0):
            count = count + 1
        return count

    return fn


def in_body(use: Use) -> Use:
    def fn(x: Tensor) -> Any:
        count = x.new_zeros(())
        while count < 2 + (x.sum() > 0):
            x = x + use(x).sum() * 0.25
            count = count + 1
        return x

    return fn


def in_recursion(use: Use) -> Use:
    def again(x: Tensor, count: Tensor) -> Tensor:
        if count <= 0:
            return x
        return again(x + use(x).sum() * 0.25, count - 1)

    return lambda x: again(x, 2 + (x.sum() > 0).float())


PLACES: list[Callable[[Use], Use]] = [plain, in_arms, in_one_arm, in_test, in_body, in_recursion]

VALUES = [
    torch.tensor(values)
    for values in ([1.0, 2.0, 3.0], [-1.0, -2.0, -0.5], [1.0, 1.0, 1.0], [3.0, -1.0, -1.0])
]


REFUSED = (
    "as_float_for_math",  # a function of C takes a float of Python
    "hash_by_tensor",
    "enumeration_by_tensor",
    "sorted_by_tensor",
    "total_order",
    "generic_class",  # in regions: objects of the standard library that the capture does not know
    "mapped_function",
)
"""Uses in which the interpreter takes a number of Python, and the run decides it, or in which a
region meets an object that may change unseen."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", USES)
def test_data_model(name: str, place: Callable[[Use], Use]) -> None:
    eager, fast = place(USES[name]()), stretto.compile(place(USES[name]()), backend="interpreter")
    with torch.no_grad():
        for x in (*VALUES, VALUES[0]):
            expected = eager(x.clone())
            try:
                found = fast(x.clone())
            except stretto.CaptureError as error:
                assert name in REFUSED, error
                assert error.location is not None
                assert error.remedy is not None
                return
            assert_same(found, expected)


def test_a_changed_class_that_leaves_its_maker() -> None:
    """No call makes the class again, so each would give the one of the capture."""

    def fn(x: Tensor, as_object: bool) -> Any:
        class Made:
            n = 1

        Made.n += 1
        return Made() if as_object else Made

    for as_object in (False, True):
        with pytest.raises(stretto.CaptureError, match="makes and changes"):
            stretto.compile(fn)(torch.ones(3), as_object)
