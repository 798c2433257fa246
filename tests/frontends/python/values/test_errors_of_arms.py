"""What Python and torch refuse is raised where a run comes to it, and not while capturing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import defined

X = torch.tensor([1.0, 2.0, 3.0])
REFUSED = """\
T[5]; L[5]; [1][3]; (1,)[-4]; x.chunk(1)[1]; S[7]; x.shape[3]; deque([1])[4]; x[5]; x.split(1)[9]
[1].pop(3); [].pop(); {}['a']; [1, 2].index(5); x.size(4); [x][2]; (x, x)[2]; list(x)[7]
x.unbind()[9]; range(3)[5]; b'a'[4]; divmod(1, 0); 1 // 0; int('q'); T.foo; L.bar; x.nothing
{1: 2}.qq; (lambda: 1)(3); min([]); max(()); dict([1]); float('z'); [1][1:][0]; x[0][0]
x.tolist()[9]; len(5); 5[0]; 5(); abs('a'); sorted([1, 'a']); max(1, 'a'); 'a' + 1; [1] + (2,)
{}[[]]; {[]: 1}; {[1]}; set([[1]]); iter(5); next(5); list(zip(5)); list(enumerate(5))
list(map(5, [1])); list(filter(None, 5)); range('a'); int([]); float(None); 'abc'.foo()
'a'.join([1]); '%d' % 'a'; '{}'.format(); f'{1:q}'; isinstance(1, 2); issubclass(1, int)
getattr(1, 'q'); hash([]); chr(-1); ord('ab'); pow(0, -1); divmod(1, 'a'); round('a'); sum(['a'])
any(5); all(5); list(reversed(5)); [1]['a']; (1,)['a']; 'a'['b']; bytes(-1); list(None); x['a']
x[0, 0, 0, 0]; torch.zeros('a'); torch.add(1); x + None; x.view(7); x @ x[:2]; torch.relu(None)
dict(3); [*7]; {**3}; (*None,); tuple(3); set(4); frozenset(5); deque(6); sum(5); sorted(5)
max(5); min(None); ','.join(5); [1].extend(5); {}.update(5); [].remove(3); {1}.remove(2)
{}.popitem(); {}.pop(1); set().pop(); 'a'.index('b'); (1, 2).index(3); [2].insert('a', 1)
unpacked(5); unpacked((1,)); unpacked([1, 2, 3]); looped(5); deleted([1], 4); deleted({}, 'a')
deleted((1,), 0); stored((1,), 0); stored('a', 0); stored([1], 5); stored(5, 'q'); called(1, 2, 3)
called(); called(q=1); raised(ValueError('a', 1)); raised(KeyError('k')); raised(5); asserted()
unbound(); H.nothing; H.method(1, 2); H[0]; H(); H + 1; -H; len(H); list(H); 1 in H; H < H
with_context(5); None.foo; None + 1; None[0]; None(); x.add_(torch.ones(7)); torch.cat([])
torch.stack([x, x[:2]]); x.reshape(2, 2); x.sum(4); x.expand(2); x.squeeze(5); x.t().mm(x)"""

FUNCTIONS = """
import torch
from collections import deque
T, L, S = (1, 2), [1, 2], "ab"
class Held:
    def method(self):
        return 1
H = Held()
def unpacked(v):
    a, b = v
    return a
def looped(v):
    for k in v:
        pass
    return 1
def deleted(v, k):
    del v[k]
    return 1
def stored(v, k):
    v[k] = 1
    return 1
def called(a):
    return a
def raised(v):
    raise v
def asserted():
    assert S == "q", "text"
def unbound():
    if S == "q":
        k = 1
    return k
def with_context(v):
    with v:
        return 1
"""
USES = [use for line in REFUSED.splitlines() for use in line.split("; ")]


def outcome(function: Callable[[Tensor], Any], x: Tensor) -> Any:
    try:
        return str(function(x))
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("group", range(8))
def test_an_arm_raises_what_eager_raises_where_it_is_taken(group: int, tmp_path: Path) -> None:
    uses = USES[group::8]
    bodies = [
        f"def f{n}(x):\n    if x.sum() > 0:\n        return x * 2, {use}\n    return x\n"
        for n, use in enumerate(uses)
    ]
    functions = defined(FUNCTIONS + "".join(bodies), {}, tmp_path)
    wrong = list[Any]()
    for n, use in enumerate(uses):
        f = functions[f"f{n}"]
        fast = stretto.compile(f, backend="interpreter")
        for x in (-X, X, -X):
            expected, found = outcome(f, x.clone()), outcome(fast, x.clone())
            is_class = isinstance(found, type) and isinstance(expected, type)
            if not (issubclass(found, expected) if is_class else found == expected):
                wrong.append((use, expected, found))
    assert not wrong
