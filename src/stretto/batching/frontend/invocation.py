"""Calls of user functions: activations, parameters, recursion."""

from __future__ import annotations

import ast
from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from stretto.batching.frontend.dispatch import execute, impossible
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.function_builder import Draft, PathEnds, finished, scoped
from stretto.batching.frontend.joins import leave, merge, over_choices
from stretto.batching.frontend.sources import (
    FunctionSource,
    owned_names,
    private_lists,
    read_once_names,
)
from stretto.batching.frontend.values import (
    NONE,
    Closure,
    Dynamic,
    Method,
    Static,
    TupleValue,
    Unbound,
    Value,
    is_scalar,
    is_static,
    python_of,
)
from stretto.batching.instances.types import TypesGrew
from stretto.errors import SourceLocation
from stretto.frontends.python.source.syntax_trees import loads, stores
from stretto.ir.core import Block, Operand, Variable
from stretto.ir.data import InstanceFunction, InvokeOp
from stretto.ir.types import NEVER, TupleType
from stretto.passes.dce import drop_unused


@lru_cache(4096)
def _local_names(function: ast.FunctionDef) -> frozenset[str]:
    return stores(function.body) | {
        arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)
    }


def new_frame(
    frame: Frame, source: FunctionSource, bound: dict[str, Value], path: tuple[Hashable, ...]
) -> Frame:
    arguments = source.node.args
    made = Frame(
        frame.evaluation,
        frame.builder,
        source.name,
        source.file,
        source.globals,
        source.outer,
        source.free,
        source.code,
        path,
        bound,
        _local_names(source.node),
        caller=frame,
        owner=source.owner,
        place=source.node,
        owned=owned_names(source.node),
        private=private_lists(source.node),
        once=read_once_names(source.node),
        receiver=next((arg.arg for arg in (*arguments.posonlyargs, *arguments.args)), None),
    )
    for name, value in bound.items():
        frame.check_iterator(name, value, made.once)
    return made


def run_body(inner: Frame, node: ast.FunctionDef) -> None:
    """Evaluate the body of a function, with `return None` at its end."""
    try:
        execute(inner, node.body)
        leave(inner, NONE)
    except PathEnds:
        pass


# ---- The parameters of a call.


def bind(
    frame: Frame, source: FunctionSource, args: list[Value], kwargs: dict[str, Value]
) -> dict[str, Value]:
    """Return the parameters of a call by name, bound by Python's rules."""
    spec = source.node.args
    positional = [arg.arg for arg in (*spec.posonlyargs, *spec.args)]
    bound: dict[str, Value] = dict(zip(positional, args, strict=False))
    if len(args) > len(positional) and spec.vararg is None:
        frame.refuse(
            f"{source.name}() takes {len(positional)} positional arguments but {len(args)} "
            "were given"
        )
    if spec.vararg is not None:
        bound[spec.vararg.arg] = TupleValue(tuple(args[len(positional) :]))
    names = {arg.arg for arg in (*spec.args, *spec.kwonlyargs)}
    extra: dict[str, Value] = {}
    for name, value in kwargs.items():
        if name in bound and name in names:
            frame.refuse(f"{source.name}() got multiple values for argument '{name}'")
        if name in names:
            bound[name] = value
        elif spec.kwarg is not None:
            extra[name] = value
        else:
            frame.refuse(f"{source.name}() got an unexpected keyword argument '{name}'")
    if spec.kwarg is not None:
        if not all(map(is_static, extra.values())):
            frame.refuse(f"{source.name}() takes ** of values of the instance")
        bound[spec.kwarg.arg] = Static({name: python_of(v) for name, v in extra.items()})
    first = len(positional) - len(source.defaults)
    for name, value in zip(positional[first:], source.defaults, strict=True):
        bound.setdefault(name, value)
    for name, value in source.keyword_defaults.items():
        bound.setdefault(name, value)
    missing = [
        name for name in (*positional, *(a.arg for a in spec.kwonlyargs)) if name not in bound
    ]
    if missing:
        frame.refuse(f"{source.name}() misses the argument {missing[0]!r}")
    return {name: _as_parameter(frame, value) for name, value in bound.items()}


