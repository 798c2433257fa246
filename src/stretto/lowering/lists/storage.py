"""Where lists live and how long they may become: an analysis of one function before it is lowered.

List values that may share memory form a *group*: what a list grows into, what a branch merges, what
a loop carries. Every buffer of a group has room for its longest list, so that a list can move from
one to another. The bound comes from abstract interpretation of lengths; a loop body leaves its
longest list either of a fixed length or a fixed number of items longer than it was, so two walks
through it tell the growth per iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from stretto.ir.core import Block, Function, Op, Value
from stretto.ir.ops import ForOp, IfOp, ListNewOp, ListPopOp, ListPushOp, ListSetOp, WhileOp
from stretto.ir.types import ListType

LARGEST_BYTES = 1 << 24
"""A list that might need more than this grows at run time, however well its length is known."""


@dataclass(frozen=True, slots=True)
class ListStorage:
    """What a function knows of its lists. Values are looked up by the root of their group."""

    roots: Mapping[Value, Value]
    capacities: Mapping[Value, int | None]
    returned: frozenset[Value]
    popped: frozenset[Value]

    def capacity(self, value: Value) -> int | None:
        """The most items that a list of the group ever has; None when that is not known."""
        return self.capacities[self.roots[value]]

    def is_returned(self, value: Value) -> bool:
        """True when a list of the group is a result of the function."""
        return self.roots[value] in self.returned

    def is_popped(self, value: Value) -> bool:
        """True when a list of the group may lose items, so that a push may overwrite one."""
        return self.roots[value] in self.popped


def list_storage(function: Function) -> ListStorage:
    """Analyses all lists of a function."""
    groups = list_groups(function)
    lengths: dict[Value, float] = {}
    analysis = _Lengths(groups, lengths)
    analysis.bind(function.params, inf)
    analysis.block(function.body)
    capacities: dict[Value, float] = {}
    for value, length in lengths.items():
        root = groups.root(value)
        capacities[root] = max(capacities.get(root, 0), length)
    pops = (op.list for op in function.body.walk() if isinstance(op, ListPopOp))
    results = (value for value in function.body.yields if isinstance(value.type, ListType))
    return ListStorage(
        {value: groups.root(value) for value in lengths},
        {root: _bounded(root, length) for root, length in capacities.items()},
        frozenset(groups.root(value) for value in results),
        frozenset(groups.root(value) for value in pops),
    )


def list_groups(function: Function) -> Groups:
    """The groups of lists of one function."""
    groups = Groups()
    groups.block(function.body)
    return groups


def _bounded(value: Value, length: float) -> int | None:
    element = value.list.element
    if length == inf or not element.is_static:
        return None
    size = element.dtype.itemsize
    for dim in element.static_shape():
        size *= dim
    return int(length) if length * size <= LARGEST_BYTES else None


class Groups:
    """Union-find over list values."""

    def __init__(self) -> None:
        self._parents: dict[Value, Value] = {}

    def root(self, value: Value) -> Value:
        path: list[Value] = []
        while value in self._parents:
            path.append(value)
            value = self._parents[value]
        for item in path:
            self._parents[item] = value
        return value

    def block(self, block: Block) -> None:
        for op in block.ops:
            self._op(op)
            for inner in op.blocks:
                self.block(inner)

    def _op(self, op: Op) -> None:
        match op:
            case ListPushOp(list=source) | ListSetOp(list=source) | ListPopOp(list=source):
                self._join(source, op.results[0])
            case IfOp():
                for number, value in enumerate(op.results):
                    self._join(value, op.then.yields[number], op.orelse.yields[number])
            case ForOp() | WhileOp():
                for number, value in enumerate(op.results):
                    carried = [params[number] for params in carried_params(op)]
                    self._join(value, op.inits[number], op.body.yields[number], *carried)
            case _:
                pass

    def _join(self, first: Value, *others: Value) -> None:
        if not isinstance(first.type, ListType):
            return
        for other in others:
            a, b = self.root(first), self.root(other)
            if a is not b:
                self._parents[b] = a


def _grown(length: float, growth: float, times: float) -> float:
    return length + growth * times if growth > 0 and times > 0 else length


def carried_params(op: ForOp | WhileOp) -> tuple[Sequence[Value], ...]:
    """The carried values as parameters of each block."""
    return (op.carried,) if isinstance(op, ForOp) else (op.condition.params, op.body.params)


class _Lengths:
    """Upper bounds of the lengths of list values; `inf` where there is none."""

    def __init__(self, groups: Groups, lengths: dict[Value, float]) -> None:
        self._groups = groups
        self._lengths = lengths

    def block(self, block: Block) -> None:
        for op in block.ops:
            match op:
                case ListNewOp():
                    self._lengths[op.result] = len(op.items)
                case ListPushOp(list=source):
                    self._lengths[op.result] = self._lengths[source] + 1
                case ListSetOp(list=source):
                    self._lengths[op.result] = self._lengths[source]
                case ListPopOp(list=source):
                    self._lengths[op.results[0]] = max(self._lengths[source] - 1, 0)
                case IfOp():
                    for inner in op.blocks:
                        self.block(inner)
                    for value, *arms in zip(
                        op.results, *(b.yields for b in op.blocks), strict=True
                    ):
                        self.bind([value], self._longest(arms))
                case ForOp() | WhileOp():
                    self._loop(op)
                case _:  # what a function returns may have any length
                    self.bind(op.results, inf)

    def bind(self, values: Iterable[Value], length: float) -> None:
        for value in values:
            if isinstance(value.type, ListType):
                self._lengths[value] = length

    def _longest(self, values: Iterable[Value]) -> float:
        return max((self._lengths.get(value, 0) for value in values), default=0)

    def _loop(self, op: ForOp | WhileOp) -> None:
        """Bounds per group: what the first iteration gives, and its growth in the following ones.

        A body that starts a list again gives no growth from the second iteration on.
        """
        trips = inf
        if isinstance(op, ForOp) and (known := op.trip_count()) is not None:
            trips = known
        members: dict[Value, list[int]] = {}
        for number, value in enumerate(op.results):
            if isinstance(value.type, ListType):
                members.setdefault(self._groups.root(value), []).append(number)
        start = {
            root: self._longest(op.inits[n] for n in numbers) for root, numbers in members.items()
        }
        second = self._after(op, members, start) if trips > 0 else start
        growth: dict[Value, float] = {}  # none where it is unbounded already
        if second != start:
            third = self._after(op, members, second)
            growth = {r: third[r] - second[r] for r in members if third[r] > second[r]}
        longest = start if trips <= 1 else second
        longest = {root: _grown(longest[root], growth.get(root, 0), trips - 2) for root in members}
        self._after(op, members, longest)
        for root, numbers in members.items():
            result = _grown(second[root], growth.get(root, 0), trips - 1)
            self.bind((op.results[n] for n in numbers), result)

    def _after(
        self, op: ForOp | WhileOp, members: Mapping[Value, list[int]], before: Mapping[Value, float]
    ) -> dict[Value, float]:
        """The longest list of each group after an iteration that began with `before`."""
        self._bodies(op, members, before)
        return {
            root: max(before[root], self._longest(op.body.yields[n] for n in numbers))
            for root, numbers in members.items()
        }

    def _bodies(
        self,
        op: ForOp | WhileOp,
        members: Mapping[Value, list[int]],
        lengths: Mapping[Value, float],
    ) -> None:
        for params in carried_params(op):
            for root, numbers in members.items():
                self.bind((params[n] for n in numbers), lengths[root])
        for block in op.blocks:
            self.block(block)
