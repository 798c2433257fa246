"""A file that is edited after it was imported says nothing of the functions that are in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import stretto
from stretto.errors import CaptureError
from stretto.frontends.python.source.definitions import definition_of

from ..checks import defined

STRAIGHT = "def program(x):\n    return x + 1\n"
LOOP = "def program(x):\n    while x.sum() < 9:\n        x = x * 2\n    return x\n"
SETS = "def program(x):\n    return [x + i for i in range(5) if i in {1, 2}]\n"
NESTED = "def program(x):\n    def inner(y):\n        return y * 3\n    return inner(x)\n"


def edited(text: str, before: str, after: str, folder: Path) -> Any:
    """A function of this text, whose file then has another one."""
    assert before in text
    function = defined(text, {"torch": torch}, folder)["program"]
    path = Path(function.__code__.co_filename)
    path.write_text(text.replace(before, after))
    return function


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        (STRAIGHT, "+", "-"),
        (STRAIGHT, "1", "2"),
        (STRAIGHT, "x + 1", "x.sin() + 1"),
        (STRAIGHT, "def", "# a line more\n\ndef"),
        (STRAIGHT, "return", "return ("),
        (SETS, "{1, 2}", "{1, 3}"),
        (NESTED, "* 3", "* 4"),
    ],
)
def test_the_function_in_memory_counts(text: str, before: str, after: str, tmp_path: Path) -> None:
    function = edited(text, before, after, tmp_path)
    assert definition_of(function.__code__) is None
    compiled = stretto.compile(function, backend="interpreter")
    x = torch.ones(3)
    torch.testing.assert_close(compiled(x), function(x))


def test_control_flow_that_cannot_be_read(tmp_path: Path) -> None:
    function: Any = edited(LOOP, "* 2", "* 3", tmp_path)
    with pytest.raises(CaptureError, match="does not change after it is imported"):
        stretto.compile(function)(torch.ones(3))
    compiled: Any = stretto.compile(function, fallback=True)
    torch.testing.assert_close(compiled(torch.ones(3)), function(torch.ones(3)))


@pytest.mark.parametrize("text", [STRAIGHT, LOOP, SETS, NESTED])
def test_a_file_that_is_as_it_was(text: str, tmp_path: Path) -> None:
    function = defined(text, {"torch": torch}, tmp_path)["program"]
    assert definition_of(function.__code__) is not None
