"""Where the source of a function of the user is found, and what its names mean."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

from stretto.batching.frontend.calls.boxes import with_boxes
from stretto.batching.frontend.state.dispatch import at
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.guards import note_cell, note_function
from stretto.batching.frontend.state.values import Closure, Static, Value
from stretto.frontends.python.source.rewrite import definition_of
from stretto.frontends.python.source.syntax import every_node


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A function of the user: its definition, and where its names are found."""

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


def source_of_function(frame: Frame, function: FunctionType) -> Source:
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
    return Source(
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


def source_of_closure(frame: Frame, function: Closure) -> Source:
    scope = function.scope
    assert isinstance(scope, Frame)
    _check_kind(frame, function.node, function.name)
    return Source(
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
