"""Random functions of Python's constructs: a fixed sample, and how they are observed."""

from __future__ import annotations

import collections
import contextlib
import io
import random
import warnings
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checks.fuzz.choices import Choices, drawn
from checks.fuzz.compare import differences
from checks.fuzz.constructs import FAMILIES, IMPORTS
from checks.fuzz.family import Family
from checks.fuzz.grammar import FUNCTIONS
from checks.fuzz.observe import observe, observe_generators, recorded
from checks.fuzz.outcome import FAILURES
from checks.fuzz.programs import random_programs
from checks.fuzz.scope import Misfit
from checks.fuzz.source import load
from checks.fuzz.writer import START, PythonWriter, write
from stretto.errors import StrettoWarning

SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_python(seed: int) -> None:
    """The same as `python -m checks.fuzz --part python`, which tries many more."""
    outcome = random_programs("python", seed, 1, (), 60.0).run(seed, lambda _: None)
    assert outcome.verdict not in FAILURES, f"{outcome}\n{outcome.detail}\n{outcome.source}"


def test_the_seed_says_it_all(tmp_path: Path) -> None:
    assert write("python", 5) == write("python", 5) != write("python", 6)
    first, second, again, *_ = load(write("python", 7), tmp_path).calls()
    assert torch.equal(first[0], again[0]) and not torch.equal(first[0], second[0])


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_templates_fit(name: str) -> None:
    """Of every family most statements, numbers and tests can be written."""
    family = FAMILIES[name]
    templates = {*family.statements, *family.numbers, *family.tests}
    unfit = {one for one in templates if drawn(partial(_fits, family, one), 1) == "no"}
    assert len(unfit) < 3, unfit


def _fits(family: Family, template: str, draw: Choices) -> str:
    """Says whether one of several ways to fill the template runs."""
    writer = PythonWriter(draw)
    for text in (IMPORTS, family.module):
        writer.define(text)
    for _ in range(12):
        scope = writer.scope(FUNCTIONS, {"x": torch.rand(3), "y": torch.tensor([1, 0, 2])})
        for line in (*START, *family.start):
            scope.execute(line)
        with contextlib.suppress(Misfit):
            scope.execute(scope.fill(template, 0, {"u": "u0"}))
            return "yes"
    return "no"


@pytest.mark.parametrize(
    ("value", "changed"),
    [
        (collections.deque([1, 2]), lambda it: it.rotate(1)),
        (bytearray(b"ab"), lambda it: it.append(1)),
        (array("d", [0.5]), lambda it: it.append(1)),
        (np.zeros(2), lambda it: it.fill(1)),
        (io.StringIO(), lambda it: it.write("a")),
        (collections.OrderedDict(a=1, b=2), lambda it: it.move_to_end("a")),
        (iter([1, 2]), next),
        (torch.Generator(), lambda it: it.manual_seed(7)),
    ],
)
def test_state_is_observed(value: object, changed: Callable[[Any], object]) -> None:
    before = observe(value)
    assert not list(differences(observe(value), before))
    changed(value)
    assert list(differences(observe(value), before))


def test_slots_and_gradients_are_observed() -> None:
    class Slots:
        __slots__ = ("n",)

    one = Slots()
    one.n = 1  # type: ignore[misc]
    assert observe(one).parts == (("n", 1),)
    weight = torch.ones(1, requires_grad=True)
    with torch.enable_grad():
        assert observe(weight).kind == "tensor that requires grad"
    with torch.no_grad():
        assert isinstance(observe(weight), torch.Tensor)


def test_what_is_printed_and_warned_is_recorded() -> None:
    said: list[str] = []
    with recorded(said):
        print("a")
        warnings.warn("b", stacklevel=1)
        warnings.warn("not the program's", StrettoWarning, stacklevel=1)
    assert said == ["a\n", "b"]


def test_generators_are_observed() -> None:
    before = observe_generators()
    torch.rand(1)
    assert list(differences(observe_generators(), before))
    before = observe_generators()
    random.random()
    assert list(differences(observe_generators(), before))
