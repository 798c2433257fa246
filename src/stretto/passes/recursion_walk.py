"""The walk of a recursion whose rest is computed by levels: what it keeps, and in what order.

See `recursion_levels`. Of each activation with calls it keeps numbers, its height and where the
results of its calls will be, and records, other values that the rest reads. Of one without calls it
keeps the results; but where these are a row of what all calls pass on, that row is where they are,
and nothing is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.ir.core import Block, Op, Value
from stretto.ir.ops import CallOp, ListLengthOp, ListPushOp, LiteralOp, TensorOp
from stretto.ir.types import INDEX, ListType, TensorType
from stretto.ops.positions import positions_of
from stretto.passes.batching.batch import Batch
from stretto.passes.recursion_plan import Recursion


@dataclass(frozen=True, slots=True)
class BaseRow:
    """The results of activations without calls are row `index` of parameters with `size` rows.

    sources: for each result. ops: what gives the rows.
    """

    index: Value
    size: int
    sources: tuple[Value, ...]
    ops: tuple[TensorOp, ...]


def base_row(parts: Recursion) -> BaseRow | None:
    """The row that the results of activations without calls are; None where they are none."""
    ops = (*parts.function.body.ops, *parts.base.ops)
    makers = {value: op for op in ops for value in op.results}
    found: list[TensorOp] = []
    for place in parts.places:
        op = makers.get(parts.base.yields[place])
        if not isinstance(op, TensorOp) or op.target != "aten.select.int" or op.args[1] != 0:
            return None
        found.append(op)
    indices = {op.args[2] for op in found}
    sources = [op.args[0] for op in found]
    rows = {source.tensor.shape[0] for source in sources if isinstance(source, Value)}
    if len(indices) != 1 or len(rows) != 1 or any(source not in parts.same for source in sources):
        return None
    (index,), (size,) = indices, rows
    if not isinstance(index, Value) or not isinstance(size, int):
        return None
    given = tuple(source for source in sources if isinstance(source, Value))
    return BaseRow(index, size, given, tuple(found))


@dataclass(frozen=True, slots=True)
class Lists:
    """What the walk keeps. numbers: of activations with calls the height and the places of the
    results of each call, a list each, or rows of all in one list. records: of these activations.
    bases: the results of activations without calls, where they are kept."""

    numbers: tuple[Value, ...]
    records: tuple[Value, ...]
    bases: tuple[Value, ...]

    @classmethod
    def of(cls, parts: Recursion, row: BaseRow | None = None, *, packed: bool = False) -> Lists:
        """row: what is not kept. packed: whether the numbers are rows of one list."""

        def of_type(type: TensorType) -> Value:
            return Value(ListType(type))

        count = 1 + len(parts.calls)
        kinds = [TensorType(INDEX.dtype, (count,))] if packed else [INDEX] * count
        kept = parts.places if row is None else ()
        return cls(
            tuple(map(of_type, kinds)),
            tuple(of_type(value.tensor) for value in parts.records),
            tuple(of_type(parts.branch.results[place].tensor) for place in kept),
        )

    def again(self) -> Lists:
        """Other values of the same types: the lists once more has been pushed to them."""

        def other(lists: tuple[Value, ...]) -> tuple[Value, ...]:
            return tuple(Value(list.type) for list in lists)

        return Lists(other(self.numbers), other(self.records), other(self.bases))

    @property
    def all(self) -> tuple[Value, ...]:
        return (*self.numbers, *self.records, *self.bases)

    def pushed(self, ops: Batch, items: dict[Value, Value]) -> tuple[Value, ...]:
        """All lists, with `items` at the ends of those that are keys."""

        def push(list: Value) -> Value:
            op = ListPushOp(list, items[list], results=(Value(list.type),))
            return ops.add(op).results[0]

        return tuple(push(list) if list in items else list for list in self.all)

    def kept_numbers(self, ops: Batch, numbers: list[Value]) -> dict[Value, Value]:
        """What is pushed where for the numbers of an activation."""
        if len(self.numbers) == len(numbers):
            return dict(zip(self.numbers, numbers, strict=True))
        return {self.numbers[0]: ops.emit("stretto.number_row.default", tuple(numbers))}


def walk_of(parts: Recursion, name: str, lists: Lists, row: BaseRow | None) -> Block:
    """The function's own block, changed into that of the walk, which takes the lists last."""
    branch, body = parts.branch, parts.function.body
    _walk_arm(parts, name, lists)
    _walk_base(parts, lists, row)
    body.params = (*body.params, *lists.all)
    branch.results = (Value(INDEX, "at"), Value(INDEX, "height"), *lists.again().all)
    body.yields = branch.results
    return body


def _walk_arm(parts: Recursion, name: str, lists: Lists) -> None:
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
        after = lists.again()
        place, below = Value(INDEX, "at"), Value(INDEX, "height")
        call = CallOp(name, (*op.arguments, *lists.all), results=(place, below, *after.all))
        call.location = op.location
        out.add(call)
        lists = after
        places.append(place)
        height = below if height is None else out.emit("aten.maximum.default", height, below)
    assert height is not None
    height = out.emit("aten.add.Tensor", height, 1)
    at = out.emit("aten.neg.default", length_of(out, lists.numbers[0]))
    at = out.emit("aten.sub.Tensor", at, 1)
    items = lists.kept_numbers(out, [height, *places])
    items |= dict(zip(lists.records, parts.records, strict=True))
    arm.yields = (at, height, *lists.pushed(out, items))
    arm.ops = out.ops


def _walk_base(parts: Recursion, lists: Lists, row: BaseRow | None) -> None:
    base = parts.base
    if row is not None:
        for block in (parts.function.body, base):
            block.ops = [one for op in block.ops for one in _checked(op, row)]
    out = Batch(0, ops=base.ops)
    items: dict[Value, Value] = {}
    if row is None:
        at = length_of(out, lists.bases[0])
        yields = (base.yields[place] for place in parts.places)
        items = dict(zip(lists.bases, yields, strict=True))
    else:
        below = out.emit("aten.lt.Scalar", row.index, 0)
        wrapped = out.emit("aten.add.Tensor", row.index, row.size)
        at = out.emit("aten.where.self", below, wrapped, row.index)
    height = out.add(LiteralOp(0, results=(Value(INDEX),))).results[0]
    base.yields = (at, height, *lists.pushed(out, items))


def length_of(out: Batch, list: Value) -> Value:
    return out.add(ListLengthOp(list, results=(Value(INDEX),))).results[0]


def _checked(op: Op, row: BaseRow) -> list[Op]:
    """The op; of one that gives a row also the check of its position, which stays where it was."""
    if not isinstance(op, TensorOp) or op not in row.ops:
        return [op]
    checks = [one.check() for one in positions_of(op)]
    for check in checks:
        check.location = op.location
    return [*checks, op]
