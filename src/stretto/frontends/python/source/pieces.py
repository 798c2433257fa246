"""A function's body in pieces, each compiled separately and run by `calls/in_python`.

Local variables are in cells, which all pieces share, as nested functions share them with
the function around them. There are three kinds of pieces:

- a *statement* runs in Python; its calls go through `staging.call`;
- an *opened* statement is one whose blocks run piece by piece:

      while x.sum() > 0:             while x.sum() > 0:
          x = f(x)                       __stretto_block(0)
          print(x)

- a *segment*, a run of consecutive statements, is a function that may be captured. It takes the
  variables that it reads and returns a dict of those that it has set.

Jumps were lowered to flags before (`jumps`), so control leaves every statement at its end.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType
from typing import Any

from stretto.frontends.python.source import syntax_trees
from stretto.frontends.python.source.control_flow import jump_free, lower_segment, parameters
from stretto.frontends.python.source.jumps import VALUE
from stretto.frontends.python.source.rewrite import (
    compiled_within,
    definition_of,
    module_of,
    register_lowered,
)
from stretto.frontends.python.source.syntax_trees import (
    EMPTY,
    STAGING,
    NameSet,
    assign,
    at,
    constant,
    definition,
    name,
    names,
    own_nodes,
    staged,
    thunk,
)
from stretto.frontends.python.tracing.locations import code_key

RUN_BLOCK = "__stretto_block"

_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_OPENED = (ast.If, ast.While, ast.For, ast.With, ast.Try)
_OF_PYTHON = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.AsyncWith,
    ast.AsyncFor, ast.TryStar,
)  # fmt: skip
"""Statements that create functions, classes or modules, which no Program can return."""

_SEES_VARIABLES = frozenset({"locals", "vars", "eval", "exec", "dir"})
"""Functions that read the variables of their caller."""

_COMPUTES = (ast.Call, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Subscript, ast.AugAssign)


@dataclass(eq=False, slots=True)
class Segment:
    """A piece that may be captured. `code` is its plain form, for guards and messages; its staged
    form is registered for it."""

    code: CodeType
    given: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(eq=False)
class Body:
    """The pieces of one function. unstable: variables that other functions may assign."""

    code: CodeType
    node: ast.FunctionDef
    root: StatementBlock = field(init=False)
    local: NameSet = EMPTY
    outer: NameSet = EMPTY
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

    def compiled(self, statement: ast.stmt) -> CodeType:
        """Compile a statement as a function without parameters that shares the variables
        by cells."""
        stored = syntax_trees.stores([statement])
        head = list[ast.stmt]()
        shared, outer = sorted(stored & set(self.cells)), sorted(stored & self.outer)
        head += [ast.Nonlocal(shared)] if shared else []
        head += [ast.Global(outer)] if outer else []
        made = at(statement, definition("__stretto_piece", [], [*head, statement]))
        return compiled_within(made, [*self.cells, STAGING, RUN_BLOCK], self.code)


@dataclass(eq=False)
class StatementBlock:
    """A sequence of statements. after: variables read after it; always: variables read by nested
    functions, or wherever an exception leaves the block."""

    body: Body
    statements: Sequence[ast.stmt]
    after: NameSet
    always: NameSet
    codes: dict[Any, Any] = field(default_factory=dict[Any, Any])

    @cached_property
    def live(self) -> list[NameSet]:
        """The variables that are read after each statement."""
        found, after = list[NameSet](), self.after
        for statement in reversed(self.statements):
            found.append(after | self.always)
            after = syntax_trees.live_before_one(statement, after)
        return found[::-1]

    def runs_in_python(self, index: int) -> bool:
        """True if the statement cannot be part of a segment."""
        statement = self.statements[index]
        if isinstance(statement, _OF_PYTHON):
            return True
        used = syntax_trees.loads(statement) | syntax_trees.stores([statement])
        return not self.body.unstable.isdisjoint(used)

    def computes(self, start: int, end: int) -> bool:
        """True if there is anything to compute in a range of statements."""
        key = ("computes", start, end)
        if key not in self.codes:
            every = (item for s in self.statements[start:end] for item in ast.walk(s))
            self.codes[key] = any(isinstance(item, _COMPUTES) for item in every)
        return self.codes[key]

    def needs(self, start: int, end: int) -> dict[str, int]:
        """Return the variables that a range of statements may read before it sets them, each with
        the index of the first statement that needs it."""
        key = ("needs", start, end)
        if key not in self.codes:
            self.codes[key] = self._needs(start, end)
        return self.codes[key]

    def _needs(self, start: int, end: int) -> dict[str, int]:
        variables = set(self.body.cells) - {"__class__"}
        found, stored = dict[str, int](), EMPTY
        for index in range(start, end):
            statement = self.statements[index]
            read = syntax_trees.live_before_one(statement, EMPTY)
            for variable in sorted((read - stored) & variables):
                found.setdefault(variable, index)
            stored |= syntax_trees.surely_stored(statement)
        kept = syntax_trees.live_before(self.statements[start:end], self._results(start, end))
        for variable in sorted((kept & variables) - found.keys()):
            found[variable] = next(
                n
                for n in range(start, end)
                if variable in syntax_trees.stores([self.statements[n]])
            )
        return found

    def _results(self, start: int, end: int) -> NameSet:
        stored = syntax_trees.stores(self.statements[start:end])
        return stored & self.live[end - 1] & set(self.body.cells)

    def segment(self, start: int, end: int, known: Mapping[str, str]) -> Segment:
        """Compile a range of statements as a function. known: the variables that have values, each
        with the first variable of the same value."""
        key = (start, end, *known.items())
        if key not in self.codes:
            self.codes[key] = self._segment(start, end, known)
        return self.codes[key]

    def _segment(self, start: int, end: int, known: Mapping[str, str]) -> Segment:
        given = tuple(dict.fromkeys(known.values()))
        results = tuple(sorted(self._results(start, end)))
        statements = self.statements[start:end]
        unbound = sorted(self.needs(start, end).keys() - known.keys())
        code = self.body.code
        free = [item for item in code.co_freevars if item == "__class__"]
        head = list[ast.stmt]()
        outer = sorted(syntax_trees.stores(statements) & self.body.outer)
        head += [ast.Global(outer)] if outer else []
        if unbound:
            binding = [assign(item, ast.Constant(None)) for item in unbound]
            head.append(ast.If(ast.Constant(False), binding, []))
        head += [assign(item, name(first)) for item, first in known.items() if item != first]
        made = definition("__stretto_segment", list(given), [])
        keys: list[ast.expr | None] = [ast.Constant(item) for item in results]
        values: list[ast.expr] = [name(item) for item in results]
        made.body = [*copy.deepcopy([*head, *statements]), ast.Return(ast.Dict(keys, values))]
        at(statements[0], made)
        plain = compiled_within(made, free, code)
        marked = list[ast.stmt]()
        for number, statement in enumerate(copy.deepcopy(statements)):
            marked += [_mark(statement, number), statement]
        marked.append(_mark(statements[-1], len(statements)))
        made = definition("__stretto_segment", list(given), [*copy.deepcopy(head), *marked])
        at(statements[0], made)
        reads = [thunk(name(item)) for item in results]
        result = staged(statements[-1], "bound_values", constant(results), *reads)
        lowered = lower_segment(made, result, frozenset(results))
        register_lowered(plain, compiled_within(lowered, [*free, STAGING], code))
        return Segment(plain, given, results)

    def whole(self, index: int) -> CodeType:
        """Compile a statement together with its blocks."""
        key = ("whole", index)
        if key not in self.codes:
            statement = _StopFlagLowering().visit(copy.deepcopy(self.statements[index]))
            self.codes[key] = self.body.compiled(statement)
        return self.codes[key]

    def opened(self, index: int) -> tuple[CodeType, list[StatementBlock]]:
        """Compile a statement whose blocks are called, and return it with these blocks."""
        key = ("opened", index)
        if key not in self.codes:
            self.codes[key] = self._opened(index)
        return self.codes[key]

    def _opened(self, index: int) -> tuple[CodeType, list[StatementBlock]]:
        statement = copy.copy(self.statements[index])
        after, always = self.live[index], self.always
        blocks = list[StatementBlock]()

        def called(part: Sequence[ast.stmt], after: NameSet, always: NameSet) -> list[ast.stmt]:
            if not part:
                return []
            blocks.append(StatementBlock(self.body, part, after, always))
            call = ast.Call(name(RUN_BLOCK), [ast.Constant(len(blocks) - 1)], [])
            return [at(part[0], ast.Expr(call))]

        match statement:
            case ast.If():
                statement.body = called(statement.body, after, always)
                statement.orelse = called(statement.orelse, after, always)
            case ast.While():
                head = syntax_trees.live_at_head(statement, after)
                statement.body = called(statement.body, head, always)
            case ast.For():
                head = syntax_trees.live_at_head(
                    statement, after | syntax_trees.stop_names(statement)
                )
                statement.body = called(statement.body, head, always)
            case ast.With():
                statement.body = called(statement.body, after, always | after)
            case ast.Try():
                behind = after | _all_loads(statement.finalbody)
                caught = behind | _all_loads(statement.handlers)
                later = caught | _all_loads(statement.orelse)
                statement.body = called(statement.body, later, always | caught)
                statement.orelse = called(statement.orelse, behind, always | behind)
                statement.finalbody = called(statement.finalbody, after, always)
                statement.handlers = list(map(copy.copy, statement.handlers))
                for handler in statement.handlers:
                    handler.body = called(handler.body, behind, always | behind)
            case _:
                pass
        lowered = _CallLowering(self.body.unsure).visit(
            _StopFlagLowering().visit(copy.deepcopy(statement))
        )
        return self.body.compiled(lowered), blocks


def _all_loads(nodes: Sequence[ast.AST]) -> NameSet:
    return EMPTY.union(*map(syntax_trees.loads, nodes))


def _mark(statement: ast.stmt, number: int) -> ast.stmt:
    return at(statement, ast.Expr(staged(statement, "mark", ast.Constant(number))))


def body_of(code: CodeType) -> Body | None:
    """Return the pieces of the function with this code; None if it cannot be split: its source is
    not found, it is a generator, or it reads its own variables by name."""
    key = code_key(code)
    if key not in _BODIES:
        _BODIES[key] = _made(code)
    return _BODIES[key]


_BODIES: dict[tuple[CodeType, str], Body | None] = {}


def _made(code: CodeType) -> Body | None:
    node, module = definition_of(code), module_of(code)
    if node is None or module is None or not _can_be_cut(node):
        return None
    given = parameters(node.args)
    if given:
        node = _SuperLowering(given[0]).visit(node)
    outer = _declared(own_nodes(node), ast.Global)
    around = _declared(own_nodes(node), ast.Nonlocal)
    node.body = [_Declarations().visit(statement) for statement in node.body]
    lowered = jump_free(node)
    local = (syntax_trees.stores(lowered) | set(given)) - outer - around
    captured = syntax_trees.captured(lowered)
    several = {item for item in captured & local if _stores_of(item, lowered, given) > 1}
    body = Body(code, node)
    body.local, body.outer = frozenset(local), outer
    body.unstable = frozenset(several) | _declared(ast.walk(module), ast.Nonlocal)
    body.unsure = syntax_trees.unsure(lowered, frozenset(given)) & local
    body.root = StatementBlock(body, lowered, frozenset({VALUE}), captured)
    return body


def _can_be_cut(node: ast.FunctionDef) -> bool:
    refused = (ast.Yield, ast.YieldFrom, ast.Await)
    return not any(
        isinstance(item, refused) or (isinstance(item, ast.Name) and item.id in _SEES_VARIABLES)
        for item in own_nodes(node)
    )


def _declared(nodes: Iterable[Any], kind: type[ast.Global | ast.Nonlocal]) -> NameSet:
    return frozenset(n for item in nodes if isinstance(item, kind) for n in item.names)


def _stores_of(variable: str, statements: Sequence[ast.stmt], given: Sequence[str]) -> int:
    """Return the number of times that a variable may be assigned; 2 means two or more."""
    count = int(variable in given)
    for statement in statements:
        if variable not in syntax_trees.stores([statement]):
            continue
        repeats = any(isinstance(item, ast.While | ast.For) for item in ast.walk(statement))
        count += 2 if repeats or isinstance(statement, _OPENED) else 1
    return count


class _SuperLowering(ast.NodeTransformer):
    """Adds the arguments to `super()`."""

    def __init__(self, first: str) -> None:
        self.first = first
        self.depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.depth += 1
        if self.depth == 1:
            self.generic_visit(node)
        self.depth -= 1
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            node.args = [at(node, name("__class__")), at(node, name(self.first))]
        return node


class _Declarations(ast.NodeTransformer):
    """Removes annotations, which shared variables may not have, and `global` and `nonlocal`, which
    each piece gets anew. Nested functions are left unchanged."""

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, _NESTED) else super().visit(node)

    def _dropped(self, node: ast.stmt) -> ast.stmt:
        return at(node, ast.Pass())

    visit_Global = visit_Nonlocal = _dropped

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return at(node, ast.Pass())
        return at(node, ast.Assign([node.target], node.value))


class _StopFlagLowering(ast.NodeTransformer):
    """Makes `for` loops end if one of their flags is set."""

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        flags = [name(flag) for flag in getattr(node, "stop_flags", ())]
        if flags:
            test = flags[0] if len(flags) == 1 else ast.BoolOp(ast.Or(), list(flags))
            node.body = [*node.body, at(node, ast.If(test, [ast.Break()], []))]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node


class _CallLowering(ast.NodeTransformer):
    """Makes calls go through `staging.call`; nested functions are left unchanged."""

    def __init__(self, unsure: NameSet) -> None:
        self.unsure = unsure

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, _NESTED) else super().visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("super", RUN_BLOCK, "globals"):
            return node
        call = staged(node, "call", node.func, *node.args)
        call.keywords = node.keywords
        return call

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if not isinstance(node.ctx, ast.Load) or node.id not in self.unsure:
            return node
        return staged(node, "bound", ast.Constant(node.id), thunk(node))
