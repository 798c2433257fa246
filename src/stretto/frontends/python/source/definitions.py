"""Definitions of functions: the syntax tree that a code object was compiled from, and code compiled
under the name of the user's file."""

from __future__ import annotations
import __future__

import ast
import copy
import inspect
import linecache
import time
import tokenize
import types
import weakref
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from stretto.frontends.python.source.syntax_trees import at, definition, parameters
from stretto.frontends.python.tracing.locations import code_key, is_user_file


def is_user_function(function: Any) -> bool:
    """True if `function` is a Python function of the user."""
    return isinstance(function, types.FunctionType) and is_user_file(function.__code__.co_filename)


def definition_of(code: types.CodeType) -> ast.FunctionDef | None:
    """Return a copy of the definition that `code` was compiled from; None if its source is not
    found."""
    match = _definition_at(code) or _definition_in_module(code)
    if match is None or not _is_as_imported(code):
        return None
    found, class_name = _definition(match[0]), match[1]
    return Mangler(class_name).visit(found) if class_name else found


class SegmentSource(NamedTuple):
    """The tree of a segment: its head, the user's statements, and the variables that it returns."""

    tree: ast.FunctionDef
    head: int
    results: tuple[str, ...]


_SEGMENTS: dict[tuple[types.CodeType, str], SegmentSource] = {}


def register_segment(code: types.CodeType, source: SegmentSource) -> None:
    """Register the tree of a segment of a function's body."""
    _SEGMENTS[code_key(code)] = source


def segment_of(code: types.CodeType) -> SegmentSource | None:
    """Return the tree of a segment; None for other code."""
    return _SEGMENTS.get(code_key(code))


def module_of(code: types.CodeType) -> ast.Module | None:
    """Return the module that `code` was compiled from, or None."""
    return _module(code.co_filename)


def _definition(node: ast.FunctionDef | ast.Lambda) -> ast.FunctionDef:
    if isinstance(node, ast.FunctionDef):
        return node
    body = at(node.body, ast.Return(node.body))
    return at(node, definition("__stretto_lambda", node.args, [body]))


def compiled_within(node: ast.FunctionDef, free: list[str], code: types.CodeType) -> types.CodeType:
    """Compile the definition inside a factory whose parameters are its free variables.

    The definition loses its name, which would be a local variable of the factory: a function
    that calls itself by that name means the global one.
    """
    node.name = "__stretto_function"
    _strip_defaults(node)
    factory = definition("__stretto_factory", free, [node])
    module = ast.fix_missing_locations(ast.Module([factory], []))
    flags = code.co_flags & __future__.annotations.compiler_flag
    compiled = compile(module, code.co_filename, "exec", flags, dont_inherit=True)
    inner = _code_named(_code_named(compiled, "__stretto_factory"), node.name)
    named = _renamed(inner, inner.co_qualname, code.co_qualname).replace(co_name=code.co_name)
    _COMPILED.update(_codes_in(named))
    return named


_COMPILED = weakref.WeakSet[types.CodeType]()
"""Code that this module has compiled, whose text was already checked to be that of the function."""


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code and that of all functions in it."""
    yield code
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            yield from _codes_in(item)


def _renamed(code: types.CodeType, old: str, new: str) -> types.CodeType:
    """Return the code, and all code inside, under the name of the user's function."""
    constants = tuple(
        _renamed(item, old, new) if isinstance(item, types.CodeType) else item
        for item in code.co_consts
    )
    name = new + code.co_qualname.removeprefix(old)
    return code.replace(co_qualname=name, co_consts=constants)


def _strip_defaults(node: ast.FunctionDef) -> None:
    """Replace defaults by placeholders, which keep the signature: the values come from the
    function object."""
    arguments = node.args
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [item and ast.Constant(None) for item in arguments.kw_defaults]


def _code_named(code: types.CodeType, name: str) -> types.CodeType:
    return next(
        item for item in code.co_consts if isinstance(item, types.CodeType) and item.co_name == name
    )


@cache
def _module_of(filename: str, text: str) -> ast.Module | None:
    try:
        return ast.parse(text, filename)
    except SyntaxError:
        return None


def _module(filename: str) -> ast.Module | None:
    linecache.checkcache(filename)
    lines = linecache.getlines(filename)
    return _module_of(filename, "".join(lines)) if lines else None


def _is_as_imported(code: types.CodeType) -> bool:
    """True if the file still has the text that `code` was compiled from, as it may have been
    edited since the import. Files last changed more than an hour before this module was
    imported are assumed unchanged."""
    try:
        changed = Path(code.co_filename).stat().st_mtime
    except OSError:
        return True  # a notebook cell, or generated code
    parts = list(_codes_in(code))
    by_pytest = any(name.startswith("@py") for part in parts for name in part.co_varnames)
    if changed < _STARTED - _BEFORE or by_pytest or code in _COMPILED:
        return True  # pytest compiles functions with asserts from a different text
    text = "".join(linecache.getlines(code.co_filename))
    flags = code.co_flags & __future__.annotations.compiler_flag
    found = _codes_of(code.co_filename, text, flags)
    same = found.get((code.co_qualname, code.co_firstlineno), ())
    return any(_is_alike(code, other) for other in same)


_STARTED = time.time()
_BEFORE = 3600
"""Seconds before the import of this module in which a changed file is compared with its code."""


