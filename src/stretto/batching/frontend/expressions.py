"""Expressions: names, attributes, items, functions, calls, operators and formatted strings."""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable
from types import GeneratorType
from typing import Any, NoReturn

from stretto.batching.frontend.attributes import attribute
from stretto.batching.frontend.comparisons import compare
from stretto.batching.frontend.dispatch import apply, at, evaluate, evaluates
from stretto.batching.frontend.displays import (
    comprehension,
    first_plan,
    known_comprehension,
    parts_of,
    quantified,
)
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.function_builder import Draft, PathEnds
from stretto.batching.frontend.items import subscript
from stretto.batching.frontend.joins import bound, either
from stretto.batching.frontend.operators import binary, unary
from stretto.batching.frontend.patterns import narrow
from stretto.batching.frontend.truth import is_plain, joined, read_number, truth
from stretto.batching.frontend.values import (
    NONE,
    ChoiceValue,
    Closure,
    Dynamic,
    IterableValue,
    SliceValue,
    Static,
    Text,
    TupleValue,
    Unbound,
    Value,
    constant,
    is_static,
)
from stretto.batching.frontend.walks import ItemsPlan, KnownPlan, known_parts, listed, plan_of
from stretto.batching.markers import concurrent
from stretto.batching.passes.effects import forked
from stretto.ir.core import Literal, Operand
from stretto.ir.types import Scalar, TensorType


@evaluates(ast.Constant)
def _constant(frame: Frame, node: ast.Constant) -> Value:
    return Static(node.value)


@evaluates(ast.Name)
def _name(frame: Frame, node: ast.Name) -> Value:
    return lookup(frame, node.id)


def lookup(frame: Frame, name: str) -> Value:
    """Return the value of a name by Python's scoping rules."""
    found = _local(frame, name)
    if found is not None:
        return found
    if name in frame.free:
        return Static(frame.free[name])
    if name in frame.globals:
        value = frame.globals[name]
        frame.evaluation.read("global", frame.globals, name, value)
        return Static(value)
    if hasattr(builtins, name):
        return Static(getattr(builtins, name))
    frame.stop(NameError, f"name '{name}' is not defined")


def _unbound(frame: Frame, scope: Frame, name: str) -> NoReturn:
    if scope is frame:
        message = f"cannot access local variable '{name}' where it is not associated with a value"
        frame.stop(UnboundLocalError, message)
    message = f"cannot access free variable '{name}' where it is not associated with a value"
    frame.stop(NameError, f"{message} in enclosing scope")


def _bound(frame: Frame, scope: Frame, name: str, value: ChoiceValue) -> Value:
    return bound(frame, value, lambda: _unbound(frame, scope, name))


def _local(frame: Frame, name: str) -> Value | None:
    scope: Frame | None = frame
    while scope is not None:
        if name in scope.locals:
            value = scope.locals[name]
            if isinstance(value, Unbound):
                _unbound(frame, scope, name)
            if isinstance(value, ChoiceValue):
                value = scope.locals[name] = _bound(frame, scope, name, value)
            return value
        if name in scope.local_names:
            _unbound(frame, scope, name)
        if scope.outer is None and scope is not frame and name in scope.free:
            return Static(scope.free[name])
        scope = scope.outer
    return None


@evaluates(ast.NamedExpr)
def _named(frame: Frame, node: ast.NamedExpr) -> Value:
    value = evaluate(frame, node.value)
    frame.check_iterator(node.target.id, value)
    frame.locals[node.target.id] = value
    return value


@evaluates(ast.Attribute)
def _attribute(frame: Frame, node: ast.Attribute) -> Value:
    return attribute(frame, evaluate(frame, node.value), node.attr)


@evaluates(ast.Subscript)
def _subscript(frame: Frame, node: ast.Subscript) -> Value:
    return subscript(frame, evaluate(frame, node.value), evaluate(frame, node.slice))


@evaluates(ast.Slice)
def _slice(frame: Frame, node: ast.Slice) -> Value:
    parts = (node.lower, node.upper, node.step)
    found = (NONE if part is None else evaluate(frame, part) for part in parts)
    made = SliceValue(*(_position(frame, part) for part in found))
    if is_static(made):
        return Static(slice(*(constant(x) for x in (made.start, made.stop, made.step))))
    return made


def _position(frame: Frame, value: Value) -> Value:
    """Return a bound of a slice; that of a tensor is the number in it."""
    if isinstance(value, Dynamic) and isinstance(value.type, TensorType):
        return read_number(frame, value, int)
    return value


@evaluates(ast.Lambda)
def _lambda(frame: Frame, node: ast.Lambda) -> Value:
    return closure(frame, node)


