"""A new activation of a function."""

from __future__ import annotations

import ast
from collections.abc import Hashable
from functools import lru_cache

from stretto.batching.frontend.calls.ownership import gone_through_once, owned_names, private_lists
from stretto.batching.frontend.calls.sources import Source
from stretto.batching.frontend.control.joins import leave
from stretto.batching.frontend.state.builder import PathEnds
from stretto.batching.frontend.state.dispatch import execute
from stretto.batching.frontend.state.frame import Frame
from stretto.batching.frontend.state.values import NONE, Value
from stretto.frontends.python.source.syntax import stores


@lru_cache(4096)
def _local_names(function: ast.FunctionDef) -> frozenset[str]:
    return stores(function.body) | {
        arg.arg for arg in ast.walk(function.args) if isinstance(arg, ast.arg)
    }


def new_frame(
    frame: Frame, source: Source, bound: dict[str, Value], path: tuple[Hashable, ...]
) -> Frame:
    arguments = source.node.args
    made = Frame(
        frame.evaluation,
        frame.builder,
        source.name,
        source.file,
        source.globals,
        source.outer,
        source.free,
        source.code,
        path,
        bound,
        _local_names(source.node),
        caller=frame,
        owner=source.owner,
        place=source.node,
        owned=owned_names(source.node),
        private=private_lists(source.node),
        once=gone_through_once(source.node),
        receiver=next((arg.arg for arg in (*arguments.posonlyargs, *arguments.args)), None),
    )
    for name, value in bound.items():
        frame.check_iterator(name, value, made.once)
    return made


def run_body(inner: Frame, node: ast.FunctionDef) -> None:
    """Evaluates the body of a function, with `return None` at its end."""
    try:
        execute(inner, node.body)
        leave(inner, NONE)
    except PathEnds:
        pass
