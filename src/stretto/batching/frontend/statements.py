"""Statements of the user's source."""

from __future__ import annotations

import ast
from typing import Any, NoReturn

import torch

from stretto.batching.frontend.attributes import attribute, by_method, method_of, set_attribute
from stretto.batching.frontend.dispatch import assign_to, assigns, evaluate, execute, executes
from stretto.batching.frontend.expressions import (
    argument,
    binary_operator,
    closure,
    operator_name,
    text_parts,
)
from stretto.batching.frontend.frame import Exit, Frame
from stretto.batching.frontend.function_builder import PathEnds
from stretto.batching.frontend.items import delete_item, set_item, subscript
from stretto.batching.frontend.joins import branch, each_type, leave, stop_where
from stretto.batching.frontend.loops import dynamic_loop, nothing
from stretto.batching.frontend.patterns import narrow
from stretto.batching.frontend.tensor_results import is_tensor_like
from stretto.batching.frontend.truth import truth
from stretto.batching.frontend.values import (
    NONE,
    Dynamic,
    IterableValue,
    SliceValue,
    Static,
    TupleValue,
    Value,
)
from stretto.batching.frontend.walks import extend, listed, loop_over, plan_of
from stretto.frontends.python.source.syntax_trees import stores
from stretto.ir.core import Literal
from stretto.ir.data import BreakOp, ContinueOp, LeaveOp
from stretto.ir.types import ListType, Scalar, TupleType, alternatives


@executes(ast.Expr)
def _expression(frame: Frame, node: ast.Expr) -> None:
    match node.value:
        case ast.Constant():
            pass
        case ast.Call(ast.Attribute(ast.Name(name), "append"), [item], []) if (
            name in frame.private and isinstance(frame.locals.get(name), TupleValue)
        ):
            added = evaluate(frame, item)
            known = frame.locals[name]
            assert isinstance(known, TupleValue)
            frame.locals[name] = TupleValue((*known.items, added), is_list=True)
        case _:
            evaluate(frame, node.value)


@executes(ast.Pass, ast.Import, ast.ImportFrom)
def _pass(frame: Frame, node: ast.stmt) -> None:
    if isinstance(node, ast.Import | ast.ImportFrom):
        space: dict[str, Any] = {}
        code = compile(ast.Module([node], []), frame.file, "exec")
        exec(code, dict(frame.globals), space)  # the user's own import
        frame.locals |= {name: Static(value) for name, value in space.items()}


@executes(ast.If)
def _if(frame: Frame, node: ast.If) -> None:
    condition = truth(frame, evaluate(frame, node.test))
    if isinstance(condition, bool):
        execute(frame, node.body if condition else node.orelse)
        return

    def arm(statements: list[ast.stmt], holds: bool) -> None:
        narrow(frame, node.test, holds)
        execute(frame, statements)

    branch(frame, condition, (lambda: arm(node.body, True), lambda: arm(node.orelse, False)))


def _changed(frame: Frame, node: ast.stmt) -> frozenset[str]:
    """Return the local variables that a loop may assign; appending to a private list counts as
    assignment."""
    names = (n.value.id for n in ast.walk(node) if _is_append(n))  # type: ignore[attr-defined]
    return stores([node]) | (frozenset(names) & frame.private)


