"""Iterators of built-in classes and of `itertools`: objects of the heap.

What an iterator takes its items from, and how far it is, are places of its table. So an arm may
advance it and a loop may carry it like a list. Each class has a rule for the next item, which is
`MISSING` at the end, and one of both if only the run knows.
"""

from __future__ import annotations

import ast
import itertools
import operator
import types
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.interpreter.heap import ITEMS, MISSING, HeapKey, IteratorRef, Ref
from stretto.frontends.python.lists.sources import Indexed
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.values.either import Either

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter


class IteratorKey(Enum):
    """Keys of the table of an iterator."""

    SOURCE = "source"
    """The sequence, or the iterator or iterators, from which the items are taken."""
    AT = "position"
    """The position in the source, or the number of the next item."""
    DONE = "end"
    """True if there are no more items."""
    FUNCTION = "function"
    STEP = "step"
    LEFT = "left"
    """How many items may still be taken; None if any number."""
    LAST = "last"
    """The last item or result; MISSING before the first."""
    IS_PRIVATE = "private"
    """True if the program cannot get the iterators of the source."""
    FRAME = "frame"
    """The frame of a generator."""
    BODY = "body"
    """The statements of a generator."""
    RUN = "run"
    """A generator that has started."""

    def __str__(self) -> str:
        return f"the {self.value} of an iterator"


class _Indexed:
    def __getitem__(self, index: int) -> int:
        return index


SOURCE, AT, DONE, FUNCTION, STEP, LEFT, LAST, IS_PRIVATE, FRAME, BODY, RUN = IteratorKey
SEQUENCE_ITERATOR: type = type(iter([]))
KEY_ITERATOR: type = type(iter({}))
INDEX_ITERATOR: type = type(iter(_Indexed()))
CALL_ITERATOR: type = type(iter(int, 1))
Rule = Callable[["Iterators", IteratorRef], Any]


