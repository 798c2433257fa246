"""Lowering of `break`, `continue` and `return` to flags and nesting, for staged branches.

    for x in xs:                   __stretto_break_0 = False
        if c: break                for x in xs:            # stop flag: __stretto_break_0
        f(x)                           if c: __stretto_break_0 = True
    return y                           else: f(x)
                                   __stretto_value = y

If one arm of an `if` always jumps, the statements after the `if` move into the other arm.
If an arm may jump or not, they are guarded by the flags. A `for` loop gets the attribute
`stop_flags`; the test of a `while` loop gets them as conjuncts.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.frontends.python.source.desugar import has_yield
from stretto.frontends.python.source.syntax_trees import (
    STAGING,
    assign,
    at,
    constant,
    every_node,
    name,
    own_nodes,
)

# ---- `raise` inside of `try`, as flags, so that a branch on a traced value may raise an exception
# that a handler of the same function catches.
#
#     try:                            __stretto_raised_0, __stretto_error_0 = False, None
#         if x.sum() > 0:             try:
#             raise MyError()             if x.sum() > 0:
#         y = g(x)                            __stretto_error_0 = raised(MyError())
#     except MyError:                         __stretto_raised_0 = True
#         y = h(x)                        else:
#                                             y = g(x)
#                                     except MyError:
#                                         y = h(x)
#                                     if __stretto_raised_0:
#                                         if is_caught(__stretto_error_0, MyError): y = h(x)
#                                         else: raise __stretto_error_0
#
# The `try` remains for exceptions of called functions. `assert` raises AssertionError, and `next`
# in a `try` with a handler for StopIteration returns a marker at the end of the iterator, which is
# compared. The called helpers are in `calls/statements.py`.


RAISED = "__stretto_raised_"
ERROR = "__stretto_error_"

_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_SEE_THE_ERROR = frozenset({"exc_info", "format_exc", "print_exc", "exception", "print_exception"})
"""Functions that read the exception being handled."""


def prepared(statement: ast.Try) -> bool:
    """True if exceptions raised in the body become flags. Also rewrites its calls of `next` to
    compare with the end marker."""
    looks_at = (
        item.attr if isinstance(item, ast.Attribute) else getattr(item, "id", None)
        for handler in statement.handlers
        for item in every_node(handler)
    )
    if not statement.handlers or has_yield(statement) or not _SEE_THE_ERROR.isdisjoint(looks_at):
        return False
    if _handles_the_end(statement.handlers):
        advance = _Advance()
        statement.body = [made for item in statement.body for made in advance.statements(item)]
    inside = own_nodes(ast.Module(statement.body, []))
    return any(isinstance(item, ast.Assert) or is_new(item) for item in inside)


def is_new(node: ast.AST) -> bool:
    """True if a statement raises an exception other than the one being handled."""
    return isinstance(node, ast.Raise) and node.exc is not None


def noted(node: ast.Raise, number: int) -> list[ast.stmt]:
    """Return the statements that replace a `raise`."""
    assert node.exc is not None
    given = [node.exc] if node.cause is None else [node.exc, node.cause]
    error = assign(f"{ERROR}{number}", _helper("raised", *given))
    return [at(node, error), at(node, assign(f"{RAISED}{number}", constant(True)))]


def failed(node: ast.Assert) -> ast.stmt:
    """Return an `assert` as a branch that raises."""
    error = ast.Call(name("AssertionError"), [] if node.msg is None else [node.msg], [])
    return at(node, ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Raise(error)], []))


def handled(handlers: list[ast.ExceptHandler], number: int) -> list[ast.stmt]:
    """Return the handlers of a recorded exception as branches on its class."""
    error = f"{ERROR}{number}"
    if not handlers:
        return [ast.Raise(name(error))]
    (handler, *others) = copy.deepcopy(handlers)
    bare = _Again(error)
    body: list[ast.stmt] = [bare.visit(item) for item in handler.body]
    if handler.name is not None:
        body = [at(handler, assign(handler.name, _helper("error", name(error)))), *body]
    if handler.type is None:
        return body
    test = _helper("is_caught", name(error), handler.type)
    return [at(handler, ast.If(test, body, handled(others, number)))]


def ends_by_jumping() -> ast.stmt:
    """Return the statement that precedes a `try` whose `finally` returns, breaks or continues."""
    return ast.Expr(_helper("ends_by_jumping"))


def _handles_the_end(handlers: list[ast.ExceptHandler]) -> bool:
    every = [item for one in handlers if one.type for item in every_node(one.type)]
    return any(isinstance(item, ast.Name) and item.id == "StopIteration" for item in every)


class _Again(ast.NodeTransformer):
    """Replaces a bare `raise` in a handler by a `raise` of the recorded exception."""

    def __init__(self, error: str) -> None:
        self.error = error

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, _NESTED) else super().visit(node)

    def visit_Try(self, node: ast.Try) -> ast.stmt:
        return node if node.handlers else self.generic_visit(node)  # type: ignore[return-value]

    def visit_Raise(self, node: ast.Raise) -> ast.stmt:
        return node if node.exc is not None else at(node, ast.Raise(name(self.error)))


class _Advance(ast.NodeTransformer):
    """Rewrites statements with a call `next(iterator)`, nested ones included."""

    def __init__(self) -> None:
        self._count = 0

    def statements(self, node: ast.stmt) -> list[ast.stmt]:
        """Return the statement, preceded by one that raises StopIteration at the end of the
        iterator."""
        if not isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.Return):
            self._blocks(node)
            return [node]
        calls = [item for item in own_nodes(node) if isinstance(item, ast.Call)]
        match calls:
            case [ast.Call(func=ast.Name(id="next") as function, args=[iterator], keywords=[])]:
                item = f"__stretto_item_{self._count}"
                self._count += 1
                first = assign(item, _helper("advanced", function, iterator))
                ends = ast.If(_helper("is_end", name(item)), [ast.Raise(name("StopIteration"))], [])
                call = calls[0]
                call.func, call.args = _part("item"), [at(call, name(item))]
                return [at(node, first), at(node, ends), node]
            case _:
                return [node]

    def _blocks(self, node: ast.stmt) -> None:
        if isinstance(node, _NESTED):
            return
        for part in ("body", "orelse", "finalbody"):
            block: list[ast.stmt] = getattr(node, part, [])
            if block:
                setattr(node, part, [made for item in block for made in self.statements(item)])


def _part(function: str) -> ast.expr:
    return ast.Attribute(
        ast.Attribute(name(STAGING), "statements", ast.Load()), function, ast.Load()
    )


def _helper(function: str, *arguments: ast.expr) -> ast.expr:
    """Return a call of a function of `calls/statements.py`."""
    return ast.Call(_part(function), list(arguments), [])


VALUE = "__stretto_value"
RETURNED = "__stretto_returned"


@dataclass(slots=True)
class _LoopFlags:
    stop: str
    skip: str
    used: set[str] = field(default_factory=set[str])


@dataclass(slots=True)
class JumpFree:
    """Statements without jumps; the flags they may set; True if their end is never reached."""

    statements: list[ast.stmt] = field(default_factory=list[ast.stmt])
    flags: frozenset[str] = frozenset()
    jumps: bool = False


class JumpLowering:
    """Lowers one function's body."""

    def __init__(self) -> None:
        self.count = 0
        self.loops = list[_LoopFlags]()
        self.tries = list[int]()
        """Numbers of the enclosing `try` statements whose exceptions become flags."""
        self.guards_return = False

    def function(self, body: Sequence[ast.stmt], like: ast.AST) -> list[ast.stmt]:
        """Return the body, ending with `__stretto_value` assigned on every path."""
        last = at(body[-1] if body else like, ast.Return(ast.Constant(None)))
        lowered = self.block([*body, last])
        if self.guards_return:
            return [_flagged(RETURNED, False, body[0] if body else like), *lowered.statements]
        return lowered.statements

    def block(self, statements: Sequence[ast.stmt]) -> JumpFree:
        """Lower a sequence of statements; those after a statement that may jump are guarded by its
        flags."""
        out, flags = list[ast.stmt](), frozenset[str]()
        for position, statement in enumerate(statements):
            rest = statements[position + 1 :]
            if isinstance(statement, ast.If):
                lowered = self._branch(statement, rest)
                if lowered is not None:
                    return JumpFree(out + lowered.statements, flags | lowered.flags, lowered.jumps)
            one = self._one(statement)
            out += one.statements
            flags |= one.flags
            if one.jumps:
                return JumpFree(out, flags, True)
            if one.flags and rest:
                guarded = self._guarded(one.flags, rest, statement)
                return JumpFree(out + guarded.statements, flags | guarded.flags, guarded.jumps)
        return JumpFree(out, flags, False)

    def _one(self, statement: ast.stmt) -> JumpFree:
        match statement:
            case ast.Return(value=value):
                given = at(statement, assign(VALUE, value or ast.Constant(None)))
                done = _flagged(RETURNED, True, statement)
                return JumpFree([given, done], frozenset({RETURNED}), True)
            case ast.Break() | ast.Continue():
                loop = self.loops[-1]
                flag = loop.stop if isinstance(statement, ast.Break) else loop.skip
                loop.used.add(flag)
                return JumpFree([_flagged(flag, True, statement)], frozenset({flag}), True)
            case ast.Raise() if self.tries and is_new(statement):
                number = self.tries[-1]
                statements = noted(statement, number)
                return JumpFree(statements, frozenset({f"{RAISED}{number}"}), True)
            case ast.Assert() if self.tries and __debug__:
                return self.block([failed(statement)])
            case ast.Raise():
                return JumpFree([statement], frozenset(), True)
            case ast.While() | ast.For():
                return self._loop(statement)
            case ast.If():
                body, orelse = self.block(statement.body), self.block(statement.orelse)
                statement.body, statement.orelse = body.statements, orelse.statements
                return JumpFree([statement], body.flags | orelse.flags, body.jumps and orelse.jumps)
            case ast.With():
                body = self.block(statement.body)
                statement.body = body.statements
                jumps = body.jumps and bool(body.flags)  # the context may handle an exception
                statement.notes = any(flag.startswith(RAISED) for flag in body.flags)  # type: ignore[attr-defined]
                return JumpFree([statement], body.flags, jumps)
            case ast.Try():
                return self._try(statement)
            case _:
                return JumpFree([statement])

    def _branch(self, statement: ast.If, rest: Sequence[ast.stmt]) -> JumpFree | None:
        """Lower an `if` of which exactly one arm always jumps: the other takes the statements that
        follow. None for other branches."""
        first, second = _always_jumps(statement.body), _always_jumps(statement.orelse)
        if first == second:
            return None
        if first:
            statement.orelse = [*statement.orelse, *rest]
        else:
            statement.body = [*statement.body, *rest]
        return self._one(statement)

    def _guarded(self, flags: frozenset[str], rest: Sequence[ast.stmt], like: ast.stmt) -> JumpFree:
        """Return `rest`, run only if none of the flags is set."""
        self.guards_return |= RETURNED in flags
        lowered = self.block(rest)
        guard = ast.If(_none_of(flags, like), lowered.statements, [])
        return JumpFree([at(rest[0], guard)], lowered.flags, False)

    def _loop(self, statement: ast.While | ast.For) -> JumpFree:
        """Lower a loop: flags replace its `break` and `continue`, and its `else` becomes a guarded
        block."""
        flags = _LoopFlags(f"__stretto_break_{self.count}", f"__stretto_continue_{self.count}")
        self.count += 1
        self.loops.append(flags)
        body = self.block(statement.body)
        self.loops.pop()
        returns = RETURNED in body.flags
        self.guards_return |= returns
        breaks = flags.stop in flags.used
        raised = sorted(flag for flag in body.flags if flag.startswith(RAISED))
        stops = ([flags.stop] if breaks else []) + ([RETURNED] if returns else []) + raised
        statement.body = body.statements or [at(statement, ast.Pass())]
        if flags.skip in flags.used:
            statement.body = [_flagged(flags.skip, False, statement), *statement.body]
        out: list[ast.stmt] = [_flagged(flags.stop, False, statement)] if breaks else []
        orelse, statement.orelse = statement.orelse, []
        test = getattr(statement, "test", None)
        if stops and isinstance(statement, ast.While):
            going = _none_of(frozenset(stops), statement)
            statement.test = at(statement.test, ast.BoolOp(ast.And(), [going, statement.test]))
        statement.stop_flags = stops  # type: ignore[union-attr]
        out.append(statement)
        escaping = body.flags - {flags.stop, flags.skip}
        if orelse:
            tail = (
                self._guarded(frozenset(stops), orelse, statement) if stops else self.block(orelse)
            )
            return JumpFree(out + tail.statements, escaping | tail.flags, tail.jumps and not stops)
        endless = isinstance(test, ast.Constant) and bool(test.value) and not breaks
        return JumpFree(out, escaping, endless)

    def _try(self, statement: ast.Try) -> JumpFree:
        """Lower a `try` with flags for exceptions raised in its body, if `prepared` allows it."""
        if not prepared(statement):
            return self._plain_try(statement)
        number = self.count
        self.count += 1
        flag, error = f"{RAISED}{number}", f"{ERROR}{number}"
        handling = handled(statement.handlers, number)
        final, statement.finalbody = statement.finalbody, []
        self.tries.append(number)
        statement.body = (body := self.block(statement.body)).statements
        self.tries.pop()
        inner = self._plain_try(statement, body)
        after = self.block([at(statement, ast.If(name(flag), handling, []))])
        first = [_flagged(flag, False, statement), at(statement, assign(error, constant(None)))]
        made = [*first, *inner.statements, *after.statements]
        flags = (inner.flags | after.flags) - {flag}
        if not final:
            return JumpFree(made, flags, False)
        last = self.block(final)
        if last.flags:
            made.insert(0, at(statement, ends_by_jumping()))
        outer = at(statement, ast.Try(made, [], [], last.statements))
        return JumpFree([outer], flags | last.flags, False)

    def _plain_try(self, statement: ast.Try, body: JumpFree | None = None) -> JumpFree:
        """Lower a `try` without flags for its exceptions. body: its body, if already lowered."""
        flags = frozenset[str]()
        body = body or self.block(statement.body)
        statement.body, flags = body.statements, flags | body.flags
        for handler in statement.handlers:
            lowered = self.block(handler.body)
            handler.body, flags = lowered.statements, flags | lowered.flags
        orelse = self.block(statement.orelse)
        if orelse.statements and body.flags:
            guard = ast.If(_none_of(body.flags, statement), orelse.statements, [])
            orelse.statements = [at(statement, guard)]
            self.guards_return |= RETURNED in body.flags
        statement.orelse = orelse.statements
        final = self.block(statement.finalbody)
        statement.finalbody = final.statements
        if final.flags:
            statement.body.insert(0, at(statement, ends_by_jumping()))
        return JumpFree([statement], flags | orelse.flags | final.flags, False)


def _none_of(flags: frozenset[str], like: ast.AST) -> ast.expr:
    tests: list[ast.expr] = [ast.UnaryOp(ast.Not(), name(flag)) for flag in sorted(flags)]
    return at(like, tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests))


def _flagged(flag: str, value: bool, like: ast.AST) -> ast.stmt:
    return at(like, assign(flag, ast.Constant(value)))


def _always_jumps(statements: Sequence[ast.stmt]) -> bool:
    """True if the end of the statements is never reached."""
    for statement in statements:
        match statement:
            case ast.Return() | ast.Break() | ast.Continue() | ast.Raise():
                return True
            case ast.If(body=body, orelse=orelse) if orelse:
                if _always_jumps(body) and _always_jumps(orelse):
                    return True
            case ast.With(body=body) if not isinstance(body[-1], ast.Raise):
                if _always_jumps(body):
                    return True
            case _:
                pass
    return False
