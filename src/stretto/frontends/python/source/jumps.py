"""Lowers `break`, `continue` and `return` to flags and nesting, so that branches can be staged.

    for x in xs:                   __stretto_break_0 = False
        if c: break                for x in xs:            # stop flag: __stretto_break_0
        f(x)                           if c: __stretto_break_0 = True
    return y                           else: f(x)
                                   __stretto_value = y

Where one arm of an `if` always jumps, the statements behind the `if` move into the other arm. Where
an arm may jump or not, they are guarded by the flags. A `for` loop gets the attribute `stop_flags`;
the test of a `while` loop gets them as conjuncts.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from stretto.frontends.python.source import exceptions
from stretto.frontends.python.source.syntax import assign, at, constant, name

VALUE = "__stretto_value"
RETURNED = "__stretto_returned"


@dataclass(slots=True)
class _LoopFlags:
    stop: str
    skip: str
    used: set[str] = field(default_factory=set[str])


@dataclass(slots=True)
class JumpFree:
    """Statements without jumps; the flags they may set; whether their end is never reached."""

    statements: list[ast.stmt] = field(default_factory=list[ast.stmt])
    flags: frozenset[str] = frozenset()
    jumps: bool = False


class JumpLowering:
    """Lowers one function's body."""

    def __init__(self) -> None:
        self.count = 0
        self.loops = list[_LoopFlags]()
        self.tries = list[int]()
        """The `try` statements around, of which what they raise becomes a flag."""
        self.guards_return = False

    def function(self, body: Sequence[ast.stmt], like: ast.AST) -> list[ast.stmt]:
        """The body, ending with `__stretto_value` assigned on every path."""
        last = at(body[-1] if body else like, ast.Return(ast.Constant(None)))
        lowered = self.block([*body, last])
        if self.guards_return:
            return [_flagged(RETURNED, False, body[0] if body else like), *lowered.statements]
        return lowered.statements

    def block(self, statements: Sequence[ast.stmt]) -> JumpFree:
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
            case ast.Raise() if self.tries and exceptions.is_new(statement):
                number = self.tries[-1]
                noted = exceptions.noted(statement, number)
                return JumpFree(noted, frozenset({f"{exceptions.RAISED}{number}"}), True)
            case ast.Assert() if self.tries and __debug__:
                return self.block([exceptions.failed(statement)])
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
                jumps = body.jumps and bool(body.flags)  # the context may handle what is raised
                statement.notes = any(flag.startswith(exceptions.RAISED) for flag in body.flags)  # type: ignore[attr-defined]
                return JumpFree([statement], body.flags, jumps)
            case ast.Try():
                return self._try(statement)
            case _:
                return JumpFree([statement])

    def _branch(self, statement: ast.If, rest: Sequence[ast.stmt]) -> JumpFree | None:
        """An `if` of which exactly one arm always jumps: the other takes what follows."""
        first, second = _always_jumps(statement.body), _always_jumps(statement.orelse)
        if first == second:
            return None
        if first:
            statement.orelse = [*statement.orelse, *rest]
        else:
            statement.body = [*statement.body, *rest]
        return self._one(statement)

    def _guarded(self, flags: frozenset[str], rest: Sequence[ast.stmt], like: ast.stmt) -> JumpFree:
        """`rest`, if none of the flags is set."""
        self.guards_return |= RETURNED in flags
        lowered = self.block(rest)
        guard = ast.If(_none_of(flags, like), lowered.statements, [])
        return JumpFree([at(rest[0], guard)], lowered.flags, False)

    def _loop(self, statement: ast.While | ast.For) -> JumpFree:
        flags = _LoopFlags(f"__stretto_break_{self.count}", f"__stretto_continue_{self.count}")
        self.count += 1
        self.loops.append(flags)
        body = self.block(statement.body)
        self.loops.pop()
        returns = RETURNED in body.flags
        self.guards_return |= returns
        breaks = flags.stop in flags.used
        raised = sorted(flag for flag in body.flags if flag.startswith(exceptions.RAISED))
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
        if not exceptions.prepared(statement):
            return self._plain_try(statement)
        number = self.count
        self.count += 1
        flag, error = f"{exceptions.RAISED}{number}", f"{exceptions.ERROR}{number}"
        handling = exceptions.handled(statement.handlers, number)
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
            made.insert(0, at(statement, exceptions.ends_by_jumping()))
        outer = at(statement, ast.Try(made, [], [], last.statements))
        return JumpFree([outer], flags | last.flags, False)

    def _plain_try(self, statement: ast.Try, body: JumpFree | None = None) -> JumpFree:
        """body: its body, if it has no jumps any more."""
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
            statement.body.insert(0, at(statement, exceptions.ends_by_jumping()))
        return JumpFree([statement], flags | orelse.flags | final.flags, False)


def _none_of(flags: frozenset[str], like: ast.AST) -> ast.expr:
    tests: list[ast.expr] = [ast.UnaryOp(ast.Not(), name(flag)) for flag in sorted(flags)]
    return at(like, tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests))


def _flagged(flag: str, value: bool, like: ast.AST) -> ast.stmt:
    return at(like, assign(flag, ast.Constant(value)))


def _always_jumps(statements: Sequence[ast.stmt]) -> bool:
    """Whether the end of the statements is never reached."""
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
