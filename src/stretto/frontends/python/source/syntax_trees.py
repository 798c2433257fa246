"""Helpers for syntax trees: construction, and the names that code reads and binds.

A constructed node has no source position at first. `at` gives it that of the user's code
that it represents, so that errors point there.
"""

from __future__ import annotations

import ast
import dis
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any, TypeVar

STAGING = "__stretto"

Node = TypeVar("Node", bound=ast.AST)


def at(like: ast.AST, node: Node) -> Node:
    """Return `node`, with all new nodes inside, at the source position of `like`."""
    pending: list[ast.AST] = [node]
    while pending:
        item = pending.pop()
        if "lineno" not in item._attributes:
            pending += ast.iter_child_nodes(item)
        elif not hasattr(item, "lineno"):
            ast.copy_location(item, like)
            pending += ast.iter_child_nodes(item)
    return node


def name(identifier: str) -> ast.Name:
    return ast.Name(identifier, ast.Load())


def constant(value: Any) -> ast.expr:
    return ast.Constant(value)


def names(identifiers: Sequence[str]) -> ast.Tuple:
    return ast.Tuple([name(item) for item in identifiers], ast.Load())


def assign(identifier: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(identifier, ast.Store())], value)


def staging(attribute: str) -> ast.expr:
    """Return `__stretto.attribute`."""
    return ast.Attribute(name(STAGING), attribute, ast.Load())


def staged(like: ast.AST, function: str, *arguments: ast.expr) -> ast.Call:
    """Return `__stretto.function(arguments)` at the position of `like`."""
    return at(like, ast.Call(staging(function), list(arguments), []))


def thunk(body: ast.expr) -> ast.Lambda:
    """Return `lambda: body`."""
    return at(body, ast.Lambda(ast.arguments([], [], None, [], [], None, []), body))


def definition(
    function: str, arguments: ast.arguments | Sequence[str], body: list[ast.stmt]
) -> ast.FunctionDef:
    """Return `def function(arguments): body`."""
    if not isinstance(arguments, ast.arguments):
        given = [ast.arg(item) for item in arguments]
        arguments = ast.arguments([], given, None, [], [], None, [])
    made = ast.FunctionDef(function, arguments, body or [ast.Pass()], [], None)
    if "type_params" in ast.FunctionDef._fields:
        made.type_params = []  # type: ignore[attr-defined]
    return made


def own_nodes(function: ast.AST) -> list[ast.AST]:
    """Return all nodes of a function except those in nested functions and classes."""
    found = list[ast.AST]()
    pending = child_nodes(function)
    while pending:
        item = pending.pop()
        found.append(item)
        if not isinstance(item, _SCOPES):
            pending += child_nodes(item)
    return found


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def child_nodes(node: ast.AST) -> list[ast.AST]:
    """Return the nodes of `ast.iter_child_nodes`, in less than half of the time."""
    found = list[ast.AST]()
    table = vars(node)
    for field in node._fields:
        value = table.get(field)
        if isinstance(value, ast.AST):
            found.append(value)
        elif type(value) is list:
            found += [item for item in value if isinstance(item, ast.AST)]
    return found


def every_node(node: ast.AST) -> list[ast.AST]:
    """Return the node and all nodes inside."""
    found = [node]
    for item in found:
        found += child_nodes(item)
    return found


# ---- Names that a function reads, taken from its bytecode.


@dataclass(frozen=True, slots=True)
class NamesRead:
    """Names that a code object and its nested code objects read."""

    globals: frozenset[str]
    attributes: frozenset[str]


_VALUE_SHIFT = 1 if sys.version_info >= (3, 12) else 0
"""Shift of LOAD_ATTR's argument: since 3.12 its lowest bit tells if a method is called."""
_SHIFTS = {
    "LOAD_GLOBAL": 1,
    "LOAD_NAME": 0,
    "LOAD_ATTR": _VALUE_SHIFT,
    "LOAD_METHOD": 0,
    "LOAD_SUPER_ATTR": 2,
}
"""Number of bits of an instruction's argument below the index of the name."""
_NAMED = {dis.opmap[name]: (name, shift) for name, shift in _SHIFTS.items() if name in dis.opmap}


