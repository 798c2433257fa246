"""Functions that random ones (`--part python` of `make fuzz`) were reduced to: each was wrong once.

Results, state, what is printed and exceptions are compared with eager over several calls. A
function that is refused has to be so by a CaptureError that says why.
"""

from __future__ import annotations

import itertools

import pytest
import torch

import stretto
from checks.fuzz.outcome import Outcome
from checks.fuzz.source import Source
from checks.fuzz.trial import try_program
from stretto.errors import CaptureError

HEAD = """\
import itertools, torch, types

SEEN = []
SPACE = types.SimpleNamespace(n=1)
TOTAL = 0


def called(v):
    called.calls = getattr(called, "calls", 0) + 1
    return v * called.calls


class Place:
    def __init__(self, n):
        self.n = n

    def __index__(self):
        return self.n % 3


class Stop(Exception):
    pass

GROUPS = {}
LAST = {"h": None}
STEPS = torch.tensor(0)
"""

CALLS = """

def calls():
    for scale in (1.0, -1.0, 1.0):
        yield (torch.tensor([1.5, 2.0, 3.0]) * scale,)
    yield (torch.tensor([2.5, -1.0, 0.5, 4.0, 1.0]),)
"""

CALLS_WITH_INTS = """

def calls():
    for n in (3, 0, 3, 2, 1, 0):
        yield torch.tensor([1.5, 2.0, 3.0]) * n, n
"""

EQUAL = {
    "a function counts its calls in an attribute that it makes": """
def f(x):
    SPACE.n += 1
    return called(x), called.calls
""",
    "a tensor made of a number has dims": """
def f(x):
    p = x[0].item()
    return torch.linspace(0, p, 2), torch.linspace(p, p, 1), torch.logspace(0, p, 3)
""",
    "an object with __index__ as a position": """
def f(x):
    n = Place(int(x[0]))
    return [5, 6, 7][n], (1, 2, 3)[Place(1)], x[n]
""",
    "a result whose size data decide is not used": """
def f(x):
    torch.bincount(x.long().abs())
    return x
""",
    "a squeezed dim turns out to be 1": """
def f(x):
    return x[x > 2.9].squeeze()
""",
    "an exception of the program's own": """
def f(x):
    if x.sum() < 0:
        raise Stop(int(x[0]))
    return x
""",
    "any of an endless generator": """
def f(x):
    return any(k > 1 for k in itertools.cycle([1, 2])), any(k > 4 for k in itertools.count())
""",
    "an endless generator that the run ends": """
def f(x):
    n = int(x[0])
    for k in itertools.cycle([1, 2]):
        n -= k
        if n < 0:
            break
    return any(k > n for k in itertools.count()), n, k
""",
    "NaN among tuples that are compared": """
def f(x):
    p = [float(k) for k in x.log()[:3]]
    return min((k, i) for i, k in enumerate(p))
""",
    "the length of a range that the run makes empty": """
def f(x):
    n = int(x[0]) % 2
    return len(range(1, n)), len(range(n, -3)), len(range(4, n, 2))
""",
    "NaN is looked for by its identity": """
def f(x):
    values = [float(k) for k in x.log()[:3]]
    last = max(values)
    return values.index(last), last in values, values.count(last)
""",
    "a list of texts grows in an arm": """
def f(x):
    if x.sum() > 0.25:
        SEEN.append("x")
    return x
""",
    "a list of texts grows in an arm, and again behind it": """
def f(x):
    if x.sum() > 0.25:
        SEEN.append("x")
    SEEN.append("y")
    return x
""",
    "zip of an iterator with itself": """
def f(x):
    items = iter([1, 2, int(x[0])])
    return list(zip(items, items))
""",
    "the table of one of two objects": """
def f(x):
    space = types.SimpleNamespace(n=0)
    if x.sum() > 0:
        space = SPACE
    return vars(space)["n"]
""",
    "an integer tensor is filled with what it cannot hold": """
def f(x):
    STEPS.fill_(x.log()[0].item())
    return x
""",
}

EQUAL_WITH_INTS = {
    "a size is divided by zero in a try": """
def f(x, n):
    try:
        found = 6 // min(n, 2)
    except ZeroDivisionError:
        found = -1
    return x, found
""",
    "sizes as keys": """
def f(x, n):
    GROUPS.setdefault(n % 3, []).append(2)
    GROUPS[n % 2, "a"] = n
    LAST[n % 2] = n
    return x
""",
    "a size beside a tensor that is kept": """
def f(x, n):
    LAST["h"] = x * 0.5
    return x
""",
}

REFUSED = {
    "a with statement on one of two objects": (
        "on an object that is one of several",
        """
def f(x):
    lock = [types.SimpleNamespace(), torch.no_grad()][int(x[0]) % 2]
    with lock:
        return x
""",
    ),
    "globals()": (
        "globals() is called",
        """
def f(x):
    globals()["TOTAL"] = int(x[0])
    return x
""",
    ),
    "globals() is read": (
        "globals() is called",
        """
def f(x):
    return x * globals()["TOTAL"]
""",
    ),
}


def _outcome(name: str, text: str, calls: str = CALLS) -> Outcome:
    return try_program(Source(name, HEAD + text + calls, machines=("interpreter",)).program())


@pytest.mark.parametrize("name", EQUAL)
def test_equal(name: str) -> None:
    outcome = _outcome(name, EQUAL[name])
    assert outcome.verdict == "equal", outcome


@pytest.mark.parametrize("name", EQUAL_WITH_INTS)
def test_equal_with_ints(name: str) -> None:
    outcome = _outcome(name, EQUAL_WITH_INTS[name], CALLS_WITH_INTS)
    assert outcome.verdict == "equal", outcome


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    message, text = REFUSED[name]
    outcome = _outcome(name, text)
    assert outcome.verdict == "refused" and message in outcome.detail, outcome


def test_all_items_of_an_iterator_without_end() -> None:
    """Eager does not end."""

    def endless(x: torch.Tensor) -> list[object]:
        return list(zip(itertools.count(), itertools.cycle([x])))

    with pytest.raises(CaptureError, match="which has no end"):
        stretto.compile(endless, backend="interpreter")(torch.ones(2))
