"""Assignments and what they bind."""

from __future__ import annotations

import ast
from typing import NoReturn

import torch

from stretto.batching.frontend.control.joins import stop_where
from stretto.batching.frontend.control.kinds import each_type
from stretto.batching.frontend.data.attributes import attribute, set_attribute
from stretto.batching.frontend.data.items import subscript
from stretto.batching.frontend.data.special import by_method, method_of
from stretto.batching.frontend.data.storing import delete_item, set_item
from stretto.batching.frontend.iteration.lists import extend, listed
from stretto.batching.frontend.iteration.sources import plan_of
from stretto.batching.frontend.state.dispatch import assign_to, assigns, evaluate, executes
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import (
    NONE,
    Dynamic,
    Iterator_,
    SliceValue,
    Static,
    Value,
)
from stretto.batching.frontend.syntax.expressions import argument
from stretto.batching.frontend.syntax.operators import binary_operator, operator_name
from stretto.batching.frontend.tensors.operands import is_tensor_like
from stretto.batching.program import Literal
from stretto.batching.types import ListType, Scalar, TupleType, alternatives


@executes(ast.Assign)
def _assign(frame: Frame, node: ast.Assign) -> None:
    if all(isinstance(target, ast.Tuple | ast.List) for target in node.targets):
        # Nothing else can hold the list that is unpacked.
        value = argument(frame, node.value)
    else:
        value = _assigned(frame, node.targets[0], node.value)
    for target in node.targets:
        assign_to(frame, target, value)


def _assigned(frame: Frame, target: ast.expr, node: ast.expr) -> Value:
    """The value that is assigned; a list that nothing else can hold is known item by item."""
    if isinstance(target, ast.Name) and target.id in frame.private and isinstance(node, ast.List):
        return argument(frame, node)
    return evaluate(frame, node)


@executes(ast.AnnAssign)
def _annotated(frame: Frame, node: ast.AnnAssign) -> None:
    if node.value is not None:
        assign_to(frame, node.target, _assigned(frame, node.target, node.value))


@assigns
def _bind(frame: Frame, target: ast.expr, value: Value) -> None:
    match target:
        case ast.Name(name):
            frame.check_iterator(name, value)
            frame.locals[name] = value
        case ast.Tuple(elts) | ast.List(elts):
            _unpack(frame, elts, value)
        case ast.Attribute(owner, name):
            set_attribute(frame, evaluate(frame, owner), name, value)
        case ast.Subscript(owner, index):
            set_item(frame, evaluate(frame, owner), evaluate(frame, index), value)
        case ast.Starred():
            frame.refuse("a starred target here")
        case _:
            frame.refuse(f"{type(target).__name__} as the target of an assignment")


def _unpack(frame: Frame, targets: list[ast.expr], value: Value) -> None:
    starred = [i for i, target in enumerate(targets) if isinstance(target, ast.Starred)]
    items = _known_parts(frame, value)
    if items is None:
        if isinstance(value, Iterator_):
            value = listed(frame, [plan_of(frame, value)])
        _unpack_list(frame, targets, value, bool(starred))
        return
    if starred:
        before, after = starred[0], len(targets) - starred[0] - 1
        if len(items) < before + after:
            _wrong_length(frame, len(items), before + after, at_least=True)
        middle = items[before : len(items) - after]
        parts = [*items[:before], listed(frame, list(middle)), *items[len(items) - after :]]
        targets = [t.value if isinstance(t, ast.Starred) else t for t in targets]
    else:
        if len(items) != len(targets):
            _wrong_length(frame, len(items), len(targets))
        parts = list(items)
    for target, part in zip(targets, parts, strict=True):
        assign_to(frame, target, part)


def _known_parts(frame: Frame, value: Value) -> tuple[Value, ...] | None:
    """What is unpacked, where it is known item by item."""
    if isinstance(value, Dynamic) and not isinstance(value.type, TupleType):
        kinds = list(alternatives(value.type))
        if any(isinstance(kind, ListType) for kind in kinds) and len(kinds) == 1:
            return None
        tuples = [kind for kind in kinds if isinstance(kind, TupleType)]
        if len(tuples) == 1 and Scalar.NONE in kinds and len(kinds) == 2:
            message = "cannot unpack non-iterable NoneType object"
            value = frame.assign("expect", tuples[0], value.operand, detail=(tuples[0], message))
    return plan_of(frame, value).known


def _wrong_length(frame: Frame, given: int, wanted: int, at_least: bool = False) -> NoReturn:
    if given < wanted:
        expected = f"expected {'at least ' if at_least else ''}{wanted}, got {given}"
        frame.stop(ValueError, f"not enough values to unpack ({expected})")
    frame.stop(ValueError, f"too many values to unpack (expected {wanted})")


