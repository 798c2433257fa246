"""Operands that are positions and must be in range: the range of each, and eager's failures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stretto.ir.core import Value
from stretto.ir.failure import Failure
from stretto.ir.ops import TensorOp
from stretto.ir.sizes import Size
from stretto.ir.types import Dim
from stretto.ops.infer import named_arguments
from stretto.ops.table import PositionArgument, Reach, entry

# ---- Failures that eager PyTorch raises for positions out of range, by operator.
#
# A size is an int if it is known, else whatever object represents it in the calling stage.


_PLAIN = PositionArgument(Reach.DIM)


def out_of_range(target: str, dim: int, size: object, wraps: bool = False) -> Failure:
    """Return the failure of operator `target` for a position in a dim of `size`.

    wraps: `size` was added to negative positions before the check.
    """
    positions = entry(target).positions or _PLAIN
    error, text = positions.error, positions.message
    if dim > 0 and positions.inner is not None:
        error, text = positions.inner
    message, _, with_size = text.partition("|")
    message += with_size if isinstance(size, int) else ""
    message = message.replace("{dim}", str(dim)).replace("{size}", str(size))
    return Failure(error, message, added=size if wraps and isinstance(size, int) else 0)


def window_out_of_range(size: object, length: object) -> Failure:
    """Return the failure of a slice of static length at a position known only at run time."""
    if not isinstance(size, int) or not isinstance(length, int):
        return Failure("RuntimeError", "start ({}) + length exceeds dimension size")
    message = f"start ({{}}) + length ({length}) exceeds dimension size ({size})."
    return Failure("RuntimeError", message)


def position_failure(operator: str, size: object, length: object, dim: int) -> Failure:
    """Return the failure of `stretto.check_positions`."""
    positions = entry(operator).positions or _PLAIN
    if positions.reach is Reach.WINDOW and length != 1:
        return window_out_of_range(size, length)
    return out_of_range(operator, dim, size)


# ---- Operands that are positions and must be in range, and the range of each.


CHECK = "stretto.check_positions.default"


@dataclass(frozen=True, slots=True)
class Positions:
    """`length` elements of dim `dim`, which has `size`, must begin at each of `values`; negative
    ones count from the end if `wraps`. `operator` determines the error if they do not."""

    values: Value
    size: Dim
    length: Dim
    operator: str
    dim: int
    wraps: bool

    @property
    def key(self) -> tuple[Value, Dim, Dim, bool]:
        """A key that is equal for positions with the same check."""
        return self.values, self.size, self.length, self.wraps

    def check(self) -> TensorOp:
        """Return the op that only checks the positions."""
        arguments = (self.values, self.size, self.length, self.operator, self.dim, self.wraps)
        return TensorOp(CHECK, arguments)


Named = dict[str, Any]


def positions_of(op: TensorOp) -> Iterator[Positions]:
    """Iterate over all positions that an op checks."""
    if op.target == CHECK:
        values, size, length, operator, dim, wraps = op.args
        yield Positions(values, size, length, operator, dim, wraps)  # type: ignore[arg-type]
        return
    known = entry(op.target).positions
    if known is None:
        return
    named = {item.name: value for item, value in named_arguments(op.target, op.args, op.kwargs)}
    for values, size, length, dim in _ranges(known, named):
        if isinstance(values, Value) and values.tensor.dtype.is_integer:
            yield Positions(values, size, length, op.target, dim, known.wraps)


Range = tuple[Any, Any, int, int]
"""Positions, the size of the dim, the number of elements at each position, and the dim."""


def _ranges(known: PositionArgument, named: Named) -> Iterator[Range]:
    values = named[known.name]
    if known.reach is Reach.ROWS:
        yield values, _shape(named["weight"])[0], 1, 0
        return
    shape = _shape(named["self"])
    dim = named.get("dim", 0) % max(len(shape), 1)
    size = shape[dim] if shape else 1
    match known.reach:
        case Reach.WRITTEN if 0 in shape:
            return
        case Reach.DIM | Reach.WRITTEN:
            yield values, size, 1, dim
        case Reach.WINDOW:
            length = named["length"] if "length" in named else _shape(named["src"])[dim]
            if isinstance(length, int):
                yield values, size, length, dim
        case Reach.FLAT:
            yield values, math.prod(shape, start=Size(const=1)).dim, 1, 0
        case Reach.TABLES:
            yield from _tables(values, shape)


def _shape(value: Any) -> tuple[Any, ...]:
    assert isinstance(value, Value)
    return value.tensor.shape


def _tables(tables: tuple[Value | None, ...], shape: tuple[Any, ...]) -> Iterator[Range]:
    sizes = [shape[dim] for dim, table in enumerate(tables) if table is None]
    sizes += [size for table in tables if table is not None for size in _shape(table)]
    if 0 in (*sizes, *shape[len(tables) :]):
        return  # eager checks no position if nothing is selected
    if all(table is None or table.tensor.dtype.is_integer for table in tables):
        for dim, table in enumerate(tables):
            yield table, shape[dim], 1, dim
