"""Programs that change lists, dicts and objects, against the interpreter."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.batching.host.host_program import HostProgram
from stretto.batching.instance_program import Body, InstanceProgram, instance_program
from stretto.batching.interpreter import interpret
from stretto.ir.core import Block, Literal, Variable
from stretto.ir.data import AssignOp, BreakOp, InstanceFunction, LoopOp, ReturnOp, body_of
from stretto.ir.ops import IfOp
from stretto.ir.types import DataType, DictType, ListType, Scalar, TupleType, UnionType
from tests.batching.host.execution import Executor

INT, NONE = Scalar.INT, Literal(None)
ITEM = UnionType(frozenset({INT, Scalar.NONE, ListType(0)}))
LIST, DICT = ListType(0), DictType(INT, 0)
STEPS = ListType(1)


def outcome(program: InstanceProgram, args: list[Any]) -> Any:
    try:
        return interpret(program, args)
    except Exception as error:
        return error


@cache
def machine() -> Executor:
    """f(steps): a list, another one and a dict, changed by steps (op, x, y)."""
    steps, step = Variable("steps", STEPS), Variable("step", TupleType((INT, INT, INT)))
    place, count, test = Variable("place", INT), Variable("count", INT), Variable("b", Scalar.BOOL)
    op, x, y = (Variable(name, INT) for name in ("op", "x", "y"))
    a, b, d = Variable("a", LIST), Variable("b", LIST), Variable("d", DICT)
    log, made = Variable("log", LIST), Variable("made", ITEM)

    def do(target: Variable | None, name: str, *args: Any, detail: Any = None) -> AssignOp:
        results = () if target is None else (target,)
        return AssignOp(name, tuple(args), detail, results=results)

    bool_ = Variable("bool", Scalar.BOOL)
    noted = Variable("noted", INT)
    one, none = ((do(None, "append", log, Literal(number)),) for number in (1, 0))
    arms: list[Body] = [
        (do(None, "append", a, x),),
        (do(None, "append", b, a),),
        (do(made, "pop", a), do(None, "append", log, made)),
        (do(made, "pop", a, x), do(None, "append", log, made)),
        (do(None, "insert", a, x, y),),
        (do(None, "put", a, x, y),),
        (do(made, "at", a, x), do(None, "append", log, made)),
        (do(None, "extend", a, b),),
        (do(None, "extend", a, a),),
        (do(None, "reverse", a),),
        (do(None, "clear", a),),
        (do(made, "copy", a), do(a, "copy", b), do(b, "cast", made, detail=LIST)),
        (do(a, "slice", a, x, y, NONE),),
        (do(a, "slice", a, NONE, NONE, x),),
        (do(b, "concat", a, b, detail=False),),
        (do(a, "to_list", b, detail=False),),
        (do(noted, "index", a, x), do(None, "append", log, noted)),
        (do(None, "store", d, x, y),),
        (do(None, "store", d, x, a),),
        (do(made, "lookup", d, x), do(None, "append", log, made)),
        (do(made, "lookup_or", d, x, y), do(None, "append", log, made)),
        (do(made, "remove", d, x), do(None, "append", log, made)),
        (do(b, "keys", d),),
        (do(a, "values", d),),
        (do(None, "clear", d),),
        (do(noted, "len", d), do(None, "append", log, noted)),
        (
            do(bool_, "contains", d, x),
            IfOp(bool_, body_of(one), body_of(none)),
        ),
        (
            do(bool_, "is", a, b),
            IfOp(bool_, body_of(one), body_of(none)),
        ),
        (
            do(bool_, "eq", a, b),
            IfOp(bool_, body_of(one), body_of(none)),
        ),
    ]
    chosen: Body = ()
    for number, arm in enumerate(arms):
        chosen = (do(test, "eq", op, Literal(number)), IfOp(test, body_of(arm), body_of(chosen)))
    result: DataType = TupleType((LIST, LIST, DICT, LIST))
    returned = Variable("returned", result)
    body: Body = (
        do(a, "list"),
        do(b, "list"),
        do(log, "list"),
        do(d, "dict"),
        do(place, "copy", Literal(0)),
        do(count, "len", steps),
        LoopOp(
            body_of(
                (
                    do(test, "ge", place, count),
                    IfOp(test, body_of((BreakOp(),)), Block()),
                    do(step, "at", steps, place),
                    do(op, "item", step, detail=0),
                    do(x, "item", step, detail=1),
                    do(y, "item", step, detail=2),
                    do(place, "add", place, Literal(1)),
                    *chosen,
                )
            )
        ),
        do(returned, "tuple", a, b, d, log),
        ReturnOp(returned),
    )
    program = instance_program(
        [InstanceFunction("f", Block((steps,), list(body)), result)],
        [],
        [ITEM, TupleType((INT, INT, INT))],
    )
    program.cells[1] = TupleType((INT, INT, INT))
    return Executor(HostProgram(program))


ARMS = 29
SAFE = (0, 0, 0, 1, 4, 7, 8, 9, 11, 12, 14, 15, 17, 17, 17, 18, 20, 22, 23, 25, 26, 27, 28)
operation = st.tuples(
    st.one_of(st.sampled_from(SAFE), st.integers(0, ARMS - 1)),
    st.integers(-3, 12),
    st.integers(-3, 12),
)


@pytest.mark.whole
@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(operation, max_size=25), max_size=20))
def test_lists_and_dicts(instances: list[list[tuple[int, int, int]]]) -> None:
    executor = machine()
    results = executor([instances])
    for steps, result in zip(instances, results, strict=True):
        expected = outcome(executor.host.program, [steps])
        assert type(result) is type(expected), (steps, result, expected)
        assert repr(result) == repr(expected), steps


@pytest.mark.whole
def test_a_large_dict() -> None:
    """More entries than are looked through one by one; many are removed and stored again."""
    steps = [(17, 7919 * n % 1009, n) for n in range(600)]
    steps += [(21, 7919 * n % 1009, 0) for n in range(0, 600, 2)]
    steps += [(17, 7919 * n % 1009, -n) for n in range(0, 600, 3)]
    executor = machine()
    [result] = executor([[steps]])
    assert result == interpret(executor.host.program, [steps])


def test_cyclic_and_shared_results() -> None:
    """b holds a, and a holds b's items: identity is kept."""
    steps = [(0, 1, 0), (1, 0, 0), (7, 0, 0), (1, 0, 0), (18, 3, 0)]
    a, b, d, _ = machine()([[steps]])[0]
    assert a[1] is a and b[0] is a and b[1] is a and d[3] is a