def named_instructions(code: CodeType) -> Iterator[tuple[str, str]]:
    """Yield operation and name of the instructions that read a global or attribute.

    `dis` takes forty times as long, and there are thousands of functions.
    """
    content, extended = code.co_code, 0
    for operation, low in zip(content[::2], content[1::2], strict=True):
        if operation == dis.EXTENDED_ARG:
            extended = (extended | low) << 8
            continue
        argument, extended = extended | low, 0
        if operation in _NAMED:
            name, shift = _NAMED[operation]
            yield name, code.co_names[argument >> shift]


@cache
def names_read(code: CodeType) -> NamesRead:
    """Return the names that a code object and its nested code objects read."""
    variables, attributes = set[str](), set[str]()
    for operation, name in named_instructions(code):
        (variables if operation in ("LOAD_GLOBAL", "LOAD_NAME") else attributes).add(name)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = names_read(constant)
            variables |= inner.globals
            attributes |= inner.attributes
        elif isinstance(constant, str) and constant.isidentifier():
            attributes.add(constant)  # for getattr
    return NamesRead(frozenset(variables), frozenset(attributes))


# ---- Names that statements read and bind.


NameSet = frozenset[str]
EMPTY: NameSet = frozenset()

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def loads(node: ast.AST) -> NameSet:
    """Return the names read anywhere inside, nested functions included. A comprehension reads
    none of its own variables from outside, except in its first iterable."""
    found, pending = set[str](), [node]
    while pending:
        item = pending.pop()
        if isinstance(item, _COMPREHENSIONS):
            first = item.generators[0].iter
            own = stores(part.target for part in item.generators)
            inner = [n for n in child_nodes(item) if n is not item.generators[0]]
            inner += [n for n in child_nodes(item.generators[0]) if n is not first]
            found |= loads(first)
            found.update(*(loads(part) - own for part in inner))
        elif not isinstance(item, ast.Name):
            pending += child_nodes(item)
        elif not isinstance(item.ctx, ast.Store):
            found.add(item.id)
    return frozenset(found)


def stores(nodes: Iterable[ast.AST]) -> NameSet:
    """Return the local names bound by statements; nested functions and comprehensions are not
    entered."""
    found = set[str]()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        found |= _bound(node)
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            pending += getattr(node, "decorator_list", [])
            continue
        if isinstance(node, _COMPREHENSIONS):
            pending += [n for n in every_node(node) if isinstance(n, ast.NamedExpr)]
            continue
        pending += child_nodes(node)
    return frozenset(found)


def perhaps_stored(statement: ast.stmt) -> NameSet:
    """Return the names that `:=` binds in a part of an expression that may be skipped."""
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
    """Return the names that nested functions and lambdas read: they may run at any later time."""
    found = EMPTY
    for node in nodes:
        for item in every_node(node):
            if isinstance(item, _FUNCTIONS):
                found |= loads(item)
    return found


def surely_stored(statement: ast.stmt) -> NameSet:
    """Return the names that certainly have a new value after the statement."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return frozenset({statement.name})
    if isinstance(statement, ast.Assign):
        return stores(statement.targets)
    return EMPTY


def unsure(statements: Sequence[ast.stmt], known: NameSet) -> NameSet:
    """Return the names that may lack a value where they are read: those first bound inside a
    loop or branch, or after the first statement that reads them.

    known: names that have a value at the start. Names created by the rewriting are left out.
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


def parameters(arguments: ast.arguments) -> list[str]:
    """Return the names of all parameters, positional ones first."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    extra = [item for item in (arguments.vararg, arguments.kwarg) if item is not None]
    return [item.arg for item in (*every, *extra)]


def jumps_of(node: ast.AST) -> list[ast.AST]:
    """Return the jumps of a statement that may leave its block."""
    if isinstance(node, ast.Return | ast.Break | ast.Continue):
        return [node]
    if isinstance(node, _SCOPES):
        return []
    found = [item for child in child_nodes(node) for item in jumps_of(child)]
    if isinstance(node, ast.While | ast.For):
        orelse = [item for child in node.orelse for item in jumps_of(child)]
        return [item for item in found if isinstance(item, ast.Return) or item in orelse]
    return found
