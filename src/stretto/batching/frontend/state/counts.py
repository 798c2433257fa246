"""Numbers that follow from how many rows a value has: sizes that may be those of tensors.

A number of the instance cannot be a size of a tensor that the program knows. One that follows from
the rows of some value can: `torch.zeros(len(x), 4)` is rows, as many as those of `x`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stretto.batching.frontend.state.values import Composed, Dynamic
from stretto.batching.program import (
    Composition,
    Input,
    Literal,
    Operand,
    Operation,
    Variable,
    rows_in,
)
from stretto.batching.types import RowsType
from stretto.errors import CaptureError
from stretto.ir.types import DType

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
}
_REFUSAL = CaptureError(
    "the size of a tensor depends on a number of the instance",
    remedy="keep such a tensor as a list of its rows",
)


def count_of(
    op: str, args: Sequence[Operand], counts: Mapping[Variable, Composed]
) -> Composed | None:
    """What a primitive makes, as a call on rows that it follows from; None for other numbers."""
    if op == "len" and isinstance(args[0], Variable) and isinstance(args[0].type, RowsType):
        return rows_count(Dynamic(args[0], args[0].type))
    known = [counts.get(item) for item in args if isinstance(item, Variable)]
    if op not in _ARITHMETIC or len(known) != 1 or known[0] is None:
        return None
    steps, rows = known[0].composition.steps, known[0].operands[0]
    if not all(isinstance(x, Variable) or type(x.value) is int for x in args):
        return None
    last = Input(len(steps))
    given = tuple(item.value if isinstance(item, Literal) else last for item in args)
    return _count((*steps, Operation(_ARITHMETIC[op], given, (), ())), rows)


def rows_count(rows: Dynamic) -> Composed:
    """How many rows a value has."""
    return _count((Operation(rows_in, (Input(0),), (), ()),), rows)


def _count(steps: tuple[Operation, ...], rows: Dynamic) -> Composed:
    return Composed(Composition(steps), (rows,), 0, DType.I64, _REFUSAL)
