"""Displays of tuples, lists and dicts, and comprehensions."""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import GeneratorType
from typing import Any

from stretto.batching.frontend.attributes import new_dict
from stretto.batching.frontend.comparisons import negated
from stretto.batching.frontend.dispatch import apply, assign_to, evaluate, evaluates
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.functions import function_of
from stretto.batching.frontend.joins import branch
from stretto.batching.frontend.patterns import narrow
from stretto.batching.frontend.truth import append, new_list, truth
from stretto.batching.frontend.values import (
    Closure,
    Dynamic,
    IterableValue,
    Static,
    TupleValue,
    Value,
    constant,
    is_data,
    is_static,
    python_of,
)
from stretto.batching.frontend.walks import (
    ItemsPlan,
    IterationPlan,
    cell_of,
    iterate,
    known_parts,
    listed,
    plan_of,
)
from stretto.ir.core import Operand
from stretto.ir.types import ListType, Scalar

_Listing = ast.ListComp | ast.GeneratorExp | ast.SetComp
_Comprehension = _Listing | ast.DictComp


def parts_of(frame: Frame, nodes: list[ast.expr]) -> list[Value | IterationPlan]:
    """Return the items of a display, each evaluated once; a plan for each starred one."""
    return [
        plan_of(frame, evaluate(frame, node.value))
        if isinstance(node, ast.Starred)
        else evaluate(frame, node)
        for node in nodes
    ]


@evaluates(ast.Tuple)
def _tuple(frame: Frame, node: ast.Tuple) -> Value:
    parts = parts_of(frame, node.elts)
    items = known_parts(parts)
    if items is None:
        made = listed(frame, parts)
        return frame.assign(
            "to_list", ListType(cell_of(made), is_tuple=True), made.operand, detail=True
        )
    if all(isinstance(item, Static) for item in items):
        return Static(tuple(item.value for item in items if isinstance(item, Static)))
    return TupleValue(items)


@evaluates(ast.List)
def _list(frame: Frame, node: ast.List) -> Value:
    parts = parts_of(frame, node.elts)
    items = known_parts(parts)
    if items and not any(map(is_data, items)):
        return TupleValue(items, is_list=True)
    return listed(frame, parts)


@evaluates(ast.Dict)
def _dict(frame: Frame, node: ast.Dict) -> Value:
    if any(key is None for key in node.keys):
        frame.refuse("** in a dict display is not supported")
    keys = [evaluate(frame, key) for key in node.keys if key is not None]
    values = [evaluate(frame, value) for value in node.values]
    if keys and all(map(is_static, keys)) and not any(map(is_data, values)):
        return _table(frame, keys, values)
    if keys and all(isinstance(k, Static) and isinstance(k.value, str) for k in keys):
        named = dict(zip(map(constant, keys), values, strict=True))  # the last of equal keys
        return new_dict(frame, tuple(named), list(named.values()))
    cell = frame.evaluation.cell(frame.site("dict"))
    operands: list[Operand] = []
    for key, value in zip(keys, values, strict=True):
        given = frame.dynamic(value)
        frame.evaluation.grow(cell, given.type)
        operands += [frame.operand(key), given.operand]
    kinds = {frame.type_of(key) for key in keys}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None and keys:
        frame.refuse("the keys of a dict have several types", "use keys of one type")
    if kind is not None:
        if kind not in (Scalar.INT, Scalar.STR, Scalar.BOOL):
            frame.refuse(f"a key of a dict is {frame.show(kind)}", "use an int or a string as key")
        frame.evaluation.has_keys(cell, kind)
    return frame.assign("dict", frame.evaluation.dict_type(cell), *operands)


def _table(frame: Frame, keys: list[Value], values: list[Value]) -> Value:
    """Return a dict of functions or modules, which is only read."""
    found: dict[Any, Any] = {}
    for key, value in zip(keys, values, strict=True):
        if isinstance(value, Closure):
            value = Static(function_of(frame, value))
        if not isinstance(value, Static):
            frame.refuse("a dict of functions that the instance decides")
        found[python_of(key)] = value.value
    frame.evaluation.kept.append(found)
    return Static(found)


@evaluates(ast.Set)
def _set(frame: Frame, node: ast.Set) -> Value:
    items = known_parts(parts_of(frame, node.elts))
    if items is None:
        frame.refuse("* of a list whose length the instance decides, in a set display", "use set()")
    return apply(frame, Static(set), [TupleValue(items)])


@evaluates(ast.SetComp)
def _set_comprehension(frame: Frame, node: ast.SetComp) -> Value:
    return apply(frame, Static(set), [comprehension(frame, node, first_plan(frame, node))])


@evaluates(ast.ListComp, ast.GeneratorExp)
def _comprehension(frame: Frame, node: ast.ListComp | ast.GeneratorExp) -> Value:
    """Return a list; a generator is evaluated completely, as in `sum(...)`."""
    plan = first_plan(frame, node)
    if isinstance(node, ast.ListComp) and isinstance(node.elt, ast.Lambda):
        items = known_comprehension(frame, node, plan)
        if items is not None:
            return TupleValue(items, is_list=True)
    made = comprehension(frame, node, plan)
    return (
        IterableValue(ItemsPlan(made), GeneratorType)
        if isinstance(node, ast.GeneratorExp)
        else made
    )


