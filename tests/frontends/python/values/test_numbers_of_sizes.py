"""Sizes, and what Python computes of them, are numbers and bools of Python wherever they go."""

from __future__ import annotations

import copy
import json
import math
import numbers
import operator
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import stretto
from stretto.errors import CaptureError
from stretto.frontends.python.tracing.symbolic_sizes import (
    CaptureSizes,
    SizePlan,
    SizeRange,
    SizeSource,
)
from stretto.ops.symints import backed_symint

from ..checks import defined, identical, outcome

# What is computed of an int n, which differs from call to call.
MADE = ["n > 2", "bool(n)", "n + 1", "-n", "n * 1.5", "x.shape[0] - n"]

USES = """b is True; b is not False; b is None; b == True; b != False; b == 1; 1.0 == b
b in (True,); b in [False]; b in {True: 1}; b in {1}; b in (0, 2); {1: 3, 0: 5}.get(b, 7)
[3, 5][b]; (3, 5)[int(b)]; b + 1; 1 + b; b + True; True - b; b * 3; b / 2; 2.0 ** b; -b; +b; ~b
b // 1; b % 2; 7 % (b + 4); b % 1.5; 2.5 % (b + 3); b // 0.7; 1 / b; 5 // b; b - b * 1.0
b << 1; b >> 1; 1 << b; 9 >> b; 6 & b; b & n; b & True; b ^ True; True & b; b | 2
b and 3; b or 3.0; not b; 3 if b else 5; bool(b) is b
int(b); float(b); bool(b); str(b); repr(b); f"{b}"; "%s" % b; type(b); type(b) is bool
isinstance(b, bool); isinstance(b, int); isinstance(b, numbers.Integral); issubclass(type(b), int)
b.__class__ is bool; hash(b) == 1; sum([b, b]); max(b, 0); min(b, 1.5); sorted([b, False])
all([b, True]); any([b, False]); [b].count(True); (True, False).index(b); [b] == [True]; {"k": b}
(b, 1) == (True, 1); {"k": b} == {"k": True}; b < 1; abs(b); round(b); divmod(b, 2); divmod(9, b)
range(b); list(range(b)); len(range(b)); "a" * b; (b, b); [b]; b; b.real; b.conjugate()
operator.is_(b, True); operator.not_(b); operator.eq(b, 1); math.floor(b); math.copysign(1, b)
math.log2(b); math.isqrt(b); math.exp(b); np.array(b); np.float32(b); torch.tensor(b)
torch.tensor([b, True]); torch.full((2,), b); x * b; x + b; x.float() ** b; x[: int(b)]; x[:b]
torch.where(x > 0, b, False); torch.ones(2) == b; x.masked_fill(x > 1, b); x if b is True else -x
torch.add(x, b); x.new_tensor(b); copy.deepcopy([b]); json.dumps(b); matched(b); dict([(b, 1)])
list(map(int, [b])); list(filter(None, [b])); [i for i in (1, 2) if b]; {b: 1}; len({b, True})
x[0].item() % b; x[0].item() // b; divmod(x[0].item(), b); int(x[1]) * b; x[0].item() < b"""
TEXTS = [text.strip() for line in USES.splitlines() for text in line.split(";")]


def matched(b: Any) -> int:
    match b:
        case True:
            return 1
        case 0:
            return 2
        case _:
            return 3


NAMES = {
    "copy": copy, "json": json, "math": math, "matched": matched, "np": np, "numbers": numbers,
    "operator": operator, "torch": torch,
}  # fmt: skip


