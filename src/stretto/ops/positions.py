"""Which operands of an operator are positions that must lie in range, and in which range."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stretto.ir.core import Op, Value
from stretto.ir.effects import is_check
from stretto.ir.ops import ListGetOp, ListPopOp, ListSetOp, TensorOp
from stretto.ir.types import TensorType
from stretto.ops.infer import named_arguments

CHECK = "stretto.check_positions.default"


@dataclass(frozen=True, slots=True)
class Positions:
    """`length` elements of dim `dim`, of `size`, begin at each of `values`; negative ones count
    from the end, if it `wraps`. `operator` is what raises where they do not."""

    values: Value
    size: int
    length: int
    operator: str
    dim: int
    wraps: bool

    @property
    def key(self) -> tuple[Value, int, int, bool]:
        """Equal for positions that are in range together."""
        return self.values, self.size, self.length, self.wraps

    def check(self) -> TensorOp:
        """The op that only checks them."""
        arguments = (self.values, self.size, self.length, self.operator, self.dim, self.wraps)
        return TensorOp(CHECK, arguments)


Named = dict[str, Any]


def positions_of(op: TensorOp) -> Iterator[Positions]:
    """All positions that an op checks whose range is known."""
    if op.target == CHECK:
        values, size, length, operator, dim, wraps = op.args
        yield Positions(values, size, length, operator, dim, wraps)  # type: ignore[arg-type]
        return
    rule = _RULES.get(op.target.rpartition(".")[0]) or _RULES.get(op.target)
    if rule is None:
        return
    named = {item.name: value for item, value in named_arguments(op.target, op.args, op.kwargs)}
    for values, size, length, dim, wraps in rule(named):
        if isinstance(values, Value) and values.tensor.dtype.is_integer and isinstance(size, int):
            yield Positions(values, size, length, op.target, dim, wraps)


def may_be_out_of_range(op: Op) -> bool:
    """Whether the op checks something, or reads or writes where eager would check a position."""
    if isinstance(op, TensorOp):
        return is_check(op) or any(True for _ in positions_of(op))
    return is_check(op) or isinstance(op, ListGetOp | ListSetOp | ListPopOp)


Range = tuple[Any, Any, int, int, bool]
"""Positions, the size of the dim, the length of what begins there, the dim, and if they wrap."""


def _dim_of(named: Named, name: str = "self") -> tuple[int, Any]:
    """A dim and its size."""
    shape = _type(named[name]).shape
    dim = named.get("dim", 0)
    dim = dim % len(shape) if shape else 0
    return dim, shape[dim] if shape else 1


def _type(value: Any) -> TensorType:
    assert isinstance(value, Value)
    return value.tensor


def _along(name: str, *, wraps: bool) -> Callable[[Named], Iterator[Range]]:
    def rule(named: Named) -> Iterator[Range]:
        dim, size = _dim_of(named)
        yield named[name], size, 1, dim, wraps

    return rule


def _written(*, wraps: bool) -> Callable[[Named], Iterator[Range]]:
    """Positions along a dim; those in a tensor of no elements are not looked at."""
    along = _along("index", wraps=wraps)
    return lambda named: iter(()) if 0 in _type(named["self"]).shape else along(named)


def _narrow(named: Named) -> Iterator[Range]:
    dim, size = _dim_of(named)
    length = named["length"] if "length" in named else _type(named["src"]).shape[dim]
    if isinstance(length, int):
        yield named["start"], size, length, dim, True


def _embedding(named: Named) -> Iterator[Range]:
    yield named["indices"], _type(named["weight"]).shape[0], 1, 0, False


def _take(named: Named) -> Iterator[Range]:
    shape = _type(named["self"]).shape
    if all(isinstance(size, int) for size in shape):
        yield named["index"], math.prod(int(str(size)) for size in shape), 1, 0, True


def _tables(named: Named) -> Iterator[Range]:
    shape = _type(named["self"]).shape
    tables = named["indices"]
    sizes = [shape[dim] for dim, table in enumerate(tables) if table is None]
    sizes += [size for table in tables if table is not None for size in _type(table).shape]
    if 0 in (*sizes, *shape[len(tables) :]):
        return  # of a selection without elements no position is looked at
    if all(table is None or _type(table).dtype.is_integer for table in tables):
        for dim, table in enumerate(tables):
            yield table, shape[dim], 1, dim, True


_RULES: dict[str, Callable[[Named], Iterator[Range]]] = {
    **dict.fromkeys(("aten.select", "aten.select_scatter"), _along("index", wraps=True)),
    "aten.index_fill": _written(wraps=True),
    **dict.fromkeys(("aten.index_add", "aten.index_copy"), _written(wraps=False)),
    **dict.fromkeys(
        (
            *("aten.index_select", "aten.gather", "aten.scatter", "aten.scatter_add"),
            "aten.scatter_reduce",
        ),
        _along("index", wraps=False),
    ),
    **dict.fromkeys(("stretto.narrow", "stretto.narrow_scatter"), _narrow),
    "aten.embedding": _embedding,
    "aten.take": _take,
    **dict.fromkeys(("aten.index", "aten.index_put"), _tables),
}
