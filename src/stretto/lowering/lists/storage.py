"""Grouping of lists that may share memory, and bounds of their lengths, for one function.

List values that may share memory form a *group*: a list and what it grows into, what a branch
merges, what a loop carries. Every buffer of a group has room for its longest list, so that a
list can move from one to another. The bound comes from abstract interpretation of lengths, which
are sizes. One pass over a loop body, with a symbol for the length before an iteration, gives the
growth per iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from stretto.components import Partition
from stretto.ir.core import Block, Function, Op, Value
from stretto.ir.ops import (
    ForOp,
    IfOp,
    ListExtendOp,
    ListNewOp,
    ListPopOp,
    ListPushOp,
    ListSetOp,
    ListStackOp,
    WhileOp,
)
from stretto.ir.size_bounds import at_most, maximum, parts_of_maximum
from stretto.ir.sizes import Size, Symbol, symbols_in
from stretto.ir.symbols import symbols_of_types
from stretto.ir.types import Dim, TensorListType

LARGEST_BYTES = 1 << 24
"""A list that might need more bytes than this grows at run time, even if its length is bounded."""

Bound = Size | None
"""The maximum length of a list; None if it has none or none is known."""


@dataclass(frozen=True, slots=True)
class ListStorage:
    """Facts about the lists of a function. Values are looked up by the root of their group."""

    roots: Mapping[Value, Value]
    capacities: Mapping[Value, Dim | None]
    returned: frozenset[Value]
    popped: frozenset[Value]

    def capacity(self, value: Value) -> Dim | None:
        """Return the maximum length of any list of the group; None if unknown.

        A size is over the symbols of the function's parameters.
        """
        return self.capacities[self.roots[value]]

    def is_returned(self, value: Value) -> bool:
        """True if a list of the group is a result of the function."""
        return self.roots[value] in self.returned

    def is_popped(self, value: Value) -> bool:
        """True if a list of the group may lose items, so that a push may overwrite one."""
        return self.roots[value] in self.popped


def list_storage(function: Function) -> ListStorage:
    """Analyse all lists of a function."""
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
    results = (value for value in function.body.yields if isinstance(value.type, TensorListType))
    return ListStorage(
        {value: groups.root(value) for value in lengths},
        {root: _bounded(root, length) for root, length in capacities.items()},
        frozenset(groups.root(value) for value in results),
        frozenset(groups.root(value) for value in pops),
    )


def list_groups(function: Function) -> Partition[Value]:
    """Return the sets of list values of one function that may be one list at different times."""
    groups = Partition[Value]()
    for op in function.body.walk():
        for first, *others in _same_lists(op):
            if isinstance(first.type, TensorListType):
                for other in others:
                    groups.join(first, other)
    return groups


def _same_lists(op: Op) -> Iterator[Sequence[Value]]:
    """Iterate over the values, in an op and its blocks, that are one value if they are lists."""
    match op:
        case (
            ListPushOp(list=source)
            | ListExtendOp(list=source)
            | ListSetOp(list=source)
            | ListPopOp(list=source)
        ):
            yield source, op.results[0]
        case IfOp():
            yield from zip(op.results, op.then.yields, op.orelse.yields, strict=True)
        case ForOp() | WhileOp():
            carried = carried_params(op)
            yield from zip(op.results, op.inits, op.body.yields, *carried, strict=True)
        case _:
            pass


def _bounded(value: Value, length: Bound) -> Dim | None:
    if length is None:
        return None
    element = value.list.element
    size = length * element.dtype.itemsize
    for dim in element.shape:
        size = size * dim
    return None if size.is_const and size.const > LARGEST_BYTES else length.dim


def longest(lengths: Iterable[Bound]) -> Bound:
    """Return the largest of some bounds."""
    found = Size()
    for length in lengths:
        if length is None:
            return None
        found = maximum(found, length)
    return found


def _plus(length: Bound, more: Bound) -> Bound:
    return None if length is None or more is None else length + more


def iteration_growth(
    after: Bound, before: Symbol, unknown: Set[Symbol]
) -> tuple[Size, Bound] | None:
    """Return by how much an iteration lengthens a list of length `before`, and the longest list
    that it creates anew (None if none). Return None if the length afterwards may be anything else.

    after: the bound of the length afterwards. unknown: symbols that the growth must not depend on.
    """
    if after is None:
        return None
    growth, anew = Size(), None
    for part in parts_of_maximum(after):
        grown = part if before not in part.symbols else part - Size.of(before)
        if not unknown.isdisjoint(grown.symbols):
            return None
        if grown is part:
            anew = maximum(part, Size() if anew is None else anew)
        else:
            growth = maximum(growth, grown)
    return growth, anew


def _grown(start: Bound, step: tuple[Size, Bound] | None, times: Bound) -> Bound:
    """Return the bound of the length after `times` iterations."""
    if times is not None and at_most(times, 0):
        return start
    if start is None or step is None:
        return None
    growth, anew = step
    if growth == Size():
        return longest((start, anew or Size()))
    if times is None:
        return None
    grown = start + growth * maximum(0, times)
    return grown if anew is None else maximum(grown, anew + growth * maximum(0, times - 1))


def carried_params(op: ForOp | WhileOp) -> tuple[Sequence[Value], ...]:
    """Return the parameters for the carried values of each block of the loop."""
    return (op.carried,) if isinstance(op, ForOp) else (op.condition.params, op.body.params)


class _Lengths:
    """Upper bounds of the lengths of list values: sizes over the function's symbols, or None."""

    def __init__(
        self, function: Function, groups: Partition[Value], lengths: dict[Value, Bound]
    ) -> None:
        self._symbols = symbols_of_types(value.type for value in function.params)
        self._groups = groups
        self._lengths = lengths
        self._decided: dict[Symbol, Bound] = {}
        """Sizes known only at run time: the lengths of the lists whose items were stacked."""
        self._probes = 0

    def block(self, block: Block) -> None:
        for op in block.ops:
            match op:
                case ListNewOp():
                    self._lengths[op.result] = Size(const=len(op.items))
                case ListPushOp(list=source):
                    self._lengths[op.result] = _plus(self._lengths[source], Size(const=1))
                case ListExtendOp(list=source):
                    rows = self._at_most(op.rows.tensor.shape[0])
                    self._lengths[op.result] = _plus(self._lengths[source], rows)
                case ListStackOp(list=source):
                    lead = Size.of(op.result.tensor.shape[0]).symbol
                    if lead is not None and lead not in self._symbols:
                        self._decided[lead] = self._lengths[source]
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
                case _:  # a list that a function returns may have any length
                    self.bind(op.results, None)

    def _at_most(self, dim: Dim) -> Bound:
        """Return a bound of a dim over the symbols of the parameters; None if there is none."""
        size = Size.of(dim)
        if self._symbols.issuperset(size.symbols):
            return size
        total = Size(const=size.const)
        for atom, coefficient in size.terms:
            symbol = atom if isinstance(atom, Symbol) else None
            if symbol is None or coefficient < 0:
                return None
            decided = Size.of(symbol) if symbol in self._symbols else self._decided.get(symbol)
            if decided is None:
                decided = None if symbol.high is None else Size(const=symbol.high)
            if decided is None:
                return None
            total = total + decided * coefficient
        return total

    def bind(self, values: Iterable[Value], length: Bound) -> None:
        for value in values:
            if isinstance(value.type, TensorListType):
                self._lengths[value] = length

    def _longest(self, values: Iterable[Value]) -> Bound:
        return longest(self._lengths.get(value, Size()) for value in values)

    def _trips(self, op: ForOp | WhileOp) -> Bound:
        trips = op.trips() if isinstance(op, ForOp) else None
        if trips is None or not self._symbols.issuperset(symbols_in((trips,))):
            return None
        return Size.of(trips)

    def _loop(self, op: ForOp | WhileOp) -> None:
        """Bound the lists of each group: one iteration on lists of unknown length gives their
        growth."""
        trips = self._trips(op)
        members: dict[Value, list[int]] = {}
        for number, value in enumerate(op.results):
            if isinstance(value.type, TensorListType):
                members.setdefault(self._groups.root(value), []).append(number)
        start = {
            root: self._longest(op.inits[n] for n in numbers) for root, numbers in members.items()
        }
        self._probes += len(members)
        probes = {root: Symbol(f"#{self._probes - n}", 0) for n, root in enumerate(members)}
        after = self._after(op, members, {root: Size.of(one) for root, one in probes.items()})
        inside: dict[Value, Bound] = {}
        for root, numbers in members.items():
            step = iteration_growth(after[root], probes[root], set(probes.values()))
            inside[root] = _grown(start[root], step, _plus(trips, Size(const=-1)))
            self.bind((op.results[n] for n in numbers), _grown(start[root], step, trips))
        self._after(op, members, inside)

    def _after(
        self, op: ForOp | WhileOp, members: Mapping[Value, list[int]], before: Mapping[Value, Bound]
    ) -> dict[Value, Bound]:
        """Return the longest list of each group after an iteration that began with lengths
        `before`."""
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
