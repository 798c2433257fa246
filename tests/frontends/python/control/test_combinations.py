"""Statements inside of each other, in every combination: how loops, `try` statements and generators
end. What is captured gives what eager gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import defined

INPUTS = [torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
INPUTS += [torch.full((4, 4), 0.5), torch.full((4, 4), 2.0), torch.full((4, 4), -2.0)]
Lines = list[str]


def indented(text: str, depth: int) -> Lines:
    return ["    " * depth + line for line in text.splitlines()]


# ---- loops in loops, with `else` -----------------------------------------------------------------

OUTER = (
    "for i in range(4):",
    "for i, row in enumerate(x):",
    "i = -1\nwhile i < 3 and x[0].sum() < 9:\n    i += 1",
)
INNER = (
    "for j in range(3):", "for j, v in enumerate(x[i]):", "j = -1\nwhile j < 2:\n    j += 1",
)  # fmt: skip
JUMPS = ("break", "continue", "return t, 'inner'")
ELSE = (
    "", "continue", "break", "return t, 'else'", "t = t * 2", "if x[i, 3] > 0:\n    continue",
    "if x[i, 3] > 0:\n    break\nt = t + 7",
)  # fmt: skip
AROUND = ("", "try:")


def loops(outer: str, inner: str, jump: str, orelse: str, around: str) -> Lines:
    depth = 3 if around else 2
    return [
        "    t = torch.zeros(())",
        *indented(outer, 1),
        *indented(around, 2),
        *indented(inner, depth),
        *indented(f"if x[i, j] > 0.7:\n    {jump}\nt = t + x[i, j]", depth + 1),
        *(indented("else:", depth) if orelse else []),
        *indented(orelse, depth + 1),
        *(indented("finally:\n    t = t + 0.25", 2) if around else []),
        *indented("t = t + 100", 2),
        *indented("else:\n    t = t - 1000\nreturn t, 'end'", 1),
    ]


# ---- `try` statements in loops -------------------------------------------------------------------

TRIED = (
    "if x[i, 0] > 0: raise ValueError('v')", "if x[i, 0] > 0: break", "if x[i, 0] > 0: continue",
    "if x[i, 0] > 0: return t, 'tried'", "if x[i, 0] > 0: raise KeyError('k')",
    "if x[i, 0] > 0.8: raise ValueError('v')\nif x[i, 0] < -0.8: break",
)  # fmt: skip
HANDLED = (
    "t = t * 2", "continue", "break", "return t, 'handled'", "raise KeyError('h')",
    "if x[i, 1] > 0: continue\nt = t * 3", "if x[i, 1] > 0: raise\nt = t + 3",
)  # fmt: skip
ELSE_OF_TRY = (
    "", "t = t + 10", "continue", "break", "if x[i, 2] > 0: break\nt = t + 20", "return t, 'else'",
)  # fmt: skip
FINALLY = (
    "", "t = t + 0.25", "if x[i, 3] > 0: t = t + 0.5", "if x[i, 3] > 1: break",
    "if x[i, 3] > 1: return t, 'finally'",
    "for v in x[i]:\n    if v > 0: break\n    t = t + 0.125",
)  # fmt: skip


def tries(outer: str, tried: str, handled: str, orelse: str, last: str) -> Lines:
    return [
        *indented("t = torch.zeros(())\ntry:", 1),
        *indented(outer, 2),
        *indented("try:", 3),
        *indented(tried + "\nt = t + 1", 4),
        *indented("except ValueError:", 3),
        *indented(handled, 4),
        *(indented("else:", 3) if orelse else []),
        *indented(orelse, 4),
        *(indented("finally:", 3) if last else []),
        *indented(last, 4),
        *indented("t = t + 100", 3),
        *indented("else:\n    t = t - 1000", 2),
        *indented("except KeyError as error:\n    return t, str(error)\nreturn t, 'end'", 1),
    ]


# ---- generators ----------------------------------------------------------------------------------

GENERATORS = (
    "for k in range(3):\n    yield x[i, k] * 2",
    "for k in range(3):\n    if x[i, k] > 0.5: return\n    yield x[i, k]",
    "for k in range(3):\n    if x[i, k] < 0: continue\n    yield x[i, k]",
    "k = 0\nwhile True:\n    k += 1\n    if k > 2 or x[i, k] > 1: break\n    yield x[i, k]\n"
    "yield x[i, 0] * 10",
    "try:\n    for k in range(3):\n        yield x[i, k]\nfinally:\n    box.append(i)",
    "yield from (x[i, k] for k in range(3) if x[i, k] > -0.5)\nyield x[i, 3]",
    "a = yield x[i, 0]\nyield x[i, 1]\nif x[i, 2] > 0: yield x[i, 2]",
    "for k in range(3):\n    for q in range(2):\n        if x[i, q] > x[i, k]: break\n"
    "        yield x[i, q]\n    else:\n        continue\n    yield x[i, k] + 50",
)
USES = (
    "for v in g(i): t = t + v",
    "for v in g(i):\n    if v > 0.5: break\n    t = t + v\nelse: t = t + 7",
    "for v in g(i):\n    if v > 0.5: continue\n    t = t + v",
    "for v in g(i):\n    if v > 1: return t, box",
    "t = t + sum(g(i))",
    "t = t + sum(v for v in g(i) if v > 0)",
    "l = list(g(i)); t = t + len(l)",
    "t = t + next(g(i), 5)",
    "it = g(i); t = t + next(it)\nfor v in it: t = t + v * 3",
    "for v, w in zip(g(i), g(i)): t = t + v * w",
    "for n, v in enumerate(g(i)): t = t + v * n",
    "a, *b = g(i); t = t + a + len(b)",
    "t = t + (1 if any(v > 0 for v in g(i)) else 2)",
    "t = t + max(g(i))",
)


def generators(outer: str, generator: str, use: str) -> Lines:
    return [
        *indented("t = torch.zeros(())\nbox = []\ndef g(i):", 1),
        *indented(generator, 2),
        *indented(outer, 1),
        *indented(use + "\nt = t + 100", 2),
        *indented("return t, box", 1),
    ]


KINDS: dict[str, tuple[Callable[..., Lines], list[tuple[str, ...]], int, float]] = {
    "loops": (loops, list(itertools.product(OUTER, INNER, JUMPS, ELSE, AROUND)), 12, 1.0),
    "tries": (tries, list(itertools.product(OUTER, TRIED, HANDLED, ELSE_OF_TRY, FINALLY)), 90, 0.5),
    "generators": (generators, list(itertools.product(OUTER, GENERATORS, USES)), 12, 0.5),
}
"""For each kind: what writes a function, the cases, in how many parts these are, and the smallest
share of them that is captured."""
PARTS = [
    pytest.param(kind, part, marks=[pytest.mark.whole] if part else [])
    for kind in KINDS
    for part in range(12)
]


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_equals_eager(kind: str, part: int, tmp_path: Path) -> None:
    write, every, parts, least = KINDS[kind]
    cases = every[part::parts]
    sources = ["import torch"]
    for number, case in enumerate(cases):
        sources += [f"def f{number}(x):", *write(*case)]
    functions = defined("\n".join(sources) + "\n", {}, tmp_path)
    wrong, refused = list[Any](), 0
    for number, case in enumerate(cases):
        f = functions[f"f{number}"]
        fast = stretto.compile(f, backend="interpreter")
        for x in INPUTS:
            expected = outcome(f, x)
            try:
                found = outcome(fast, x)
            except stretto.CaptureError:
                refused += 1
                break
            if found != expected:
                wrong.append((case, found, expected))
                break
    assert not wrong
    assert refused <= (1 - least) * len(cases)


def outcome(function: Callable[[Tensor], Any], x: Tensor) -> Any:
    try:
        return str(function(x))
    except stretto.CaptureError:
        raise
    except Exception as error:
        return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
