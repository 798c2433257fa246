"""The Python constructs of `language.py`, compiled for the emulator and the CPU machine."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.errors import CaptureError
from stretto.ir.ops import CallOp, ForOp, IfOp, WhileOp
from stretto.options import Debug, Options
from tests.e2e import language
from tests.e2e.language import CASES, Case
from tests.e2e.machines import check, spread, units_of
from tests.frontends.python.checks import assert_same

FUNCTIONS = {
    function.__name__: (function, found)
    for functions in CASES.values()
    for function, found in functions.items()
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_emulator(name: str) -> None:
    function, found = FUNCTIONS[name]
    check(function, *found, units=3)


@pytest.mark.whole
@pytest.mark.parametrize("topic", CASES)
def test_cpu(topic: str) -> None:
    """All functions of a topic in one program: the compiler's start-up is paid once."""
    functions = list(CASES[topic])

    def together(arguments: tuple[Case, ...]) -> list[Any]:
        return [function(*case) for function, case in zip(functions, arguments, strict=True)]

    compiled = stretto.compile(
        together, backend="cpu", options=Options(threads=2, debug=Debug(unroll=2))
    )
    with spread(), torch.no_grad():
        for calls in zip(*CASES[topic].values(), strict=True):
            arguments, wanted_arguments = copy.deepcopy(calls), copy.deepcopy(calls)
            found, wanted = compiled(arguments), together(wanted_arguments)
            for function, one, other in zip(functions, found, wanted, strict=True):
                try:
                    assert_same(one, other)
                except AssertionError as error:
                    raise AssertionError(f"{function.__name__}: {error}") from error
            assert_same(arguments, wanted_arguments)
    assert units_of(compiled) == [2]


def kinds(function: Callable[..., Any], unroll: int = 0) -> dict[type, int]:
    """How many control ops the program that is scheduled has."""
    _, (first, *_) = FUNCTIONS[function.__name__]
    options = Options(threads=1, debug=Debug(unroll=unroll))
    compiled = stretto.compile(function, first, backend="emulator", options=options)
    (entry,) = compiled.signatures
    found: dict[type, int] = {}
    for op in entry.stages.program.walk():
        if isinstance(op, IfOp | ForOp | WhileOp | CallOp):
            found[type(op)] = found.get(type(op), 0) + 1
    return found


def test_control_flow_stays_what_it_was() -> None:
    assert kinds(language.range_forwards_and_backwards) == {ForOp: 3}
    assert kinds(language.while_on_a_tensor) == {WhileOp: 1}
    assert kinds(language.tree)[CallOp] >= 2


def test_conditions_on_python_values_leave_no_trace() -> None:
    assert kinds(language.conditions_on_python_values) == {}
    assert kinds(language.on_python_values) == {}


def test_what_cannot_be_captured_says_where_why_and_what_to_do() -> None:
    def sized_by_data(x: Tensor) -> Any:
        return x.split(int(x[0]))

    with pytest.raises(CaptureError) as caught:
        stretto.compile(sized_by_data)(torch.ones(3))
    place, source, carets, remedy = str(caught.value).splitlines()
    line = sized_by_data.__code__.co_firstlineno + 1
    assert f"{__file__}:{line}, in " in place
    assert "depends on the content of a tensor" in place
    assert source.strip() == "return x.split(int(x[0]))"
    assert carets.strip() == "^" * len("x.split(int(x[0]))")
    assert "remedy: use masks" in remedy
