"""Random expressions of Python's values: their results are those of Python, or they are refused.

Each is evaluated with all values known, with one number that the run decides in the place of a
literal, and in an arm of a branch on a tensor.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stretto
from stretto.errors import CaptureError
from tests.frontends.python.checks import defined, identical, outcome

FORMS = """\
{a} + {b}; {a} - {b}; {a} * {b}; {a} / {b}; {a} // {b}; {a} % {b}; {n} ** {m}; -{a}; +{a}; ~{a}
{a} & {b}; {a} | {b}; {a} ^ {b}; {a} << {m}; {a} >> {m}; {a} == {b}; {a} != {b}; {a} < {b}
{a} <= {b}; {a} > {b}; {a} >= {b}; {a} is None; {a} in {b}; {a} not in {b}; {a} and {b}
{a} or {b}; not {a}; {a} if {b} else {c}; {a} < {b} < {c}; {a}[{b}]; {a}[{n}]; {a}[{n}:{m}]
{a}[::{n}]; ({a}, *{b}); [*{a}, {b}]; {{**{a}, {b}: {c}}}; {{{a}: {b}}}; {{{a}, {b}}}
len({a}); sorted({a}); sorted({a}, reverse={b}); min({a}); max({a}, {b}); min({a}, default={b})
sum({a}); sum({a}, {b}); list({a}); dict({a}); set({a}); tuple({a}); frozenset({a}); str({a})
repr({a}); ascii({a}); int({a}); float({a}); bool({a}); complex({n}, {m}); abs({a})
round({a}); round({n}, {m}); divmod({a}, {b}); pow({n}, {m}, {k}); list(reversed({a}))
list(enumerate({a}, {n})); list(zip({a}, {b})); list(map(str, {a})); list(filter(None, {a}))
any({a}); all({a}); list(range({n}, {m})); list(range({n}, {m}, {k})); {n} in range({m}, {k})
hash({a}) == hash({b}); isinstance({a}, (int, str)); type({a}).__name__; bin({n}); hex({n})
chr({n} + 70); ord({a}); callable({a}); {a}.index({b}); {a}.count({b}); {a}.append({b})
{a}.pop({b}); {a}.pop(); {a}.insert({n}, {b}); {a}.extend({b}); {a}.remove({b}); {a}.get({b}, {c})
{a}.setdefault({b}, {c}); {a}.update({b}); list({a}.items()); list({a}.values()); {a}.keys() & {b}
{a}.copy(); {a}.union({b}); {a}.issubset({b}); {a}.isdisjoint({b}); {a}.add({b}); {a}.discard({b})
{a}.join({b}); {a}.split({b}); {a}.replace({b}, {c}); {a}.upper(); {a}.startswith({b})
{a}.find({b}); {a}.strip(); {a}.zfill({n}); {a}.center({n}); {a}.isdigit(); {a}.partition({b})
'%s|%r' % ({a}, {b}); '%d' % {a}; '%5.2f' % {a}; '{{}}:{{!r}}'.format({a}, {b}); format({a})
shown({a}); f'{{{n}:03d}}'; format({a}, '.2f'); [v for v in {a} if v]; {{v: {b} for v in {a}}}
{{v for v in {a}}}; list(v for u in {a} for v in u); changed({a}, {b}, {c}); deleted({a}, {b})
unpacked({a}); matched({a}); raised({a}, {b}); looped({a}); {n}.bit_length(); {n}.conjugate()
closed({a}, {b}); generated({a}); sorted({a}, key=lambda v: -v); sorted({a}, key=str)
first({a}); starred({a}); chained({a}, {b}); counted({a}); ({a}).real; ({n}).numerator"""
FUNCTIONS = """
import functools, itertools
def changed(v, k, w):
    v[k] = w
    return v
def deleted(v, k):
    del v[k]
    return v
def unpacked(v):
    a, *b = v
    return a, b
def starred(v):
    *a, b = v
    return a, b
def matched(v):
    match v:
        case []: return "empty"
        case [int(a), *b]: return a, b
        case {"a": a, **b}: return a, b
        case int() | float(): return "number"
        case str(): return "text"
        case _: return None
