"""Cuts a failing source down to the smallest one that fails in the same way.

Delta debugging on the syntax tree: statements are deleted, compound statements replaced by their
bodies, expressions by parts of them or by constants, numbers made smaller, as long as what is left
still fails with the same verdict and reason.
"""

from __future__ import annotations

import ast
import copy
import time
from collections.abc import Callable, Iterator

Fails = Callable[[str], bool]
"""Whether a source still fails as the first one did."""


def reduce_source(text: str, fails: Fails, seconds: float = 300.0) -> str:
    """The smallest source found within the time."""
    end = time.monotonic() + seconds
    best = ast.unparse(ast.parse(text))
    if not fails(best):
        return text
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for edits in (_deletions, _hoists, _simplifications):
            position = 0
            while time.monotonic() < end:
                smaller = _nth(edits, best, position)
                if smaller is None:
                    break
                if smaller != best and len(smaller) <= len(best) and fails(smaller):
                    best, changed = smaller, True
                else:
                    position += 1
    return best


def _nth(edits: Callable[[ast.Module], Iterator[None]], text: str, position: int) -> str | None:
    """The source after the edit of that number; None where there are fewer."""
    tree = ast.parse(text)
    for number, _ in enumerate(edits(tree)):
        if number == position:
            try:
                return ast.unparse(ast.fix_missing_locations(tree))
            except (ValueError, AttributeError):
                return text
    return None


def _blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """All lists of statements, the outer ones first."""
    for node in ast.walk(tree):
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _deletions(tree: ast.Module) -> Iterator[None]:
    """Each run of statements is deleted, and put back: long runs first, the last ones first."""
    for block in _blocks(tree):
        before = list(block)
        length = len(before)
        while length:
            for start in range(len(before) - length, -1, -length):
                block[:] = [*before[:start], *before[start + length :]]
                if not block:
                    block[:] = [ast.Pass()]
                yield
                block[:] = before
            length //= 2


def _hoists(tree: ast.Module) -> Iterator[None]:
    """Each compound statement is replaced by one of its blocks, and put back."""
    for block in _blocks(tree):
        before = list(block)
        for number, statement in enumerate(before):
            for name in ("body", "orelse"):
                inner = getattr(statement, name, None)
                if isinstance(inner, list) and inner and not isinstance(statement, ast.ClassDef):
                    block[:] = [*before[:number], *inner, *before[number + 1 :]]
                    yield
                    block[:] = before


def _simplifications(tree: ast.Module) -> Iterator[None]:
    """Each expression is replaced by a part of it or a constant, and put back."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if isinstance(value, ast.expr):
                for other in _simpler(value):
                    setattr(parent, name, other)
                    yield
                setattr(parent, name, value)
            elif isinstance(value, list) and value and isinstance(value[0], ast.expr):
                yield from _in_list(value)


def _in_list(items: list[ast.expr]) -> Iterator[None]:
    before = list(items)
    for number, item in enumerate(before):
        if len(before) > 1:
            items[:] = [*before[:number], *before[number + 1 :]]
            yield
        for other in _simpler(item):
            items[:] = [*before[:number], other, *before[number + 1 :]]
            yield
    items[:] = before


def _simpler(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Constant):
        if type(node.value) is int and abs(node.value) > 1:
            smaller = {1, 2, abs(node.value) // 2, abs(node.value) - 1} - {node.value}
            yield from (ast.Constant(value) for value in sorted(smaller) if value < abs(node.value))
        elif type(node.value) is float and node.value not in (0.0, 1.0, 0.5):
            yield from (ast.Constant(value) for value in (0.5, 1.0))
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) and not isinstance(node, ast.Attribute | ast.Lambda):
            yield copy.deepcopy(child)
        if isinstance(child, ast.Attribute) and isinstance(node, ast.Call):
            yield copy.deepcopy(child.value)
