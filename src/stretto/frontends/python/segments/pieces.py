"""A function's body in pieces, each compiled separately and run by `running`.

Local variables are in cells, which all pieces share, as nested functions share them with
the function around them. There are three kinds of pieces:

- a *statement* runs in Python; its calls go through `PieceRuntime.call`;
- an *opened* statement is one whose blocks run piece by piece:

      while x.sum() > 0:             while x.sum() > 0:
          x = f(x)                       jump = __stretto_block(0)
          print(x)                       if jump is not None: ...

- a *segment*, a run of consecutive statements, is a function that may be captured. It takes the
  variables that it reads and returns a dict of those that it has set.

A piece that ends by `return`, `break` or `continue` returns the jump, and its value.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType
from typing import Any

from stretto.frontends.python.interpreter import liveness
from stretto.frontends.python.interpreter.frames import BREAK, CONTINUE, RETURN
from stretto.frontends.python.interpreter.liveness import NameSet
from stretto.frontends.python.segments.lowering import (
    COMPUTES,
    NESTED,
    OF_PYTHON,
    OPENED,
    RUN_BLOCK,
    CallLowering,
    SuperLowering,
    WithoutDeclarations,
    can_be_cut,
    declared,
    stores_of,
)
from stretto.frontends.python.source import syntax_trees
from stretto.frontends.python.source.definitions import (
    SegmentSource,
    compiled_within,
    definition_of,
    module_of,
    register_segment,
)
from stretto.frontends.python.source.syntax_trees import (
    EMPTY,
    STAGING,
    assign,
    at,
    definition,
    jumps_of,
    name,
    names,
    own_nodes,
    parameters,
    thunk,
)
from stretto.frontends.python.tracing.locations import code_key

_JUMP = "__stretto_jump"


@dataclass(eq=False, slots=True)
class SegmentPiece:
    """A piece that may be captured: its code, its parameters and the variables that it returns."""

    code: CodeType
    given: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(eq=False)
class PiecewiseBody:
    """The pieces of one function. unstable: variables that other functions may assign. unsure:
    those that may have no value where they are read."""

    code: CodeType
    node: ast.FunctionDef
    root: PieceBlock = field(init=False)
    local: NameSet = EMPTY
    outer: NameSet = EMPTY
    captured: NameSet = EMPTY
    unstable: NameSet = EMPTY
    unsure: NameSet = EMPTY

    @property
    def cells(self) -> list[str]:
        return sorted(self.local | set(self.code.co_freevars))

    @cached_property
    def entry(self) -> CodeType:
        """Code of a function with the user's parameters, which returns a lambda whose closure
        holds the cells of the local variables."""
        given = copy.deepcopy(self.node.args)
        made = definition("__stretto_entry", given, [])
        unbound = sorted(self.local - set(parameters(given)))
        binding = ast.If(ast.Constant(False), [assign(n, ast.Constant(None)) for n in unbound], [])
        probe = ast.Return(thunk(names(sorted(self.local))))
        made.body = [at(self.node, s) for s in ([binding] if unbound else []) + [probe]]
        return compiled_within(made, list(self.code.co_freevars), self.code)

    def compiled(self, statements: Sequence[ast.stmt]) -> CodeType:
        """Compile statements as a function without parameters that shares the variables by
        cells."""
        stored = syntax_trees.stores(statements)
        head = list[ast.stmt]()
        shared, outer = sorted(stored & set(self.cells)), sorted(stored & self.outer)
        head += [ast.Nonlocal(shared)] if shared else []
        head += [ast.Global(outer)] if outer else []
        made = at(statements[0], definition("__stretto_piece", [], [*head, *statements]))
        return compiled_within(made, [*self.cells, STAGING, RUN_BLOCK], self.code)


@dataclass(eq=False)
class PieceBlock:
    """A sequence of statements of the function."""

    body: PiecewiseBody
    statements: Sequence[ast.stmt]
    codes: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def runs_in_python(self, index: int) -> bool:
        """True if the statement cannot be part of a segment."""
        statement = self.statements[index]
        if isinstance(statement, OF_PYTHON):
            return True
        used = syntax_trees.loads(statement) | syntax_trees.stores([statement])
        return not self.body.unstable.isdisjoint(used)

    def computes(self, start: int, end: int) -> bool:
        """True if there is anything to compute in a range of statements."""
        every = (item for s in self.statements[start:end] for item in ast.walk(s))
        return self._once(
            "computes", start, end, lambda: any(isinstance(x, COMPUTES) for x in every)
        )

    def needs(self, start: int, end: int) -> dict[str, int]:
        """Return the variables that a range of statements may read before it sets them, each with
        the index of the first statement that uses it."""
        return self._once("needs", start, end, lambda: self._needs(start, end))

    def _once(self, what: str, start: int, end: int, make: Callable[[], Any]) -> Any:
        key = what, start, end
        if key not in self.codes:
            self.codes[key] = make()
        return self.codes[key]

    def _needs(self, start: int, end: int) -> dict[str, int]:
        part = self.statements[start:end]
        live = liveness.live_before(part, self.results(start, end))
        found = dict[str, int]()
        for index, statement in enumerate(part, start):
            used = syntax_trees.loads(statement) | syntax_trees.stores([statement])
            for variable in sorted(used & live & (set(self.body.cells) - {"__class__"})):
                found.setdefault(variable, index)
        return found

    def results(self, start: int, end: int) -> NameSet:
        """Return the variables that a range of statements sets and that may be read later."""
        stored = syntax_trees.stores(self.statements[start:end]) & set(self.body.cells)
        last: Any = self.statements[end - 1]
        return stored & (last.live_after | last.live_at_jumps | self.body.captured)

    def segment(self, start: int, end: int, known: Mapping[str, str]) -> SegmentPiece:
        """Compile a range of statements as a function. known: the variables that have values, each
        with the first variable of the same value."""
        key = (start, end, *known.items())
        if key not in self.codes:
            self.codes[key] = self._segment(start, end, known)
        return self.codes[key]

    def _segment(self, start: int, end: int, known: Mapping[str, str]) -> SegmentPiece:
        given = tuple(dict.fromkeys(known.values()))
        results = tuple(sorted(self.results(start, end)))
        statements = self.statements[start:end]
        code = self.body.code
        free = [item for item in code.co_freevars if item == "__class__"]
        outer = sorted(syntax_trees.stores(statements) & self.body.outer)
        head: list[ast.stmt] = [ast.Global(outer)] if outer else []
        head += [assign(item, name(first)) for item, first in known.items() if item != first]
        tree = definition("__stretto_segment", list(given), copy.deepcopy([*head, *statements]))
        ast.fix_missing_locations(at(statements[0], tree))
        plain = copy.deepcopy(tree)
        plain.body = _Leaving().statements(plain.body) or [ast.Pass()]
        unbound = sorted(self.needs(start, end).keys() - known.keys())
        if unbound:  # so that they are local variables
            binding = [assign(item, ast.Constant(None)) for item in unbound]
            plain.body.insert(0, at(statements[0], ast.If(ast.Constant(False), binding, [])))
        made = compiled_within(plain, free, code)
        register_segment(made, SegmentSource(tree, len(head), results))
        return SegmentPiece(made, given, results)

    def whole(self, index: int) -> CodeType:
        """Compile a statement together with its blocks."""

        def make() -> CodeType:
            statement = copy.deepcopy(self.statements[index])
            return self.body.compiled(_Leaving().statements([statement]))

        return self._once("whole", index, index, make)

    def opened(self, index: int) -> tuple[CodeType, list[PieceBlock]]:
        """Compile a statement whose blocks are called, and return it with these blocks."""
        return self._once("opened", index, index, lambda: self._opened(index))

    def _opened(self, index: int) -> tuple[CodeType, list[PieceBlock]]:
        statement = copy.copy(self.statements[index])
        blocks = list[PieceBlock]()

        def called(part: Sequence[ast.stmt], in_loop: bool = False) -> list[ast.stmt]:
            if not part:
                return []
            blocks.append(PieceBlock(self.body, part))
            return _call_of_block(part, len(blocks) - 1, in_loop)

        is_opened = isinstance(statement, OPENED)
        match statement:
            case ast.If() | ast.With() | ast.Try():
                statement.body = called(statement.body)
            case ast.While() | ast.For():
                statement.body = called(statement.body, in_loop=True)
            case _:
                pass
        if is_opened and not isinstance(statement, ast.With):
            statement.orelse = called(statement.orelse)
        if isinstance(statement, ast.Try):
            statement.finalbody = called(statement.finalbody)
            statement.handlers = list(map(copy.copy, statement.handlers))
            for handler in statement.handlers:
                handler.body = called(handler.body)
        copied = copy.deepcopy(statement)
        leaving = [copied] if is_opened else _Leaving().statements([copied])
        lowered = [CallLowering(self.body.unsure).visit(item) for item in leaving]
        return self.body.compiled(lowered), blocks


def _call_of_block(part: Sequence[ast.stmt], number: int, in_loop: bool) -> list[ast.stmt]:
    """Return the call of a block, followed by the jumps by which it may end."""
    like = part[0]
    call = ast.Call(name(RUN_BLOCK), [ast.Constant(number)], [])
    jumps = [item for s in part for item in jumps_of(s)]
    if not jumps:
        return [at(like, ast.Expr(call))]

    def ended(jump: str) -> ast.expr:
        kind = ast.Subscript(name(_JUMP), ast.Constant(0), ast.Load())
        return ast.Compare(kind, [ast.Eq()], [ast.Constant(jump)])

    inside: list[ast.stmt] = [ast.Return(name(_JUMP))]
    if in_loop:
        inside = [
            ast.If(ast.BoolOp(ast.And(), [name(_JUMP), ended(BREAK)]), [ast.Break()], []),
            ast.If(ast.BoolOp(ast.And(), [name(_JUMP), ended(CONTINUE)]), [ast.Continue()], []),
            ast.If(name(_JUMP), inside, []),
        ]
    else:
        inside = [ast.If(name(_JUMP), inside, [])]
    return [at(like, item) for item in (assign(_JUMP, call), *inside)]


class _Leaving(ast.NodeTransformer):
    """Makes jumps that leave the statements return the jump and its value."""

    def __init__(self) -> None:
        self.loops = 0

    def statements(self, nodes: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [self.visit(node) for node in nodes]

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, NESTED) else super().visit(node)

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        return self._jump(node, RETURN, node.value or ast.Constant(None))

    def visit_Break(self, node: ast.Break) -> ast.stmt:
        return node if self.loops else self._jump(node, BREAK, ast.Constant(None))

    def visit_Continue(self, node: ast.Continue) -> ast.stmt:
        return node if self.loops else self._jump(node, CONTINUE, ast.Constant(None))

    def _jump(self, node: ast.stmt, jump: str, value: ast.expr) -> ast.stmt:
        return at(node, ast.Return(ast.Tuple([ast.Constant(jump), value], ast.Load())))

    def _loop(self, node: ast.While | ast.For) -> ast.stmt:
        self.loops += 1
        node.body = self.statements(node.body)
        self.loops -= 1
        node.orelse = self.statements(node.orelse)
        return node

    visit_While = visit_For = _loop


def body_of(code: CodeType) -> PiecewiseBody | None:
    """Return the pieces of the function with this code; None if it cannot be split: its source is
    not found, it is a generator, or it reads its own variables by name."""
    key = code_key(code)
    if key not in _BODIES:
        _BODIES[key] = _made(code)
    return _BODIES[key]


_BODIES: dict[tuple[CodeType, str], PiecewiseBody | None] = {}


def _made(code: CodeType) -> PiecewiseBody | None:
    found, module = definition_of(code), module_of(code)
    if found is None or module is None or not can_be_cut(found):
        return None
    node = copy.deepcopy(found)
    given = parameters(node.args)
    if given:
        node = SuperLowering(given[0]).visit(node)
    outer = declared(own_nodes(node), ast.Global)
    around = declared(own_nodes(node), ast.Nonlocal)
    node.body = [
        WithoutDeclarations().visit(statement) for statement in _without_docstring(node.body)
    ]
    node.body = node.body or [at(node, ast.Pass())]
    liveness.note(node)
    local = (syntax_trees.stores(node.body) | set(given)) - outer - around
    captured = syntax_trees.captured(node.body)
    several = {item for item in captured & local if stores_of(item, node.body, given) > 1}
    body = PiecewiseBody(code, node, local=frozenset(local), outer=outer, captured=captured)
    body.unstable = frozenset(several) | declared(ast.walk(module), ast.Nonlocal)
    body.unsure = syntax_trees.unsure(node.body, frozenset(given)) & local
    body.root = PieceBlock(body, node.body)
    return body


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
        case _:
            return body
