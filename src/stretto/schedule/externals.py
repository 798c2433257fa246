"""External buffers that a program changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from stretto.kernels.operator import Kernel
from stretto.kernels.regions import kernel_regions
from stretto.kernels.tree import Call, Tree, walk

L = TypeVar("L")


def written_externals(tree: Tree[L], kernels: Iterable[Kernel]) -> frozenset[str]:
    """Names of the external buffers that kernels write, by themselves or as a function's param."""
    buffers = [r.buffer for kernel in kernels for r in kernel_regions(kernel) if r.write]
    for function in tree.functions:
        for call in (node for node in walk(function.body) if isinstance(node, Call)):
            written = tree.function(call.function).written
            buffers.extend(access.buffer for param, access in call.tensors if param in written)
    return frozenset(b.name for b in buffers if b.kind not in ("local", "param"))
