"""Every operator and function of two values, for values of many kinds: as eager, or refused."""

from __future__ import annotations

import copy
import itertools
import math
import operator
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stretto
from stretto.errors import CaptureError

from ..checks import defined, identical

# Expressions of x, a float tensor with one axis, of n, an int, and of i, a tensor of ints.
KINDS = ["n", "len(x)", "n > 2", "int(i[0])", "x[0].item()", "bool(x[0] > 1)", "n * 0.5", "x", "i",
         "x[0]", "i[0]", "x > 1", "x[0] > 1", "x[x > 1]", "2", "-1.5", "True", "0", "2j", "None",
         "'ab'", "[1, n]", "(x, n)", "np.ones(2)"]  # fmt: skip

USES = """a + b; a - b; a * b; a / b; a // b; a % b; a ** b; a @ b; a << b; a >> b; a & b; a | b
a ^ b; a == b; a != b; a < b; a <= b; a > b; a >= b; a is b; a in [b]; a in (b, 1); [a] == [b]
(a, 1) < (b, 2); a and b; a or b; a if b else 3; not a, b; divmod(a, b); pow(a, b); max(a, b)
min(a, b); sum([a, b]); sorted([a, b]); round(a, b); abs(a), b; math.atan2(a, b)
math.copysign(a, b); math.fmod(a, b); math.hypot(a, b); math.isclose(a, b); math.gcd(a, b)
math.comb(a, b); math.ldexp(a, b); math.log(a, b); int(a), float(b); complex(a, b)
str(a) + str(b); f"{a}{b}"; "%s%s" % (a, b); isinstance(a, type(b)); type(a) is type(b)
range(a, b); list(range(a, b)); slice(a, b); x[a:b]; x[a], b; x[a, b]; x[a][b]; [1, 2, 3, 4][a:b]
[5, 6, 7][a], b; {a: 1}.get(b); {a: 1, b: 2}; {a, b}; len([a, b]); [a] * b; (a,) * b
[a, b].index(b); [a, b].count(a); operator.add(a, b); operator.iadd(a, b); operator.pow(a, b)
operator.eq(a, b); operator.floordiv(a, b); operator.contains([a], b); a.__add__(b)
a.__radd__(b); a.__eq__(b); a.__lt__(b); a.__mod__(b); torch.add(a, b); torch.sub(a, b)
torch.mul(a, b); torch.div(a, b); torch.pow(a, b); torch.remainder(a, b); torch.fmod(a, b)
torch.floor_divide(a, b); torch.eq(a, b); torch.lt(a, b); torch.maximum(a, b)
torch.minimum(a, b); torch.atan2(a, b); torch.where(x > 1, a, b); torch.logical_and(a, b)
torch.bitwise_and(a, b); torch.clamp(x, a, b); torch.full((2,), b), a; torch.full((a,), b)
torch.arange(a, b); torch.linspace(a, b, 3); torch.tensor([a, b]); torch.stack([a, b])
torch.cat([a, b]); torch.add(x, a, alpha=b); torch.lerp(x, x + 1, a), b; torch.isclose(a, b)
torch.equal(a, b); torch.allclose(a, b); torch.zeros(a, b); torch.ones((a, b)); x.expand(a, b)
x.reshape(a, b); x.repeat(a, b); x.roll(a, b); x.narrow(0, a, b); x.new_full((a,), b)
x.masked_fill(x > 1, a), b; x.clamp(a, b); x.unsqueeze(a), b; x.sum(a), b; x.add(a).mul(b)
torch.as_tensor(a), b; a.item(), b; a.dtype, b; len(a), b; list(a), b; tuple(a), b; bool(a), b
iter(a), b; zip(a, b); list(zip(a, b)); list(map(operator.add, a, b)); dict([(a, b)]); -a, b
+a, ~b; torch.result_type(a, b); torch.is_tensor(a), b; np.add(a, b); np.asarray(a), b
hash(a) == hash(b); [*a, b]; a[0], b; a[b]; a[b:]; a[:b]; a.shape, b; copy.copy(a), b
itertools.repeat(a, b); list(itertools.repeat(a, b)); list(enumerate(a, b)); any([a, b])
all([a, b]); a < b < 2; a == b == 1; changed(a, b); matched(a, b); augmented(a, b); looped(a, b)"""
TEXTS = [text.strip() for line in USES.splitlines() for text in line.split(";")]


def changed(a: Any, b: Any) -> Any:
    values = [0, 1, 2]
    values[a] = b
    return values