def closure(frame: Frame, node: ast.Lambda | ast.FunctionDef) -> Closure:
    """Return the function of a definition inside a function."""
    made = frame.evaluation.definitions.get(node)
    if made is None:
        if isinstance(node, ast.Lambda):
            returned = ast.copy_location(ast.Return(node.body), node.body)
            made = ast.FunctionDef("<lambda>", node.args, [returned], [], None)
            ast.copy_location(made, node)
        else:
            made = node
        frame.evaluation.definitions[node] = made
    defaults = tuple(evaluate(frame, item) for item in node.args.defaults)
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    named = {arg.arg: evaluate(frame, item) for arg, item in pairs if item is not None}
    return Closure(made, frame, defaults, named, made.name)


@evaluates(ast.Call)
def _call(frame: Frame, node: ast.Call) -> Value:
    function = evaluate(frame, node.func)
    if isinstance(function, Static) and function.value is concurrent:
        return _concurrent(frame, node)
    match function, node.args:
        case Static(value), [ast.GeneratorExp() as items] if value is any or value is all:
            return quantified(frame, items, value is all)
        case _:
            pass
    args: list[Value] = []
    for item in node.args:
        if isinstance(item, ast.Starred):
            plan = plan_of(frame, argument(frame, item.value))
            if plan.known is None:
                frame.refuse("* of a list whose length the instance decides, in a call")
            args.extend(plan.known)
        else:
            args.append(argument(frame, item))
    kwargs: dict[str, Value] = {}
    for keyword in node.keywords:
        if keyword.arg is not None:
            kwargs[keyword.arg] = argument(frame, keyword.value)
            continue
        given = evaluate(frame, keyword.value)
        if not isinstance(given, Static) or not isinstance(given.value, dict):
            frame.refuse("** of a dict that differs from instance to instance, in a call")
        kwargs |= {name: Static(value) for name, value in given.value.items()}
    return apply(frame, function, args, kwargs)


def _concurrent(frame: Frame, node: ast.Call) -> Value:
    """Evaluate `stretto.concurrent(...)`: each argument is a body of a fork."""
    if node.keywords:
        frame.refuse("stretto.concurrent takes no keywords", "give it the values alone")
    if any(isinstance(item, ast.Starred) for item in node.args):
        # The instance decides the number of bodies: a loop, which the pass may make concurrent.
        return evaluate(frame, ast.copy_location(ast.Tuple(node.args, ast.Load()), node))
    values: list[Value] = []
    drafts: list[Draft] = []
    try:
        for item in node.args:
            drafts.append([])
            with frame.builder.into(drafts[-1]):
                values.append(argument(frame, item))
    except PathEnds:
        frame.builder.pend(lambda *several: sum(several, ()), *drafts)
        raise
    frame.builder.pend(lambda *several: forked(several), *drafts)
    return TupleValue(tuple(values))


def argument(frame: Frame, node: ast.expr) -> Value:
    """Return an argument of a call. The items of a list display in it are separate values."""
    with at(frame, node):
        if isinstance(node, ast.List):
            parts = parts_of(frame, node.elts)
            items = known_parts(parts)
            return listed(frame, parts) if items is None else TupleValue(items, is_list=True)
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            plan = first_plan(frame, node)
            items = known_comprehension(frame, node, plan)
            if isinstance(node, ast.GeneratorExp):
                made = (
                    ItemsPlan(comprehension(frame, node, plan))
                    if items is None
                    else KnownPlan(items)
                )
                return IterableValue(made, GeneratorType)
            if items is None:
                return comprehension(frame, node, plan)
            return TupleValue(items, is_list=True)
    return evaluate(frame, node)


# ---- Operators and conditional expressions.


_BINARY: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", operator.add),
    ast.Sub: ("sub", operator.sub),
    ast.Mult: ("mul", operator.mul),
    ast.Div: ("truediv", operator.truediv),
    ast.FloorDiv: ("floordiv", operator.floordiv),
    ast.Mod: ("mod", operator.mod),
    ast.Pow: ("pow", operator.pow),
    ast.MatMult: ("matmul", operator.matmul),
    ast.BitAnd: ("and", operator.and_),
    ast.BitOr: ("or", operator.or_),
    ast.BitXor: ("xor", operator.xor),
    ast.LShift: ("lshift", operator.lshift),
    ast.RShift: ("rshift", operator.rshift),
}


@evaluates(ast.BinOp)
def _binary(frame: Frame, node: ast.BinOp) -> Value:
    left = evaluate(frame, node.left)
    return binary_operator(frame, node.op, left, evaluate(frame, node.right))


def binary_operator(frame: Frame, op: ast.operator, left: Value, right: Value) -> Value:
    name, function = _BINARY[type(op)]
    return binary(frame, name, function, left, right)


def operator_name(op: ast.operator) -> str:
    """Return the name of an operator as in its special method."""
    return _BINARY[type(op)][0]