def _is_append(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(ast.Name(), "append"):
            return True
        case _:
            return False


@executes(ast.While)
def _while(frame: Frame, node: ast.While) -> None:
    def head() -> Any:
        return truth(frame, evaluate(frame, node.test))

    def body() -> None:
        narrow(frame, node.test, True)
        execute(frame, node.body)

    orelse = (lambda: execute(frame, node.orelse)) if node.orelse else nothing
    dynamic_loop(frame, _changed(frame, node), head, body, orelse)


@executes(ast.For)
def _for(frame: Frame, node: ast.For) -> None:
    plan = plan_of(frame, argument(frame, node.iter))

    def step(item: Value) -> None:
        assign_to(frame, node.target, item)
        execute(frame, node.body)

    orelse = (lambda: execute(frame, node.orelse)) if node.orelse else nothing
    loop_over(frame, plan, _changed(frame, node), step, orelse)


@executes(ast.Break)
def _break(frame: Frame, node: ast.Break) -> None:
    loop = frame.loops[-1]
    _jump(frame, loop.breaks, loop.break_label, BreakOp())


@executes(ast.Continue)
def _continue(frame: Frame, node: ast.Continue) -> None:
    loop = frame.loops[-1]
    _jump(frame, loop.continues, loop.continue_label, ContinueOp())


def _jump(
    frame: Frame,
    exits: list[Exit],
    label: int | None,
    statement: BreakOp | ContinueOp,
) -> NoReturn:
    """Leave the iteration by a jump to `label`, or by `statement` if there is no label."""
    exits.append(Exit(frame.builder.gap(), frame.locals))
    frame.builder.emit(statement if label is None else LeaveOp(label))
    raise PathEnds


@executes(ast.Return)
def _return(frame: Frame, node: ast.Return) -> None:
    value = NONE if node.value is None else evaluate(frame, node.value)
    leave(frame, value)


@executes(ast.Raise)
def _raise(frame: Frame, node: ast.Raise) -> None:
    if node.exc is None:
        frame.refuse("`raise` without an exception is not supported")
    found = node.exc
    name, args = (found.func, found.args) if isinstance(found, ast.Call) else (found, [])
    kind = evaluate(frame, name)
    if not isinstance(kind, Static):
        frame.refuse("`raise` of an exception that depends on the instance")
    if isinstance(kind.value, BaseException):
        frame.stop(type(kind.value), str(kind.value))
    if not (isinstance(kind.value, type) and issubclass(kind.value, BaseException)):
        frame.stop(TypeError, "exceptions must derive from BaseException")
    if len(args) > 1:
        frame.refuse("an exception with more than one argument is not supported")
    parts = [part for arg in args for part in text_parts(frame, evaluate(frame, arg))]
    frame.stop(kind.value, *parts)


@executes(ast.Assert)
def _assert(frame: Frame, node: ast.Assert) -> None:
    if not __debug__:  # as under `python -O`, which removes assertions
        return
    condition = truth(frame, evaluate(frame, node.test))

    def fails() -> None:
        parts = () if node.msg is None else text_parts(frame, evaluate(frame, node.msg))
        frame.stop(AssertionError, *parts)

    if isinstance(condition, bool):
        if not condition:
            fails()
        return
    branch(frame, condition, (lambda: narrow(frame, node.test, True), fails))


@executes(ast.FunctionDef)
def _definition(frame: Frame, node: ast.FunctionDef) -> None:
    if node.decorator_list:
        frame.refuse("a decorator inside of a batched function is not supported")
    frame.locals[node.name] = closure(frame, node)


@executes(ast.Try)
def _try(frame: Frame, node: ast.Try) -> None:
    frame.refuse(
        "try is not supported in a batched function",
        "test for it before: `if key in items`, `if place < len(items)`, `if n != 0`",
    )


@executes(ast.With)
def _with(frame: Frame, node: ast.With) -> None:
    for item in node.items:
        manager = evaluate(frame, item.context_expr)
        if not isinstance(manager, Static) or not _is_harmless(manager.value):
            frame.refuse(
                "this `with` statement is not supported in a batched function",
                "torch.no_grad() and torch.inference_mode() are supported",
            )
        if item.optional_vars is not None:
            frame.refuse("`with ... as` is not supported")
    execute(frame, node.body)


def _is_harmless(manager: Any) -> bool:
    """Return True for context managers that have no effect in a batch, which never records
    gradients."""
    grad = torch.no_grad | torch.enable_grad | torch.set_grad_enabled | torch.inference_mode
    return isinstance(manager, grad)


# ---- Assignments and their targets.


@executes(ast.Assign)
def _assign(frame: Frame, node: ast.Assign) -> None:
    if all(isinstance(target, ast.Tuple | ast.List) for target in node.targets):
        # The unpacked list has no other reference, so its items may be separate values.
        value = argument(frame, node.value)
    else:
        value = _assigned(frame, node.targets[0], node.value)
    for target in node.targets:
        assign_to(frame, target, value)


def _assigned(frame: Frame, target: ast.expr, node: ast.expr) -> Value:
    """Return the assigned value; the items of a list without any other reference are separate
    values."""
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
            frame.refuse("a starred target is not supported here")
        case _:
            frame.refuse(f"{type(target).__name__} is not supported as the target of an assignment")


def _unpack(frame: Frame, targets: list[ast.expr], value: Value) -> None:
    starred = [i for i, target in enumerate(targets) if isinstance(target, ast.Starred)]
    items = _known_parts(frame, value)
    if items is None:
        if isinstance(value, IterableValue):
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
    """Return the items to unpack if they are separate values; None for a list or an iterator."""
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
    """Unpack a list whose length the instance decides."""
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
    """Refuse `x += y` of a tensor that may have other references, since it changes the tensor. It
    is evaluated as `x = x + y` only if this variable has the only one."""
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
                frame.refuse("del of an attribute is not supported")
