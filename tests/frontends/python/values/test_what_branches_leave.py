"""What a traced branch leaves: dicts and lists that differ in length, texts, numbers or None.

Each use of it gives what Python gives, or is refused.
"""

from __future__ import annotations

import bisect
import collections
import copy
import functools
import heapq
import itertools
import json
import operator
import re
import string
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import stretto
from stretto.errors import CaptureError

from ..checks import defined, outcome

OF_DICTS = """\
d == {'a': 1}; {'a': 1} == d; d != {'a': 1}; {'a': 1, 'b': 2} == d; d == d; d == dict(d)
bool(d); not d; 1 if d else 2; d and 3; d or 3; len(d); list(d); [*d]; {**d}; {*d}; (*d,); dict(d)
d | {'c': 3}; {'c': 3} | d; d.copy(); sorted(d); sum(d.values()); f"{d}"; str(d); "%s" % d
list(d.items()); d.keys() == {'a': 1}.keys(); d.keys() & {'a', 'b'}; d.keys() - {'a'}
'b' in d; 'b' not in d; 'b' in d.keys(); 2 in d.values(); d.get('b'); d.get('b', 7); d.pop('b', 7)
d.setdefault('b', 9); d.popitem(); d['a']; d['b']; [k for k in d]; {k: v for k, v in d.items()}
any(d); all(d.values()); list(map(str, d)); list(zip(d, d.values())); list(reversed(d)); first(d)
keywords(**d); positions(*d); unpacked(d); isinstance(d, dict); copy.deepcopy(d); json.dumps(d)
set(d); d.update({'b': 4}) or d; dict.fromkeys(d, 0); [d] == [{'a': 1}]; (d,) == ({'a': 1},)
d in [{'a': 1}]; [{'a': 1}, 5].index(d) if d == {'a': 1} else 3; matched(d); d; [d, d]
operator.eq(d, {'a': 1}); next(iter(d.values())); torch.stack([x * v for v in d.values()]); total(d)
d.clear() or d; removed(d); merged(d); ",".join(sorted(d)); dict(d, c=3); dict(sorted(d.items()))"""

OF_LISTS = """\
d == [1, 2]; [1, 2] == d; d != [1, 2, 3]; d < [1, 3]; d == d; bool(d); not d; 1 if d else 2
d and 3; d or 3; len(d); list(d); [*d]; {*d}; (*d,); tuple(d); d + [9]; [9] + d; d * 2; d[0]
d[-1]; d[1:]; d[:1]; d[::-1]; d[:-1]; d.copy(); sorted(d); sorted(d, reverse=True); sum(d)
max(d); min(d); f"{d}"; str(d); "%s" % (d,); 1 in d; 3 in d; 3 not in d; d.count(3)
d.index(2); d.pop(); d.pop(0); d.append(5) or d; d.extend([6, 7]) or d; d.insert(0, 8) or d
d.remove(1) or d; d.clear() or d; d.reverse() or d; d.sort() or d; [k for k in d]
[k * 2 for k in d if k > 1]; {k: 1 for k in d}; any(d); all(d); any(v > 2 for v in d)
sum(v for v in d); list(map(str, d)); list(map(lambda v: v + 1, d))
list(filter(lambda v: v > 1, d)); list(zip(d, d)); list(zip(d, [7, 8])); list(enumerate(d))
list(reversed(d)); next(iter(d)); positions(*d); unpacked(d); rest(d); isinstance(d, list)
type(d) is list; copy.copy(d); copy.deepcopy(d); json.dumps(d); set(d); frozenset(d)
dict(enumerate(d)); dict.fromkeys(d, 0); [d] == [[1, 2]]; (d,) == ([1, 2],); d in [[1, 2]]
matched(d); d; [d, d]; {'k': d}; total(d); removed(d); stored(d); spliced(d); grown(d); doubled(d)
torch.tensor(d); torch.tensor(d).sum(); x * d[-1]; torch.stack([x * v for v in d])
torch.stack([x * v for v in d]).sum()
itertools.accumulate(d) and list(itertools.accumulate(d)); list(itertools.chain(d, [4]))
functools.reduce(lambda a, b: a + b, d); ",".join(map(str, d)); range(len(d))
list(range(len(d))); x.reshape(1, -1).expand(len(d), -1); torch.zeros(len(d)); [0] * len(d)
np.array(d); d.__len__(); d.__contains__(3); operator.eq(d, [1, 2]); heapq.nsmallest(1, d)
bisect.bisect(d, 2); len(set(d)); str(len(d)); d == list(d)"""

