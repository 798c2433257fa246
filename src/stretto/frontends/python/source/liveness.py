"""Which local variables are read later: backward data flow over structured statements.

Works on lowered code (`jumps`): no break, continue or return is left, except at a function's end.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from stretto.frontends.python.source.syntax import child_nodes, every_node

NameSet = frozenset[str]
EMPTY: NameSet = frozenset()

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def loads(node: ast.AST) -> NameSet:
    """Names read anywhere inside, nested functions included."""
    return frozenset(
        item.id
        for item in every_node(node)
        if isinstance(item, ast.Name) and not isinstance(item.ctx, ast.Store)
    )


def stores(nodes: Iterable[ast.AST]) -> NameSet:
    """Local names bound by statements; nested functions and comprehensions are not entered."""
    found = set[str]()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        found |= _bound(node)
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            pending += getattr(node, "decorator_list", [])
            continue
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            pending += [n for n in every_node(node) if isinstance(n, ast.NamedExpr)]
            continue
        pending += child_nodes(node)
    return frozenset(found)


def perhaps_stored(statement: ast.stmt) -> NameSet:
    """Names that `:=` binds in a part of an expression that may not be evaluated."""
    parts: list[ast.AST] = []
    for node in every_node(statement):
        match node:
            case ast.BoolOp(values=values):
                parts += values[1:]
            case ast.IfExp(body=body, orelse=orelse):
                parts += [body, orelse]
            case ast.Compare(comparators=comparators):
                parts += comparators[1:]
            case _:
                pass
    return stores(parts) if parts else EMPTY


def _bound(node: ast.AST) -> set[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return {name}
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.ExceptHandler(name=str(name)):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {(alias.asname or alias.name).split(".")[0] for alias in names}
        case _:
            return set()


def captured(nodes: Iterable[ast.AST]) -> NameSet:
    """Names that nested functions and lambdas read: they may run at any later time."""
    found = EMPTY
    for node in nodes:
        for item in every_node(node):
            if isinstance(item, _FUNCTIONS):
                found |= loads(item)
    return found


def live_before(statements: Sequence[ast.stmt], after: NameSet) -> NameSet:
    """Names that may be read before they are written, from the start of `statements` on."""
    for statement in reversed(statements):
        after = live_before_one(statement, after)
    return after


def live_before_one(statement: ast.stmt, after: NameSet) -> NameSet:
    match statement:
        case ast.If(test=test, body=body, orelse=orelse):
            return loads(test) | live_before(body, after) | live_before(orelse, after)
        case ast.While() | ast.For():
            return live_at_head(statement, after)
        case ast.With(items=items, body=body):
            inside = live_before(body, after)
            return inside.union(*(loads(item) for item in items))
        case ast.Try():
            final = live_before(statement.finalbody, after)
            inside = live_before(statement.body, live_before(statement.orelse, final))
            return inside | final | live_in_handlers(statement, final)
        case ast.AugAssign():
            return after | loads(statement) | stores([statement])
        case ast.Delete():
            return after | stores([statement])
        case _:
            return (after - surely_stored(statement)) | loads(statement)


def surely_stored(statement: ast.stmt) -> NameSet:
    """Names that have another value behind the statement, whatever happens inside."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return frozenset({statement.name})
    if isinstance(statement, ast.Assign):
        return stores(statement.targets)
    return EMPTY


def unsure(statements: Sequence[ast.stmt], known: NameSet) -> NameSet:
    """Names that may lack a value where they are read: those first bound inside of a loop or
    branch, or behind the first statement that reads them.

    known: names that have one before. Names that the rewriting made are left out.
    """
    found = set[str]()
    bound = set(known)
    stored = stores(statements)
    for statement in statements:
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            found |= (loads(statement) & stored) - bound
        match statement:
            case ast.If() | ast.While() | ast.For() | ast.Try():
                found |= stores([statement]) - bound
            case ast.With(body=body):
                found |= unsure(body, frozenset(bound))
                bound |= stores([statement])
            case _:
                found |= perhaps_stored(statement) - bound
                bound |= stores([statement]) - found
    return frozenset(name for name in found if not name.startswith("__stretto"))


def live_at_head(loop: ast.While | ast.For, after: NameSet) -> NameSet:
    """Names live where a loop decides whether to go on."""
    match loop:
        case ast.While(test=test):
            head = after | loads(test)
            stored = EMPTY
        case ast.For(iter=iterable, target=target):
            head = after | loads(iterable) | loads(target) | stop_names(loop)
            stored = stores([target])
    while True:
        grown = head | (live_before(loop.body, head) - stored)
        if grown == head:
            return head
        head = grown


def stop_names(loop: ast.For) -> NameSet:
    """The flags that end a `for` loop early."""
    return frozenset(getattr(loop, "stop_flags", ()))


def live_in_handlers(statement: ast.Try, final: NameSet) -> NameSet:
    """Names that the handlers may read, behind which `final` are live."""
    handlers = EMPTY
    for handler in statement.handlers:
        handlers |= live_before(handler.body, final)
        handlers |= loads(handler.type) if handler.type else EMPTY
    return handlers