def _as_parameter(frame: Frame, value: Value) -> Value:
    """Return an argument as a parameter. A list display becomes a list, since the function may
    change it."""
    if isinstance(value, TupleValue) and value.is_list:
        return frame.dynamic(value)
    if isinstance(value, Unbound):
        frame.refuse("an argument is a variable that is not assigned on every path")
    return value


# ---- Recursive functions: called, not inlined; specialised for their static arguments.


def call_recursive(frame: Frame, source: FunctionSource, bound: dict[str, Value]) -> Value:
    return over_choices(frame, [], bound, lambda _, found: _call_with(frame, source, found))


def _call_with(frame: Frame, source: FunctionSource, bound: dict[str, Value]) -> Value:
    evaluation = frame.evaluation
    _widen(frame, source, bound)
    captured = _captured(frame, source)
    parts: list[Dynamic] = []
    key = (
        source.code,
        tuple((name, _key_part(frame, value, parts)) for name, value in sorted(bound.items())),
        tuple((name, _key_part(frame, value, parts)) for name, value in sorted(captured.items())),
    )
    location = SourceLocation(source.file, source.node.lineno, function=source.name)
    made, is_new = evaluation.outline(key, source.name, location)
    if is_new:
        _evaluate_outlined(frame, source, made, bound, captured)
    result = evaluation.results.get(key, NEVER)
    operands: tuple[Operand, ...] = tuple(part.operand for part in parts)
    if result == NEVER:
        frame.builder.emit(InvokeOp(made.function.name, operands, location=frame.location))
        impossible(frame, result)
    target = frame.builder.variable(source.node.name.strip("_<>") or "result", result)
    frame.builder.emit(
        InvokeOp(made.function.name, operands, results=(target,), location=frame.location)
    )
    found = Dynamic(target, result)
    if isinstance(result, TupleType):
        return _unpacked(frame, found, result)
    return found


def _unpacked(frame: Frame, value: Dynamic, type_: TupleType) -> Value:
    """Return the items of a tuple that a function returned, each in a variable."""
    items: list[Value] = []
    for number, item in enumerate(type_.items):
        part = frame.assign("item", item, value.operand, detail=number)
        items.append(_unpacked(frame, part, item) if isinstance(item, TupleType) else part)
    return TupleValue(tuple(items))


def _widen(frame: Frame, source: FunctionSource, bound: dict[str, Value]) -> None:
    """Make a static scalar data if it differs between nested calls of one function, such as a
    depth. Raises Again when that is found."""
    evaluation = frame.evaluation
    for name, value in bound.items():
        if not is_scalar(value):
            continue
        key = (source.code, name)
        if key not in evaluation.dynamic_parameters and _differs(frame, source, name, value):
            evaluation.dynamic_parameters.add(key)
            raise TypesGrew
        if key in evaluation.dynamic_parameters:
            bound[name] = frame.dynamic(value)


def _differs(frame: Frame, source: FunctionSource, name: str, value: Value) -> bool:
    assert isinstance(value, Static)
    caller: Frame | None = frame
    while caller is not None:
        if caller.code == source.code:
            other = caller.parameters.get(name)
            if not isinstance(other, Static) or type(other.value) is not type(value.value):
                return True
            if other.value != value.value:
                return True
        caller = caller.caller
    return False


def _captured(frame: Frame, source: FunctionSource) -> dict[str, Value]:
    """Return the values that a nested function reads from its enclosing scopes."""
    if source.outer is None:
        return {}
    found: dict[str, Value] = {}
    pending = [source.node]
    seen: set[int] = set()
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        for name in sorted(loads(node) - _bound_in(node)):
            value = _from_outer(source.outer, name)
            if value is None:
                continue
            if isinstance(value, Closure):
                pending.append(value.node)
            found[name] = value
    return found


def _bound_in(node: ast.FunctionDef) -> frozenset[str]:
    return stores(node.body) | {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}


def _from_outer(outer: Frame, name: str) -> Value | None:
    scope: Frame | None = outer
    while scope is not None:
        if name in scope.locals:
            return scope.locals[name]
        scope = scope.outer
    return None


