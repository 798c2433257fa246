"""Random functions of numbers of an instance, captured, against Python itself: values, their types
and errors. Ints beyond 64 bits raise OverflowError."""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable
from itertools import count
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.batching.interpreter import interpret
from stretto.batching.primitives import in_64_bits
from stretto.errors import CaptureError
from tests.batching.agree import outcome
from tests.batching.test_capture import captured

INTS = (0, 1, -1, 3, -7, 40, 2**31, 2**53 + 1, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -2.5, 0.125, 1e10, 9007199254740992.0, 1e308, math.inf, math.nan)
COLUMNS = {
    "a": st.sampled_from(INTS),
    "b": st.sampled_from(FLOATS),
    "c": st.booleans(),
    "u": st.sampled_from((*INTS[:6], *FLOATS[:6])),
}
"""The arguments: an int, a float, a bool, and a number of one of two types."""
BINARY = ("+", "-", "*", "/", "//", "%", "&", "|", "^", ">>", "<", "<=", ">", ">=", "==", "!=")
CALLS = (
    *("abs", "int", "float", "bool", "round", "math.floor", "math.ceil", "math.trunc"),
    *("math.sqrt", "math.exp", "math.log", "math.tanh", "math.fabs", "math.isnan", "math.isinf"),
    *("math.isfinite", "-", "+", "~", "not "),
)
CALLS_OF_TWO = ("min", "max", "math.copysign", "math.fmod", "math.hypot", "math.isclose")
LEAVES = (*"abcuxy", "0", "1", "-3", "2.5", "0.0", "True", "10")


class Complex(Exception):
    """Python's result is no number of an instance."""


def fit(value: Any) -> Any:
    if isinstance(value, complex):
        raise Complex
    return in_64_bits(value)


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions with parts. `@` marks each value that has to fit into 64 bits."""
    two = st.tuples(inner, inner)
    return st.one_of(
        st.builds(lambda op, x: f"@({x[0]} {op} {x[1]})", st.sampled_from(BINARY), two),
        st.builds(lambda x: f"@({x[0]} ** ({x[1]} % 5 - 1))", two),
        st.builds(lambda x, n: f"@({x} ** {n})", inner, st.sampled_from((2, -1, 0.5, 3))),
        st.builds(lambda x: f"@({x[0]} << {x[1]} % 70)", two),
        st.builds(lambda name, x: f"@({name}({x}))", st.sampled_from(CALLS), inner),
        st.builds(lambda name, x: f"{name}({', '.join(x)})", st.sampled_from(CALLS_OF_TWO), two),
        st.builds(lambda x, n: f"@(divmod({x[0]}, {x[1]})[{n}])", two, st.integers(0, 1)),
        st.builds(lambda x, n: f"round({x}, {n})", inner, st.integers(0, 3)),
        st.builds(lambda op, x: f"({x[0]} {op} {x[1]})", st.sampled_from(("and", "or")), two),
        st.builds(lambda x, c: f"({x[0]} if {c} else {x[1]})", two, inner),
        st.builds(lambda x: f"@(({x}).is_integer())", inner),
    )


EXPRESSIONS = st.recursive(st.sampled_from(LEAVES), grown, max_leaves=5)


@st.composite
def functions(draw: st.DrawFn) -> str:
    lines = ["def f(a, b, c, u):", " x, y = 1, 0.5"]
    for _ in range(draw(st.integers(1, 3))):
        target = draw(st.sampled_from("xy"))
        assignment = f"{target} = {draw(EXPRESSIONS)}"
        match draw(st.sampled_from(("plain", "branch", "loop"))):
            case "branch":
                lines += [f" if {draw(EXPRESSIONS)}:", f"  {assignment}"]
                if draw(st.booleans()):
                    lines += [" else:", f"  {target} = {draw(EXPRESSIONS)}"]
            case "loop":
                lines += [" for i in range(3):", f"  {assignment}"]
            case _:
                lines.append(f" {assignment}")
    return "\n".join((*lines, " return x, y", ""))


NUMBER = count()


def made(text: str) -> Callable[..., Any]:
    name = f"<numbers {next(NUMBER)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {"math": math, "fit": fit}
    exec(compile(text, name, "exec"), space)
    return space["f"]


def run(text: str, columns: list[tuple[Any, ...]]) -> None:
    function, reference = made(text.replace("@", "")), made(text.replace("@", "fit"))
    try:
        program = captured(function, *columns)
    except CaptureError as error:
        assert "is combined with one that depends on a tensor" in str(error)
        return  # a known int beyond 64 bits
    for args in zip(*columns, strict=True):
        wanted = outcome(lambda args=args: reference(*args))
        if isinstance(wanted, Complex):
            continue
        found = outcome(lambda args=args: interpret(program, args))
        if isinstance(wanted, OverflowError) and not isinstance(found, OverflowError):
            wanted = outcome(lambda args=args: function(*args))  # known ints have any size
        shown = f"wanted {wanted!r}, found {found!r} for {args!r}"
        assert type(wanted) is type(found), shown
        if isinstance(wanted, Exception):
            assert str(wanted) == str(found), shown
        else:
            assert repr(wanted) == repr(found), shown


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(functions(), st.lists(st.tuples(*COLUMNS.values()), min_size=2, max_size=5))
def test_as_in_python(text: str, instances: list[tuple[Any, ...]]) -> None:
    run(text, list(zip(*instances, strict=True)))
