"""Which rows of a block have one length, and which are never empty.

All rows that one operation takes have one length, which its rows have, too; the front end has the
instance program check that before. So the rows of a block fall into groups, whatever instances are.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from stretto.batching.program import Block, Operation, call_operation
from stretto.batching.types import RowsType, Scalar, TensorType, Type


def length_groups(block: Block) -> dict[int, int]:
    """For each value that is rows, the first value whose length it has."""
    types = block.types
    found = {n: n for n, type_ in enumerate(block.inputs) if isinstance(type_, RowsType)}
    made = len(block.inputs)
    for step in block.steps:
        results = range(made, made + len(step.operation.results))
        made = results.stop
        rows = [n for n in (*step.operands, *results) if isinstance(types[n], RowsType)]
        if not rows:
            continue
        joined = {found.get(n, n) for n in rows}
        first = min(joined)
        found |= dict.fromkeys(rows, first)
        found |= {n: first for n, group in found.items() if group in joined}
    return found


def groups_with_rows(block: Block) -> frozenset[int]:
    """The groups whose length is at least one: an operation of theirs raises where there is no row,
    so an instance without rows has ended before."""
    groups = length_groups(block)
    found = set[int]()
    types = block.types
    for step in block.steps:
        rows = [n for n in step.operands if n in groups]
        if not rows or groups[rows[0]] in found:
            continue
        given = [types[number] for number in step.operands]
        if empty_error(step.operation, given) is not None:
            found.add(groups[rows[0]])
    return frozenset(found)


def empty_error(operation: Operation, types: Sequence[Type]) -> Exception | None:
    """What an operation raises where its rows have no row; None where it returns. It is called on
    real tensors, since fake ones do not raise all that real ones do."""
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        try:
            call_operation(operation, [_empty(type_) for type_ in types])
        except (TypeError, RuntimeError, IndexError, ValueError) as error:
            return error
    return None


def _empty(type_: Type) -> Any:
    match type_:
        case TensorType(dtype, shape):
            return torch.zeros(shape, dtype=dtype.torch)
        case RowsType(row):
            return torch.zeros((0, *row.shape), dtype=row.dtype.torch)
        case Scalar.FLOAT:
            return 1.0
        case Scalar.BOOL:
            return True
        case _:
            return 1