def matched(a: Any, b: Any) -> int:
    match a, b:
        case True, _:
            return 1
        case int(), float():
            return 2
        case ((2 | 3), None):
            return 3
        case [_, _], _:
            return 4
        case _:
            return 5


def augmented(a: Any, b: Any) -> Any:
    a += b
    a *= 2
    return a, b


def looped(a: Any, b: Any) -> Any:
    for step in range(a):
        b = b + step
    return b


NAMES = {
    "augmented": augmented, "changed": changed, "copy": copy, "itertools": itertools,
    "looped": looped, "matched": matched, "math": math, "np": np, "operator": operator,
    "torch": torch,
}  # fmt: skip
CALLS = [
    ([0.5, 2.0, 1.5], 3, [2, 0]),
    ([1.5, 0.25, 3.0, 1.0], 1, [0, 1, 2]),
    ([0.5, 2.0, 1.5], 3, [2, 0]),
    ([2.5, -1.0], 2, [-1, 3]),
]
FAILED = object()


def outcome(function: Any, call: tuple[list[float], int, list[int]]) -> Any:
    values, n, positions = call
    try:
        return function(torch.tensor(values), n, torch.tensor(positions))
    except CaptureError:
        raise
    except Exception:
        # Of which class an error is, other tests ask.
        return FAILED


def check(text: str, kinds: tuple[str, str], folder: Path) -> None:
    """Right, or refused, in each call."""
    a, b = kinds
    source = f"def program(x, n, i):\n    a = {a}\n    b = {b}\n    return {text}\n"
    folder = folder / str(len(list(folder.iterdir())))
    folder.mkdir()
    function: Any = defined(source, NAMES, folder)["program"]
    compiled = stretto.compile(function, backend="interpreter")
    for call in CALLS:
        wanted = outcome(function, call)
        try:
            found = outcome(compiled, call)
        except CaptureError:
            return
        assert identical(found, wanted) or one_use(wanted), (text, kinds, call, found, wanted)


def one_use(wanted: Any) -> bool:
    """Whether it is an iterator, which compares by identity alone."""
    values = wanted if isinstance(wanted, tuple) else (wanted,)
    return any(hasattr(value, "__next__") for value in values)


def drawn(kind: str, count: int) -> list[tuple[str, tuple[str, str]]]:
    """Uses of a value of a kind beside one of any kind."""
    choose = random.Random(KINDS.index(kind)).choice
    pairs = [(kind, choose(KINDS)) if number % 2 else (choose(KINDS), kind)
             for number in range(count)]  # fmt: skip
    return [(choose(TEXTS), pair) for pair in pairs]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")
def test_uses(kind: str, tmp_path: Path) -> None:
    for text, kinds in drawn(kind, 40):
        check(text, kinds, tmp_path)


# What was wrong, or an internal error, once.
FOUND = [
    ("slice(a, b)", ("int(i[0])", "n")), ("slice(a, b)", ("n", "len(x)")),
    ("a + b", ("int(i[0])", "2j")), ("complex(a, b)", ("x[0].item()", "n")),
    ("a ** b", ("i", "int(i[0])")), ("a.__add__(b)", ("n", "n * 0.5")),
    ("a.__eq__(b)", ("int(i[0])", "2")), ("a.__lt__(b)", ("n", "None")),
    ("x.narrow(0, a, b)", ("int(i[0])", "n")), ("x[a, b]", ("True", "int(i[0])")),
    ("list(range(a, b))", ("i[0]", "n")),
    ("a.__add__(b)", ("2j", "int(i[0])")), ("torch.result_type(a, b)", ("x[0].item()", "2")),
    ("x[a][b]", ("int(i[0])", "n > 2")), ("a.__radd__(b)", ("x[0].item()", "n")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kinds"), FOUND)
@pytest.mark.filterwarnings("ignore")
def test_pairs_that_were_wrong(text: str, kinds: tuple[str, str], tmp_path: Path) -> None:
    check(text, kinds, tmp_path)


class Counted(int):
    """Its methods call those of int."""

    def __add__(self, other: int) -> Counted:
        return Counted(super().__add__(other) + 1)

    def __mul__(self, other: int) -> int:
        return int.__mul__(self, other) + 1


def of_counted(x: torch.Tensor, n: int) -> Any:
    number = Counted(n)
    return x + (number + 2), number * 3, (number + 1) + 1, Counted(3) + n, number < n + 1


def test_a_class_derived_from_int() -> None:
    compiled: Any = stretto.compile(of_counted, backend="interpreter")
    for n in (1, 2, 3, 1):
        assert identical(compiled(torch.ones(2), n), of_counted(torch.ones(2), n))
