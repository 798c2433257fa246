"""The walk of a recursion whose rest is computed by levels: what it keeps, and in what order.

See `recursion_levels`. Where a function without calls gives a row of a parameter that all calls
pass on, the walk may keep which row it is, instead of the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stretto.ir.core import Block, Op, Value
from stretto.ir.ops import CallOp, ListLengthOp, ListPushOp, LiteralOp, TensorOp
from stretto.ir.types import INDEX, ListType, TensorType
from stretto.ops.positions import positions_of
from stretto.passes.batching.batch import Batch
from stretto.passes.recursion_plan import Recursion


@dataclass(frozen=True, slots=True)
class BaseRow:
    """The result of an activation without calls that is row `index` of a parameter."""

    op: TensorOp
    source: Value
    index: Value


BaseRows = Mapping[int, BaseRow]
"""By the place of the result among those of the branch."""


def base_rows(parts: Recursion) -> BaseRows:
    """The results of activations without calls that are rows of what all calls pass on."""
    ops = (*parts.function.body.ops, *parts.base.ops)
    makers = {value: op for op in ops for value in op.results}
    found: dict[int, BaseRow] = {}
    for place in parts.places:
        op = makers.get(parts.base.yields[place])
        if not isinstance(op, TensorOp) or op.target != "aten.select.int" or op.args[1] != 0:
            continue
        source, _, index = op.args
        if isinstance(index, Value) and isinstance(source, Value) and source in parts.same:
            found[place] = BaseRow(op, source, index)
    return found


@dataclass(frozen=True, slots=True)
class Lists:
    """What the walk keeps: of activations with calls the height, the places of the results of each
    call and the records; of those without calls the results."""

    heights: Value
    children: tuple[Value, ...]
    records: tuple[Value, ...]
    bases: tuple[Value, ...]

    @classmethod
    def of(cls, parts: Recursion, rows: BaseRows) -> Lists:
        def of_type(type: TensorType) -> Value:
            return Value(ListType(type))

        return cls(
            of_type(INDEX),
            tuple(of_type(INDEX) for _ in parts.calls),
            tuple(of_type(value.tensor) for value in parts.records),
            tuple(
                of_type(INDEX if place in rows else parts.branch.results[place].tensor)
                for place in parts.places
            ),
        )

    @property
    def all(self) -> tuple[Value, ...]:
        return (self.heights, *self.children, *self.records, *self.bases)

    def pushed(self, ops: Batch, items: dict[Value, Value]) -> tuple[Value, ...]:
        """All lists, with `items` at the ends of those that are keys."""

        def push(list: Value) -> Value:
            op = ListPushOp(list, items[list], results=(Value(list.type),))
            return ops.add(op).results[0]

        return tuple(push(list) if list in items else list for list in self.all)


def walk_of(parts: Recursion, name: str, rows: BaseRows) -> Block:
    """The function's own block, changed into that of the walk. rows: those that are kept by their
    numbers."""
    branch, body = parts.branch, parts.function.body
    lists, after = Lists.of(parts, rows), Lists.of(parts, rows)
    _walk_arm(parts, name, lists, rows)
    _walk_base(parts, lists, rows)
    body.params = (*body.params, *lists.all)
    branch.results = (Value(INDEX, "at"), Value(INDEX, "height"), *after.all)
    body.yields = branch.results
    return body


def _walk_arm(parts: Recursion, name: str, lists: Lists, rows: BaseRows) -> None:
    """`lists`: as the activation gets them."""
    arm, rest = parts.arm, set(parts.rest)
    out = Batch(0)  # no more than a list of ops here
    places: list[Value] = []
    height: Value | None = None
    for op in arm.ops:
        if op in rest:
            continue
        if not isinstance(op, CallOp) or op not in parts.calls:
            out.add(op)
            continue
        after = Lists.of(parts, rows)
        place, below = Value(INDEX, "at"), Value(INDEX, "height")
        call = CallOp(name, (*op.arguments, *lists.all), results=(place, below, *after.all))
        call.location = op.location
        out.add(call)
        lists = after
        places.append(place)
        height = below if height is None else out.emit("aten.maximum.default", height, below)
    assert height is not None
    height = out.emit("aten.add.Tensor", height, 1)
    at = out.emit("aten.neg.default", length_of(out, lists.heights))
    at = out.emit("aten.sub.Tensor", at, 1)
    items = {lists.heights: height}
    items |= dict(zip(lists.children, places, strict=True))
    items |= dict(zip(lists.records, parts.records, strict=True))
    arm.yields = (at, height, *lists.pushed(out, items))
    arm.ops = out.ops


def _walk_base(parts: Recursion, lists: Lists, rows: BaseRows) -> None:
    base = parts.base
    kept = {place: rows[place].index for place in rows}
    for block in (parts.function.body, base):
        block.ops = [one for op in block.ops for one in _checked(op, rows)]
    out = Batch(0, ops=base.ops)
    at = length_of(out, lists.bases[0])
    height = out.add(LiteralOp(0, results=(Value(INDEX),))).results[0]
    yields = (kept.get(place, base.yields[place]) for place in parts.places)
    pushed = lists.pushed(out, dict(zip(lists.bases, yields, strict=True)))
    base.yields = (at, height, *pushed)


def length_of(out: Batch, list: Value) -> Value:
    return out.add(ListLengthOp(list, results=(Value(INDEX),))).results[0]


def _checked(op: Op, rows: BaseRows) -> list[Op]:
    """The op; of one that gives a row the check of its position, which remains where it was."""
    mine = [row for row in rows.values() if row.op is op]
    if not mine:
        return [op]
    checks = [one.check() for one in positions_of(mine[0].op)]
    for check in checks:
        check.location = op.location
    return [*checks, op]