def _key_part(frame: Frame, value: Value, parts: list[Dynamic]) -> Hashable:
    """Return an argument's part of an outlined function's key; add its data to `parts`."""
    match value:
        case Static(item):
            if is_scalar(value):
                return ("scalar", type(item), item)
            frame.evaluation.kept.append(item)
            return ("object", id(item))
        case Dynamic(_, type_):
            parts.append(value)
            return ("data", type_)
        case TupleValue(items, is_list):
            return ("tuple", is_list, tuple(_key_part(frame, item, parts) for item in items))
        case Closure(node):
            return ("closure", node)
        case Method(function, owner):
            return ("method", function, _key_part(frame, owner, parts))
        case _:
            parts.append(frame.dynamic(value))
            return ("data", parts[-1].type)


def _evaluate_outlined(
    frame: Frame,
    source: FunctionSource,
    made: Any,
    bound: dict[str, Value],
    captured: dict[str, Value],
) -> None:
    parameters: list[Variable] = []
    inner = new_frame(frame, source, {}, (made.key,))
    inner.builder = made.builder
    inner.result_key = made.key
    inner.locals = {
        name: _parameter(inner, value, name, parameters) for name, value in sorted(bound.items())
    }
    inner.parameters = dict(inner.locals)
    if source.outer is not None:
        around = {
            name: _parameter(inner, value, name, parameters)
            for name, value in sorted(captured.items())
        }
        inner.outer = _around(inner, source, around)
    draft: Draft = []
    with made.builder.into(draft):
        run_body(inner, source.node)
    function: InstanceFunction = made.function
    function.body = Block(tuple(parameters), list(finished(draft)))
    drop_unused(function)
    function.result = frame.evaluation.results.get(made.key, NEVER)


def _around(inner: Frame, source: FunctionSource, around: dict[str, Value]) -> Frame:
    """Return the enclosing scope of an outlined nested function, in which captured values are
    parameters."""
    assert source.outer is not None
    scope = Frame(
        inner.evaluation,
        inner.builder,
        source.outer.name,
        source.file,
        source.globals,
        None,
        source.free,
        ("around", source.code),
        inner.path,
        {},
        frozenset(),
        owner=source.owner,
    )
    for name, value in around.items():
        if isinstance(value, Closure):
            value = Closure(value.node, scope, value.defaults, value.keyword_defaults, value.name)
        scope.locals[name] = value
    return scope


def _parameter(frame: Frame, value: Value, name: str, parameters: list[Variable]) -> Value:
    """Return an argument as seen inside the function, with a new parameter for each part that is
    data."""
    match value:
        case Dynamic(_, type_):
            made = frame.builder.variable(name, type_)
            parameters.append(made)
            return Dynamic(made, type_)
        case TupleValue(items, is_list, names):
            inner = tuple(_parameter(frame, item, name, parameters) for item in items)
            return TupleValue(inner, is_list, names)
        case Method():
            return replace(value, owner=_parameter(frame, value.owner, name, parameters))
        case Static() | Closure():
            return value
        case _:
            made = frame.builder.variable(name, frame.type_of(value))
            parameters.append(made)
            return Dynamic(made, made.type)


# ---- Calls of user functions.


MOST_INLINED = 60
"""Largest depth of nested inlined calls."""


def call_function(
    frame: Frame, source: FunctionSource, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Return the value of a call of a user function: inlined, or called if it is recursive."""
    bound = bind(frame, source, args, kwargs)
    for value in bound.values():
        if isinstance(value, Dynamic):
            impossible(frame, value.type)
    evaluation = frame.evaluation
    if source.code in evaluation.outlined_code:
        return call_recursive(frame, source, bound)
    depth = 0
    caller: Frame | None = frame
    while caller is not None:
        if caller.code == source.code:
            evaluation.outlined_code.add(source.code)
            raise TypesGrew
        caller, depth = caller.caller, depth + 1
    if depth > MOST_INLINED:
        frame.refuse(f"calls of functions are nested more than {MOST_INLINED} levels deep")
    return _inline(frame, source, bound)


def _inline(frame: Frame, source: FunctionSource, bound: dict[str, Value]) -> Value:
    inner = new_frame(frame, source, bound, (*frame.path, frame.site()))
    label = inner.return_label = frame.builder.label()
    draft: Draft = []
    with frame.builder.into(draft):
        run_body(inner, source.node)
    frame.builder.pend(lambda body: scoped(label, body), draft)
    value = merge(inner, inner.returns)
    assert value is not None
    return value
