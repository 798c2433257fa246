"""Analyses of loops: affine integers, canonical form, dependences, and lengths of lists.

An integer of a loop body is affine if it is `scale * k + offset` in the iteration number k
= 0, 1, 2 ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from stretto.components import components, cyclic
from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import (
    Argument,
    ForOp,
    IfOp,
    ListExtendOp,
    ListNewOp,
    ListPopOp,
    ListPushOp,
    ListSetOp,
    LiteralOp,
    TensorOp,
    WhileOp,
)
from stretto.ir.rewrite import all_blocks, free_values_of_op, substitute, uses
from stretto.ir.sizes import Size
from stretto.ir.symbols import bound_symbols, symbols_bound_by, symbols_of_op
from stretto.ir.types import INDEX, Dim
from stretto.ops.arguments import argument
from stretto.ops.infer import tensor_op


@dataclass(frozen=True, slots=True)
class Affine:
    """The number scale * k + offset in iteration k."""

    scale: int
    offset: Dim

    def __add__(self, other: Affine) -> Affine:
        return Affine(self.scale + other.scale, _dim(self.offset + other.offset))

    def times(self, factor: int) -> Affine:
        return Affine(self.scale * factor, _dim(self.offset * factor))

    def last(self, count: Dim) -> Dim:
        """Return the value in the last of `count` iterations."""
        return _dim((count - 1) * self.scale + self.offset)


def _dim(size: Dim) -> Dim:
    return Size.of(size).dim


def affine_result(op: Op, known: Mapping[Value, Affine]) -> Affine | None:
    """Return the op's result as an Affine, given those of its operands in `known`; None if it is
    not affine."""
    if isinstance(op, LiteralOp) and op.result.type == INDEX:
        return Affine(0, int(op.value))
    if not isinstance(op, TensorOp) or len(op.results) != 1 or op.result.type != INDEX:
        return None
    if op.target == "aten.scalar_tensor.default":
        return _operand(argument(op, "s"), known)
    left = _operand(argument(op, "self"), known)
    match op.target:
        case "aten.neg.default" if left:
            return left.times(-1)
        case "aten.add.Tensor" | "aten.add.Scalar" | "aten.sub.Tensor" | "aten.sub.Scalar":
            right = _scaled_other(op, known)
            sign = 1 if op.target in ("aten.add.Tensor", "aten.add.Scalar") else -1
            return left + right.times(sign) if left and right else None
        case "aten.rsub.Scalar" | "aten.rsub.Tensor":
            right, factor = _operand(argument(op, "other"), known), argument(op, "alpha")
            return right + left.times(-factor) if left and right and type(factor) is int else None
        case "aten.mul.Tensor" | "aten.mul.Scalar":
            right = _operand(argument(op, "other"), known)
            if left and right and 0 in (left.scale, right.scale):
                factor, varying = (left, right) if left.scale == 0 else (right, left)
                if isinstance(factor.offset, int):
                    return varying.times(factor.offset)
                if varying.scale == 0:
                    return Affine(0, _dim(factor.offset * varying.offset))
            return None
        case _:
            return None


def _scaled_other(op: TensorOp, known: Mapping[Value, Affine]) -> Affine | None:
    other, factor = _operand(argument(op, "other"), known), argument(op, "alpha")
    return other.times(factor) if other and type(factor) is int else None


def _operand(item: Argument, known: Mapping[Value, Affine]) -> Affine | None:
    if isinstance(item, Value):
        return known.get(item)
    return Affine(0, item) if type(item) is int or isinstance(item, Size) else None


# ---- Loops in canonical form, `for k in range(0, trips, 1)`: the index is the iteration number.


def replace_loops(program: Program, new: Callable[[ForOp, Block], list[Op]]) -> bool:
    """Replace each `for` loop, inner loops first, by the ops that `new` returns for it.

    `new` gets the loop and the body of its function. Returns True if some loop became several ops.
    """
    changed = False
    for function in program.functions.values():
        for block in innermost_blocks(function.body):
            for loop in [op for op in block.ops if isinstance(op, ForOp)]:
                ops = new(loop, function.body)
                place = block.ops.index(loop)
                block.ops[place : place + 1] = ops
                changed |= len(ops) > 1
    return changed


def innermost_blocks(body: Block) -> list[Block]:
    """Every block of a function, each after the blocks nested in it."""
    return list(all_blocks(body))[::-1]


def normalise(loop: ForOp) -> bool:
    """Make a loop whose trip count is a size run from 0 in steps of 1, computing the old index in
    its body. Return True if the loop changed."""
    trips = loop.trips()
    if trips is None or (loop.start == 0 and loop.step == 1):
        return False
    assert not isinstance(loop.start, Value)
    number, index = Value(INDEX, loop.index.hint), loop.index
    if uses(loop.body).get(index):
        ops = _affine_ops(number, loop.step, loop.start)
        loop.body.ops[:0] = ops
        substitute(loop.body, {index: ops[-1].result})
    loop.body.params = (number, *loop.carried)
    loop.start, loop.stop, loop.step = 0, trips, 1
    return True


def _affine_ops(number: Value, scale: int, offset: Dim) -> list[Op]:
    """Return ops whose last result is scale * number + offset."""
    ops: list[Op] = []
    if scale != 1:
        ops.append(tensor_op("aten.mul.Tensor", number, scale))
    if offset or not ops:
        form = "aten.add.Tensor" if isinstance(offset, int) else "aten.add.Scalar"
        ops.append(tensor_op(form, ops[-1].result if ops else number, offset))
    return ops


# ---- Dependences between the parts of a loop body, and the cycles among them.
#
# A node is an op of the body (with everything nested in it) or a carried parameter. An edge leads
# from the node that defines a value to each node that reads it; a carried parameter reads the value
# that the previous iteration yielded for it. The strongly connected components are the recurrences
# of the loop: a node on no cycle need not wait for the previous iteration (Allen and Kennedy,
# "Optimizing Compilers for Modern Architectures", section 2.3).


Node = Op | Value


@dataclass(frozen=True, slots=True)
class LoopDependence:
    """The strongly connected components of a loop body, in an order that respects all edges."""

    components: tuple[tuple[Node, ...], ...]
    component_of: dict[Node, int]
    reads: dict[Node, tuple[Value, ...]]
    """The values of the body (results of its ops, and carried parameters) that each node reads. An
    op whose types or arguments name a size bound in the body also reads the results of the op
    that binds it."""
    maker: dict[Value, Node]
    """The node that defines a value; a carried parameter defines itself."""
    cyclic: frozenset[int]

    def is_recurrent(self, node: Node) -> bool:
        """True if the node's next value depends on its previous one."""
        return self.component_of[node] in self.cyclic

    def component(self, value: Value) -> int | None:
        """Return the number of the component that defines the value; None for the index and for
        values from outside the loop."""
        node = self.maker.get(value)
        return None if node is None else self.component_of[node]


