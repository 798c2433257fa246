"""Each primitive in C++ against Python itself: values, types and errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.batching.host.host_program import HostProgram
from stretto.batching.instance_program import Body, InstanceProgram, instance_program
from stretto.batching.primitives import OVERFLOW, apply
from stretto.ir.core import Block, Literal, Op, Variable
from stretto.ir.data import AssignOp, InstanceFunction, ReturnOp, body_of
from stretto.ir.ops import IfOp
from stretto.ir.types import DataType, ListType, Scalar, UnionType, alternatives
from tests.batching.host.execution import Executor

NUMBER = UnionType(frozenset({Scalar.BOOL, Scalar.INT, Scalar.FLOAT}))
ANY = UnionType(NUMBER.items | {Scalar.NONE, Scalar.STR, ListType(0), ListType(0, True)})

ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
BITS = ("and", "or", "xor", "lshift", "rshift")
ORDER = ("lt", "le", "gt", "ge")
BINARY = (*ARITHMETIC, "min", "max", *ORDER, "eq", "ne", "is")
UNARY = ("neg", "abs", "to_int", "to_float", "round", "not", "truth")
TWO_OF_MATH = ("atan2", "copysign", "fmod", "hypot", "pow")
ONE_OF_MATH = (
    "sqrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "fabs",
    "erf",
    "erfc",
    "cbrt",
    "floor",
    "ceil",
    "trunc",
    "isnan",
    "isinf",
    "isfinite",
)

Case = tuple[str, Any]
"""A primitive and its detail."""


def unlike(program: InstanceProgram, case: Case, args: Sequence[Any]) -> Any:
    """What Python gives: the value, or the exception."""
    try:
        return apply(program, *case, list(args))
    except Exception as error:
        return error


@cache
def machine(cases: tuple[Case, ...], types: tuple[DataType, ...]) -> Executor:
    """f(op, *args): the primitive whose number is op. Compiled once for all examples."""
    op, test = Variable("op", Scalar.INT), Variable("test", Scalar.BOOL)
    args = tuple(Variable(f"a{n}", type_) for n, type_ in enumerate(types))
    body: Body = (ReturnOp(Literal(None)),)
    for number, (name, detail) in enumerate(cases):
        made = Variable(f"made{number}", ANY)
        arm: tuple[Op, ...] = (
            AssignOp(name, args, detail, results=(made,)),
            ReturnOp(made),
        )
        body = (
            AssignOp("eq", (op, Literal(number)), results=(test,)),
            IfOp(test, body_of(arm), body_of(body)),
        )
    program = instance_program(
        [InstanceFunction("f", Block((op, *args), list(body)), ANY)], [], [ANY]
    )
    return Executor(HostProgram(program))


def check(
    cases: Sequence[Case], types: Sequence[DataType], examples: Sequence[Sequence[Any]]
) -> None:
    executor = machine(tuple(cases), tuple(types))
    calls = [(number, *example) for number in range(len(cases)) for example in examples]
    columns = [[call[n] for call in calls] for n in range(len(types) + 1)]
    results = executor(columns)
    for (number, *args), result in zip(calls, results, strict=True):
        expected = unlike(executor.host.program, cases[number], args)
        if isinstance(expected, complex) or "complex" in str(expected):
            assert "complex" in str(result), (cases[number], args, result)
            continue
        assert type(result) is type(expected), (cases[number], args, result, expected)
        if cases[number] == ("math", "hypot") and math.isfinite(expected):
            # Python sums squares by itself; the C library's result may differ in the last bit.
            assert math.isclose(result, expected, rel_tol=2**-52), (args, result, expected)
            continue
        assert repr(result) == repr(expected), (cases[number], args)


ints = st.one_of(
    st.integers(-5, 70),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([-(2**63), 2**63 - 1, -1, 0, 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**31]),
)
floats = st.one_of(
    st.floats(-20, 20),
    st.floats(),
    st.sampled_from([0.0, -0.0, 0.5, 1.5, 2.5, -0.5, 1.0, 2.0**53, 2.0**63, -(2.0**63), 1e308]),
)
numbers = st.one_of(ints, floats, st.booleans())
texts = st.text(max_size=4)
values = st.recursive(
    st.one_of(numbers, st.none(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple)),
    max_leaves=5,
)
FORMS: dict[DataType, st.SearchStrategy[Any]] = {
    Scalar.INT: ints,
    Scalar.FLOAT: floats,
    Scalar.BOOL: st.booleans(),
    NUMBER: numbers,
}
PAIRS = [
    (Scalar.INT, Scalar.INT),
    (Scalar.FLOAT, Scalar.FLOAT),
    (Scalar.INT, Scalar.FLOAT),
    (Scalar.FLOAT, Scalar.BOOL),
    (Scalar.BOOL, Scalar.BOOL),
    (NUMBER, NUMBER),
]


@pytest.mark.parametrize("types", PAIRS, ids=lambda types: "-".join(map(str, types)))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_binary(types: tuple[DataType, ...], data: st.DataObject) -> None:
    pair = st.tuples(*(FORMS[type_] for type_ in types))
    names = BINARY if Scalar.FLOAT in types or NUMBER in types else (*BINARY, *BITS)
    cases = [(name, None) for name in names if name not in ("lshift", "pow")]
    check(cases, types, data.draw(st.lists(pair, min_size=1, max_size=40)))
    limited = st.tuples(FORMS[types[0]], st.one_of(st.integers(-3, 80), st.booleans()))
    if types[1] in (Scalar.INT, NUMBER):
        names = ("pow", "lshift") if types == (Scalar.INT, Scalar.INT) else ("pow",)
        check(
            [(x, None) for x in names],
            types,
            data.draw(
                st.lists(limited, max_size=40).map(lambda found: [(a, int(b)) for a, b in found])
            ),
        )
    else:
        check([("pow", None)], types, data.draw(st.lists(pair, max_size=40)))


@pytest.mark.parametrize("type_", FORMS, ids=str)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_unary_and_math(type_: DataType, data: st.DataObject) -> None:
    cases: list[Case] = [(name, None) for name in UNARY]
    cases += [("math", name) for name in ONE_OF_MATH]
    if type_ in (Scalar.INT, Scalar.BOOL):
        cases.append(("invert", None))
    kinds = [(kind,) for kind in sorted(alternatives(ANY), key=str)]
    cases += [("has_type", kind) for kind in kinds]
    cases += [("expect", (kind[0], "not what was expected")) for kind in kinds]
    check(cases, (type_,), data.draw(st.lists(st.tuples(FORMS[type_]), max_size=40)))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(numbers, numbers), max_size=40))
def test_math_of_two(examples: list[tuple[Any, Any]]) -> None:
    cases: list[Case] = [("math", name) for name in TWO_OF_MATH]
    check(cases, (NUMBER, NUMBER), examples)


@pytest.mark.whole
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(values, values), max_size=20))
def test_any_values(examples: list[tuple[Any, Any]]) -> None:
    same = [(x, x) for pair in examples for x in pair]
    cases: list[Case] = [(name, None) for name in ("eq", "ne")]
    check(cases, (ANY, ANY), [*examples, *same])
    kinds = [(kind,) for kind in sorted(alternatives(ANY), key=str)]
    one: list[Case] = [("truth", None), ("not", None), *(("has_type", kind) for kind in kinds)]
    check(one, (ANY,), [(x,) for pair in examples for x in pair])


@pytest.mark.whole
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(texts, texts), max_size=20))
def test_strs(examples: list[tuple[str, str]]) -> None:
    names = (*ORDER, "eq", "ne", "is", "join_str", "contains")
    check([(name, None) for name in names], (Scalar.STR,) * 2, examples)
    check([("len", None), ("truth", None)], (Scalar.STR,), [(a,) for a, _ in examples])


items = st.lists(st.one_of(st.integers(-2, 2), st.floats(-1, 1), st.booleans(), texts), max_size=5)
places = st.integers(-7, 7)
bounds = st.one_of(st.none(), places, st.sampled_from([2**63 - 1, -(2**63)]))
ITEMS = UnionType(frozenset({ListType(0), ListType(0, True)}))
BOUND = UnionType(frozenset({Scalar.NONE, Scalar.INT}))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.one_of(items, items.map(tuple)), bounds, bounds, bounds), max_size=20))
def test_slices(examples: list[tuple[Any, ...]]) -> None:
    check([("slice", None)], (ITEMS, BOUND, BOUND, BOUND), examples)


@pytest.mark.whole
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.one_of(items, items.map(tuple)), places), max_size=20))
def test_positions(examples: list[tuple[Any, Any]]) -> None:
    check([("at", None), ("repeat", None)], (ITEMS, Scalar.INT), examples)
    listed = [(list(found), place) for found, place in examples]
    check([("at", None), ("repeat", None)], (ListType(0), Scalar.INT), listed)
    one: list[Case] = [("len", None), ("to_list", False), ("to_list", True)]
    check(one, (ITEMS,), [(found,) for found, _ in examples])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(items, values), max_size=20))
def test_searches(examples: list[tuple[Any, Any]]) -> None:
    held = [(found, x) for found, _ in examples for x in found]
    check([("contains", None), ("index", None)], (ListType(0), ANY), [*examples, *held])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(items, items), max_size=20), st.lists(st.lists(ints, max_size=6)))
def test_whole_lists(examples: list[tuple[Any, Any]], sorted_: list[list[int]]) -> None:
    check([("concat", False)], (ListType(0), ListType(0)), examples)
    check([("sorted_ints", None)], (ListType(0),), [(found,) for found in sorted_])


def test_infinity_and_ints_of_more_than_64_bits() -> None:
    check([("pow", None)], (Scalar.FLOAT,) * 2, [(-math.inf, 0.5), (-math.inf, -1.5)])
    assert unlike(instance_program(), ("add", None), [2**63 - 1, 1]).args == (OVERFLOW,)
    assert math.isnan(unlike(instance_program(), ("add", None), [math.inf, -math.inf]))
