"""Which memory a program changes: what nobody writes needs no order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from stretto.device.expr import Buffer
from stretto.device.operator import Kernel
from stretto.device.regions import Region, written_buffers
from stretto.device.tree import Call, Tree, TreeFunction, walk

L = TypeVar("L")


def written_externals(tree: Tree[L], kernels: Iterable[Kernel]) -> frozenset[str]:
    """Names of the external buffers that kernels write, by themselves or as a function's param."""
    buffers = [buffer for kernel in kernels for buffer in written_buffers(kernel)]
    for function in tree.functions:
        for call in function_calls(function):
            written = tree.function(call.function).written
            buffers.extend(access.buffer for param, access in call.tensors if param in written)
    return frozenset(b.name for b in buffers if b.kind not in ("local", "items", "param"))


def function_calls(function: TreeFunction[L]) -> tuple[Call[L], ...]:
    return tuple(node for node in walk(function.body) if isinstance(node, Call))


def relevance(
    tree: Tree[L], kernels: Iterable[Kernel]
) -> Callable[[TreeFunction[L]], Callable[[Region], bool]]:
    """For each function: can the access to a region take part in a conflict at all?"""
    written = written_externals(tree, kernels)
    still = _still_params(tree, written)

    def of(function: TreeFunction[L]) -> Callable[[Region], bool]:
        return lambda region: not _is_still(region.buffer, still[function.name], written)

    return of


def _is_still(buffer: Buffer, params: set[str], written: frozenset[str]) -> bool:
    match buffer.kind:
        case "local" | "items":
            return False
        case "param":
            return buffer.name in params
        case _:
            return buffer.name not in written


def _still_params(tree: Tree[L], written: frozenset[str]) -> dict[str, set[str]]:
    """For each function its params that stand only for memory that nobody writes."""
    still = {f.name: {p.name for p in f.tensors if p not in f.written} for f in tree.functions}
    changed = True
    while changed:
        changed = False
        for function in tree.functions:
            for call in function_calls(function):
                for param, access in call.tensors:
                    if param.name in still[call.function] and not _is_still(
                        access.buffer, still[function.name], written
                    ):
                        still[call.function].discard(param.name)
                        changed = True
    return still