def loop_dependence(loop: ForOp | WhileOp) -> LoopDependence:
    """Return the dependences in the body of a loop."""
    body, carried = loop.body, loop.carried if isinstance(loop, ForOp) else loop.body.params
    maker: dict[Value, Node] = {value: value for value in carried}
    for op in body.ops:
        maker.update(dict.fromkeys(op.results, op))
    binders = {symbol: op.results for op in body.ops for symbol in symbols_bound_by(op)}
    reads: dict[Node, tuple[Value, ...]] = {}
    for value, yielded in zip(carried, body.yields, strict=True):
        reads[value] = (yielded,) if yielded in maker else ()
    for op in body.ops:
        named = symbols_of_op(op) - symbols_bound_by(op)
        sizes = (value for symbol in sorted(named, key=str) for value in binders.get(symbol, ()))
        every = dict.fromkeys((*free_values_of_op(op), *sizes))
        reads[op] = tuple(value for value in every if value in maker)
    readers: dict[Node, dict[Node, None]] = {node: {} for node in reads}
    for node in reads:
        for value in reads[node]:
            readers[maker[value]][node] = None
    return _ordered(readers, reads, maker)


def _ordered(
    readers: dict[Node, dict[Node, None]],
    reads: dict[Node, tuple[Value, ...]],
    maker: dict[Value, Node],
) -> LoopDependence:
    """Order the components as in the body's text, as far as the edges allow: a component counts as
    being at the position of its last node."""
    position = {node: place for place, node in enumerate(reads)}
    groups = [sorted(group, key=position.__getitem__) for group in components(readers)]
    group_of = {node: number for number, group in enumerate(groups) for node in group}
    edges = [
        {group_of[reader] for node in group for reader in readers[node]} - {number}
        for number, group in enumerate(groups)
    ]
    waiting = [0] * len(groups)
    for later in edges:
        for number in later:
            waiting[number] += 1
    ready = [(position[group[-1]], n) for n, group in enumerate(groups) if not waiting[n]]
    heapify(ready)
    order: list[list[Node]] = []
    while ready:
        _, number = heappop(ready)
        order.append(groups[number])
        for later in edges[number]:
            waiting[later] -= 1
            if not waiting[later]:
                heappush(ready, (position[groups[later][-1]], later))
    component_of = {node: place for place, group in enumerate(order) for node in group}
    cycles = frozenset(place for place, group in enumerate(order) if cyclic(group, readers))
    return LoopDependence(tuple(map(tuple, order)), component_of, reads, maker, cycles)