def quantified(frame: Frame, node: ast.GeneratorExp, is_all: bool) -> Value:
    """Return any(...) or all(...) of a generator, which is evaluated only up to the item that
    decides it."""
    name = ".decided"
    outer = frame.locals.get(name)
    frame.locals[name] = Static(False)

    def body() -> None:
        found = truth(frame, evaluate(frame, node.elt))
        made: Value = Static(found) if isinstance(found, bool) else Dynamic(found, Scalar.BOOL)
        frame.locals[name] = negated(frame, made) if is_all else made

    _generators(frame, node.generators, first_plan(frame, node), body, name)
    decided = frame.locals.pop(name)
    if outer is not None:
        frame.locals[name] = outer
    return negated(frame, decided) if is_all else decided


def first_plan(frame: Frame, node: _Comprehension) -> IterationPlan:
    return plan_of(frame, evaluate(frame, node.generators[0].iter))


def comprehension(frame: Frame, node: _Listing, plan: IterationPlan) -> Dynamic:
    cell = frame.evaluation.cell(frame.site("comprehension"))
    made = new_list(frame, cell, ())
    _generators(
        frame, node.generators, plan, lambda: append(frame, made, evaluate(frame, node.elt))
    )
    return made


def known_comprehension(
    frame: Frame, node: ast.ListComp | ast.GeneratorExp, plan: IterationPlan
) -> tuple[Value, ...] | None:
    """Return the items of a comprehension over a plan of known length, without conditions; None
    for others."""
    if len(node.generators) != 1 or node.generators[0].ifs or plan.known is None:
        return None
    outer = dict(frame.locals)
    targets = {n.id for n in ast.walk(node.generators[0].target) if isinstance(n, ast.Name)}
    if isinstance(node.elt, ast.Lambda) and targets & _read_in(node.elt):
        frame.refuse(
            "a function reads the variable of a comprehension, which has its last value then",
            "bind it: lambda x, i=i: ...",
        )
    found: list[Value] = []
    for item in plan.known:
        assign_to(frame, node.generators[0].target, item)
        found.append(evaluate(frame, node.elt))
    frame.locals = outer
    return tuple(found)


@evaluates(ast.DictComp)
def _dict_comprehension(frame: Frame, node: ast.DictComp) -> Value:
    cell = frame.evaluation.cell(frame.site("dict"))
    made = frame.assign("dict", frame.evaluation.dict_type(cell))

    def store() -> None:
        key = frame.dynamic(evaluate(frame, node.key))
        value = frame.dynamic(evaluate(frame, node.value))
        frame.evaluation.grow(cell, value.type)
        if key.type not in (Scalar.INT, Scalar.STR, Scalar.BOOL):
            frame.refuse(f"a key of a dict is {frame.show(key.type)}", "use ints or strings")
        assert isinstance(key.type, Scalar)
        frame.evaluation.has_keys(cell, key.type)
        frame.do("store", made.operand, key.operand, value.operand)

    _generators(frame, node.generators, first_plan(frame, node), store)
    return made


def _read_in(function: ast.Lambda) -> set[str]:
    """Return the names that the body of a function reads, except its parameters."""
    names = {part.id for part in ast.walk(function.body) if isinstance(part, ast.Name)}
    return names - {part.arg for part in ast.walk(function.args) if isinstance(part, ast.arg)}


def _named_in(node: ast.AST | None) -> frozenset[str]:
    """Return the variables that `:=` assigns within a comprehension."""
    found = ast.walk(node) if node is not None else ()
    return frozenset(part.target.id for part in found if isinstance(part, ast.NamedExpr))


def _generators(
    frame: Frame,
    generators: list[ast.comprehension],
    plan: IterationPlan,
    body: Callable[[], None],
    until: str | None = None,
) -> None:
    """Emit the loops of generators; the first one's iterable, `plan`, is already evaluated. until:
    a local variable; evaluation stops once it is true."""
    first, *rest = generators
    outer = dict(frame.locals)

    def step(item: Value) -> None:
        assign_to(frame, first.target, item)
        ends = False if until is None else truth(frame, frame.locals[until])
        if ends is False:
            conditions(first.ifs)
        elif ends is not True:
            branch(frame, ends, (lambda: None, lambda: conditions(first.ifs)))

    def conditions(tests: list[ast.expr]) -> None:
        if not tests and not rest:
            return body()
        if not tests:
            inner = plan_of(frame, evaluate(frame, rest[0].iter))
            return _generators(frame, rest, inner, body, until)
        condition = truth(frame, evaluate(frame, tests[0]))
        if isinstance(condition, bool):
            return conditions(tests[1:]) if condition else None

        def holds() -> None:
            narrow(frame, tests[0], True)
            conditions(tests[1:])

        branch(frame, condition, (holds, lambda: None))
        return None

    stored = _named_in(frame.place)
    iterate(frame, plan, step, stored if until is None else stored | {until})
    hidden = {n.id for n in ast.walk(first.target) if isinstance(n, ast.Name)}
    frame.locals = {name: v for name, v in frame.locals.items() if name not in hidden}
    frame.locals |= {name: outer[name] for name in hidden if name in outer}
