"""sorted()"""

from __future__ import annotations

import ast
import operator

from stretto.batching.frontend.arithmetic.comparisons import all_of, compare
from stretto.batching.frontend.arithmetic.numbers import binary
from stretto.batching.frontend.builtins.table import BUILTINS, all_static, builtin, natively
from stretto.batching.frontend.control.loops import dynamic_loop, nothing
from stretto.batching.frontend.data.items import subscript
from stretto.batching.frontend.data.lists import new_list
from stretto.batching.frontend.data.truth import truth
from stretto.batching.frontend.iteration.sources import members, plan_of
from stretto.batching.frontend.iteration.walks import iterate
from stretto.batching.frontend.state.dispatch import apply
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.statics import constant, is_static
from stretto.batching.frontend.state.values import Dynamic, Static, Value
from stretto.batching.program import Operand
from stretto.batching.types import ListType, Scalar


@builtin(sorted)
def _sorted(frame: Frame, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if all_static(args, kwargs):
        return natively(frame, sorted, args, kwargs)
    reverse = kwargs.get("reverse", Static(False))
    if not is_static(reverse):
        frame.refuse("sorted with a `reverse` that the instance decides")
    key = kwargs.get("key", Static(None))
    given = members(frame, args[0]) if constant(key) is None else args[0]
    made = frame.dynamic(BUILTINS[list](frame, [given], {}))
    assert isinstance(made.type, ListType)
    plain = constant(key) is None and not constant(reverse)
    if plain and frame.evaluation.item_type(made.type) is Scalar.INT:
        return frame.assign("sorted_ints", made.type, made.operand)
    return _inserted(frame, made, key, bool(constant(reverse)))


def _inserted(frame: Frame, items: Dynamic, key: Value, reverse: bool) -> Value:
    """A stable sort by insertion, with the comparisons of Python."""
    found = new_list(frame, frame.evaluation.cell(frame.site("sorted")), ())
    keys = new_list(frame, frame.evaluation.cell(frame.site("keys")), ())
    position = ".position"
    outer = frame.locals.get(position)

    def insert(item: Value) -> None:
        mine = item if constant(key) is None else apply(frame, key, [item])
        frame.locals[position] = frame.assign("len", Scalar.INT, keys.operand)

        def before() -> Value:
            return binary(frame, "sub", operator.sub, frame.locals[position], Static(1))

        def head() -> bool | Operand:
            def other() -> Value:
                theirs = subscript(frame, keys, before())
                pair = (theirs, mine) if reverse else (mine, theirs)
                return compare(frame, ast.Lt(), *pair)

            some = compare(frame, ast.Gt(), frame.locals[position], Static(0))
            return truth(frame, all_of(frame, [lambda: some, other]))

        def step() -> None:
            frame.locals[position] = before()

        dynamic_loop(frame, frozenset((position,)), head, step, nothing)
        place = frame.operand(frame.locals[position])
        for target, value in ((keys, mine), (found, item)):
            given = frame.dynamic(value)
            assert isinstance(target.type, ListType)
            frame.evaluation.grow(target.type.cell, given.type)
            frame.do("insert", target.operand, place, given.operand)

    iterate(frame, plan_of(frame, items), insert, frozenset((position,)))
    frame.locals.pop(position, None)
    if outer is not None:
        frame.locals[position] = outer
    return found