# ---- Lengths of lists, derived from the ops that build them.


Bounds = tuple[int | Size | Value, int | Size | Value, int]
"""The start, stop and step of a loop."""


@dataclass(frozen=True, slots=True)
class Length:
    """A list length: `items`, plus one for each iteration of a loop with the bounds `loop`, if any.

    after: the list that these items are added to, if any: a carried list, within the body of its
    loop.
    """

    items: Dim
    loop: Bounds | None = None
    after: Value | None = None


@dataclass(frozen=True, slots=True)
class ListLengths:
    """Lengths of the lists of one function; `makers` maps each value to the op that defines it."""

    makers: Mapping[Value, Op]

    @staticmethod
    def of(body: Block) -> ListLengths:
        return ListLengths({value: op for op in body.walk() for value in op.results})

    def length(self, value: Value) -> Length | None:
        """Return the length of the list, or None if it is not known."""
        return self._length(value, {})

    def _length(self, value: Value, given: dict[Value, Length]) -> Length | None:
        if value in given:
            return given[value]
        match self.makers.get(value):
            case ListNewOp() as op:
                return Length(len(op.items))
            case ListPushOp() as op:
                return _plus(self._length(op.list, given), 1)
            case ListExtendOp() as op:
                return _plus(self._length(op.list, given), op.rows.tensor.shape[0])
            case ListSetOp() as op:
                return self._length(op.list, given)
            case ListPopOp() as op:
                return _plus(self._length(op.list, given), -1)
            case IfOp() as op:
                place = op.results.index(value)
                one = self._length(op.then.yields[place], given)
                other = self._length(op.orelse.yields[place], given)
                return one if one == other else None
            case ForOp() as op:
                return self._after_loop(op, op.results.index(value), given)
            case _:
                return None

    def _after_loop(self, op: ForOp, place: int, given: dict[Value, Length]) -> Length | None:
        before = self._length(op.inits[place], given)
        carried = op.carried[place]
        inside = self._length(op.body.yields[place], {carried: Length(0, after=carried)})
        if before is None or inside is None or inside.loop is not None:
            return None
        if inside.after is not carried:
            return None  # each iteration creates a new list, and the loop may not run at all
        if not bound_symbols(op.body).isdisjoint(Size.of(inside.items).symbols):
            return None  # iterations add different numbers of items
        trips = op.trips()
        if trips is not None:
            return _plus(before, trips * inside.items)
        if inside.items == 0:
            return before
        if inside.items == 1 and before.loop is None:
            return replace(before, loop=(op.start, op.stop, op.step))
        return None


def _plus(length: Length | None, items: Dim) -> Length | None:
    return None if length is None else replace(length, items=(length.items + Size.of(items)).dim)
