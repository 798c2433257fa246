"""Changes that a program makes to the outside: planned, and described like outputs.

The heap's trail tells what has changed. Places whose values a program changes, and reads before,
hold another value at each call: the capture is repeated with these values as inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stretto.frontends.python.guards.reading import (
    WHOLE,
    Arguments,
    Exempt,
    Reading,
    Root,
    read_state,
)
from stretto.frontends.python.interpreter.heap import ITEMS, MISSING, PythonHeap, Ref
from stretto.frontends.python.interpreter.returned import Flattener
from stretto.frontends.python.results.captured import (
    ChoiceLeaf,
    JournalSpec,
    NewContainer,
    ObjectChange,
    ObjectState,
    OutputSpec,
    PythonLeaf,
)
from stretto.frontends.python.results.output import CollectionOf
from stretto.frontends.python.tracing.contents import newly_updated
from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.state import TracedList, contents, equal_leaves
from stretto.frontends.python.values.stores import CellVariable, anchor


@dataclass(frozen=True, slots=True, eq=False)
class OutsideChange:
    """A place of the outside that has changed.

    box: the mutable location, with its key there; WHOLE for the content of a container. before:
    the real value. new: the value at the end. was_read: True if the program has read it. moves:
    True if it was deleted and set again, and so comes last.
    """

    box: Any
    key: Any
    before: Any
    new: Any
    was_read: bool
    moves: bool = False


def outside_changes(heap: PythonHeap) -> Iterator[OutsideChange]:
    """Yield all changes of the outside that the whole program has made."""
    holders = {
        id(table): holder
        for holder, table in heap.tables.values()
        if not heap.is_own(holder) and not heap.is_born_after(table, 0)
    }
    refs = {id(ref.table): ref for _, ref in heap.refs.values() if isinstance(ref, Ref)}
    outside, moved = heap.outside, heap.moved()
    changes = heap.changes(0, holders.keys() | refs.keys())
    for place in (*(p for p in changes if p not in moved), *(p for p in moved if p in changes)):
        change = changes[place]
        ref = refs.get(place[0])
        if change.key is ITEMS:
            if ref is not None and not _same_items(change.old, change.new):
                yield OutsideChange(ref.origin, WHOLE, ref.origin, change.new, True)
            continue
        holder = holders.get(place[0]) if ref is None else ref.origin
        moves = place in moved
        if holder is None or (change.new is change.old and not moves):
            continue
        was_read = place in heap.read
        before = outside.peek(holder, change.key)
        if not was_read and not moves and equal_leaves(before, change.new):
            outside.read(holder, change.key)  # storing the present value changes nothing
            continue
        key = outside.key_in_box(holder, change.key)
        box = outside.box(holder, change.key)
        yield OutsideChange(box, key, before, change.new, was_read, moves)


def _same_items(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if isinstance(old, dict) and isinstance(new, dict):
        return list(old) == list(new) and all(old[key] is new[key] for key in old)
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))
    return False


@dataclass(eq=False)
class PlannedChanges:
    """Changes that a capture makes, as far as they are known.

    arguments: containers among the arguments are identified by their place and read like roots.
    counting: changed integers are inputs instead of being part of the key. counted: attributes of
    classes, and keys of dicts, whose integers change in objects that are read whole. keeps_apart:
    objects that are one of several are not joined to copies. updated: outside tensors, by id, that
    are written in place and read as Python numbers, so that they are traced from the start.
    boxes: mutable locations of the outside, the same ones in each attempt, by the id of their
    holder.
    """

    roots: dict[tuple[int, Any], Root] = field(default_factory=dict[tuple[int, Any], Root])
    arguments: bool = False
    counting: bool = True
    counted: set[tuple[type, Any]] = field(default_factory=set[tuple[type, Any]])
    keeps_apart: bool = False
    updated: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    boxes: dict[int, Any] = field(default_factory=dict[int, Any])

    @property
    def is_counting(self) -> bool:
        return self.counting and bool(
            self.counted or any(root.counted for root in self.roots.values())
        )

    @property
    def used_counters(self) -> frozenset[tuple[type, Any]]:
        return frozenset(self.counted) if self.counting else frozenset()

    def changes_objects(self, arguments: Arguments) -> bool:
        """Return True if changed objects are reachable from the arguments."""
        found = {id(item) for item in read_state((), arguments, (), ()).objects}
        return any(id(root.box) in found for root in self.roots.values())

    def _size(self) -> tuple[int, ...]:
        sizes = map(len, (self.roots, self.counted, self.updated))
        return (*sizes, self.arguments)

    def read(self, arguments: Arguments, given: Sequence[torch.Tensor]) -> Reading:
        """Read the roots, and drop those that are found below other ones."""
        whole = arguments if self.arguments else None
        while True:
            roots = self.used_roots()
            reading = read_state(roots, whole, given, (), self.used_counters)
            visited = {id(item) for item in reading.objects}
            below = [r for r in roots if r.key is not WHOLE and id(r.box) in visited]
            below += [r for r in roots if r.key is WHOLE and _is_below(r, roots, whole, given)]
            if not below:
                return reading
            del self.roots[id(below[0].box), below[0].key]

    def used_roots(self) -> list[Root]:
        """Return the roots, without counters if integers are part of the key."""
        roots = list(self.roots.values())
        return roots if self.counting else [Root(root.box, root.key) for root in roots]

    @staticmethod
    def of(known: ObjectState | None) -> PlannedChanges:
        """Return the changes made by an earlier capture of the function with other sizes."""
        if known is None:
            return PlannedChanges()
        roots = {(id(root.box), root.key): root for root in known.roots}
        return PlannedChanges(roots, arguments=known.arguments, counted=set(known.counted))

    def learn(self, heap: PythonHeap, reading: Reading) -> bool:
        """Add the changes that were found. Return True if some of them are new."""
        known = self._size()
        visited = {id(item) for item in reading.objects}
        self.updated |= newly_updated(tracer())
        read = {id(tensor) for tensor in reading.tensors}
        for box, key, tensor in heap.outside.holding.values():
            if id(tensor) in read and id(box) not in visited:
                self.add_root(box, key, frozenset())
        for change in outside_changes(heap):
            if heap.journal.holds(change.box):
                continue
            counted = type(change.before) is int
            if id(change.box) in heap.outside.arguments:
                self.arguments = True
            if id(change.box) in visited:
                self.count_entries(change)
            elif id(change.box) in heap.outside.arguments:
                pass
            elif change.key is WHOLE:
                self.add_root(change.box, WHOLE, counted_keys(change))
            elif change.was_read:
                self.add_root(change.box, change.key, frozenset((change.key,) if counted else ()))
        return known != self._size()

    def add_root(self, box: Any, key: Any, counted: frozenset[Any]) -> None:
        if (id(box), key) not in self.roots:
            self.roots[id(box), key] = Root(box, key, counted)

    def count_entries(self, change: OutsideChange) -> None:
        """Record the integers that change in an object that is read as a whole."""
        if change.key is WHOLE:
            kind = type(change.box)
            self.counted.update((kind, key) for key in counted_keys(change))
        elif type(change.before) is int:
            self.counted.add((type(change.box), change.key))


def _is_below(
    root: Root, roots: list[Root], arguments: Arguments | None, given: Sequence[torch.Tensor]
) -> bool:
    others = [other for other in roots if other is not root]
    return any(item is root.box for item in read_state(others, arguments, given, ()).objects)


def exemptions(roots: Iterable[Root], reading: Reading) -> Exempt:
    """Exempt from guards what the key of the state contains; the values it refers to are
    guarded."""
    found = Exempt(list(reading.objects), list(reading.leaves))
    for root in roots:
        key = WHOLE if isinstance(root.box, CellVariable) else root.key
        found.entries.setdefault(anchor(root.box), set()).add(key)
    return found


def counted_keys(change: OutsideChange) -> frozenset[Any]:
    """Return the keys of a dict whose integers change."""
    if not isinstance(change.box, dict) or not isinstance(change.new, dict):
        return frozenset()
    return frozenset(
        key
        for key, item in change.box.items()
        if type(item) is int and change.new.get(key, MISSING) is not item
    )


def check_shared(heap: PythonHeap) -> None:
    """Fail if a container among the arguments is changed that the program reaches in another way
    too: the next call may pass another one."""
    for change in outside_changes(heap):
        if id(change.box) in heap.outside.shared:
            fail(
                "a container that is changed is an argument and is also reached in another way",
                "pass a copy of it",
            )


@dataclass(eq=False)
class EffectsOf:
    """Describes the changes of the outside. numbers: of the objects of the reading, by id; fixed:
    other boxes, which are the same at each call."""

    heap: PythonHeap
    flattener: Flattener
    numbers: dict[int, int]
    fixed: list[Any]

    def effects(self) -> tuple[ObjectChange, ...]:
        attributes: dict[int, tuple[Any, dict[Any, Any]]] = {}
        moved = set[tuple[int, Any]]()
        made: list[ObjectChange] = []
        for change in outside_changes(self.heap):
            if self.heap.journal.holds(change.box):
                continue
            if change.key is WHOLE:
                made.append(self._content(change))
            else:
                values = attributes.setdefault(id(change.box), (change.box, {}))[1]
                values[change.key] = change.new
                if change.moves:
                    moved.add((id(change.box), change.key))
        for box, values in attributes.values():
            put = tuple(
                (key, self.flattener.spec(value))
                for key, value in values.items()
                if value is not MISSING
            )
            removed = tuple(
                key for key, x in values.items() if x is MISSING or (id(box), key) in moved
            )
            made.append(ObjectChange(self._place(box), put, removed, False))
        return tuple(made)

    def _content(self, change: OutsideChange) -> ObjectChange:
        box, new = change.box, change.new
        place = self._place(box)
        if isinstance(new, TracedList):
            return ObjectChange(place, (), (), True, self.flattener.items(new))
        entry = self.flattener.spec
        if isinstance(box, set):
            put = tuple((key, self._item_of_set(key, held)) for key, held in new.items())
            return ObjectChange(place, put, (), True)
        if not isinstance(new, dict):
            return ObjectChange(place, tuple((n, entry(x)) for n, x in enumerate(new)), (), True)
        before = {k: self.heap.outside.found_in(box, x) for k, x in contents(box).items()}
        kept = [key for key in before if key in new]
        by_key = list(new)[: len(kept)] == kept
        changed = [
            key
            for key in new
            if not by_key or key not in before or self.heap.adopt(before[key]) is not new[key]
        ]
        put = tuple((key, entry(new[key])) for key in changed)
        removed = tuple(key for key in before if key not in new) if by_key else ()
        return ObjectChange(place, put, removed, not by_key)

    def _item_of_set(self, key: Any, held: Any) -> OutputSpec:
        """Return the spec of an item, which may be missing in some runs."""
        if not isinstance(held, Either):
            return self.flattener.spec(key)
        item, missing = self.flattener.spec(key), PythonLeaf(UNDEFINED)
        options = tuple(missing if x is MISSING else item for x in held.stretto_options)
        return ChoiceLeaf(tuple(map(self.flattener.spec, held.stretto_flags)), options)

    def _place(self, box: Any) -> int:
        """Return the number of an object that was read, or ~number of a fixed box."""
        number = self.numbers.get(id(box))
        if number is None:
            number = self.numbers[id(box)] = ~len(self.fixed)
            self.fixed.append(box)
        return number


def traced_tensors(updated: dict[int, torch.Tensor]) -> dict[int, Any]:
    """Return traced tensors for those that the program both writes and reads as numbers."""
    state = tracer()
    return {key: state.promote(tensor) for key, tensor in updated.items()}


def journal_spec_of(heap: PythonHeap, flattener: Flattener) -> JournalSpec | None:
    """Return the contents of a capture's journal; None if it is empty."""
    journal = heap.journal

    def content(items: list[Any]) -> Any:
        return heap.adopt(items).table[ITEMS]

    if content(journal.order) == ():
        return None
    changed = {id(change.box) for change in outside_changes(heap)}
    for item in journal.referred:
        if id(item) in changed or id(getattr(item, "__dict__", None)) in changed:
            fail(
                f"a {type(item).__name__} that the function changes is printed or logged",
                "print what it holds, or its text: str(...)",
            )

    def spec(items: list[Any]) -> OutputSpec:
        held = content(items)
        if isinstance(held, TracedList):
            return flattener.items(held)
        return NewContainer(CollectionOf(list), tuple(map(flattener.spec, held)))

    columns = (spec(column) for site in journal.sites.values() for column in site.columns)
    return JournalSpec(tuple(journal.sites.values()), spec(journal.order), tuple(columns))
