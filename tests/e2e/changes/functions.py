"""Changes of what functions are made of: defaults, code, closures."""

from __future__ import annotations

import functools
import types
from typing import Any

from torch import Tensor, nn

from tests.e2e.changes.case import Case, case


def fresh(function: types.FunctionType) -> Any:
    """A copy of a function that a test may change."""
    made = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def with_defaults(x: Tensor, k: float = 2.0, *, b: float = 1.0) -> Tensor:
    return x * k + b


def other_code(x: Tensor, k: float = 2.0, *, b: float = 1.0) -> Tensor:
    return x * k - b


@case
def defaults_of_the_root() -> Case:
    function = fresh(with_defaults)
    return Case(function, lambda: setattr(function, "__defaults__", (7.0,)))


@case
def keyword_defaults_of_the_root() -> Case:
    function = fresh(with_defaults)
    return Case(function, lambda: setattr(function, "__kwdefaults__", {"b": 5.0}))


@case
def code_of_the_root() -> Case:
    function = fresh(with_defaults)
    return Case(function, lambda: setattr(function, "__code__", other_code.__code__))


@case
def defaults_of_a_helper() -> Case:
    helper = fresh(with_defaults)
    return Case(lambda x: helper(x) * 2, lambda: setattr(helper, "__defaults__", (7.0,)))


@case
def code_of_a_helper() -> Case:
    helper = fresh(with_defaults)
    return Case(lambda x: helper(x) * 2, lambda: setattr(helper, "__code__", other_code.__code__))


@case
def defaults_of_a_method() -> Case:
    class Model(nn.Module):
        def forward(self, x: Tensor, k: float = 2.0) -> Tensor:
            return x * k

    return Case(Model().eval(), lambda: setattr(Model.forward, "__defaults__", (3.0,)))


@case
def content_of_a_default() -> Case:
    scales = [2.0]

    def function(x: Tensor, k: list[float] = scales) -> Tensor:
        return x * k[0]

    return Case(function, lambda: scales.__setitem__(0, 3.0))


@case
def nonlocal_variable() -> Case:
    k = 2.0

    def change() -> None:
        nonlocal k
        k = 3.0

    return Case(lambda x: x * k, change)


@case
def function_in_a_closure() -> Case:
    helper = with_defaults

    def change() -> None:
        nonlocal helper
        helper = other_code

    return Case(lambda x: helper(x), change)


@case
def partial_of_a_list() -> Case:
    scales = [2.0]
    return Case(
        functools.partial(lambda k, x: x * k[0], scales), lambda: scales.__setitem__(0, 3.0)
    )
