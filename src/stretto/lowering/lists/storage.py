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

from stretto.ir.core import Block, Function, Op, Value
from stretto.ir.ops import ForOp, IfOp, ListNewOp, ListPopOp, ListPushOp, ListSetOp, WhileOp
from stretto.ir.size_bounds import at_most, maximum
from stretto.ir.sizes import Size, symbols_in
from stretto.ir.symbols import symbols_of_types
from stretto.ir.types import Dim, ListType

LARGEST_BYTES = 1 << 24
"""A list that might need more than this grows at run time, however well its length is known."""

Bound = Size | None
"""The most items of a list; None where there is no bound, or none is known."""


@dataclass(frozen=True, slots=True)
class ListStorage:
    """What a function knows of its lists. Values are looked up by the root of their group."""

    roots: Mapping[Value, Value]
    capacities: Mapping[Value, Dim | None]
    returned: frozenset[Value]
    popped: frozenset[Value]

    def capacity(self, value: Value) -> Dim | None:
        """The most items that a list of the group ever has; None when that is not known.

        A size is over the symbols of the function's parameters.
        """
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
    lengths: dict[Value, Bound] = {}
    analysis = _Lengths(function, groups, lengths)
    analysis.bind(function.params, None)
    analysis.block(function.body)
    capacities: dict[Value, Bound] = {}
    for value, length in lengths.items():
        root = groups.root(value)
        capacities[root] = longest((capacities.get(root, Size()), length))
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


def _bounded(value: Value, length: Bound) -> Dim | None:
    if length is None:
        return None
    element = value.list.element
    size = length * element.dtype.itemsize
    for dim in element.shape:
        size = size * dim
    return None if size.is_const and size.const > LARGEST_BYTES else length.dim


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


def longest(lengths: Iterable[Bound]) -> Bound:
    """The largest of some bounds."""
    found = Size()
    for length in lengths:
        if length is None:
            return None
        found = maximum(found, length)
    return found


def _plus(length: Bound, more: Bound) -> Bound:
    return None if length is None or more is None else length + more


def _grown(first: Bound, second: Bound, third: Bound, times: Bound) -> Bound:
    """The length after so many iterations, of which the first made the second length of the first,
    and the next one the third."""
    if first is None or second is None or third is None:
        return None
    if times is not None and at_most(times, 0):
        return first
    growth = third - second
    if growth == Size():
        return second if times is None or at_most(1, times) else longest((first, second))
    if times is None:
        return None
    if second - first == growth:
        return first + growth * maximum(0, times)
    later = second + growth * maximum(0, times - 1)
    return later if at_most(1, times) else longest((first, later))


def carried_params(op: ForOp | WhileOp) -> tuple[Sequence[Value], ...]:
    """The carried values as parameters of each block."""
    return (op.carried,) if isinstance(op, ForOp) else (op.condition.params, op.body.params)


class _Lengths:
    """Upper bounds of the lengths of list values: sizes over the function's symbols, or None."""

    def __init__(self, function: Function, groups: Groups, lengths: dict[Value, Bound]) -> None:
        self._symbols = symbols_of_types(value.type for value in function.params)
        self._groups = groups
        self._lengths = lengths

    def block(self, block: Block) -> None:
        for op in block.ops:
            match op:
                case ListNewOp():
                    self._lengths[op.result] = Size(const=len(op.items))
                case ListPushOp(list=source):
                    self._lengths[op.result] = _plus(self._lengths[source], Size(const=1))
                case ListSetOp(list=source):
                    self._lengths[op.result] = self._lengths[source]
                case ListPopOp(list=source):
                    shorter = _plus(self._lengths[source], Size(const=-1))
                    self._lengths[op.results[0]] = longest((Size(), shorter))
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
                    self.bind(op.results, None)

    def bind(self, values: Iterable[Value], length: Bound) -> None:
        for value in values:
            if isinstance(value.type, ListType):
                self._lengths[value] = length

    def _longest(self, values: Iterable[Value]) -> Bound:
        return longest(self._lengths.get(value, Size()) for value in values)

    def _trips(self, op: ForOp | WhileOp) -> Bound:
        trips = op.trips() if isinstance(op, ForOp) else None
        if trips is None or not self._symbols.issuperset(symbols_in((trips,))):
            return None
        return Size.of(trips)

    def _loop(self, op: ForOp | WhileOp) -> None:
        """Bounds per group: what the first iteration gives, and its growth in the following ones.

        A body that starts a list again gives no growth from the second iteration on.
        """
        trips = self._trips(op)
        members: dict[Value, list[int]] = {}
        for number, value in enumerate(op.results):
            if isinstance(value.type, ListType):
                members.setdefault(self._groups.root(value), []).append(number)
        start = {
            root: self._longest(op.inits[n] for n in numbers) for root, numbers in members.items()
        }
        second = start if trips == Size() else self._after(op, members, start)
        third = second if second == start else self._after(op, members, second)
        inside: dict[Value, Bound] = {}
        for root, numbers in members.items():
            lengths = start[root], second[root], third[root]
            inside[root] = _grown(*lengths, _plus(trips, Size(const=-1)))
            self.bind((op.results[n] for n in numbers), _grown(*lengths, trips))
        self._after(op, members, inside)

    def _after(
        self, op: ForOp | WhileOp, members: Mapping[Value, list[int]], before: Mapping[Value, Bound]
    ) -> dict[Value, Bound]:
        """The longest list of each group after an iteration that began with `before`."""
        self._bodies(op, members, before)
        return {
            root: longest((before[root], self._longest(op.body.yields[n] for n in numbers)))
            for root, numbers in members.items()
        }

    def _bodies(
        self,
        op: ForOp | WhileOp,
        members: Mapping[Value, list[int]],
        lengths: Mapping[Value, Bound],
    ) -> None:
        for params in carried_params(op):
            for root, numbers in members.items():
                self.bind((params[n] for n in numbers), lengths[root])
        for block in op.blocks:
            self.block(block)
