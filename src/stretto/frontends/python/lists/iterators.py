"""Python's iterators as objects with attributes, so that their positions are state like any other.

A C iterator cannot be reset, and accepts no traced position. Traced code therefore gets these
objects instead. Each tells if there is another item (`more`), returns it (`take`), and acts as
Python does at the end (`end`). The methods are traced like user code: where a position or a length
depends on the run, their branches become part of the Program.
"""

# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# all arguments are traced values

from __future__ import annotations

import itertools
from typing import Any, ClassVar


class TracedIterator:
    """Base of the iterators.

    made_of: the arguments, from which the items can be derived without positions, as long as
    the iterator is not `touched`.
    """

    kind: ClassVar[type] = object
    __stretto_modelled__ = True

    def __init__(self, *made_of: Any) -> None:
        self.made_of = made_of
        self.touched = False

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.more():
            return self.take()
        self.end()
        raise StopIteration

    def more(self) -> Any:
        """Return True if there is another item, which may be a traced flag. Called before each
        `take`."""
        raise AssertionError("each kind of iterator says whether it has another item")

    def take(self) -> Any:
        """Return the next item; `more` must have been true."""
        raise AssertionError("each kind of iterator gives the next item")

    def end(self) -> None:
        pass


class Over(TracedIterator):
    """An iterator over the items of another one."""

    def __init__(self, inner: Any, *made_of: Any) -> None:
        super().__init__(*made_of)
        self.inner = inner

    def more(self) -> Any:
        self.touched = True
        return self.inner.more()

    def end(self) -> None:
        self.inner.end()


class LookingAhead(Over):
    """An iterator that has to take an item to find out if there is one; `item` holds it."""

    def __init__(self, function: Any, inner: Any) -> None:
        super().__init__(inner)
        self.function = function
        self.item: Any = None

    def take(self) -> Any:
        item, self.item = self.item, None
        return item


def next_of(iterator: Any) -> Any:
    """Return `next(iterator)`."""
    if iterator.more():
        return iterator.take()
    iterator.end()
    raise StopIteration


def next_or(iterator: Any, default: Any) -> Any:
    """Return `next(iterator, default)`."""
    if iterator.more():
        found = iterator.take()
    else:
        iterator.end()
        found = default
    return found


def contains(iterator: Any, item: Any) -> Any:
    """Return `item in iterator`, which consumes the items up to the match."""
    found = False
    while not found and iterator.more():
        other = iterator.take()
        found = other is item or other == item
    if not found:
        iterator.end()
    return found


def rest_of(iterator: Any) -> Any:
    """Return a list of the remaining items."""
    made: Any = []
    while iterator.more():
        made.append(iterator.take())
    iterator.end()
    return made


def any_left(iterator: Any, found: Any) -> Any:
    """Return True if the truth of one of the remaining items is `found`. The iterator keeps the
    items after that one."""
    while iterator.more():
        if bool(iterator.take()) == found:
            return True
    iterator.end()
    return False


class Positioned(TracedIterator):
    """The items of a sequence, which may grow during the iteration."""

    kind = type(iter([]))

    def __init__(self, items: Any) -> None:
        super().__init__(items)
        self.items = items
        self.position: Any = 0

    def more(self) -> Any:
        self.touched = True
        return self.position >= 0 and self.position < len(self.items)

    def take(self) -> Any:
        item = self.items[self.position]
        self.position = self.position + 1
        return item

    def end(self) -> None:
        self.position = -1


class Backwards(Positioned):
    """The items of a sequence in reverse order."""

    kind = reversed

    def __init__(self, items: Any) -> None:
        super().__init__(items)
        self.position = len(items) - 1

    def take(self) -> Any:
        item = self.items[self.position]
        self.position = self.position - 1
        return item