def check(text: str, made: str, calls: Any, tmp_path: Any) -> None:
    """Right, or refused, in each call."""
    source = f"def program(x, n, m=0):\n    b = {made}\n    return {text}\n"
    function: Any = defined(source, NAMES, tmp_path)["program"]
    compiled = stretto.compile(function, backend="interpreter")
    for numbers_of_call in calls:
        size = 2 + numbers_of_call[0] % 3
        x = torch.linspace(0.5, 2.0, size)
        wanted = outcome(function, x.clone(), *numbers_of_call)
        try:
            found = outcome(compiled, x.clone(), *numbers_of_call)
        except CaptureError:
            return
        assert identical(found, wanted), (text, numbers_of_call, found, wanted)


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.filterwarnings("ignore")
def test_uses(made: str, part: int, tmp_path: Any) -> None:
    for text in TEXTS[part::4]:
        check(text, made, [(3,), (2,), (0,), (5,)], tmp_path)


class Writer:
    """Expressions of two ints n and m, of sizes and of literals."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def number(self, depth: int) -> str:
        choose = self.random.choice
        if not depth or self.random.random() < 0.15:
            literals = ["True", "False", "2", "3", "-2", "0.5", "1.5", "-1.5", "7", "1"]
            return choose(["n", "m", "n", "m", "n", "m", "x.shape[0]", *literals])
        one, other = self.number(depth - 1), self.number(depth - 1)
        match self.random.randrange(14):
            case 0:
                return f"{choose(['min', 'max'])}({one}, {other})"
            case 1 | 2:
                kinds = ["abs", "int", "float", "round", "bool", "-", "+", "not "]
                return f"({choose(kinds)}({one}))"
            case 3:
                return f"({one} if {self.condition(depth - 1)} else {other})"
            case 4:
                return f"({self.condition(depth - 1)})"
            case 5:
                return f"({one} ** {choose(['2', '3', '0', '0.5', '1'])})"
            case 6:
                return f"math.{choose(['sqrt', 'floor', 'ceil', 'trunc', 'fabs', 'log'])}({one})"
            case 7:
                return f"divmod({one}, {other})[{self.random.randrange(2)}]"
            case _:
                return f"({one} {choose(['+', '-', '*', '//', '%', '/', '+', '-', '*'])} {other})"

    def condition(self, depth: int) -> str:
        one, other = (self.number(max(depth - 1, 0)) for _ in range(2))
        match self.random.randrange(6 if depth > 0 else 4):
            case 4:
                joint = self.random.choice(["and", "or"])
                return f"({self.condition(depth - 1)} {joint} {self.condition(depth - 1)})"
            case 5:
                return f"({one} in ({other}, n))"
            case _:
                return f"({one} {self.random.choice(['<', '<=', '==', '!=', '>', '>='])} {other})"


@pytest.mark.parametrize("seed", range(8))
def test_random_expressions(seed: int, tmp_path: Any) -> None:
    writer = Writer(seed)
    calls = [(3, 2), (2, 5), (4, -1), (-3, 2), (0, 7), (1, 0), (1, 1), (5, -4), (-2, -2)]
    for number in range(15):
        text = writer.number(4) if number % 3 else f"x[0] * {writer.number(3)}"
        check(text, "n", calls, tmp_path)


def identity_of_int(x: torch.Tensor) -> Any:
    return id(int(x[0])) == 3


def identity_of_float(x: torch.Tensor) -> Any:
    return id(x.sum().item()) == 3


@pytest.mark.parametrize("function", [identity_of_int, identity_of_float])
def test_what_the_run_decides_has_no_identity(function: Any) -> None:
    compiled: Any = stretto.compile(function, backend="interpreter")
    with pytest.raises(CaptureError, match="identity"):
        compiled(torch.ones(2))


def test_sizes_of_other_threads_stay_those_of_torch() -> None:
    size = backed_symint(ShapeEnv(), "size", 5, 0, None)

    def asked() -> str:
        with pytest.raises(TypeError, match="unhashable"):
            hash(size)
        return str(size)

    usual = asked()
    plan = SizePlan.of({SizeSource(0, 0): SizeRange()})
    with CaptureSizes(plan).inferring(), ThreadPoolExecutor(1) as other:
        assert other.submit(asked).result() == usual
        assert hash(size) == hash(5)
