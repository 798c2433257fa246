"""Sources of user functions: their definitions, scopes, and facts about their local variables."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

from stretto.batching.frontend.dispatch import at
from stretto.batching.frontend.frame import Frame
from stretto.batching.frontend.guards import note_cell, note_function
from stretto.batching.frontend.values import Closure, Static, Value
from stretto.frontends.python.source.definitions import definition_of
from stretto.frontends.python.source.syntax_trees import child_nodes, every_node, stores

# ---- Variables that a nested function assigns (`nonlocal`): each becomes a one-item list, its box.
#
#     def f(items):                       def f(items):
#         count = 0                           count = [0]
#         def add(n):                         def add(n):
#             nonlocal count           ->
#             count += n                          count[0] += n
#         ...                                 ...
#         return count                        return count[0]
#
# A variable whose first use is not a plain assignment in the body of its function is not rewritten,
# and is refused later, with its line.


_INNER = ast.FunctionDef | ast.Lambda


def with_boxes(function: ast.FunctionDef) -> ast.FunctionDef:
    """Return the definition, changed in place, with boxes for the variables that its nested
    functions assign."""
    for inner in _nested(function):
        if isinstance(inner, ast.FunctionDef):
            with_boxes(inner)
    inside = {node for inner in _nested(function) for node in ast.walk(inner)}
    assigned = {n for node in inside if isinstance(node, ast.Nonlocal) for n in node.names}
    for node in ast.walk(function):
        if isinstance(node, ast.Nonlocal) and node not in inside:
            assigned -= set(node.names)  # variables of an enclosing function
    parameters = {arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)}
    for name in sorted(assigned & (stores(function.body) | parameters)):
        if _can_be_boxed(function, name, name in parameters):
            _box(function, name, name in parameters)
    return function


def _nested(function: ast.AST) -> list[_INNER]:
    """Return the functions defined directly within a function, not within another nested one."""
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
    """Rewrites reads and assignments of a variable as those of the item of its box."""

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
            return node  # a local variable of the same name
        self.generic_visit(node)
        return node


@dataclass(frozen=True, slots=True, eq=False)
class FunctionSource:
    """A function of the user: its definition, and the scopes of its names."""

    node: ast.FunctionDef
    name: str
    file: str
    globals: dict[str, Any]
    free: dict[str, Any]
    outer: Frame | None
    code: Hashable
    defaults: tuple[Value, ...]
    keyword_defaults: dict[str, Value]
    owner: type | None = None


def source_of_function(frame: Frame, function: FunctionType) -> FunctionSource:
    function = inspect.unwrap(function)
    code = function.__code__
    note_function(frame.evaluation, function)
    definitions = frame.evaluation.definitions
    if code not in definitions:
        found = definition_of(code)
        definitions[code] = None if found is None else with_boxes(found)
    node = definitions[code]
    if node is None:
        frame.refuse(f"the source of {function.__qualname__} is not found")
    free: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            free[name] = cell.cell_contents
        except ValueError:
            continue
        note_cell(frame.evaluation, cell, free[name])
    _check_kind(frame, node, function.__qualname__)
    named: dict[str, Value] = {n: Static(v) for n, v in (function.__kwdefaults__ or {}).items()}
    return FunctionSource(
        node,
        function.__qualname__,
        code.co_filename,
        function.__globals__,
        free,
        None,
        code if not free else (code, tuple(id(value) for value in free.values())),
        tuple(map(Static, function.__defaults__ or ())),
        named,
        free.get("__class__"),
    )


def source_of_closure(frame: Frame, function: Closure) -> FunctionSource:
    scope = function.scope
    assert isinstance(scope, Frame)
    _check_kind(frame, function.node, function.name)
    return FunctionSource(
        function.node,
        f"{scope.name}.<locals>.{function.name}",
        scope.file,
        scope.globals,
        scope.free,
        scope,
        function.node,
        function.defaults,
        function.keyword_defaults,
        scope.owner,
    )


@lru_cache(4096)
def _refused_parts(
    node: ast.FunctionDef,
) -> tuple[ast.Yield | ast.YieldFrom | ast.Await | ast.Global | ast.Nonlocal, ...]:
    return tuple(
        part
        for part in every_node(node)
        if isinstance(part, ast.Yield | ast.YieldFrom | ast.Await | ast.Global | ast.Nonlocal)
    )


def _check_kind(frame: Frame, node: ast.FunctionDef, name: str) -> None:
    for part in _refused_parts(node):
        if isinstance(part, ast.Global | ast.Nonlocal):
            frame.refuse(
                f"{name} assigns {', '.join(part.names)}, a variable outside of it",
                "return the value, or keep it in a list or an object",
            )
        with at(frame, part):
            frame.refuse(f"{name} is a generator", "return a list instead")


# ---- Local variables that are the only reference to a tensor: `x += y` then equals `x = x + y`.


_KEPT = 4096
"""Size of the caches of facts about functions, which each call of a function looks up."""

_CREATES = frozenset(
    (
        "zeros", "ones", "full", "empty", "tensor", "zeros_like", "ones_like", "full_like",
        "new_zeros", "new_ones", "new_full", "clone", "stack", "cat",
    )
)  # fmt: skip


@lru_cache(_KEPT)
def owned_names(function: ast.FunctionDef) -> frozenset[str]:
    """Return the local names that are bound only to new tensors, and read only where no reference
    is kept: as operands of operators, arguments of torch functions, and in `return`."""
    parents: dict[ast.AST, ast.AST] = {}
    for node in every_node(function):
        for child in child_nodes(node):
            parents[child] = node
    refused = {arg.arg for arg in every_node(function) if isinstance(arg, ast.arg)}
    bound: set[str] = set()
    for node in every_node(function):
        if not isinstance(node, ast.Name):
            continue
        parent = parents[node]
        if isinstance(node.ctx, ast.Store):
            bound.add(node.id)
            if not _is_new(node, parent):
                refused.add(node.id)
        elif not _keeps_nothing(node, parent):
            refused.add(node.id)
    return frozenset(bound - refused)


def _is_new(node: ast.Name, parent: ast.AST) -> bool:
    match parent:
        case ast.AugAssign():
            return True
        case ast.Assign([target], value) if target is node:
            return _makes_new(value)
        case ast.AnnAssign(value=value) if value is not None:
            return _makes_new(value)
        case _:
            return False


def _makes_new(value: ast.expr) -> bool:
    match value:
        case ast.BinOp() | ast.Constant():
            return True
        case ast.Call(ast.Attribute(_, name)):
            return name in _CREATES
        case _:
            return False


def _keeps_nothing(node: ast.Name, parent: ast.AST) -> bool:
    match parent:
        case ast.BinOp() | ast.Compare() | ast.UnaryOp() | ast.AugAssign() | ast.Return():
            return True
        case ast.Call(ast.Attribute(ast.Name("torch" | "F"), name)) if node in parent.args:
            return name in _READS
        case _:
            return False


_READS = frozenset(
    (
        "tanh", "sigmoid", "relu", "softmax", "log_softmax", "exp", "log", "sqrt", "sum", "mean",
        "cat", "stack", "linear", "matmul", "mm", "mv", "dot", "where",
    )
)  # fmt: skip


@lru_cache(_KEPT)
def private_lists(function: ast.FunctionDef) -> frozenset[str]:
    """Return the local names of lists without any other reference: they begin as a display, and
    are only appended to, indexed, measured, combined by `torch.cat` or `torch.stack`, and
    returned. Such a list may be treated as the tuple of its items."""
    parents: dict[ast.AST, ast.AST] = {}
    inner: set[ast.AST] = set()
    for node in every_node(function):
        for child in child_nodes(node):
            parents[child] = node
        if isinstance(node, ast.FunctionDef | ast.Lambda) and node is not function:
            inner |= set(every_node(node))
    refused = {arg.arg for arg in every_node(function) if isinstance(arg, ast.arg)}
    bound: set[str] = set()
    for node in every_node(function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            refused |= set(node.names)
        if not isinstance(node, ast.Name):
            continue
        parent = parents[node]
        if node in inner:
            refused.add(node.id)
        elif isinstance(node.ctx, ast.Store):
            bound.add(node.id)
            if not _is_display(node, parent):
                refused.add(node.id)
        elif not _keeps_private(node, parent, parents):
            refused.add(node.id)
    return frozenset(bound - refused)


def _is_display(node: ast.Name, parent: ast.AST) -> bool:
    match parent:
        case ast.Assign([target], ast.List()) if target is node:
            return True
        case ast.AnnAssign(target, _, ast.List()):
            return target is node
        case _:
            return False


def _keeps_private(node: ast.Name, parent: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    match parent:
        case ast.Attribute(_, "append"):
            call = parents[parent]
            is_called = isinstance(call, ast.Call) and call.func is parent
            return is_called and isinstance(parents[call], ast.Expr)
        case ast.Subscript(value, _, ast.Load()):
            return value is node
        case ast.Call(ast.Name("len"), [argument], []):
            return argument is node
        case ast.Call(ast.Attribute(ast.Name("torch"), "cat" | "stack"), [argument, *_]):
            return argument is node
        case ast.Return():
            return True
        case _:
            return False


@lru_cache(_KEPT)
def read_once_names(function: ast.FunctionDef) -> frozenset[str]:
    """Return the local names that are read once each time they are bound: an iterator in one of
    them is never used again after it is exhausted."""
    reads: dict[str, list[Hashable]] = {}
    stores: dict[str, list[Hashable]] = {}
    for argument in every_node(function.args):
        if isinstance(argument, ast.arg):
            stores.setdefault(argument.arg, []).append(None)

    def visit(node: ast.AST, around: Hashable) -> None:
        if isinstance(node, ast.Name):
            found = stores if isinstance(node.ctx, ast.Store) else reads
            found.setdefault(node.id, []).append(around)
        match node:
            case ast.For(target, iterable, body, orelse):
                visit(iterable, around)
                for part in (target, *body, *orelse):
                    visit(part, node)
            case ast.While() | ast.FunctionDef() | ast.Lambda() | ast.comprehension():
                for part in child_nodes(node):
                    visit(part, node)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
                first = node.generators[0].iter
                visit(first, around)
                for part in every_node(node):
                    if isinstance(part, ast.Name) and part not in list(every_node(first)):
                        visit(part, node)
            case _:
                for part in child_nodes(node):
                    visit(part, around)

    for statement in function.body:
        visit(statement, None)
    return frozenset(
        name for name, places in stores.items() if len(places) == 1 and reads.get(name) == places
    )
