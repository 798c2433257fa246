"""Iteration: what goes through the items of something, one by one or all of them."""

from __future__ import annotations

import collections.abc
import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from stretto.frontends.python.interpreter.data_dicts import DataDict
from stretto.frontends.python.interpreter.frames import (
    BREAK,
    CONTINUE,
    End,
    HostFunction,
    Perhaps,
    Stopped,
)
from stretto.frontends.python.interpreter.heap import (
    ITEMS,
    MISSING,
    RESULT,
    DictView,
    IteratorRef,
    PythonHeap,
    Ref,
)
from stretto.frontends.python.interpreter.host import apply
from stretto.frontends.python.interpreter.iterators import (
    AT,
    DONE,
    FUNCTION,
    INDEX_ITERATOR,
    IS_PRIVATE,
    KEY_ITERATOR,
    LAST,
    LEFT,
    SEQUENCE_ITERATOR,
    SOURCE,
    Iterators,
)
from stretto.frontends.python.lists import operations, sources
from stretto.frontends.python.lists.sources import Indexed
from stretto.frontends.python.tracing.signals import Abort, NeedsUnroll, fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values import texts
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.state import TracedList

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter

Body = Callable[[Any], Any]
"""A function that runs the body for an item. It returns how it ends, like a block."""

_MANY = 1000
"""The number of items after which an iterator is asked if it ends."""


@dataclass(eq=False)
class RestOfItems:
    """The items that are left of an iterable, with access by index. positions: the iterators over
    sequences that it goes through, and where they are."""

    source: Indexed
    positions: tuple[tuple[IteratorRef, Any], ...] = ()
    lists: tuple[TracedList, ...] = ()
    """The lists of the Program that it goes through: their lengths may change meanwhile."""

    def lengths(self) -> list[Any]:
        """Return keys of the lengths of the lists: of their contents, if nothing more is known."""
        states = [items.memory.state for items in self.lists]
        return [state.length or state.base for state in states]

    def move(self, heap: PythonHeap, count: Any) -> list[Any]:
        """Advance the iterators by a number of items, and return their positions."""
        made = []
        for iterator, start in self.positions:
            made.append(start if isinstance(count, int) and count == 0 else count + start)
            heap.set(iterator.table, AT, made[-1])
        return made

    def is_at(self, places: list[Any]) -> bool:
        pairs = zip(self.positions, places, strict=True)
        return all(it.table[AT] is at and not it.table.get(DONE) for (it, _), at in pairs)

    def end(self, heap: PythonHeap) -> None:
        for iterator, _ in self.positions:
            if DONE in iterator.table:
                heap.set(iterator.table, DONE, True)


