"""Statements that control the user's source."""

from __future__ import annotations

import ast
from typing import Any, NoReturn

import torch

from stretto.batching.frontend.control.joins import branch, leave
from stretto.batching.frontend.control.loops import dynamic_loop, nothing
from stretto.batching.frontend.control.narrowing import narrow
from stretto.batching.frontend.data.truth import truth
from stretto.batching.frontend.iteration.sources import plan_of
from stretto.batching.frontend.iteration.walks import loop_over
from stretto.batching.frontend.state.builder import PathEnds
from stretto.batching.frontend.state.dispatch import assign_to, evaluate, execute, executes
from stretto.batching.frontend.state.frame import Exit, Frame
from stretto.batching.frontend.state.values import NONE, Static, TupleValue, Value
from stretto.batching.frontend.syntax.expressions import argument, closure
from stretto.batching.frontend.syntax.strings import text_parts
from stretto.batching.program import Break, Continue, Leave
from stretto.frontends.python.source.syntax import stores


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
    """The local variables that a loop may assign; to append to a private list is one way."""
    names = (n.value.id for n in ast.walk(node) if _is_append(n))  # type: ignore[attr-defined]
    return stores([node]) | (frozenset(names) & frame.private)


def _is_append(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)


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
    _go(frame, loop.breaks, loop.break_label, Break())


@executes(ast.Continue)
def _continue(frame: Frame, node: ast.Continue) -> None:
    loop = frame.loops[-1]
    _go(frame, loop.continues, loop.continue_label, Continue())


def _go(
    frame: Frame, exits: list[Exit], label: int | None, statement: Break | Continue
) -> NoReturn:
    """Leaves the iteration; `statement` does where no label says what is left."""
    exits.append(Exit(frame.builder.gap(), frame.locals))
    frame.builder.emit(statement if label is None else Leave(label))
    raise PathEnds


@executes(ast.Return)
def _return(frame: Frame, node: ast.Return) -> None:
    value = NONE if node.value is None else evaluate(frame, node.value)
    leave(frame, value)


@executes(ast.Raise)
def _raise(frame: Frame, node: ast.Raise) -> None:
    if node.exc is None:
        frame.refuse("raise without an exception")
    found = node.exc
    name, args = (found.func, found.args) if isinstance(found, ast.Call) else (found, [])
    kind = evaluate(frame, name)
    if not isinstance(kind, Static):
        frame.refuse("what is raised is no exception that is known before the instance")
    if isinstance(kind.value, BaseException):
        frame.stop(type(kind.value), str(kind.value))
    if not (isinstance(kind.value, type) and issubclass(kind.value, BaseException)):
        frame.stop(TypeError, "exceptions must derive from BaseException")
    if len(args) > 1:
        frame.refuse("an exception with more than one argument")
    parts = [part for arg in args for part in text_parts(frame, evaluate(frame, arg))]
    frame.stop(kind.value, *parts)


@executes(ast.Assert)
def _assert(frame: Frame, node: ast.Assert) -> None:
    if not __debug__:  # `python -O` leaves the user's assertions out, too
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
        frame.refuse("a decorator of a function inside of a batched function")
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
                "a `with` statement of an instance's program",
                "torch.no_grad() and torch.inference_mode() are understood",
            )
        if item.optional_vars is not None:
            frame.refuse("`with ... as`")
    execute(frame, node.body)


def _is_harmless(manager: Any) -> bool:
    """Context managers that change nothing in a batch, which never records gradients."""
    grad = torch.no_grad | torch.enable_grad | torch.set_grad_enabled | torch.inference_mode
    return isinstance(manager, grad)
