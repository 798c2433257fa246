"""Chains of operators, of flags and of aliases that are longer than Python's calls may be deep."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stretto.frontends.python.aliasing import aliases, joined
from stretto.frontends.python.interpreter import capture
from tests.frontends.python.checks import check, defined

MANY = 600
DEEP = 5000
WEIGHT = torch.zeros(2)


def program(folder: Path, *lines: str) -> Any:
    source = "def f(x):\n" + "".join(f"    {line}\n" for line in lines)
    return defined(source, {"torch": torch, "WEIGHT": WEIGHT}, folder)["f"]


@pytest.fixture
def _few_frames(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(capture, "depth_within_stack", lambda _: 0)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(MANY)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("_few_frames")
def test_an_array_of_the_end_of_a_chain(tmp_path: Path) -> None:
    f = program(tmp_path, "y = WEIGHT", *["y = y + 1"] * MANY, "return x + float(y.numpy().sum())")
    check(f, (torch.zeros(2),))


@pytest.mark.usefixtures("_few_frames")
def test_a_condition_at_the_end_of_a_chain(tmp_path: Path) -> None:
    steps = ["y = y * 1"] * 200  # an evaluation without external tensors takes 256 operators
    f = program(tmp_path, "y = torch.arange(3)", *steps, "return x + 1 if y.sum() > 2 else x - 1")
    check(f, (torch.zeros(2),))


def test_a_product_is_known_if_one_operand_is_zero(tmp_path: Path) -> None:
    product = "y = (x > 0) & (torch.zeros(2) > 0)"
    f = program(tmp_path, product, "return x + 1 if (y & (x > 1)).any() else x - 1")
    captured = check(f, (torch.ones(2),), (-torch.ones(2),))
    assert not any(op.blocks for op in captured.program.walk())


def test_flags_that_are_joined_with_themselves(tmp_path: Path) -> None:
    lines = ("flag = bool(x.sum() > 0)", *["flag = flag and flag"] * 60)
    f = program(tmp_path, *lines, "if flag:", "    return x + 1", "return x - 1")
    check(f, (torch.ones(2),), (-torch.ones(2),))


def test_sources_of_sources() -> None:
    following: Any = lambda number: [number + 1] if number < DEEP else []  # noqa: E731
    assert aliases._reached([0], following) == list(range(DEEP + 1))  # type: ignore[list-item]
    storage: Any = SimpleNamespace(scope=SimpleNamespace(open=True), sources=())
    for _ in range(DEEP):
        source = SimpleNamespace(tensor=SimpleNamespace(memory=storage))
        storage = SimpleNamespace(scope=SimpleNamespace(open=False), sources=(source,))
    assert len(list(joined._made_inside(storage, 1))) == DEEP


def test_the_order_of_sources() -> None:
    """Each comes before those that are reached from it, and once."""
    edges = {"a": "bc", "b": "d", "c": "db", "d": "e", "e": ""}
    found: Any = aliases._reached(["a", "e"], edges.__getitem__)  # type: ignore[list-item]
    assert sorted(found) == list("abcde")
    assert all(found.index(one) < found.index(other) for one in edges for other in edges[one])
