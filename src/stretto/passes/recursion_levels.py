"""A recursion whose calls are independent is walked first, and computed by levels.

`f_walk` is the function without what it computes from the results of its calls, the rest. It keeps
control, arguments and what may stop the run in their order. To lists it pushes, for each activation
with calls, its height and where the results of its calls will be: at n for the n-th activation
without calls, at -1 - n for the n-th with them. Then a loop computes the rest of some activations
of one height at a time, so that they read the weights together. Their results are rows of one
tensor. See docs/decisions/2026-11-23-recursion-by-levels.md.

    func @f(%n) -> (f32[8])                 func @f(%n) -> (f32[8])
      %r = if (is a leaf) {                   %at, (lists) = call @f_walk(%n, (empty lists))
        yield (its row)                       %rows = (results without calls, then zeros)
      } else {                                while (activations are left) {
        %a = call @f(left of %n)      ->        %a = (rows of the first results)       : f32[4, 8]
        %b = call @f(right of %n)               %b = (rows of the second results)      : f32[4, 8]
        %c = (a product of %a and %b)           %c = (the product of %a and %b)        : f32[4, 8]
        yield %c                                %rows = (with %c in its places)
      }                                       }
      return %r                               return (the row at %at)

Needs branches merged, and equal ops. An iteration branches on how many activations are left of
their height, to code for at least as many rows. Rows that a height does not fill belong to higher
ones: they are computed from what is there, and again when it is their turn. Guarantees the same
results up to how a product sums its terms. Memory grows with the number of activations instead of
the depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from stretto.errors import VerifyError
from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.ops import (
    CallOp,
    IfOp,
    ListGetOp,
    ListLengthOp,
    ListNewOp,
    ListPushOp,
    ListStackOp,
    LiteralOp,
    WhileOp,
)
from stretto.ir.rewrite import clone_op
from stretto.ir.sizes import Size
from stretto.ir.types import INDEX, Dim, ListType, TensorType
from stretto.passes.batch_loops import fresh_symbol
from stretto.passes.batching.batch import Batch, Stays
from stretto.passes.batching.rules import rule_for
from stretto.passes.batching.sorting import sorted_places
from stretto.passes.inline import recursive_functions
from stretto.passes.recursion_plan import Recursion, recursion_of
from stretto.passes.target import Target
from stretto.text import bytes_text


@dataclass(frozen=True, slots=True)
class RecursionLevels:
    """target: the machine that it is for; without one, recursions stay."""

    target: Target | None = None
    name: ClassVar[str] = "recursion_levels"

    def apply(self, program: Program) -> bool:
        changed = False
        for name in sorted(recursive_functions(program)):
            reason = self.convert(program, program.functions[name])
            if reason is not None:
                program.remarks.decline(self.name, f"@{name}", reason)
            changed |= reason is None
        return changed

    def convert(self, program: Program, function: Function) -> str | None:
        """Replaces a function; or says why it stays."""
        if self.target is None:
            return "the machine is not known"
        costs = self.target.costs
        parts = recursion_of(program, function)
        if isinstance(parts, str):
            return parts
        if parts.weight_bytes < costs.level_bytes:
            return f"an activation reads {bytes_text(int(parts.weight_bytes))} of weights only"
        walk = f"{function.name}_walk"
        if walk in program.functions:
            return "it was converted before"
        try:
            levels = _Levels(program, parts, walk, costs.level_rows).function()
        except (Stays, VerifyError) as reason:
            return f"what follows its calls is not computed in rows: {reason}"
        program.functions[walk] = Function(walk, _walk(parts, walk))
        program.functions[function.name] = levels
        return None


@dataclass(frozen=True, slots=True)
class _Lists:
    """What the walk keeps: of activations with calls the height, the places of the results of each
    call and the records; of those without calls the results."""

    heights: Value
    children: tuple[Value, ...]
    records: tuple[Value, ...]
    bases: tuple[Value, ...]

    @classmethod
    def of(cls, parts: Recursion) -> _Lists:
        def of_type(type: TensorType) -> Value:
            return Value(ListType(type))

        return cls(
            of_type(INDEX),
            tuple(of_type(INDEX) for _ in parts.calls),
            tuple(of_type(value.tensor) for value in parts.records),
            tuple(of_type(parts.branch.results[place].tensor) for place in parts.places),
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


def _walk(parts: Recursion, name: str) -> Block:
    """The function's own block, changed into that of the walk."""
    branch, body = parts.branch, parts.function.body
    lists, after = _Lists.of(parts), _Lists.of(parts)
    _walk_arm(parts, name, lists)
    _walk_base(parts, lists)
    body.params = (*body.params, *lists.all)
    branch.results = (Value(INDEX, "at"), Value(INDEX, "height"), *after.all)
    body.yields = branch.results
    return body


