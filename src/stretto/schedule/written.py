"""Which memory a tree of kernels writes: what nobody writes needs no waits.

The verifier decides the same by rules of its own (`device/verifier/assignment.py`): it takes the
functions' word for the params that they write, which it checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stretto.device.expr import Buffer
from stretto.device.operator import Kernel
from stretto.device.regions import Body, written_buffers
from stretto.device.tree import Call, Tree, leaves, walk

Key = tuple[str, str]
"""A function and the name of one of its params; a buffer of the argument block has no function."""

LOCAL: Key = "", ""
"""Stands for all local memory, which is always written."""


def ordered_buffers(tree: Tree[Body]) -> Callable[[str], Callable[[Buffer], bool]]:
    """For a function: can the order of its accesses to a buffer matter?

    Those to a param can if the function writes it, or passes it to one that does, or if some caller
    binds it to memory that is written.
    """
    bindings = list(_bindings(tree))
    written = {LOCAL, *_written(tree)}
    _spread(written, [(callee, caller) for caller, callee in bindings])
    _spread(written, bindings)
    return lambda function: lambda buffer: _key(function, buffer) in written


def _key(function: str, buffer: Buffer) -> Key:
    match buffer.kind:
        case "local" | "items":
            return LOCAL
        case "param":
            return function, buffer.name
        case _:
            return "", buffer.name


def _written(tree: Tree[Body]) -> Iterator[Key]:
    for function in tree.functions:
        for item in (item for body in leaves(function.body) for item in body):
            if isinstance(item, Kernel):
                yield from (_key(function.name, buffer) for buffer in written_buffers(item))


def _bindings(tree: Tree[Body]) -> Iterator[tuple[Key, Key]]:
    """What callers bind, and the params of the callees."""
    for function in tree.functions:
        for node in walk(function.body):
            if isinstance(node, Call):
                for param, access in node.tensors:
                    yield _key(function.name, access.buffer), (node.function, param.name)


def _spread(found: set[Key], edges: list[tuple[Key, Key]]) -> None:
    """Adds what is reached along the edges."""
    while more := {end for start, end in edges if start in found} - found:
        found |= more