class DictIterator(TracedIterator):
    """The keys, values or items of a dict. `count`: number of keys when the iterator was
    created."""

    kind = type(iter({}))

    def __init__(self, view: Any, owner: Any, give: Any) -> None:
        super().__init__(view)
        self.owner, self.give = owner, give
        self.keys = list(owner)
        self.count = len(self.keys)
        self.position: Any = 0

    def more(self) -> Any:
        self.touched = True
        if self.position >= 0 and len(self.owner) != self.count:
            raise RuntimeError("dictionary changed size during iteration")
        return self.position >= 0 and self.position < self.count

    def take(self) -> Any:
        key = self.keys[self.position]
        self.position = self.position + 1
        return self.give(self.owner, key)

    def end(self) -> None:
        self.position = -1


class CallIterator(TracedIterator):
    """The results of a function, until one equals `last`."""

    kind = type(iter(int, 1))

    def __init__(self, function: Any, last: Any) -> None:
        super().__init__(function, last)
        self.function, self.last = function, last
        self.item: Any = None
        self.ended: Any = False

    def more(self) -> Any:
        self.touched = True
        if not self.ended:
            self.item = self.function()
            if self.item == self.last:
                self.ended = True
        return not self.ended

    def take(self) -> Any:
        item, self.item = self.item, None
        return item


class Enumerated(Over):
    kind = enumerate

    def __init__(self, items: Any, inner: Any, start: Any = 0) -> None:
        super().__init__(inner, items, start)
        self.number = start

    def take(self) -> Any:
        number = self.number
        self.number = number + 1
        return number, self.inner.take()


class Zipped(TracedIterator):
    kind = zip

    def __init__(self, items: Any, inner: Any, strict: bool) -> None:
        super().__init__(*items)
        self.inner, self.strict = inner, strict

    def more(self) -> Any:
        self.touched = True
        found: Any = len(self.inner) > 0
        for one in self.inner:
            found = found and one.more()
        return found

    def take(self) -> Any:
        return tuple([one.take() for one in self.inner])

    def end(self) -> None:
        """Take an item from each iterator before the first exhausted one, as `zip` does; raise
        ValueError for a mismatch if strict."""
        going: Any = True
        first_ended: Any = False
        for number, one in enumerate(self.inner, 1):
            before = "argument 1" if number == 2 else f"arguments 1-{number - 1}"
            if going:
                if one.more():
                    one.take()
                    if first_ended:
                        raise ValueError(f"zip() argument {number} is longer than {before}")
                else:
                    one.end()
                    if number == 1:
                        first_ended = True
                        going = self.strict
                    elif not first_ended:
                        going = False
                        if self.strict:
                            raise ValueError(f"zip() argument {number} is shorter than {before}")


class Mapped(Zipped):
    kind = map

    def __init__(self, function: Any, items: Any, inner: Any) -> None:
        super().__init__(items, inner, False)
        self.function = function

    def take(self) -> Any:
        return self.function(*[one.take() for one in self.inner])


class StarMap(Over):
    kind = itertools.starmap

    def __init__(self, function: Any, inner: Any) -> None:
        super().__init__(inner)
        self.function = function

    def take(self) -> Any:
        return self.function(*self.inner.take())


class Filtered(LookingAhead):
    """The items whose `function` has the truth value `wanted`."""

    kind = filter

    def __init__(self, function: Any, inner: Any, wanted: bool = True) -> None:
        super().__init__(function, inner)
        self.wanted = wanted

    def more(self) -> Any:
        self.touched = True
        found: Any = False
        while not found and self.inner.more():
            item = self.inner.take()
            holds = item if self.function is None else self.function(item)
            if bool(holds) == self.wanted:
                self.item = item
                found = True
        return found


class TakeWhile(LookingAhead):
    """The items before the first one for which `function` is false."""

    kind = itertools.takewhile

    def __init__(self, function: Any, inner: Any) -> None:
        super().__init__(function, inner)
        self.ended: Any = False

    def more(self) -> Any:
        self.touched = True
        found: Any = False
        if not self.ended:
            if self.inner.more():
                item = self.inner.take()
                if self.function(item):
                    self.item = item
                    found = True
                else:
                    self.ended = True
            else:
                self.inner.end()
        return found

    def end(self) -> None:
        pass


