"""Variables that a nested function assigns (`nonlocal`): each becomes a list of one item.

    def f(items):                       def f(items):
        count = 0                           count = [0]
        def add(n):                         def add(n):
            nonlocal count           ->
            count += n                          count[0] += n
        ...                                 ...
        return count                        return count[0]

A variable whose first use is not a plain assignment in the body of its function stays as it is, and
is refused with its line.
"""

from __future__ import annotations

import ast

from stretto.frontends.python.source.syntax import stores

_INNER = ast.FunctionDef | ast.Lambda


def with_boxes(function: ast.FunctionDef) -> ast.FunctionDef:
    """The definition, changed in place, with boxes for what its nested functions assign."""
    for inner in _nested(function):
        if isinstance(inner, ast.FunctionDef):
            with_boxes(inner)
    inside = {node for inner in _nested(function) for node in ast.walk(inner)}
    assigned = {n for node in inside if isinstance(node, ast.Nonlocal) for n in node.names}
    for node in ast.walk(function):
        if isinstance(node, ast.Nonlocal) and node not in inside:
            assigned -= set(node.names)  # variables of a function around this one
    parameters = {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}
    for name in sorted(assigned & (stores(function.body) | parameters)):
        if _can_be_boxed(function, name, name in parameters):
            _box(function, name, name in parameters)
    return function


def _nested(function: ast.AST) -> list[_INNER]:
    """The functions that are defined within one, but not within another one of them."""
    found: list[_INNER] = []
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            found.append(node)
        else:
            pending += ast.iter_child_nodes(node)
    return found


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))


def _can_be_boxed(function: ast.FunctionDef, name: str, is_parameter: bool) -> bool:
    for node in ast.walk(function):
        match node:
            case ast.NamedExpr(ast.Name(target)) if target == name:
                return False
            case ast.comprehension(target) if _mentions(target, name):
                return False
            case ast.Delete(targets) if any(_mentions(target, name) for target in targets):
                return False
            case ast.arg(found) if found == name and node not in list(ast.walk(function.args)):
                return False
            case _:
                pass
    first = next((part for part in function.body if _mentions(part, name)), None)
    return is_parameter or _first_value(first, name) is not None


def _first_value(statement: ast.stmt | None, name: str) -> ast.expr | None:
    match statement:
        case ast.Assign([ast.Name(target)], value) if target == name:
            return value
        case ast.AnnAssign(ast.Name(target), _, ast.expr() as value) if target == name:
            return value
        case _:
            return None


def _box(function: ast.FunctionDef, name: str, is_parameter: bool) -> None:
    first = None
    if not is_parameter:
        first = next(part for part in function.body if _mentions(part, name))
    body: list[ast.stmt] = []
    for statement in function.body:
        value = _first_value(statement, name) if statement is first else None
        if value is None:
            body.append(_Boxed(name).visit(statement))
        else:
            body.append(_made(statement, name, value))
    if is_parameter:
        start = function.body[0]
        read = ast.copy_location(ast.Name(name, ast.Load()), start)
        body.insert(0, _made(start, name, read))
    function.body = body


def _made(place: ast.stmt, name: str, value: ast.expr) -> ast.stmt:
    box = ast.Assign([ast.Name(name, ast.Store())], ast.List([value], ast.Load()))
    return ast.fix_missing_locations(ast.copy_location(box, place))


class _Boxed(ast.NodeTransformer):
    """Reads and assignments of a variable as those of the item of its box."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id != self._name:
            return node
        item = ast.Subscript(ast.Name(node.id, ast.Load()), ast.Constant(0), node.ctx)
        return ast.fix_missing_locations(ast.copy_location(item, node))

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.stmt:
        names = [name for name in node.names if name != self._name]
        made = ast.Nonlocal(names) if names else ast.Pass()
        return ast.copy_location(made, node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        declared = any(
            isinstance(part, ast.Nonlocal) and self._name in part.names for part in ast.walk(node)
        )
        if not declared and self._name in stores(node.body):
            return node  # a variable of its own
        self.generic_visit(node)
        return node
