"""Operators and conditional expressions."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from stretto.batching.frontend.arithmetic.comparisons import compare
from stretto.batching.frontend.arithmetic.numbers import binary, unary
from stretto.batching.frontend.control.joins import either
from stretto.batching.frontend.control.narrowing import narrow
from stretto.batching.frontend.data.truth import truth
from stretto.batching.frontend.state.dispatch import evaluate, evaluates
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import Static, Value
from stretto.batching.types import Scalar

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
    """The name of an operator within that of its special method."""
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
