"""What uses an iterator takes as many items of it as in Python: the rest is there behind it."""

from __future__ import annotations

import collections
import functools
import heapq
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

import stretto
from stretto.errors import CaptureError

from ..checks import defined, outcome

USES = """\
any(it); all(it); sum(it); max(it); min(it); sorted(it); list(it); tuple(it); set(it); [*it]
(lambda *a: a)(*it); 2 in it; 9 in it; next(it); list(zip(it, [1])); list(zip([1], it))
list(zip(it, it)); list(map(str, it)); list(enumerate(it)); list(filter(None, it))
dict.fromkeys(it); [k for k in it]; {k: 1 for k in it}; any(k > 1 for k in it)
all(k < 2 for k in it); sum(k for k in it); next(k for k in it if k > 1)
list(itertools.islice(it, 1)); list(itertools.takewhile(lambda k: k < 2, it))
list(itertools.chain(it, [5])); functools.reduce(lambda a, b: a + b, it); len(list(it))
frozenset(it); ','.join(map(str, it)); torch.tensor(list(it)); collections.deque(it)
unpack(it); first_rest(it); brk(it); torch.stack([x * k for k in it]); math.fsum(it)
heapq.nsmallest(1, it); [0].extend(it); dict(zip(it, 'ab')); np.fromiter(it, int); bytes(it)
any(map(bool, it)); any([next(it), 0]); max(it, default=3); min((k for k in it), default=3)
iter(it) is it; bool(it); collections.Counter(it); list(itertools.accumulate(it))
isinstance(it, collections.abc.Iterator); all(k for k in it); list(reversed(list(it)))"""
TEXTS = [text.strip() for line in USES.splitlines() for text in line.split(";")]

ITERATORS = [
    "iter([1, 2, 3, 4])", "iter([0, 1, int(x[0]), 2, 3])", "iter([0, 0])", "iter(range(4))",
    "(k for k in [1, 2, 3])", "enumerate([1, 2])", "map(lambda k: k + 1, [0, 1, 2])",
]  # fmt: skip

FUNCTIONS = """
def unpack(it):
    a, *b = it
    return a, b
def first_rest(it):
    for k in it:
        return k
def brk(it):
    for k in it:
        if k == 2:
            break
    return k
"""
SPACE = {
    "collections": collections, "functools": functools, "heapq": heapq, "itertools": itertools,
    "math": math, "np": np, "torch": torch,
}  # fmt: skip


@pytest.mark.parametrize("made", ITERATORS)
@pytest.mark.filterwarnings("ignore")
def test_uses(made: str, tmp_path: Any) -> None:
    lines = [
        f"def f{n}(x):\n    it = {made}\n    used = {text}\n    return used, list(it)\n"
        for n, text in enumerate(TEXTS)
    ]
    space = defined(FUNCTIONS + "".join(lines), SPACE, tmp_path)
    for number, text in enumerate(TEXTS):
        function = space[f"f{number}"]
        compiled = stretto.compile(function, backend="interpreter")
        for values in ((1.0, -3.0), (2.0, 2.0), (0.5, 0.1)):
            wanted = outcome(function, torch.tensor(values))
            try:
                found = outcome(compiled, torch.tensor(values))
            except CaptureError:
                break
            assert repr(found) == repr(wanted), (text, values, found, wanted)
