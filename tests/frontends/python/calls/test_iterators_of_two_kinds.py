"""What a branch leaves as one of several iterators, generators or containers: whatever goes through
it goes through the one that the run has."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import stretto

from ..checks import defined

# What a variable is before a branch, and what one arm makes of it.
KINDS = {
    "chain": ("iter([1, 2, 3, 4])", "itertools.chain(it, [7])"),
    "generator": ("(k * 2 for k in (1, 2, 3))", "itertools.chain(it, [7])"),
    "lists": ("[1, 2, 3, 4]", "[7]"),
    "a list and a tuple": ("[1, 2]", "(3, 4)"),
    "dicts": ("{1: 2, 2: 3}", "{3: 4}"),
    "a range": ("range(3)", "iter([5, 1])"),
}
USES = [
    "[k * n for k in it]",
    "[k for k in it if k > 2]",
    "sum(k * n for k in it), list(it)",
    "[*it], {k: 1 for k in it}",
    "[k for k in zip(it, [x, x * 2])]",
    "max(it), 3 in it",
    "tuple(it), [k for k in it]",
    "looped(it, x)",
    "split(it), [k for k in it]",
]
HEAD = """
def looped(it, x):
    total = x * 0
    for k in it:
        total = total * 2 + k
    return total

def split(it):
    a, *b = it
    return a, b

"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", USES)
def test_uses(kind: str, use: str, tmp_path: Any) -> None:
    before, made = KINDS[kind]
    source = HEAD + (
        f"def program(x):\n    n = int(x[0])\n    it = {before}\n    if x.sum() > 0:\n"
        f"        it = {made}\n    return {use}\n"
    )
    function: Any = defined(source, {"itertools": itertools}, tmp_path)["program"]
    compiled = stretto.compile(function, backend="interpreter")
    for numbers in ([1.2, 2.3, 0.5], [1.2, -2.3, 0.5], [-3.0, -2.3, 0.5], [2.0, -0.5, 0.0]):
        x = torch.tensor(numbers)
        wanted = function(x)
        try:
            found = compiled(x)
        except stretto.CaptureError:
            return
        assert repr(found) == repr(wanted), (numbers, found, wanted)