class Iteration:
    """Goes through iterables, as `for` statements and built-in functions do."""

    stopped = Stopped

    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap
        self.iterators = Iterators(interpreter)

    # -- one item -------------------------------------------------------------------------------

    def iterator(self, iterable: Any) -> Any:
        """Return `iter(iterable)`."""
        interpreter, new = self.interpreter, self.iterators
        if isinstance(iterable, Either):
            return interpreter.regions.each_option(iterable, self.iterator)
        if isinstance(iterable, IteratorRef):
            return iterable
        if texts.is_text(iterable) and tracer().data is not None:
            return tracer().data.of_text(iterable, "__iter__", (), {})
        iterable = texts.settled(iterable)
        method = interpreter.attributes.method(iterable, "__iter__")
        if method is not MISSING:
            found = interpreter.calls.call(method, (), {})
            if not new.is_iterator(found):
                kind = interpreter.attributes.type_of(found).__name__
                raise TypeError(f"iter() returned non-iterator of type '{kind}'")
            return found
        if isinstance(iterable, DictView):
            return self._of_view(iterable)
        if isinstance(iterable, Ref):

            def in_one() -> Any:
                return self.of_container(iterable)

            return interpreter.containers.with_content(iterable, in_one)
        if isinstance(iterable, TracedTensor) and iterable.number is not None:
            kind = interpreter.attributes.type_of(iterable).__name__
            raise TypeError(f"'{kind}' object is not iterable")
        source = sources.as_source(iterable)
        if source is not None:
            is_range = isinstance(iterable, range | sources.TracedRange)
            return new.of_sequence(source, type(iter(range(0))) if is_range else SEQUENCE_ITERATOR)
        if interpreter.attributes.method(iterable, "__getitem__") is not MISSING:
            return new.new(INDEX_ITERATOR, {SOURCE: iterable, AT: 0, DONE: False})
        if interpreter.attributes.method(iterable, "__next__") is not MISSING:
            kind = interpreter.attributes.type_of(iterable).__name__
            raise TypeError(f"'{kind}' object is not iterable")
        if isinstance(iterable, collections.abc.Iterator):
            fail(
                f"an iterator of class {type(iterable).__name__} from outside is advanced",
                "make it in the function, or pass a list",
            )
        base = next((kind for kind in (tuple, str, bytes) if isinstance(iterable, kind)), None)
        if base is not None:
            return new.of_sequence(iterable, type(iter(base())))
        return new.of_items(map(self.heap.adopt, apply(iter, iterable)), iterable)

    def of_container(self, holder: Ref) -> IteratorRef:
        """Return an iterator as the class in C of a container gives it."""
        items = holder.table[ITEMS]
        if isinstance(items, DataDict):
            if issubclass(holder.kind, set):
                fail("a program goes through a set, whose order Python decides", "use sorted()")
            return self.of_container(self.heap.new(list, items.keys()))
        if isinstance(items, dict):
            return self._of_keys(holder)
        return self.iterators.of_sequence(holder)

    def _of_view(self, view: DictView) -> Any:
        keys, holder, regions = self._of_keys(view.holder), view.holder, self.interpreter.regions
        if view.name == "keys":
            return keys

        def item(key: Any) -> Any:
            value = regions.present(self.interpreter.containers.items(holder)[key])
            return (key, value) if view.name == "items" else value

        return self.iterators.over(map, (keys,), {FUNCTION: HostFunction(item), IS_PRIVATE: True})

    def _of_keys(self, holder: Ref) -> IteratorRef:
        items, regions = holder.table[ITEMS], self.interpreter.regions
        made = self.iterators.new(
            KEY_ITERATOR, {SOURCE: tuple(items), AT: 0, DONE: False, LAST: holder}
        )
        if all(regions.is_bound(item) is True for item in items.values()):
            return made
        return self.iterators.over(
            filter,
            (made,),
            {FUNCTION: HostFunction(lambda key: regions.is_bound(items[key])), IS_PRIVATE: True},
        )

    def advance(self, iterator: Any) -> Any:
        """Take an item: MISSING at the end, one of both if only the run knows."""
        interpreter = self.interpreter
        if isinstance(iterator, Either):
            return interpreter.regions.each_option(iterator, self.advance)
        if isinstance(iterator, IteratorRef):
            return self.iterators.next_item(iterator)
        method = interpreter.attributes.method(iterator, "__next__")
        if method is MISSING:
            if isinstance(iterator, collections.abc.Iterator):
                self.iterator(iterator)
            kind = interpreter.attributes.type_of(iterator).__name__
            raise TypeError(f"'{kind}' object is not an iterator")
        try:
            with interpreter.contexts.catching(StopIteration):
                return interpreter.calls.call(method, (), {})
        except Stopped:
            return MISSING

    def next(self, iterator: Any, *default: Any) -> Any:
        """The built-in function `next`."""
        regions = self.interpreter.regions
        found = self.advance(iterator)

        def ended() -> Any:
            return default[0] if default else self.fail_at_end(iterator)

        return regions.branch(regions.is_bound(found), lambda: regions.present(found), ended)

    def fail_at_end(self, iterator: Any) -> NoReturn:
        """Raise what `next` raises for an iterator that has ended."""
        value = iterator.table.get(LAST) if isinstance(iterator, IteratorRef) else None
        is_generator = isinstance(iterator, IteratorRef) and self.is_generator(iterator)
        raise Stopped(StopIteration(*([value] if is_generator and value is not None else [])))

    # -- all items ------------------------------------------------------------------------------

    def rest(self, iterable: Any) -> RestOfItems | None:
        """Return the items that are left, if they have an index and only the run may know how
        many they are."""
        if isinstance(iterable, IteratorRef):
            return self._rest_of_iterator(iterable)
        if self.interpreter.attributes.method(iterable, "__iter__") is not MISSING:
            return None
        if isinstance(iterable, Ref):
            items = iterable.table[ITEMS]
            if not isinstance(items, TracedList) or operations.is_resized(items):
                return None
            source = sources.as_source(items)
            assert source is not None
            return RestOfItems(source, lists=(items,))
        elif isinstance(iterable, TracedTensor) and iterable.number is not None:
            return None
        else:
            found = sources.as_source(iterable)
        return None if found is None else RestOfItems(found)

    def _rest_of_iterator(self, iterator: IteratorRef) -> RestOfItems | None:
        table = iterator.table
        if iterator.kind in (zip, map, enumerate):
            parts = [self.rest(part) for part in table[SOURCE]]
            if not table[IS_PRIVATE] or not parts or None in parts:
                return None
            return self._rest_of_parts(iterator, [part for part in parts if part is not None])
        if DONE not in table or table[DONE] is not False or AT not in table:
            return None
        found, at = self.rest(table[SOURCE]), table[AT]
        if found is None:
            return None
        source = found.source
        if not isinstance(at, int) or at != 0:
            rest: Any = source.length - at
            source = Indexed(rest, lambda index: found.source.item(index + at))
        return RestOfItems(source, ((iterator, at),), found.lists)

    def _rest_of_parts(self, iterator: IteratorRef, parts: list[RestOfItems]) -> RestOfItems | None:
        table = iterator.table
        positions = tuple(pair for part in parts for pair in part.positions)
        if iterator.kind is enumerate:
            at, (one,) = table[AT], parts
            found: Any = Indexed(
                one.source.length, lambda index: (index + at, one.source.item(index))
            )
            positions = (*positions, (iterator, at))
        elif iterator.kind is zip:
            found = sources.zipped([part.source for part in parts], strict=bool(table[LEFT]))
        else:
            joined: Any = sources.zipped([part.source for part in parts])
            function = table[FUNCTION]
            found = Indexed(
                joined.length, lambda index: self.iterators.called(function, joined.item(index))
            )
        lists = tuple(items for part in parts for items in part.lists)
        return RestOfItems(found, positions, lists)

    def each(self, iterable: Any, body: Body, *, unrolls: bool = False) -> Any:
        """Run the body for each item, until it ends otherwise than by `continue`; return how.

        unrolls: a known number of items makes no loop of the Program.
        """
        regions = self.interpreter.regions
        if unrolls:
            with regions.loop(None):
                return self._each(iterable, body, unrolls)
        return self._each(iterable, body, unrolls)

    def through_all(self, iterable: Any, body: Body) -> None:
        """Run the body for each item, as a function does that goes through an iterable."""
        with self.interpreter.regions.inside_of_statement():
            self.each(iterable, body, unrolls=True)

    def _each(self, iterable: Any, body: Body, unrolls: bool) -> Any:
        regions = self.interpreter.regions
        if isinstance(iterable, Either):
            return regions.each_option(
                iterable, lambda option: self._each(option, body, unrolls), joins_ends=True
            )
        rest = self.rest(iterable)
        if rest is not None and not (unrolls and isinstance(rest.source.length, int)):
            found = self.interpreter.source_loops.traced_for(rest, body)
            if found is not NotImplemented:
                return found
        iterator = self.iterator(iterable)
        is_pushed = isinstance(iterator, IteratorRef) and self.is_pushed(iterator)
        if iterator is not iterable and (is_pushed or isinstance(iterator, Either)):
            return self._each(iterator, body, unrolls)
        if is_pushed:
            return self._push(iterator, body, unrolls)
        return self._one_by_one(iterator, body)

    def is_generator(self, iterator: IteratorRef) -> bool:
        return self.interpreter.generators.kind is iterator.kind

    def is_pushed(self, iterator: Any) -> bool:
        """True if the code that makes the items is run around the code that takes them."""
        if not isinstance(iterator, IteratorRef):
            return False
        if self.is_generator(iterator):
            return self.interpreter.generators.is_fresh(iterator)
        if iterator.kind in (map, enumerate):
            parts = iterator.table[SOURCE]
            return len(parts) == 1 and self.is_pushed(parts[0])
        return iterator.kind in _FILTERS

    def _push(self, iterator: IteratorRef, body: Body, unrolls: bool) -> Any:
        table, regions = iterator.table, self.interpreter.regions
        if self.is_generator(iterator):
            return self.interpreter.generators.push(iterator, body, unrolls)

        def with_item(item: Any) -> Any:
            if iterator.kind is map:
                return body(self.iterators.called(table[FUNCTION], (item,)))
            if iterator.kind is enumerate:
                at = table[AT]
                self.heap.set(table, AT, at + 1)
                return body((at, item))
            return regions.branch(
                self.iterators.is_kept(iterator, item),
                lambda: body(item),
                lambda: None,
                joins_ends=True,
            )

        return self._each(table[SOURCE][0], with_item, unrolls)

    def _one_by_one(self, iterator: Any, body: Body) -> Any:
        regions = self.interpreter.regions

        def go_through(item: Any) -> Any:
            return self.interpreter.source_loops.go_through(
                lambda: self.advance(iterator), item, body
            )

        def again() -> Any:
            if self.iterators.is_endless(iterator):
                with contextlib.suppress(Abort, NeedsUnroll):
                    return regions.attempt(lambda: go_through(self.advance(iterator)))
            return self._one_by_one(iterator, body)

        while True:
            item = self.advance(iterator)
            is_there = regions.is_bound(item)
            if is_there is False:
                return None
            if is_there is not True:
                return go_through(item)
            end = body(item)
            if isinstance(end, End):
                if end.jump != CONTINUE:
                    return end
            elif end is not None:
                return self.interpreter.statements.unless_ended(end, again)

    def collect(self, iterable: Any) -> Any:
        """Return all items, as the content of a list."""
        if isinstance(iterable, tuple) and type(iterable).__iter__ is tuple.__iter__:
            return tuple(tuple.__iter__(iterable))
        rest = self.rest(iterable)
        is_known = rest is None or isinstance(rest.source.length, int)
        iterator = self.iterator(iterable) if is_known else iterable
        if is_known and not isinstance(iterator, Either) and not self.is_pushed(iterator):
            return self._collect_known(iterator)
        made = self.heap.list(())
        append = self.interpreter.containers.append
        self.through_all(iterator, lambda item: append(made, item))
        return made.table[ITEMS]

    def _collect_known(self, iterator: Any) -> Any:
        found: list[Any] = []
        regions = self.interpreter.regions
        while True:
            item = self.advance(iterator)
            if item is MISSING:
                return tuple(found)
            if regions.is_bound(item) is not True:
                break
            found.append(item)
            if len(found) == _MANY and self.iterators.is_endless(iterator):
                fail(
                    "all items of an iterator are taken, which has no end",
                    "take a number of them with itertools.islice",
                )
        made = self.heap.list(found)
        append = self.interpreter.containers.append
        with regions.loop(None):
            self.interpreter.source_loops.go_through(
                lambda: self.advance(iterator), item, lambda x: append(made, x)
            )
        return made.table[ITEMS]

    def is_any(self, iterable: Any, condition: Callable[[Any], Any]) -> Any:
        """Return whether a condition holds for an item; no items are taken after it."""
        content = iterable.table[ITEMS] if isinstance(iterable, Ref) else iterable
        is_written = self.interpreter.attributes.method(iterable, "__iter__") is not MISSING
        if type(content) is tuple and not is_written:
            return self.interpreter.membership.some(content, condition)
        table = self.heap.new_table()
        self.heap.set(table, RESULT, False)

        def body(item: Any) -> Any:
            found = condition(item)
            if found is False:
                return None
            self.heap.set(table, RESULT, found)
            return End(BREAK) if found is True else Perhaps({BREAK: found})

        self.through_all(iterable, body)
        return table[RESULT]

    def known(self, iterable: Any) -> tuple[Any, ...]:
        """Return all items, whose number has to be known; it becomes so if the call decides it."""
        rest = self.rest(iterable)
        if rest is not None and isinstance(rest.source.length, torch.SymInt):
            rest.end(self.heap)
            return tuple(rest.source)
        found = self.collect(iterable)
        if isinstance(found, TracedList):
            return tuple(found)
        if not isinstance(found, tuple):
            fail("the number of items depends on a tensor", "use a loop, or a list")
        return found

    def first(self, iterable: Any, most: int) -> tuple[Any, ...]:
        """Return at most `most` items of an iterator, or all items of another iterable."""
        if not isinstance(iterable, IteratorRef):
            return self.known(iterable)
        found: list[Any] = []
        while len(found) < most:
            item = self.advance(iterable)
            is_there = self.interpreter.regions.is_bound(item)
            if not isinstance(is_there, bool):
                fail("the number of items to unpack depends on a tensor", "use a list")
            if not is_there:
                break
            found.append(item)
        return tuple(found)

    def iterate(self, iterable: Any) -> Iterator[Any]:
        """Return a host iterator over the items, whose number has to be known."""
        return iter(self.known(iterable))

    def of_iterator(self, holder: IteratorRef, name: str, args: Any) -> Any:
        """Call a method of an iterator."""
        match name:
            case "__next__":
                return self.next(holder)
            case "__iter__":
                return holder
            case "send" | "close" | "throw" if self.is_generator(holder):
                return getattr(self.interpreter.generators, name)(holder, *args)
            case "__length_hint__":
                fail("the length hint of an iterator has no rule", "use len() of the list")
            case _:
                fail(f"{name} of an iterator has no rule", "use a loop")


_FILTERS = (filter, itertools.filterfalse)
