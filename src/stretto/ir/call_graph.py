"""Calls between the functions of a Program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stretto.components import components, cyclic, reachable
from stretto.ir.core import Block, Op, Program
from stretto.ir.data import InvokeOp
from stretto.ir.ops import CallOp, ForOp


def callees(ops: Iterable[Op]) -> dict[str, None]:
    """Return the functions that ops call, without the ops in their blocks, in order."""
    return {op.function: None for op in ops if isinstance(op, CallOp | InvokeOp)}


def call_graph(program: Program) -> dict[str, dict[str, None]]:
    """Map each function to the functions that it calls, in the order of its text."""
    return {name: callees(function.body.walk()) for name, function in program.functions.items()}


def called_from(program: Program, ops: Iterable[Op]) -> set[str]:
    """Return the functions that ops or their blocks call, directly or through others."""
    inside = (inner for op in ops for inner in op.walk())
    return reachable(callees(inside), call_graph(program))


def recursive_functions(program: Program) -> frozenset[str]:
    """Return the functions that may call themselves, directly or through others."""
    graph = call_graph(program)
    groups = (group for group in components(graph) if cyclic(group, graph))
    return frozenset(name for group in groups for name in group)


def outside_parallel(block: Block) -> Iterator[CallOp]:
    """Iterate over the calls in a block that are not inside a parallel loop."""
    for op in block.ops:
        if isinstance(op, CallOp):
            yield op
        if not (isinstance(op, ForOp) and op.parallel):
            for inner in op.blocks:
                yield from outside_parallel(inner)