@cache
def _codes_of(filename: str, text: str, flags: int) -> dict[tuple[str, int], list[types.CodeType]]:
    """Return the code of all functions in a file, by qualified name and first line."""
    found = defaultdict[tuple[str, int], list[types.CodeType]](list)
    try:
        module = compile(text, filename, "exec", flags, dont_inherit=True)
    except SyntaxError:
        return found
    for code in _codes_in(module):
        found[code.co_qualname, code.co_firstlineno].append(code)
    return found


def _is_alike(code: types.CodeType, other: types.CodeType) -> bool:
    """True if both have the same instructions, names and constants."""
    if (code.co_code, code.co_names) != (other.co_code, other.co_names):
        return False
    pairs = zip(code.co_consts, other.co_consts, strict=False)
    return len(code.co_consts) == len(other.co_consts) and all(
        _is_alike(one, two)
        if isinstance(one, types.CodeType) and isinstance(two, types.CodeType)
        else (one == two if isinstance(one, frozenset) else repr(one) == repr(two))
        for one, two in pairs
    )


_Match = tuple[ast.FunctionDef | ast.Lambda, str | None]


def _definition_at(code: types.CodeType) -> _Match | None:
    """Return the definition at the first line of `code`, with its class, if it can be parsed
    without the rest of the file, which may be long; else None."""
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    indented = bool(lines) and lines[0][:1].isspace()
    before = code.co_firstlineno - 1 - indented
    if not lines or before < 0 or code.co_name == "<lambda>":
        return None
    head = "\n" * before + ("if True:\n" if indented else "")
    try:
        block = "".join(inspect.getblock(lines))
        body = ast.parse(head + block, code.co_filename).body
    except (SyntaxError, tokenize.TokenError):
        return None
    if indented and isinstance(body[0], ast.If):
        body = body[0].body
    last = max(line or 0 for _, _, line in code.co_lines())
    match body:
        case [ast.FunctionDef(name=code.co_name, end_lineno=int(end)) as found] if end >= last:
            return found, _class_around(code.co_qualname)
        case _:
            return None


def _class_around(name: str) -> str | None:
    """Return the innermost class in the qualified name of a function, or None."""
    outer = name.split(".")[:-1]
    followed = zip(outer, [*outer, ""][1:], strict=True)
    classes = [part for part, after in followed if "<locals>" not in (part, after)]
    return classes[-1] if classes else None


def _definition_in_module(code: types.CodeType) -> _Match | None:
    tree = _module(code.co_filename)
    found = None if tree is None else _find(tree, code)
    return found and (copy.deepcopy(found[0]), found[1])


def _find(tree: ast.Module, code: types.CodeType) -> _Match | None:
    """Return the definition that `code` was compiled from, with its class; or None."""
    found = _definitions(tree).get((code.co_name, code.co_firstlineno), [])
    matches = [
        match
        for match in found
        if isinstance(match[0], ast.FunctionDef) or _is_lambda(match[0], code)
    ]
    return min(matches, key=_extent) if matches else None


@cache
def _definitions(tree: ast.Module) -> dict[tuple[str, int], list[_Match]]:
    """Return all definitions of a module by name and first line."""
    found = defaultdict[tuple[str, int], list[_Match]](list)
    pending: list[tuple[ast.AST, str | None]] = [(tree, None)]
    while pending:
        node, class_name = pending.pop()
        if isinstance(node, ast.ClassDef):
            class_name = node.name
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            found[node.name, first].append((node, class_name))
        if isinstance(node, ast.Lambda):
            found["<lambda>", node.lineno].append((node, class_name))
        pending += [(child, class_name) for child in ast.iter_child_nodes(node)]
    return found


def _extent(match: _Match) -> tuple[int, int]:
    """Size of a definition in lines and columns: among nested lambdas the innermost is chosen."""
    node = match[0]
    lines = (node.end_lineno or node.lineno) - node.lineno
    return lines, (node.end_col_offset or 0) - node.col_offset


def _is_lambda(node: ast.Lambda, code: types.CodeType) -> bool:
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if parameters(node.args)[: len(names)] != list(names):
        return False
    starts = {(line, column) for line, _, column, _ in code.co_positions() if column is not None}
    parts = [item for item in ast.walk(node.body) if isinstance(item, ast.expr)]
    inside = {(item.lineno, item.col_offset) for item in parts}
    return bool(starts & inside)


class Mangler(ast.NodeTransformer):
    """Mangles private names as in the class around the function."""

    def __init__(self, class_name: str) -> None:
        self.prefix = f"_{class_name.lstrip('_')}"

    def _mangled(self, name: str) -> str:
        private = name.startswith("__") and not name.endswith("__") and "." not in name
        return self.prefix + name if private else name

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.ClassDef):  # its body mangles names with its own prefix
            for part in (*node.decorator_list, *node.bases, *node.keywords):
                self.visit(part)
        else:
            self.generic_visit(node)
        for field in ("arg", "asname", "attr", "id", "rest", "name"):
            value = getattr(node, field, None)
            is_outside = isinstance(node, ast.keyword) or (
                isinstance(node, ast.alias) and field == "name"
            )
            if isinstance(value, str) and not is_outside:
                setattr(node, field, self._mangled(value))
        if isinstance(node, ast.Global | ast.Nonlocal):
            node.names = [self._mangled(item) for item in node.names]
        return node
