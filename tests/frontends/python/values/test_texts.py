"""f-strings with symbolic sizes: the text is right, and settles sizes only where it is used."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stretto
from tests.frontends.python.checks import assert_same


def check(function: Callable[..., Any], programs: int, *sizes: int) -> Any:
    compiled = stretto.compile(function, backend="interpreter", dynamic=True)
    for size in sizes:
        x = torch.randn(size)
        assert_same(compiled(x), function(x))
    assert len(compiled.signatures) == programs, compiled.explain()
    return compiled


def unused(x: torch.Tensor) -> torch.Tensor:
    """As transformers' generation makes its warnings."""
    note = "sizes:"
    note += f" {x.shape[0]:>{4}} rows, {x.shape[0] * 2!r} in all"
    note = note + f" ({note})."
    if x.shape[0] > 1000:
        warnings.warn(note, stacklevel=2)
    return x * 2


def test_a_text_that_nobody_reads_settles_nothing() -> None:
    check(unused, 1, 5, 3, 1, 64)


USES: list[Callable[[torch.Tensor, str], Any]] = [
    lambda x, text: {text: x},
    lambda x, text: x + 1 if text == "5 rows" else x,
    lambda x, text: x + 1 if text != "5 rows" else x,
    lambda x, text: x + len(text),
    lambda x, text: x + 1 if "5" in text else x,
    lambda x, text: x + int(text.split()[0]),
    lambda x, text: x + int("".join(["1", text[0]])),
    lambda x, text: x + {"5 rows": 7}.get(text, 1),
    lambda x, text: x + (["5 rows", "3 rows"].index(text) if x.shape[0] in (5, 3) else 0),
]
SHOWN: list[Callable[[torch.Tensor, str], Any]] = [
    lambda x, text: (x, text),
    lambda x, text: ("%s!" % text, "%s %s" % (text, 1), "{}".format(text), x),  # noqa: UP031, UP032
    lambda x, text: (str(text), f"{text:>9}", text + "!", "!" + text, x),
]


@pytest.mark.parametrize("use", USES)
def test_a_text_that_is_used_is_right(use: Callable[[torch.Tensor, str], Any]) -> None:
    check(lambda x: use(x, f"{x.shape[0]} rows"), 3, 5, 3, 12)


@pytest.mark.parametrize("show", SHOWN)
def test_a_text_that_is_returned_settles_nothing(
    show: Callable[[torch.Tensor, str], Any],
) -> None:
    check(lambda x: show(x, f"{x.shape[0]} rows"), 1, 5, 3, 12)


def test_errors_show_the_size() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 4:
            raise ValueError(f"{x.shape[0]} rows are too many")
        return x

    compiled = stretto.compile(function, backend="interpreter", dynamic=True)
    for size in (5, 7):
        with pytest.raises(ValueError, match=f"{size} rows are too many"):
            compiled(torch.randn(size))
    assert_same(compiled(torch.ones(3)), torch.ones(3))


def test_objects_keep_the_text() -> None:
    class Holder:
        text = ""

    def function(holder: Holder, x: torch.Tensor) -> torch.Tensor:
        holder.text = f"{x.shape[0]} rows"
        return x + 1

    compiled = stretto.compile(function, backend="interpreter", dynamic=True)
    holder = Holder()
    for size in (5, 3, 5):
        compiled(holder, torch.randn(size))
        assert holder.text == f"{size} rows"


def test_plain_texts() -> None:
    def function(x: torch.Tensor) -> Any:
        a, b = 3.14159, "é"
        return x, f"{a:.2f}{b!a}{b!r:>6}{{}}{a:{8}.{3}}{x.dtype}{[1]}{1 + 1=}"

    check(function, 1, 5, 3)