def _unpack_list(frame: Frame, targets: list[ast.expr], value: Value, starred: bool) -> None:
    """A list whose length the instance decides."""
    given = frame.dynamic(value)
    length = frame.assign("len", Scalar.INT, given.operand)
    wanted = len(targets) - starred
    short = frame.assign("lt", Scalar.BOOL, length.operand, Literal(wanted))
    least = "at least " if starred else ""
    text = f"not enough values to unpack (expected {least}{wanted}, got "
    stop_where(frame, short.operand, ValueError, text, length.operand, ")")
    if not starred:
        long = frame.assign("gt", Scalar.BOOL, length.operand, Literal(wanted))
        text = f"too many values to unpack (expected {wanted})"
        stop_where(frame, long.operand, ValueError, text)
    for number, target in enumerate(targets):
        behind = any(isinstance(before, ast.Starred) for before in targets[:number])
        position = number - len(targets) if behind else number
        if not isinstance(target, ast.Starred):
            assign_to(frame, target, subscript(frame, given, Static(position)))
            continue
        stop = position + 1 - (len(targets) - number) if behind else number + 1 - len(targets)
        part = SliceValue(Static(number), Static(stop or None), NONE)
        found = frame.dynamic(subscript(frame, given, part))
        if isinstance(found.type, ListType) and found.type.is_tuple:
            cell = frame.evaluation.cell(frame.site("star"))
            frame.evaluation.grow(cell, frame.evaluation.item_type(found.type))
            found = frame.assign("to_list", ListType(cell), found.operand, detail=False)
        assign_to(frame, target.value, found)


@executes(ast.AugAssign)
def _augmented(frame: Frame, node: ast.AugAssign) -> None:
    match node.target:
        case ast.Name():
            load = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
            old = evaluate(frame, load)
            _check_in_place(frame, old, node)
            new = _in_place(frame, node.op, old, node.value)
            assign_to(frame, node.target, new)
        case ast.Attribute(owner_node, name):
            owner = evaluate(frame, owner_node)
            old = attribute(frame, owner, name)
            _check_in_place(frame, old, node)
            set_attribute(frame, owner, name, _in_place(frame, node.op, old, node.value))
        case ast.Subscript(owner_node, index_node):
            owner, index = evaluate(frame, owner_node), evaluate(frame, index_node)
            old = subscript(frame, owner, index)
            _check_in_place(frame, old, node)
            set_item(frame, owner, index, _in_place(frame, node.op, old, node.value))


def _in_place(frame: Frame, op: ast.operator, old: Value, node: ast.expr) -> Value:
    if isinstance(old, Dynamic) and isinstance(op, ast.Add):
        kinds = list(alternatives(old.type))
        if all(isinstance(kind, ListType) and not kind.is_tuple for kind in kinds):
            extend(frame, old, evaluate(frame, node))
            return old
    kinds = list(alternatives(old.type)) if isinstance(old, Dynamic) else []
    name = f"__i{operator_name(op)}__"
    if any(method_of(frame, kind, name) is not None for kind in kinds):
        given = evaluate(frame, node)

        def changed(one: Dynamic) -> Value:
            found = by_method(frame, one, name, given)
            return binary_operator(frame, op, one, given) if found is None else found

        return each_type(frame, old, changed)
    return binary_operator(frame, op, old, evaluate(frame, node))


def _check_in_place(frame: Frame, old: Value, node: ast.AugAssign) -> None:
    """`x += y` changes a tensor that others may hold. It is taken for `x = x + y` only where this
    variable alone can hold it."""
    is_static_tensor = isinstance(old, Static) and isinstance(old.value, torch.Tensor)
    if not is_tensor_like(old) and not is_static_tensor:
        return
    target = node.target
    if isinstance(target, ast.Name) and target.id in frame.owned:
        return
    shown = ast.unparse(target)
    frame.refuse(
        f"{shown} is a tensor that is changed in place, and may be held elsewhere",
        f"write {shown} = {shown} {_SYMBOLS[type(node.op)]} ...",
    )


_SYMBOLS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@", ast.Pow: "**",
    ast.FloorDiv: "//", ast.Mod: "%", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
    ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip


@executes(ast.Delete)
def _delete(frame: Frame, node: ast.Delete) -> None:
    for target in node.targets:
        match target:
            case ast.Name(name):
                frame.locals.pop(name, None)
            case ast.Subscript(owner, index):
                delete_item(frame, evaluate(frame, owner), evaluate(frame, index))
            case _:
                frame.refuse("del of an attribute")