@evaluates(ast.UnaryOp)
def _unary(frame: Frame, node: ast.UnaryOp) -> Value:
    value = evaluate(frame, node.operand)
    match node.op:
        case ast.Not():
            condition = truth(frame, value)
            if isinstance(condition, bool):
                return Static(not condition)
            return frame.assign("not", Scalar.BOOL, condition)
        case ast.USub():
            return unary(frame, "neg", operator.neg, value)
        case ast.Invert():
            return unary(frame, "invert", operator.invert, value)
        case _:
            return unary(frame, "pos", operator.pos, value)


@evaluates(ast.BoolOp)
def _bool_operator(frame: Frame, node: ast.BoolOp) -> Value:
    return _bool_chain(frame, node.values, isinstance(node.op, ast.And))


def _bool_chain(frame: Frame, nodes: list[ast.expr], is_and: bool) -> Value:
    first, *rest = nodes
    value = evaluate(frame, first)
    if not rest:
        return value
    condition = truth(frame, value)
    if isinstance(condition, bool):
        return _bool_chain(frame, rest, is_and) if condition == is_and else value

    def others() -> Value:
        narrow(frame, first, is_and)
        return _bool_chain(frame, rest, is_and)

    def stays() -> Value:
        return Static(not is_and) if frame.type_of(value) is Scalar.BOOL else value

    arms = (others, stays) if is_and else (stays, others)
    return either(frame, condition, *arms)


@evaluates(ast.Compare)
def _compare(frame: Frame, node: ast.Compare) -> Value:
    left = evaluate(frame, node.left)
    return _compare_chain(frame, left, list(zip(node.ops, node.comparators, strict=True)))


def _compare_chain(frame: Frame, left: Value, pairs: list[tuple[ast.cmpop, ast.expr]]) -> Value:
    (op, node), *rest = pairs
    if isinstance(op, ast.In | ast.NotIn) and isinstance(node, ast.Set):
        node = ast.copy_location(ast.Tuple(node.elts, ast.Load()), node)
    right = evaluate(frame, node)
    found = compare(frame, op, left, right)
    if not rest:
        return found
    condition = truth(frame, found)
    if isinstance(condition, bool):
        return _compare_chain(frame, right, rest) if condition else found
    return either(
        frame, condition, lambda: _compare_chain(frame, right, rest), lambda: Static(False)
    )


@evaluates(ast.IfExp)
def _if_expression(frame: Frame, node: ast.IfExp) -> Value:
    condition = truth(frame, evaluate(frame, node.test))
    if isinstance(condition, bool):
        return evaluate(frame, node.body if condition else node.orelse)

    def arm(part: ast.expr, holds: bool) -> Value:
        narrow(frame, node.test, holds)
        return evaluate(frame, part)

    return either(frame, condition, lambda: arm(node.body, True), lambda: arm(node.orelse, False))


# ---- Strings with values in them.


def text_parts(frame: Frame, value: Value) -> tuple[Any, ...]:
    """Return a value as parts of a message."""
    match value:
        case Text(parts):
            return parts
        case Static(item):
            return (str(item),)
        case _:
            return (frame.operand(value),)


@evaluates(ast.JoinedStr)
def _joined(frame: Frame, node: ast.JoinedStr) -> Value:
    parts: list[str | Operand] = []
    for item in node.values:
        if isinstance(item, ast.Constant):
            parts.append(str(item.value))
            continue
        assert isinstance(item, ast.FormattedValue)
        value = evaluate(frame, item.value)
        if isinstance(value, Static):
            parts.append(_formatted(frame, item, value))
        elif item.format_spec is None and item.conversion == 114:
            parts.append(_shown(frame, value))
        elif item.format_spec is None and item.conversion in (-1, 115):
            parts.extend(text_parts(frame, value))
        else:
            frame.refuse("a format specification for a value of an instance is not supported")
    if all(isinstance(part, str) for part in parts):
        return Static("".join(part for part in parts if isinstance(part, str)))
    if all(isinstance(part, str | Literal) or is_plain(part.type) for part in parts):
        return joined(frame, parts)
    return Text(tuple(parts))


def _shown(frame: Frame, value: Value) -> Operand:
    """Return repr(x)."""
    given = frame.dynamic(value)
    if not is_plain(given.type):
        frame.refuse("repr() of a value of an instance is supported for ints and strings only")
    return frame.assign("repr", Scalar.STR, given.operand).operand


def _formatted(frame: Frame, item: ast.FormattedValue, value: Static) -> str:
    spec = "" if item.format_spec is None else constant(evaluate(frame, item.format_spec))
    shown: Any = value.value
    if item.conversion != -1:
        shown = {115: str, 114: repr, 97: ascii}[item.conversion](shown)
    return format(shown, spec)
