"""Which parallel loops stay parallel, once all functions have been lowered.

A unit runs what its iterations call by itself, so a function that they come to calls no library,
makes nothing of a size that the call decides, and is called by nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stretto.device.forms import Items
from stretto.device.operator import Operator
from stretto.device.runs import called, called_outside, reached
from stretto.device.tree import (
    Call,
    Check,
    Leaf,
    Let,
    Node,
    TreeFunction,
    children,
    is_parallel,
    leaves,
    rebuilt,
)


def settle_parallel(
    functions: Sequence[TreeFunction[Items]],
) -> tuple[TreeFunction[Items], ...]:
    """The functions, where loops are parallel only if all that they call may run apart."""
    callees = {function.name: called(function.body) for function in functions}
    refused = {function.name for function in functions if not _runs_apart(function)}
    settled = tuple(functions)
    while True:
        shared = refused | _called_outside(settled)
        after = tuple(one.with_body(_settled(one.body, shared, callees)) for one in settled)
        if after == settled:
            return settled
        settled = after


def _runs_apart(function: TreeFunction[Items]) -> bool:
    items = (item for body in leaves(function.body) for item in body)
    return all(isinstance(item, Operator | Let | Check) for item in items) and not any(
        buffer.is_sized or buffer.kind == "list" for buffer in function.locals
    )


def _reached(node: Node[Items], callees: dict[str, set[str]]) -> set[str]:
    """The functions that a node comes to."""
    names = called(node)
    return names.union(*(reached(name, callees) for name in names))


def _called_outside(functions: Sequence[TreeFunction[Items]]) -> set[str]:
    """The functions that `main` comes to by calls in no parallel loop; itself among them."""
    bodies = {function.name: function.body for function in functions}
    found, waiting = set[str](), ["main"]
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting += called_outside(bodies[name]) - found
    return found


def _settled(node: Node[Items], shared: set[str], callees: dict[str, set[str]]) -> Node[Items]:
    if isinstance(node, Leaf | Call):
        return node
    if is_parallel(node):
        return replace(node, parallel=not _reached(node, callees) & shared)
    return rebuilt(node, [_settled(child, shared, callees) for child in children(node)])