OF_TEXTS = """\
s; s + "x"; "x" + s; s * 2; len(s); s[0]; s[-1]; s[1:]; s[::-1]; s == "a"; s != "a"; s < "b"
s in ("a", "q"); "a" in s; s in "abc"; s.upper(); s.startswith("a"); s.endswith(("c", "a"))
s.replace("a", "z"); s.split("b"); s.join(["1", "2"]); s.find("c"); s.index("a"); s.count("a")
s.strip("a"); s.encode(); s.isalpha(); s.zfill(5); f"{s}!"; f"{s:>5}"; "%s" % s
"{}".format(s); str(s); repr(s); bool(s); not s; s and 1; s or 2; {"a": 1, "bc": 2}[s]
{"a": 1}.get(s, 5); {s: 1}; {s}; [s, s]; list(s); [*s]; tuple(s); set(s) == {"a"}; sorted(s)
[c for c in s]; characters(s); list(map(ord, s)); list(zip(s, "xy")); list(enumerate(s))
list(reversed(s)); max(s); hash(s) == hash("a"); isinstance(s, str); type(s); type(s) is str
matched(s); ord(s[0]); getattr(x, {"a": "ndim", "bc": "shape"}[s]); getattr(HELD, s)
hasattr(HELD, s); setattr(HELD, s, 3) or HELD.a; keywords(**{s: 4}); x * {"a": 2.0, "bc": 3.0}[s]
x if s == "a" else -x; x * len(s); raised(s); between(s); any(c == "c" for c in s)
s.join("12"); s.partition("b"); s.title(); s.casefold() == "a"; s.translate({97: "q"})
json.dumps(s); re.match("a", s) is not None; re.sub("a", "b", s); copy.copy(s); first_and_rest(s)
positions(*s); longer(s); s.__len__(); s.__class__; operator.add(s, "x")
"".join([s, "y"]); ",".join(s); int(s, 16); bytes(s, "ascii"); s > ""; min(s, "b")
dict([(s, 1)]); dict.fromkeys([s], 2); f"{len(s)}"; s[len(s) - 1]; s[: len(s) // 2]
s == s.lower(); eval(repr(s)); string.Template("$a").substitute(a=s)"""

OF_NUMBERS = """\
v; v is None; v is not None; v == None; v == 3; v != 3; v in (None, 4); v in [3]; not v
bool(v); v or 5; v and 5; v if v is not None else 7; v + 1; 1 + v; -v; v * x; x * v; x + v
x if v is None else x * v; isinstance(v, int); isinstance(v, type(None)); type(v)
type(v) is int; type(v) is type(None); str(v); f"{v}"; repr(v); [v]; (v, v); {v}; {v: 1}
{"k": v}; {None: 1, 3: 2}[v]; {3: 2}.get(v, 9); range(v); list(range(v or 2)); [1, 2, 3, 4][v]
[1, 2, 3, 4][v or 0]; [1, 2, 3, 4][:v]; [1, 2, 3, 4][v:]; x[:v]; x[v:]; x.sum(v); x.sum(dim=v)
torch.sum(x, dim=None); max([v, 1], key=lambda q: q or 0); sum([v or 0, 1])
sorted([v or 0, 1]); any([v]); all([v, 1]); matched(v); hash(v) == hash(None); len([v])
[v].count(None); [None, 3].index(v); copy.copy(v); copy.deepcopy([v]); json.dumps(v); int(v)
float(v); keywords(a=v); positions(v); with_default(v); counted(v); torch.tensor(v)
torch.full((2,), v)
x.clamp(min=v, max=0.7); x.clamp(v); round(v); divmod(v, 2); abs(v); v < 4; v // 2; v % 2
v ** 2; v ** -1; v & 1; v.__class__; v.bit_length(); callable(v); operator.is_(v, None)
operator.not_(v); x.masked_fill(x > 1, v or 0); F.dropout(x, 0.0 if v is None else 0.0)
longer(v); asserted(v); chosen(v); getattr(v, "real", 8); hasattr(v, "real"); dict(a=v)
[q for q in [v] if q is not None]; [q for q in [v, 1] if q]
next((q for q in [v, 1] if q is not None), 0); list(filter(None, [v, 2]))"""