def _walk_arm(parts: Recursion, name: str, lists: _Lists) -> None:
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
        after = _Lists.of(parts)
        place, below = Value(INDEX, "at"), Value(INDEX, "height")
        call = CallOp(name, (*op.arguments, *lists.all), results=(place, below, *after.all))
        call.location = op.location
        out.add(call)
        lists = after
        places.append(place)
        height = below if height is None else out.emit("aten.maximum.default", height, below)
    assert height is not None
    height = out.emit("aten.add.Tensor", height, 1)
    at = out.emit("aten.neg.default", _length(out, lists.heights))
    at = out.emit("aten.sub.Tensor", at, 1)
    items = {lists.heights: height}
    items |= dict(zip(lists.children, places, strict=True))
    items |= dict(zip(lists.records, parts.records, strict=True))
    arm.yields = (at, height, *lists.pushed(out, items))
    arm.ops = out.ops


def _walk_base(parts: Recursion, lists: _Lists) -> None:
    base = parts.base
    out = Batch(0, ops=base.ops)
    at = _length(out, lists.bases[0])
    height = out.add(LiteralOp(0, results=(Value(INDEX),))).results[0]
    yields = (base.yields[place] for place in parts.places)
    pushed = lists.pushed(out, dict(zip(lists.bases, yields, strict=True)))
    base.yields = (at, height, *pushed)


def _length(out: Batch, list: Value) -> Value:
    return out.add(ListLengthOp(list, results=(Value(INDEX),))).results[0]


