"""Blocks for which torch asks whether there are more rows than one, as for strides of attention.

Whether memory of [n, heads, width] is contiguous depends on whether n is 0 or 1, and torch's
modules choose among equal ways by it. So a block is captured for two rows at least, and what it
then computes is compared with torch's own results where there are fewer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from stretto.batching.lengths import length_groups, trial
from stretto.batching.program import Block
from stretto.batching.types import RowsType, Scalar, TensorType
from stretto.errors import StrettoError
from stretto.interp.interpreter import run
from stretto.ir.core import Program
from stretto.ir.sizes import Size, Symbol
from stretto.ir.symbols import Renaming, rename_symbols

ENOUGH = 2
"""From so many rows on, torch does not ask."""
_MORE = 3
"""A length that is neither: rows of another group are that many, too."""
_TOLERANCE = 1e-5


def holds_for_few(program: Program, block: Block, least: Mapping[int, int]) -> bool:
    """Whether the Program of a block, which was captured for `ENOUGH` rows, gives what the block
    gives for fewer. If so, its sizes begin at `least`, by group (lengths.py), afterwards.

    Values are random; where the block itself raises, the program may do what it likes, as an
    instance with so few rows has ended before.
    """
    groups = length_groups(block)
    _widen(program, block, {group: least.get(group, 0) for group in set(groups.values())})
    random = torch.Generator().manual_seed(0)
    return all(
        _agrees(
            program,
            block,
            [
                _example(t, lengths.get(groups.get(n, -1), 0), random)
                for n, t in enumerate(block.inputs)
            ],
        )
        for lengths in _lengths(groups, least)
    )


def _widen(program: Program, block: Block, least: Mapping[int, int]) -> None:
    groups = length_groups(block)
    renaming: Renaming = {}
    for number, param in enumerate(program.main.params):
        symbol = Size.of(param.tensor.shape[0]).symbol if number in groups else None
        if symbol is not None:
            low = least[groups[number]]
            renaming[Size.of(symbol)] = Size.of(Symbol(symbol.name, low, symbol.high)).dim
    rename_symbols(program.main.body, renaming)


def _lengths(groups: Mapping[int, int], least: Mapping[int, int]) -> Iterator[dict[int, int]]:
    """All ways in which groups have few rows, with the one in which none has."""
    found = sorted(set(groups.values()))
    each = [(*range(least.get(group, 0), ENOUGH), _MORE) for group in found]
    for lengths in itertools.product(*each):
        yield dict(zip(found, lengths, strict=True))


def _example(type_: TensorType | RowsType | Scalar, length: int, random: torch.Generator) -> Any:
    match type_:
        case TensorType(dtype, shape):
            return _tensor(shape, dtype.torch, random)
        case RowsType(row):
            return _tensor((length, *row.shape), row.dtype.torch, random)
        case Scalar.FLOAT:
            return 0.5
        case Scalar.BOOL:
            return True
        case _:
            return 0


def _tensor(shape: tuple[int, ...], dtype: torch.dtype, random: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype, generator=random)
    return torch.zeros(shape, dtype=dtype)  # a position, as a rule


def _agrees(program: Program, block: Block, operands: list[Any]) -> bool:
    given = [
        one if isinstance(one, torch.Tensor) else torch.tensor(one, dtype=_SCALARS[type(one)])
        for one in operands
    ]
    with trial(), torch.no_grad():
        try:
            expected = block(*operands)
        except (TypeError, RuntimeError, IndexError, ValueError):
            return True
        try:
            found = run(program, given)
        except (StrettoError, RuntimeError):
            return False
    return all(map(_same, found, expected))


_SCALARS = {bool: torch.bool, int: torch.int64, float: torch.float64}


def _same(found: Any, expected: torch.Tensor) -> bool:
    return (
        isinstance(found, torch.Tensor)
        and found.shape == expected.shape
        and found.dtype == expected.dtype
        and torch.allclose(found, expected, _TOLERANCE, _TOLERANCE, equal_nan=True)
    )
