"""The memory that calls bind to the params of functions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import combinations
from typing import TypeVar

from stretto.device.expr import Access, Buffer
from stretto.device.tree import Tree, TreeFunction, calls, rotation, walk

L = TypeVar("L")

IN_FRAMES = ("local", "items")
"""Kinds of buffers that are in the frame of an activation."""
Bindings = dict[Buffer, set[Buffer | None]]
"""The external buffers that each param of a function may be bound to; None: any, as the host
decides for `main`."""
Pairs = set[frozenset[Buffer]]
"""Pairs of params of a function that one call may bind to overlapping memory."""
Bound = tuple[Buffer, Access]
"""A param, and the memory that a call binds it to."""


def rotation_groups(function: TreeFunction[L]) -> dict[Buffer, tuple[Buffer, ...]]:
    """Return the buffers that loops rotate among each other, for each of them."""
    groups: dict[Buffer, tuple[Buffer, ...]] = {}
    for node in walk(function.body):
        for pair in rotation(node):
            joined = tuple(dict.fromkeys(b for one in pair for b in groups.get(one, (one,))))
            groups |= dict.fromkeys(joined, joined)
    return groups


def bindings(tree: Tree[L]) -> dict[str, Bindings]:
    """Return the bindings of each function, propagated through all calls to a fixpoint."""
    found = {f.name: {param: set[Buffer | None]() for param in f.tensors} for f in tree.functions}
    found["main"] = {param: {None} for param in tree.main.tensors}
    groups = {f.name: rotation_groups(f) for f in tree.functions}
    changed = True
    while changed:
        changed = False
        for function in tree.functions:
            own, group = found[function.name], groups[function.name]
            bound = (
                (found[call.function][param], access.buffer)
                for call in calls(function.body)
                for param, access in call.tensors
            )
            for memory, given in bound:
                before = len(memory)
                for buffer in group.get(given, (given,)):
                    if buffer.kind == "param":
                        memory |= own[buffer]
                    elif buffer.kind not in IN_FRAMES:
                        memory.add(buffer)
                changed |= len(memory) != before
    return found


def param_pairs(
    tree: Tree[L], meet: Callable[[str, Collection[frozenset[Buffer]], Bound, Bound], bool]
) -> dict[str, Pairs]:
    """Return the pairs of each function. meet: True if a function, given its own pairs, may bind
    two params to overlapping memory."""
    found = {f.name: Pairs() for f in tree.functions}
    changed = True
    while changed:
        changed = False
        for function in tree.functions:
            for call in calls(function.body):
                new = {
                    frozenset((one[0], other[0]))
                    for one, other in combinations(call.tensors, 2)
                    if meet(function.name, found[function.name], one, other)
                }
                changed |= not new <= found[call.function]
                found[call.function] |= new
    return found