class DropWhile(LookingAhead):
    """The items from the first one on for which `function` is false."""

    kind = itertools.dropwhile

    def __init__(self, function: Any, inner: Any) -> None:
        super().__init__(function, inner)
        self.begun: Any = False

    def more(self) -> Any:
        self.touched = True
        found: Any = False
        while not found and self.inner.more():
            item = self.inner.take()
            if not self.begun and not self.function(item):
                self.begun = True
            if self.begun:
                self.item = item
                found = True
        return found


class Counted(TracedIterator):
    kind = itertools.count

    def __init__(self, start: Any = 0, step: Any = 1) -> None:
        super().__init__()
        self.number, self.step = start, step

    def more(self) -> Any:
        self.touched = True
        return True

    def take(self) -> Any:
        number = self.number
        self.number = number + self.step
        return number


class Repeated(TracedIterator):
    """times: number of times that `item` is returned; None for no end."""

    kind = itertools.repeat

    def __init__(self, item: Any, times: Any = None) -> None:
        super().__init__()
        self.item, self.left = item, times

    def more(self) -> Any:
        self.touched = True
        return self.left is None or self.left > 0

    def take(self) -> Any:
        if self.left is not None:
            self.left = self.left - 1
        return self.item


class Cycled(TracedIterator):
    """The items of a sequence that does not change, repeated without end."""

    kind = itertools.cycle

    def __init__(self, items: Any) -> None:
        super().__init__()
        self.items = items
        self.position: Any = 0

    def more(self) -> Any:
        self.touched = True
        return len(self.items) > 0

    def take(self) -> Any:
        item = self.items[self.position]
        self.position = (self.position + 1) % len(self.items)
        return item


class Chained(TracedIterator):
    """The items of several iterators. `number`: index of the current one."""

    kind = itertools.chain

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.number: Any = 0

    def more(self) -> Any:
        self.touched = True
        found: Any = False
        for number, one in enumerate(self.inner):
            if not found and number >= self.number:
                self.number = number
                if one.more():
                    found = True
                else:
                    one.end()
                    self.number = number + 1
        return found

    def take(self) -> Any:
        found: Any = None
        for number, one in enumerate(self.inner):
            if number == self.number:
                found = one.take()
        return found


class Sliced(Over):
    """Each `step`-th item from `start` on, before `stop`, which may be None."""

    kind = itertools.islice

    def __init__(self, inner: Any, start: Any, stop: Any, step: Any) -> None:
        super().__init__(inner)
        self.following, self.stop, self.step = start, stop, step
        self.count: Any = 0

    def more(self) -> Any:
        self.touched = True
        found: Any = self.stop is None or self.following < self.stop
        until = self.following if found else self.stop
        going: Any = True
        while going and self.count < until:
            if self.inner.more():
                self.inner.take()
                self.count = self.count + 1
            else:
                going = False
        return found and going and self.inner.more()

    def take(self) -> Any:
        item = self.inner.take()
        self.count = self.count + 1
        self.following = self.following + self.step
        return item

    def end(self) -> None:
        pass


class Accumulated(Over):
    kind = itertools.accumulate

    def __init__(self, inner: Any, function: Any, initial: Any) -> None:
        super().__init__(inner)
        self.function, self.initial = function, initial
        self.total: Any = None
        self.begun: Any = False

    def more(self) -> Any:
        self.touched = True
        return (not self.begun and self.initial is not None) or self.inner.more()

    def take(self) -> Any:
        if self.begun:
            item = self.inner.take()
            self.total = (
                self.total + item if self.function is None else self.function(self.total, item)
            )
        else:
            self.total = self.inner.take() if self.initial is None else self.initial
            self.begun = True
        return self.total


class Paired(Over):
    kind = itertools.pairwise

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.before: Any = None
        self.begun: Any = False

    def more(self) -> Any:
        self.touched = True
        if not self.begun and self.inner.more():
            self.before = self.inner.take()
            self.begun = True
        return self.begun and self.inner.more()

    def take(self) -> Any:
        before, self.before = self.before, self.inner.take()
        return before, self.before