class Iterators:
    """Makes iterators, and takes their next items."""

    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap

    def new(self, kind: Any, places: dict[IteratorKey, Any]) -> IteratorRef:
        table = self.heap.new_table()
        table.update(places)
        return IteratorRef(kind, table, self.heap.count)

    def of_sequence(self, source: Any, kind: type = SEQUENCE_ITERATOR) -> IteratorRef:
        return self.new(kind, {SOURCE: source, AT: 0, DONE: False})

    def of_items(self, items: Any, of: Any, kind: type = SEQUENCE_ITERATOR) -> IteratorRef:
        """Return an iterator over items that are read at once. LAST: the object that has them,
        which the iterator holds."""
        return self.new(kind, {SOURCE: tuple(items), AT: 0, DONE: False, LAST: of})

    def over(self, kind: Any, iterables: Any, places: dict[IteratorKey, Any]) -> IteratorRef:
        """Return an iterator of a class over other iterables. IS_PRIVATE among the places: whether
        nothing else has those that are iterators, if that is known."""
        take = self.interpreter.iteration.iterator
        if IS_PRIVATE not in places:
            given = [item for item in iterables if self.is_iterator(item)]
            places[IS_PRIVATE] = not given or not self._is_in_use(given)
        source = tuple(take(item) for item in iterables)
        return self.new(kind, {SOURCE: source, **places})

    def _is_in_use(self, iterators: list[Any]) -> bool:
        """True if a variable or an object may hold one of the iterators."""
        if not all(isinstance(item, IteratorRef) for item in iterators):
            return True
        return any(
            value is item for value in self.interpreter.values_in_use() for item in iterators
        )

    def is_iterator(self, value: Any) -> bool:
        attributes = self.interpreter.attributes
        if isinstance(value, Either):
            return any(map(self.is_iterator, value.stretto_options))
        return attributes.entry(attributes.type_of(value), "__next__") is not MISSING

    def is_iterable(self, value: Any) -> bool:
        """True if a class of the user makes an object iterable."""
        attributes = self.interpreter.attributes
        names = ("__iter__", "__getitem__")
        return any(attributes.method(value, name) is not MISSING for name in names)

    def next_item(self, iterator: IteratorRef) -> Any:
        return RULES[iterator.kind](self, iterator)

    # -- parts of rules -------------------------------------------------------------------------

    def advance(self, iterator: Any) -> Any:
        return self.interpreter.iteration.advance(iterator)

    def if_there(self, item: Any, then: Callable[[Any], Any]) -> Any:
        """Go on with an item, if there is one."""
        regions = self.interpreter.regions
        is_there = regions.is_bound(item)
        if isinstance(is_there, bool):
            return then(item) if is_there else MISSING
        return regions.branch(is_there, lambda: then(regions.present(item)), lambda: MISSING)

    def holds(self, function: Any, item: Any) -> Any:
        """Return the truth of a predicate."""
        found = item if function in (None, bool) else self.called(function, (item,))
        return self.interpreter.operators.truth(found)

    def called(self, function: Any, args: tuple[Any, ...]) -> Any:
        return self.interpreter.calls.call(function, args, {})

    def all_of(self, parts: Any, then: Callable[[tuple[Any, ...]], Any]) -> Any:
        """Take an item of each part, and go on with them if all have one."""

        def take(number: int, found: tuple[Any, ...]) -> Any:
            if number == len(parts):
                return then(found)
            return self.if_there(
                self.advance(parts[number]), lambda item: take(number + 1, (*found, item))
            )

        return take(0, ()) if parts else MISSING

    def is_endless(self, iterator: Any) -> bool:
        """True for an iterator that has given items, and never ends."""
        if not isinstance(iterator, IteratorRef):
            return False
        kind, source = iterator.kind, iterator.table.get(SOURCE, ())
        if kind is itertools.count or kind is itertools.cycle:
            return True
        if kind is itertools.zip_longest or kind is itertools.chain:
            return any(map(self.is_endless, source))
        if kind is itertools.repeat:
            return iterator.table[LEFT] is None
        if kind is itertools.takewhile or (
            kind is itertools.islice and iterator.table[LEFT] is not None
        ):
            return False
        return isinstance(source, tuple) and bool(source) and all(map(self.is_endless, source))

    def end(self, iterator: IteratorRef) -> Any:
        self.heap.set(iterator.table, DONE, True)
        return MISSING

    # -- rules ----------------------------------------------------------------------------------

    def next_of_sequence(self, iterator: IteratorRef) -> Any:
        self._check_deque(iterator)
        source, at = iterator.table[SOURCE], iterator.table[AT]
        interpreter = self.interpreter
        is_indexed = isinstance(source, Indexed)

        def item() -> Any:
            length = source.length if is_indexed else interpreter.containers.length(source)
            is_left = interpreter.operators.truth(interpreter.operators.compare(ast.Lt, at, length))
            return interpreter.regions.branch(is_left, take, lambda: self.end(iterator))

        def take() -> Any:
            self.heap.set(iterator.table, AT, at + 1)
            return source.item(at) if is_indexed else interpreter.containers.getitem(source, at)

        return interpreter.regions.branch(iterator.table[DONE], lambda: MISSING, item)

    def _check_deque(self, iterator: IteratorRef) -> None:
        """Raise RuntimeError if a deque has another length than when its iterator was made, and
        fail if it has been changed otherwise."""
        source = iterator.table[SOURCE]
        if not isinstance(source, Ref) or not issubclass(source.kind, deque):
            return
        items = source.table[ITEMS]
        if LAST not in iterator.table:
            iterator.table[LAST] = items
        before = iterator.table[LAST]
        if items is before or iterator.table[DONE] is not False:
            return
        if isinstance(items, tuple) and isinstance(before, tuple) and len(items) != len(before):
            raise RuntimeError("deque mutated during iteration")
        fail("a deque is changed while it is iterated over", "iterate over a copy")

    def next_of_keys(self, iterator: IteratorRef) -> Any:
        """A key of a dict, or an item of a set; LAST: the dict or set."""
        owner, keys = iterator.table[LAST], iterator.table[SOURCE]
        if isinstance(owner, Ref) and iterator.table[DONE] is False:
            items = owner.table[ITEMS]
            kind = "Set" if issubclass(owner.kind, set) else "dictionary"
            if len(items) != len(keys):
                raise RuntimeError(f"{kind} changed size during iteration")
            if self._has_lost_keys(iterator, owner):  # Python goes on with those that are left
                fail(
                    f"a key of a {kind} is removed while it is iterated over",
                    "iterate over a copy",
                )
        key = self.next_of_sequence(iterator)
        return key.value if isinstance(key, HeapKey) else key

    def _has_lost_keys(self, iterator: IteratorRef, owner: Ref) -> bool:
        """True if a dict or a set has lost a key since the last item of an iterator was taken."""
        items, at = owner.table[ITEMS], iterator.table[AT]
        is_new = isinstance(at, int) and not at
        for table, key, old in () if is_new else reversed(self.heap.trail):
            if table is iterator.table and key is AT:
                return False
            if table is owner.table and key is ITEMS:
                if not isinstance(old, dict):
                    break
                if len(old) > len(items) or not all(map(operator.is_, old, items)):
                    return True
                items = old
        return list(owner.table[ITEMS]) != list(iterator.table[SOURCE])

    def next_by_index(self, iterator: IteratorRef) -> Any:
        if iterator.table[DONE]:
            return MISSING
        at = iterator.table[AT]
        try:
            with self.interpreter.contexts.catching(IndexError, StopIteration):
                item = self.interpreter.containers.getitem(iterator.table[SOURCE], at)
        except (IndexError, self.interpreter.iteration.stopped):
            return self.end(iterator)
        self.heap.set(iterator.table, AT, at + 1)
        return item

    def next_of_calls(self, iterator: IteratorRef) -> Any:
        """A result of a function; LAST: the one after which it ends."""
        operators, branch = self.interpreter.operators, self.interpreter.regions.branch

        def item() -> Any:
            found = self.called(iterator.table[FUNCTION], ())
            is_last = operators.truth(operators.compare(ast.Eq, found, iterator.table[LAST]))
            return branch(is_last, lambda: self.end(iterator), lambda: found)

        return branch(iterator.table[DONE], lambda: MISSING, item)

    def next_of_zip(self, iterator: IteratorRef) -> Any:
        parts = iterator.table[SOURCE]
        if not iterator.table[LEFT]:
            return self.all_of(parts, lambda items: items)
        found = [self.advance(parts[0])]
        for number, part in enumerate(parts[1:], 2):
            found.append(self.advance(part))
            first, last = (
                self.interpreter.regions.is_bound(item) for item in (found[0], found[-1])
            )
            differ = self.interpreter.operators.compare(ast.NotEq, first, last)

            def fails(number: int = number, first: Any = first) -> None:
                kind = self.interpreter.expressions.known(first)
                one = " 1" if number == 2 else f"s 1-{number - 1}"
                how = "shorter" if kind else "longer"
                raise ValueError(f"zip() argument {number} is {how} than argument{one}")

            if differ is not False:
                self.interpreter.regions.branch(
                    self.interpreter.operators.truth(differ), fails, lambda: None
                )
        return self.if_there(
            found[0], lambda _: tuple(self.interpreter.regions.present(item) for item in found)
        )

    def next_of_zip_longest(self, iterator: IteratorRef) -> Any:
        """LAST: what stands for the items of parts that have ended."""
        regions = self.interpreter.regions
        found = [self.advance(part) for part in iterator.table[SOURCE]]
        flags = [regions.is_bound(item) for item in found]
        fill = iterator.table[LAST]

        def items() -> Any:
            return tuple(
                regions.branch(flag, lambda x=item: regions.present(x), lambda: fill)
                for flag, item in zip(flags, found, strict=True)
            )

        return regions.branch(regions.any_of([False, *flags]), items, lambda: MISSING)

    def next_of_enumerate(self, iterator: IteratorRef) -> Any:
        def numbered(item: Any) -> Any:
            at = iterator.table[AT]
            self.heap.set(iterator.table, AT, at + 1)
            return at, item

        return self.if_there(self.advance(iterator.table[SOURCE][0]), numbered)

    def next_of_map(self, iterator: IteratorRef) -> Any:
        function = iterator.table[FUNCTION]
        return self.all_of(iterator.table[SOURCE], lambda items: self.called(function, items))

    def next_of_star_map(self, iterator: IteratorRef) -> Any:
        known = self.interpreter.iteration.known
        return self.if_there(
            self.advance(iterator.table[SOURCE][0]),
            lambda items: self.called(iterator.table[FUNCTION], known(items)),
        )

    def next_of_filter(self, iterator: IteratorRef) -> Any:
        return self.first_of(
            iterator.table[SOURCE][0],
            lambda item: self.kept(self.is_kept(iterator, item), lambda: item),
        )

    def is_kept(self, iterator: IteratorRef, item: Any) -> Any:
        found = self.holds(iterator.table[FUNCTION], item)
        return found if iterator.kind is filter else self.interpreter.regions.negated(found)

    def kept(self, condition: Any, item: Callable[[], Any]) -> Any:
        return self.interpreter.regions.branch(condition, item, lambda: MISSING)

    def first_of(self, source: Any, made_of: Callable[[Any], Any]) -> Any:
        """Take items until a value is made of one: `made_of` returns it, or MISSING."""
        table, regions = self.heap.new_table(), self.interpreter.regions

        def step() -> None:
            item = self.advance(source)
            is_there = regions.is_bound(item)
            made = self.if_there(item, made_of)
            goes_on = regions.branch(
                is_there, lambda: regions.negated(regions.is_bound(made)), lambda: False
            )
            self.heap.set(table, LAST, made)
            self.heap.set(table, DONE, goes_on)

        step()
        while table[DONE] is True:
            step()
        if table[DONE] is not False:
            self.interpreter.source_loops.repeat(lambda: table[DONE], step)
        return table.get(LAST, MISSING)

    def next_of_take_while(self, iterator: IteratorRef) -> Any:
        branch = self.interpreter.regions.branch

        def taken(item: Any) -> Any:
            holds = self.holds(iterator.table[FUNCTION], item)
            return branch(holds, lambda: item, lambda: self.end(iterator))

        return branch(
            iterator.table[DONE],
            lambda: MISSING,
            lambda: self.if_there(self.advance(iterator.table[SOURCE][0]), taken),
        )

    def next_of_drop_while(self, iterator: IteratorRef) -> Any:
        """DONE: True if an item has not been dropped."""
        source, function = iterator.table[SOURCE][0], iterator.table[FUNCTION]

        def first() -> Any:
            found = self.first_of(source, remaining)
            self.end(iterator)
            return found

        def remaining(item: Any) -> Any:
            is_dropped = self.holds(function, item)
            return self.kept(self.interpreter.regions.negated(is_dropped), lambda: item)

        return self.interpreter.regions.branch(
            iterator.table[DONE], lambda: self.advance(source), first
        )

    def next_of_accumulate(self, iterator: IteratorRef) -> Any:
        """DONE: False if the initial value is the next item."""
        table, interpreter = iterator.table, self.interpreter
        if table[DONE] is False:
            self.end(iterator)
            return table[LAST]

        def total(item: Any) -> Any:
            regions, before = interpreter.regions, table.get(LAST, MISSING)

            def more() -> Any:
                known, function = regions.present(before), table[FUNCTION]
                if function is None:
                    return interpreter.operators.binary("add", known, item)
                return self.called(function, (known, item))

            made = regions.branch(regions.is_bound(before), more, lambda: item)
            self.heap.set(table, LAST, made)
            return made

        return self.if_there(self.advance(table[SOURCE][0]), total)

    def next_of_pairwise(self, iterator: IteratorRef) -> Any:
        table = iterator.table

        def pair(item: Any) -> Any:
            before = table.get(LAST, MISSING)
            self.heap.set(table, LAST, item)
            return before, item

        if table.get(LAST, MISSING) is MISSING:
            self.heap.set(table, LAST, self.advance(table[SOURCE][0]))
        return self.if_there(
            table.get(LAST, MISSING), lambda _: self.if_there(self.advance(table[SOURCE][0]), pair)
        )

    def next_of_count(self, iterator: IteratorRef) -> Any:
        at = iterator.table[AT]
        after = self.interpreter.operators.binary("add", at, iterator.table[STEP])
        self.heap.set(iterator.table, AT, after)
        return at

    def next_of_repeat(self, iterator: IteratorRef) -> Any:
        return self.limited(iterator, lambda: iterator.table[SOURCE])

    def limited(self, iterator: IteratorRef, take: Callable[[], Any]) -> Any:
        """Take an item if there are any left."""
        left = iterator.table[LEFT]
        if left is None:
            return take()

        def item() -> Any:
            self.heap.set(iterator.table, LEFT, left - 1)
            return take()

        is_left = self.interpreter.operators.truth(left > 0)
        return self.interpreter.regions.branch(is_left, item, lambda: MISSING)

    def next_of_cycle(self, iterator: IteratorRef) -> Any:
        """LAST: the items that have been taken, or all items of a sequence."""
        table, regions = iterator.table, self.interpreter.regions
        held = table[SOURCE][0]
        is_sequence = isinstance(held, IteratorRef) and held.kind is SEQUENCE_ITERATOR
        item = MISSING if is_sequence else self.advance(held)

        def first_time() -> Any:
            found = regions.present(item)
            self.heap.set(table, LAST, (*table[LAST], found))
            return found

        def again() -> Any:
            items, at = table[LAST], table[AT]
            if not items:
                return MISSING
            if is_sequence and self.interpreter.containers.items(held.table[SOURCE]) is not items:
                fail("a list is changed while itertools.cycle iterates over it", "pass it a copy")
            self.heap.set(table, AT, (at + 1) % len(items))
            return self.interpreter.containers.getitem(items, at)

        is_there = regions.is_bound(item)
        if not isinstance(is_there, bool):
            fail("the length of an iterable of itertools.cycle depends on a tensor", "use indices")
        return first_time() if is_there else again()

    def next_of_chain(self, iterator: IteratorRef) -> Any:
        """LAST: the iterator that is gone through; None between two."""
        table, regions = iterator.table, self.interpreter.regions

        def following() -> Any:
            part = self.advance(table[SOURCE][0])
            if isinstance(part, Either) and not isinstance(regions.is_bound(part), bool):
                fail("the number of parts of a chain depends on a tensor", "use two loops")
            if part is MISSING:
                return MISSING
            self.heap.set(table, LAST, self.interpreter.iteration.iterator(part))
            return item(table[LAST])

        def item(current: Any) -> Any:
            found = self.advance(current)
            return regions.branch(regions.is_bound(found), lambda: regions.present(found), ended)

        def ended() -> Any:
            self.heap.set(table, LAST, None)
            return following()

        current = table[LAST]
        if isinstance(current, Either):
            return regions.each_option(
                current, lambda option: following() if option is None else item(option)
            )
        return following() if current is None else item(current)

    def next_of_slice(self, iterator: IteratorRef) -> Any:
        """AT: how many items are passed over before the next one; STEP: then after it."""
        table, source = iterator.table, iterator.table[SOURCE][0]
        skip = table[AT]
        if not isinstance(skip, int):
            fail("itertools.islice starts in a branch", "take its first item before the branch")
        self.heap.set(table, AT, table[STEP] - 1)

        def passed(number: int) -> Any:
            found = self.limited(iterator, lambda: self.advance(source))
            if number == skip:
                return found
            return self.if_there(found, lambda _: passed(number + 1))

        return passed(0)