def raised(v, w):
    try:
        return v[w]
    except (KeyError, IndexError) as error:
        return type(error).__name__, error.args
    finally:
        v = None
def looped(v):
    total = 0
    for k in v:
        if not k:
            continue
        total += k
    else:
        total = [total]
    return total
def shown(v):
    return f"{v!r:>8}|{v}|{v!s}"
def closed(v, w):
    def inner():
        nonlocal v
        v = [v, w]
        return v
    inner()
    return inner()
def generated(v):
    def inner():
        got = yield 1
        yield got
        yield from v
    it = inner()
    return [next(it), it.send(v), *it]
def first(v):
    return next(iter(v), "none")
def chained(v, w):
    return list(itertools.chain(v, w))
def counted(v):
    return functools.reduce(lambda a, b: a + b, v)
"""
_numbers = st.one_of(
    st.integers(-4, 6).map(repr), st.sampled_from(["0.5", "-1.5", "2.0", "True", "False"])
)
_atoms = st.one_of(
    _numbers, st.sampled_from(["None", "''", "'a'", "'b,c'", "'12'", "' x '", "b'a'"])
)
_values = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(inner, max_size=3).map(lambda items: f"({''.join(f'{i}, ' for i in items)})"),
        st.lists(_atoms, min_size=1, max_size=3).map(lambda items: f"{{{', '.join(items)}}}"),
        st.lists(st.tuples(_atoms, inner), max_size=3).map(
            lambda pairs: f"{{{', '.join(f'{key}: {item}' for key, item in pairs)}}}"
        ),
    ),
    max_leaves=4,
)
_SMALL = st.integers(-3, 4).map(repr)
_forms = st.sampled_from([form for line in FORMS.splitlines() for form in line.split("; ")])


@st.composite
def _expressions(draw: st.DrawFn) -> tuple[str, str]:
    """An expression, and the same one with a number of the run in the place of a literal."""
    form = draw(_forms)
    parts = {name: f"({draw(_values)})" for name in "abc"} | {
        name: f"({draw(_SMALL)})" for name in "nmk"
    }
    static = form.format(**parts)
    name = draw(st.sampled_from([name for name in "abcnmk" if f"{{{name}}}" in form] or ["a"]))
    late = {"a": "(y)", "b": "i", "c": "t"}.get(name, "(i)")
    if name == "a" and draw(st.booleans()):
        late = draw(st.sampled_from(["[i, 2]", "(i, y)", "({'a': i})", "({1: y})", "i", "t"]))
    return static, form.format(**(parts | {name: late}))


BODIES = {
    "known": "    return {static}\n",
    "arm": "    if x.sum() > 0:\n        return {static}\n    return 'other'\n",
    "late": "    i, y, t = int(x[0]), x[1].item(), bool(x[1] > 0)\n    return {late}\n",
    "late in arm": (
        "    i, y = int(x[0]), x[1].item()\n    t = bool(x[1] > 0)\n"
        "    if y > 0:\n        return {late}\n    return 'other'\n"
    ),
}
INPUTS = [torch.tensor(pair, dtype=torch.float64) for pair in ((2.0, 1.5), (-1.0, 0.5), (0.0, -2))]


@given(st.lists(_expressions(), min_size=4, max_size=4))
@settings(max_examples=25, deadline=None)
def test_as_in_python(expressions: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert not _differences(expressions, Path(folder))


def _differences(expressions: list[tuple[str, str]], folder: Path) -> list[Any]:
    text = FUNCTIONS
    for number, (static, late) in enumerate(expressions):
        for name, body in BODIES.items():
            head = f"def f{number}_{name.replace(' ', '_')}(x):\n"
            text += head + body.replace("{static}", static).replace("{late}", late)
    made = defined(text, {}, folder)
    functions = {name: item for name, item in made.items() if name[0] == "f" and "_" in name}
    wrong = list[Any]()
    for name, function in functions.items():
        if not callable(function):
            continue
        fast = stretto.compile(function, backend="interpreter")
        for x in INPUTS:
            wanted = outcome(function, x)
            try:
                found = outcome(fast, x)
            except CaptureError:
                break
            if not identical(found, wanted):
                number = int(name[1 : name.index("_")])
                wrong.append((name, expressions[number], x, wanted, found))
    return wrong
