"""Which rows of a block have one length, and how many there are at least.

All rows that one operation takes have one length, which its rows have, too; the front end has the
instance program check that before. So the rows of a block fall into groups, whatever instances are.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _python_dispatch

from stretto.batching.program import Block, Operation, call_operation
from stretto.batching.types import RowsType, Scalar, TensorType, Type

trial: Any = _python_dispatch._disable_current_modes  # pyright: ignore[reportPrivateUsage]
"""Operators that are called within are no part of the program that is being made."""


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


def least_lengths(block: Block) -> dict[int, int]:
    """For groups that are never shorter, their least length: an operation of theirs raises where
    there are fewer rows, so an instance with fewer has ended before."""
    groups = length_groups(block)
    types = block.types
    found: dict[int, int] = {}
    for step in block.steps:
        rows = [n for n in step.operands if n in groups]
        if rows:
            errors = short_errors(step.operation, [types[number] for number in step.operands])
            found[groups[rows[0]]] = max(found.get(groups[rows[0]], 0), len(errors))
    return found


_MOST_SHORT = 8


def short_errors(operation: Operation, types: Sequence[Type]) -> tuple[Exception, ...]:
    """What an operation raises where its rows are 0, 1, ... rows, up to the least number for which
    it returns; none where it raises for each that is tried. It is called on real tensors, since
    fake ones do not raise all that real ones do."""
    found = list[Exception]()
    with trial(), torch.no_grad(), warnings.catch_warnings(action="ignore"):
        for length in range(_MOST_SHORT + 1):
            try:
                call_operation(operation, [_example(type_, length) for type_ in types])
            except (TypeError, RuntimeError, IndexError, ValueError) as error:
                found.append(error)
            else:
                return tuple(found)
    return ()


def _example(type_: Type, length: int) -> Any:
    match type_:
        case TensorType(dtype, shape):
            return torch.zeros(shape, dtype=dtype.torch)
        case RowsType(row):
            return torch.zeros((length, *row.shape), dtype=row.dtype.torch)
        case Scalar.FLOAT:
            return 1.0
        case Scalar.BOOL:
            return True
        case _:
            return 1
