"""Containers and loops of every size: none, few, as many as a loop is unrolled for, and many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.batching.test_python import functions_of, wrong
from tests.sampling import sampled

HEAD = """
import itertools, torch
from torch import nn
N = {size}
INTS = list(range(N)); FLOATS = [float(k) for k in range(N)]; TUPLE = tuple(range(N))
WORDS = [f"w{k}" for k in range(N)]
MIXED = [k if k % 2 else f"w{k}" for k in range(N)]
PAIRS = [(k, f"w{k}") for k in range(N)]
DICT = {k: k * 2 for k in range(N)}; WDICT = {f"w{k}": float(k) for k in range(N)}
SET = set(range(N)); RANGE = range(N)
FUNCS = [(lambda v, k=k: v + k) for k in range(N)]
FDICT = {k: f for k, f in enumerate(FUNCS)}
FIXED = {f"w{k}": k for k in range(N)}
def inc(v): return v + 1
MODS = [inc] * N
LAYERS = nn.ModuleList([nn.Identity() for _ in range(N)])
"""
ROWS = """
t = 0; for v in INTS: t += v * x; t
t = 0; for v in FLOATS: t = t + v * x; t
t = 0; for v in TUPLE: t += v * x; t
t = 0; for v in range(N): t += v * x; t
t = 0; for v in WORDS: t += x if v == w else 0; t
t = 0; for v in MIXED: t += 1 if v == x else 0; t
t = 0; for k, v in PAIRS: t += k if v == w else x; t
t = 0; for k in DICT: t += k + x; t
t = 0; for k, v in DICT.items(): t += v * x; t
t = 0; for v in DICT.values(): t += v * x; t
t = 0; for k, v in enumerate(INTS): t += v * x + k; t
t = 0; for k, v in enumerate(INTS, x): t += v * x + k; t
t = 0; for k, v in zip(INTS, FLOATS): t = t + v * x + k; t
t = 0; for k, v in zip(INTS, xs): t += v * x + k; t
t = 0; for k, v in zip(xs, INTS): t += v * x + k; t
t = 0; for v in reversed(INTS): t += v * x; t
t = 0; for v in map(inc, INTS): t += v * x; t
t = 0; for v in filter(lambda v: v > x, INTS): t += v; t
t = 0; for v in INTS[1:]: t += v * x; t
t = 0; for v in sorted(SET): t += v * x; t
t = x; for f in FUNCS: t = f(t); t
t = x; for f in MODS: t = f(t); t
t = x; for f in LAYERS: t = f(t) if t is None else t + 1; t
t = x; for k, f in enumerate(MODS): t = f(t) + k; t
t = x; for k, f in zip(INTS, MODS): t = f(t) + k; t
t = x; for k, f in zip(xs, MODS): t = f(t) + k; t
t = 0; for v in INTS: t = v if v == x else t; t
for v in INTS: r = v if v > x else 0; x
t = 0; for v in (v for v in INTS if v > x): t += v; t
[v * x for v in INTS]
[v for v in INTS if v < x]
{v: x for v in INTS}
{k: v * x for k, v in DICT.items()}
tuple(v * x for v in INTS)
any(v == x for v in INTS)
all(v != x for v in INTS)
any([v == x for v in INTS])
all([v != x for v in INTS])
sum(INTS) * x
sum([v * x for v in INTS])
sum(v * x for v in INTS)
max([x, *INTS])
max(INTS, default=0) + x
max(v * x for v in [0, *INTS])
min([x] + INTS)
sorted([x] + INTS)
x in INTS
x in TUPLE
x in DICT
x in SET
w in WORDS
w in WDICT
x in MIXED
x not in INTS
(x, w) in PAIRS
INTS[x]
TUPLE[x]
FLOATS[-1 - x]
WORDS[x]
MIXED[x]
PAIRS[x][1]
DICT[x]
WDICT[w]
DICT.get(x)
DICT.get(x, -1)
WDICT.get(w, 0.0)
FUNCS[x](x)
FDICT[x](x)
FDICT.get(x, inc)(x)
f = FUNCS[x]; f(1)
list(INTS) + [x]
tuple(INTS) + (x,)
list(map(inc, INTS))[0:2] + [x]
list(enumerate(INTS))[0:2] + [x]
list(zip(INTS, INTS))[-1:] + [x]
len(INTS) + x
INTS == [x]
xs == INTS
[x] * N
[x] * len(INTS)
[*INTS, x]
(*INTS, x)
INTS[x:]
INTS[:x]
a, *b = [x, *INTS]; len(b)
[None] * N + [x]
list(itertools.chain(INTS, xs))
list(itertools.islice(INTS, x))
list(itertools.accumulate(INTS, lambda a, c: a + c * x))
len(list(itertools.pairwise(INTS))) + x
t = 0; while t < N: t += x + 1; t
t = 0; for a in xs: t += INTS[a]; t
t = []; for v in INTS: t.append(v * x); t
t = 0; for v in [x] * N: t += v; t
t = 0; for i in range(x, N + x): t += i; t
sum([[x]] * N, [])
"".join([w] * N)
"-".join(WORDS + [w])
torch.tensor([x] * N).sum() if N else 0
torch.stack([torch.tensor(v) for v in INTS] + [torch.tensor(x)]).sum()
inc(x) if x in {0, 1, 2} else 0
"""
SIZES = (0, 1, 2, 255, 256, 257, 300, 1000)


@pytest.mark.parametrize("size", sampled(SIZES, [0, 2, 257]))
def test_containers_of_all_sizes(size: int, tmp_path: Path) -> None:
    last = max(size - 1, 0)
    columns = [
        [0, 1, last, size],
        ["w0", "w1", f"w{last}", "zz"],
        [[0], [], [0, last], [1] if size > 1 else []],
    ]
    head = HEAD.replace("{size}", str(size))
    rows = [str(row) for row in ROWS.strip().splitlines()]
    made = functions_of(rows, head, "x, w, xs", tmp_path / f"of_{size}.py")
    found = [message for row, f in made if (message := wrong(row, f, columns)) is not None]
    assert not found, "\n".join(found)