RULES: dict[Any, Rule] = {
    SEQUENCE_ITERATOR: Iterators.next_of_sequence,
    KEY_ITERATOR: Iterators.next_of_keys,
    INDEX_ITERATOR: Iterators.next_by_index,
    CALL_ITERATOR: Iterators.next_of_calls,
    **dict.fromkeys(
        map(type, (iter(()), iter(""), iter(b""), iter(range(1)), reversed([]), iter(set[Any]()))),
        Iterators.next_of_sequence,
    ),
    reversed: Iterators.next_of_sequence,
    zip: Iterators.next_of_zip,
    enumerate: Iterators.next_of_enumerate,
    map: Iterators.next_of_map,
    filter: Iterators.next_of_filter,
    itertools.filterfalse: Iterators.next_of_filter,
    itertools.zip_longest: Iterators.next_of_zip_longest,
    itertools.starmap: Iterators.next_of_star_map,
    itertools.takewhile: Iterators.next_of_take_while,
    itertools.dropwhile: Iterators.next_of_drop_while,
    itertools.accumulate: Iterators.next_of_accumulate,
    itertools.pairwise: Iterators.next_of_pairwise,
    itertools.count: Iterators.next_of_count,
    itertools.repeat: Iterators.next_of_repeat,
    itertools.cycle: Iterators.next_of_cycle,
    itertools.chain: Iterators.next_of_chain,
    itertools.islice: Iterators.next_of_slice,
    types.GeneratorType: lambda self, iterator: self.interpreter.generators.advance(iterator),
}
"""How an iterator of each class takes its next item."""