@dataclass(slots=True)
class _Levels:
    """Makes the function that calls the walk and computes the rest. rows: how many activations at
    a time."""

    program: Program
    parts: Recursion
    walk: str
    rows: int

    def function(self) -> Function:
        own = self.parts.function
        params = tuple(Value(value.type, value.hint) for value in own.params)
        out, empty, lists = Batch(0), _Lists.of(self.parts), _Lists.of(self.parts)
        for list in empty.all:
            out.add(ListNewOp(results=(list,)))
        at = Value(INDEX, "at")
        results = (at, Value(INDEX, "height"), *lists.all)
        out.add(CallOp(self.walk, (*params, *empty.all), results=results))
        runs = out.emit("aten.gt.Scalar", _length(out, lists.heights), 0)
        then = self.levels(lists, dict(zip(own.params, params, strict=True)))
        alone = Batch(0)
        for list in lists.bases:
            alone.add(ListGetOp(list, at, results=(Value(list.list.element),)))
        orelse = Block((), alone.ops, tuple(op.results[0] for op in alone.ops))
        found = tuple(Value(value.type, value.hint) for value in own.body.yields)
        out.add(IfOp(runs, then, orelse, results=found))
        return Function(own.name, Block(params, out.ops, found))

    def levels(self, lists: _Lists, params: dict[Value, Value]) -> Block:
        """Computes all activations with calls, lowest first, and gives the results of the last."""
        out = Batch(0)
        calls, leaves = fresh_symbol(self.program, "calls"), fresh_symbol(self.program, "leaves")
        table = self.table(out, lists, calls)
        pools: list[Value] = []
        for list in lists.bases:
            known = self.stack(out, list, leaves)
            pools.append(self.padded(out, known, (Size.of(calls) + self.rows).dim))
        start = out.add(LiteralOp(0, results=(Value(INDEX, "start"),))).results[0]
        fixed = {value: clone_op(op, {}) for value, op in self.parts.constants.items()}
        for op in fixed.values():
            out.add(op)
        known = {value: op.results[0] for value, op in fixed.items()}
        known |= {value: params[value] for value in self.parts.same}
        loop = self.loop(table, (start, *pools), known)
        out.add(loop)
        last = out.emit(
            "aten.sub.Tensor", out.emit("aten.add.Tensor", table.leaves, table.calls), 1
        )
        yields = tuple(out.emit("aten.select.int", p, 0, last) for p in loop.results[1:])
        return Block((), out.ops, yields)

    def table(self, out: Batch, lists: _Lists, calls: Dim) -> _Table:
        """What the walk kept, sorted by heights. `calls`: the symbol of their number."""
        emit = out.emit
        leaves = _length(out, lists.bases[0])
        number = _length(out, lists.heights)
        kept = self.stack(out, lists.heights, calls)
        rank = sorted_places(out, kept, number)
        zeros = emit("aten.zeros.default", (calls,), dtype=torch.int64)
        order = emit("aten.index_put.default", zeros, (rank,), emit("aten.arange.default", calls))
        heights = emit("aten.index_select.default", kept, 0, order)
        children: list[Value] = []
        for list in lists.children:
            place = emit("aten.index_select.default", self.stack(out, list, calls), 0, order)
            is_leaf = emit("aten.ge.Scalar", place, 0)
            other = emit("aten.sub.Tensor", emit("aten.neg.default", place), 1)
            other = emit("aten.clamp_min.default", other, 0)
            row = emit("aten.index_select.default", rank, 0, other)
            row = emit("aten.add.Tensor", row, leaves)
            row = emit("aten.where.self", is_leaf, place, row)
            children.append(self.padded(out, row, self.rows))
        records: list[Value] = []
        for list in lists.records:
            kept = emit("aten.index_select.default", self.stack(out, list, calls), 0, order)
            records.append(self.padded(out, kept, self.rows))
        heights = self.padded(out, heights, self.rows)
        return _Table(number, leaves, heights, tuple(children), tuple(records))

    def padded(self, out: Batch, value: Value, rows: Dim) -> Value:
        """The tensor with so many rows of zeros behind it."""
        dtype, shape = value.tensor.dtype.torch, value.tensor.shape[1:]
        zeros = out.emit("aten.zeros.default", (rows, *shape), dtype=dtype)
        return out.emit("aten.cat.default", (value, zeros), 0)

    def loop(self, table: _Table, inits: tuple[Value, ...], known: dict[Value, Value]) -> WhileOp:
        """Each iteration computes up to `rows` activations of one height."""

        def carried() -> tuple[Value, ...]:
            return tuple(Value(value.type, value.hint) for value in inits)

        head, params, results = Batch(0), carried(), carried()
        test = head.emit("aten.lt.Tensor", params[0], table.calls)
        condition = Block(params, head.ops, (test,))
        params = carried()
        body = Block(params)
        body.ops, body.yields = self.iteration(table, params, known)
        return WhileOp(inits, condition, body, results=results)

    def iteration(
        self, table: _Table, carried: tuple[Value, ...], known: dict[Value, Value]
    ) -> tuple[list[Op], tuple[Value, ...]]:
        """Counts the rows of the height, and computes as many as it must."""
        start, *pools = carried
        out = Batch(self.rows)
        height = out.emit("stretto.narrow.default", table.heights, 0, start, self.rows)
        first = out.emit("aten.select.int", height, 0, 0)
        count = out.emit("aten.sum.default", out.emit("aten.eq.Tensor", height, first))
        target = out.emit("aten.add.Tensor", start, table.leaves)
        at = _Place(table, start, target, tuple(pools))
        ops, made = self.computed(at, known, count, self.heights)
        out.ops.extend(ops)
        return out.ops, (out.emit("aten.add.Tensor", start, count), *made)

    @property
    def heights(self) -> tuple[int, ...]:
        """The numbers of rows that there is code for, ascending. From about two rows on a product
        takes time for each row, so that rows that are computed in vain cost as much as others."""
        return tuple(sorted({-(-self.rows * part // 4) for part in (2, 3, 4)}))

    def computed(
        self, at: _Place, known: dict[Value, Value], count: Value, heights: tuple[int, ...]
    ) -> tuple[list[Op], tuple[Value, ...]]:
        """The least of `heights` rows that has all of `count`; gives the pools behind it."""
        if len(heights) == 1:
            return self.some_rows(at, known, heights[0])
        out = Batch(self.rows)
        few = out.emit("aten.le.Scalar", count, heights[0])
        arms = (self.computed(at, known, count, some) for some in (heights[:1], heights[1:]))
        blocks = (Block((), ops, yields) for ops, yields in arms)
        found = tuple(Value(value.type, value.hint) for value in at.pools)
        out.add(IfOp(few, *blocks, results=found))
        return out.ops, found

    def some_rows(
        self, at: _Place, known: dict[Value, Value], count: int
    ) -> tuple[list[Op], tuple[Value, ...]]:
        """Rows behind those of the height are computed again by the iterations they belong to."""
        out = Batch(count, invariants=dict(known))

        def rows(value: Value) -> Value:
            return out.emit("stretto.narrow.default", value, 0, at.start, count)

        for call, child in zip(self.parts.calls, at.table.children, strict=True):
            row = rows(child)
            for result, pool in zip(call.results, at.pools, strict=True):
                out.twins[result] = out.emit("aten.index_select.default", pool, 0, row)
        for value, record in zip(self.parts.records, at.table.records, strict=True):
            out.twins[value] = rows(record)
        self.rest(out, count)
        yields: list[Value] = []
        for place, pool in zip(self.parts.places, at.pools, strict=True):
            made = out.expanded(self.parts.arm.yields[place])
            yields.append(out.emit("stretto.narrow_scatter.default", pool, made, 0, at.target))
        return out.ops, tuple(yields)

    def rest(self, out: Batch, count: int) -> None:
        """What activations compute from the results of their calls, for so many rows. Raises
        Stays."""
        for op in self.parts.rest:
            rule = rule_for(op.target)
            if rule is None:
                raise Stays(f"`{op.target}` has no batched form")
            twins = rule(out, op)
            for value, twin in zip(op.results, twins, strict=True):
                wanted = TensorType(value.tensor.dtype, (count, *value.tensor.shape))
                if twin.type != wanted:
                    raise Stays(f"the result in rows would be {twin.type}, not {wanted}")
                twin.hint = twin.hint or value.hint
                out.twins[value] = twin

    def stack(self, out: Batch, list: Value, length: Dim) -> Value:
        element = list.list.element
        result = Value(TensorType(element.dtype, (length, *element.shape)))
        return out.add(ListStackOp(list, results=(result,))).results[0]


@dataclass(frozen=True, slots=True)
class _Table:
    """What the walk found. calls, leaves: the numbers of activations with and without calls.

    A row per activation with calls, sorted by `heights`. children: for each call, the row that has
    its results. records: what was kept. Rows of zeros follow.
    """

    calls: Value
    leaves: Value
    heights: Value
    children: tuple[Value, ...]
    records: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an iteration is: it reads rows of the table from `start` on, and writes rows of the
    pools from `target` on."""

    table: _Table
    start: Value
    target: Value
    pools: tuple[Value, ...]