MADE = {
    "an entry goes": ("d = {'a': 1, 'b': 2}\n    if x.sum() > 1:\n        d.pop('b')", OF_DICTS),
    "an entry comes": ("d = {'a': 1}\n    if x.sum() > 1:\n        d['b'] = 2", OF_DICTS),
    "the only entry": ("d = {}\n    if x.sum() > 1:\n        d['a'] = 1", OF_DICTS),
    "two dicts": ("d = {'a': 1}\n    if x.sum() > 1:\n        d = {'a': 1, 'b': 2}", OF_DICTS),
    "a list": ("d = [1, 2]\n    if x.sum() > 1:\n        d.append(3)", OF_LISTS),
    "texts": ("s = 'a' if x.sum() > 1 else 'bc'", OF_TEXTS),
    "None": ("v = None\n    if x.sum() > 1:\n        v = 3", OF_NUMBERS),
    "a bool": ("v = True if x.sum() > 1 else 3", OF_NUMBERS),
}

FUNCTIONS = """
class Held:
    a, bc = 1, 2
HELD = Held()
def first(d):
    return next(iter(d))
def keywords(a=4, bc=5, b=6, **others):
    return a + b, bc, others
def positions(*given):
    return given
def unpacked(d):
    p, q = d
    return p, q
def first_and_rest(d):
    p, *q = d
    return p, q
def rest(d):
    _, *q = d
    return q
def matched(d):
    match d:
        case {'a': 1, 'b': b}:
            return b
        case {'a': 1}:
            return 1
        case [1, 2]:
            return 5
        case [1, *r]:
            return r
        case "a":
            return 6
        case None:
            return 7
        case _:
            return 3
def total(d):
    n = 0
    for k in d:
        n = n * 10 + (d[k] if isinstance(d, dict) else k)
    return n
def characters(s):
    n = 0
    for k in s:
        n = n * 10 + ord(k)
    return n
def removed(d):
    del d['b' if isinstance(d, dict) else -1]
    return d
def stored(d):
    d[-1] = 9
    return d
def spliced(d):
    d[1:] = [7, 7]
    return d
def merged(d):
    d |= {'c': 1}
    return d
def grown(d):
    d += [4]
    return d
def doubled(d):
    d *= 2
    return d
def longer(d):
    d += "q" if isinstance(d, str) else 1
    return d
def raised(s):
    raise ValueError(s)
def between(s):
    return "<" + s + ">"
def with_default(v=None):
    return 1 if v is None else v
def counted(v):
    n = 0
    while v and n < v:
        n += 1
    return n
def asserted(v):
    assert v is not None, "none"
    return v
def chosen(v):
    return (v or 1) if v != 3 else None
"""
SPACE = {
    "F": F, "bisect": bisect, "collections": collections, "copy": copy, "functools": functools,
    "heapq": heapq, "itertools": itertools, "json": json, "np": np, "operator": operator, "re": re,
    "string": string, "torch": torch,
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.filterwarnings("ignore")
def test_uses(name: str, part: int, tmp_path: Any) -> None:
    made, uses = MADE[name]
    texts = [text.strip() for line in uses.splitlines() for text in line.split(";")][part::4]
    lines = [f"def f{n}(x):\n    {made}\n    return {text}\n" for n, text in enumerate(texts)]
    space = defined(FUNCTIONS + "".join(lines), SPACE, tmp_path)
    for number, text in enumerate(texts):
        function: Any = space[f"f{number}"]
        compiled = stretto.compile(function, backend="interpreter")
        held: Any = space["HELD"]
        for values in ((1.0, -3.0), (1.0, 2.0), (0.5, 0.1), (2.0, 2.0)):
            held.a = 1
            wanted = outcome(function, torch.tensor(values))
            held.a = 1
            try:
                found = outcome(compiled, torch.tensor(values))
            except CaptureError:
                break
            assert type(found) is type(wanted), (text, values, found, wanted)
            if isinstance(wanted, set | frozenset):
                assert found == wanted, (text, values, found, wanted)
            else:
                assert repr(found) == repr(wanted), (text, values, found, wanted)
