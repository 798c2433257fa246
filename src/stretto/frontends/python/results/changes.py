"""Changes of the user's objects: planned, described like outputs, and made after each run.

A capture is repeated until its plan contains everything that it changes. The first attempt
finds the changes. In the next one, the former contents of these places are inputs (`reading`),
and their boxes are part of the state that traced branches join and traced loops carry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import nn

from stretto.errors import CaptureError
from stretto.frontends.python.guards.reading import (
    WHOLE,
    Arguments,
    Exempt,
    Reading,
    Root,
    read_state,
)
from stretto.frontends.python.objects.heap import Heap
from stretto.frontends.python.results.captured import (
    JournalSpec,
    NewContainer,
    ObjectChange,
    ObjectState,
    OutputSpec,
)
from stretto.frontends.python.results.output import CollectionOf, Flattener
from stretto.frontends.python.source.syntax_trees import names_read
from stretto.frontends.python.tracing.contents import newly_updated
from stretto.frontends.python.tracing.signals import Abort, fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.state import contents, is_same, rebuild_tuple
from stretto.frontends.python.values.stores import CellVariable, Holder, NamespaceEntries, anchor


@dataclass(eq=False)
class ChangePlan:
    """Changes that a capture makes, as far as they are known.

    tracked: boxes that are part of the state in traced branches and loops. arguments: containers
    among the arguments are identified by their place and read like roots. counting: changed
    integers are inputs instead of being part of the key. counted: attributes of classes, and keys
    of dicts, whose integers change in objects that are read whole. keeps_apart: objects that are
    one of several are not joined to copies. updated: outside tensors, by id, that are written in
    place and read as Python numbers, so that they are traced from the start.
    """

    roots: dict[tuple[int, Any], Root] = field(default_factory=dict[tuple[int, Any], Root])
    tracked: dict[int, Any] = field(default_factory=dict[int, Any])
    arguments: bool = False
    counting: bool = True
    counted: set[tuple[type, Any]] = field(default_factory=set[tuple[type, Any]])
    keeps_apart: bool = False
    updated: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])

    @staticmethod
    def of(known: ObjectState | None) -> ChangePlan:
        """Return the changes made by an earlier capture of the function with other sizes."""
        if known is None:
            return ChangePlan()
        roots = {(id(root.box), root.key): root for root in known.roots}
        return ChangePlan(roots, arguments=known.arguments, counted=set(known.counted))

    @property
    def is_counting(self) -> bool:
        return self.counting and bool(
            self.counted or any(root.counted for root in self.roots.values())
        )

    @property
    def used_counters(self) -> frozenset[tuple[type, Any]]:
        return frozenset(self.counted) if self.counting else frozenset()

    def grow(self, heap: Heap, reading: Reading, functions: Iterable[FunctionType]) -> bool:
        """Add the changes found. Returns True if some of them are new."""
        known = self._size()
        visited = {id(item) for item in reading.objects}
        reads = _ReadableNames(heap, functions)
        self.tracked.update(heap.touched)
        self.updated |= newly_updated(tracer())
        for box in heap.changed():
            if heap.journal.holds(box):
                continue
            self.tracked[id(box)] = box
            if id(box) in visited:
                self._count(heap, box)
                continue
            if id(box) in heap.arguments:
                self.arguments = True
            elif heap.has_attributes(box):
                in_region = id(box) in heap.touched
                for key in _changed_keys(heap, box):
                    if in_region or reads.may_read(box, key):
                        self._add(heap, box, key)
            else:
                self._add(heap, box, WHOLE)
        return known != self._size()

    def changes_objects(self, arguments: Arguments) -> bool:
        """Return True if changed objects are reachable from the arguments."""
        found = {id(item) for item in read_state((), arguments, (), ()).objects}
        return any(id(root.box) in found for root in self.roots.values())

    def _size(self) -> tuple[int, ...]:
        sizes = map(len, (self.tracked, self.roots, self.counted, self.updated))
        return (*sizes, self.arguments)

    def _count(self, heap: Heap, box: Any) -> None:
        """Record which changed attributes of an object, or entries of a dict, are counters."""
        before = heap.before[id(box)]
        if not isinstance(box, list | set | deque | Holder):
            changed = _changed_keys(heap, box)
            self.counted.update((type(box), k) for k in changed if type(before.get(k)) is int)

    def _add(self, heap: Heap, box: Any, key: Any) -> None:
        if (id(box), key) not in self.roots:
            keys = _changed_keys(heap, box) if key is WHOLE else [key]
            before = heap.before[id(box)]
            counted = (k for k in keys if type(before.get(k)) is int)
            self.roots[id(box), key] = Root(box, key, frozenset(counted))

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


def check_changes(heap: Heap) -> None:
    """Fail for a change that later calls cannot repeat: of an array, or of a container that the
    capture has copied."""
    for item, _ in heap.changed_arrays():
        reason = f"a {type(item).__name__} that outlives the call is changed"
        place = heap.places.get(id(item))
        raise Abort(CaptureError(reason, location=place, remedy="keep the numbers in a tensor"))
    if any(id(box) in heap.shared for box in heap.changed()):
        fail(
            "a container that is changed is an argument and is also reached in another way",
            "pass a copy of it",
        )


def _is_below(
    root: Root, roots: list[Root], arguments: Arguments | None, given: Sequence[torch.Tensor]
) -> bool:
    others = [other for other in roots if other is not root]
    return any(item is root.box for item in read_state(others, arguments, given, ()).objects)


@dataclass(eq=False)
class _ReadableNames:
    """Attributes that may be read by traced code, by a function known to it, or by the object's
    class."""

    heap: Heap
    functions: Iterable[FunctionType]
    names: set[str] | None = None
    by_path: bool = False

    def may_read(self, box: Any, name: Any) -> bool:
        if isinstance(box, CellVariable | NamespaceEntries):
            return True
        state = tracer()
        if self.names is None:
            known = (item for item in self.heap.seen.values() if isinstance(item, FunctionType))
            reads = [names_read(function.__code__) for function in (*self.functions, *known)]
            self.names = set[str](state.names_read).union(*(read.attributes for read in reads))
            self.by_path = bool(state.sourceless) or any(read.by_path for read in reads)
        if name in self.names or self.by_path:
            return True
        held = self.heap.before[id(box)].get(name)
        if id(held) in state.constants or id(held) in state.read_values:
            return True
        return any(name in names_read(code).attributes for code in self.heap.codes_of(box))


def _changed_keys(heap: Heap, box: Any) -> list[Any]:
    before, now = heap.start[id(box)], contents(box)
    return [
        key
        for key in {**before, **now}
        if key not in before or key not in now or before[key] is not now[key]
    ]


def exemptions(roots: Iterable[Root], reading: Reading) -> Exempt:
    """Exempt from guards what the key of the state contains; the values it refers to are
    guarded."""
    found = Exempt(list(reading.objects), list(reading.leaves))
    for root in roots:
        key = WHOLE if isinstance(root.box, CellVariable) else root.key
        found.entries.setdefault(anchor(root.box), set()).add(key)
    return found


def journal_spec(heap: Heap, flattener: Flattener) -> JournalSpec | None:
    """Return the contents of a capture's journal; None if it is empty."""
    grown = {id(box): made for box, made in flattener.stand_ins.values()}
    journal = heap.journal
    if not journal.order and id(journal.order) not in grown:
        return None
    changed = {id(box) for box in heap.changed()}
    for item in journal.referred:
        if any(id(box) in changed for box in heap.boxes_of(item)):
            fail(
                f"a {type(item).__name__} that the function changes is printed or logged",
                "print what it holds, or its text: str(...)",
            )

    def spec(items: list[Any]) -> OutputSpec:
        if id(items) in grown:
            return flattener.items(grown[id(items)])
        return NewContainer(CollectionOf(list), tuple(map(flattener.spec, items)))

    columns = (spec(column) for site in journal.sites.values() for column in site.columns)
    return JournalSpec(tuple(journal.sites.values()), spec(journal.order), tuple(columns))


# ---- before tracing: traced tensors in the places that are read ----------------------------------


def substitute(
    heap: Heap, plan: ChangePlan, reading: Reading, traced: dict[int, TracedTensor]
) -> None:
    """Put traced tensors into the places that were read; `traced` maps ids of real tensors to
    them."""

    for item in reading.objects:
        values = contents(item).items()
        heap.place(item, {key: _with_traced(value, traced) for key, value in values})
    for root in plan.used_roots():
        if root.key is not WHOLE and root.key in heap.before[id(root.box)]:
            values = contents(root.box)
            heap.place(root.box, {**values, root.key: _with_traced(values[root.key], traced)})


def _with_traced(value: Any, traced: dict[int, TracedTensor]) -> Any:
    """Return a tensor, or a tuple of values, with real tensors replaced by traced ones."""
    if isinstance(value, torch.Tensor):
        return traced.get(id(value), value)
    if isinstance(value, tuple):
        items: list[Any] = [_with_traced(item, traced) for item in value]  # pyright: ignore[reportUnknownVariableType]
        changed = any(a is not b for a, b in zip(items, value, strict=True))  # pyright: ignore
        return rebuild_tuple(value, items) if changed else value
    return value


def substitute_updated(heap: Heap, updated: dict[int, torch.Tensor]) -> None:
    """Put traced tensors into all places with tensors that the program both writes and reads."""
    traced = {key: tracer().promote(tensor) for key, tensor in updated.items()}
    for key, tensor in updated.items():
        if isinstance(tensor, nn.Parameter):
            setattr(traced[key], "_is_param", True)  # noqa: B010 - torch's mark of parameters
    heap.enter_globals(updated)
    for box in list(heap.boxes.values()) if traced else ():
        values = contents(box)
        swapped = {key: _with_traced(value, traced) for key, value in values.items()}
        if not is_same(values, swapped):
            heap.place(box, swapped)


def substitute_counters(heap: Heap, reading: Reading, counters: Iterable[TracedTensor]) -> None:
    """Put traced numbers into the places of the counters that were read."""
    for (box, key), counter in zip(reading.counters, counters, strict=True):
        heap.place(box, {**contents(box), key: counter})


# ---- after tracing: effects ------------------------------------------------------------------


@dataclass(eq=False)
class EffectWriter:
    """Describes the changes of the heap that the capture has made."""

    heap: Heap
    flattener: Flattener
    numbers: dict[int, int]
    fixed: list[Any] = field(default_factory=list[Any])

    def effects(self) -> tuple[ObjectChange, ...]:
        grown = self.flattener.stand_ins.values()
        lists = {id(box) for box, _ in grown}
        own = self.heap.journal.holds
        changed = [box for box in self.heap.changed() if id(box) not in lists and not own(box)]
        return (
            *map(self._effect, changed),
            *(  # all items of lists that grew in traced branches or loops
                ObjectChange(self._place(box), (), (), True, self.flattener.items(made))
                for box, made in grown
                if not own(box)
            ),
        )

    def _effect(self, box: Any) -> ObjectChange:
        try:
            return self._described(box)
        except Abort as stop:
            error, place = stop.error, self.heap.places.get(id(box))
            if place is None:
                raise
            raise Abort(CaptureError(error.message, location=place, remedy=error.remedy)) from None

    def _described(self, box: Any) -> ObjectChange:
        start, now = self.heap.start[id(box)], contents(box)
        kept = [key for key in start if key in now]
        by_key = not isinstance(box, list | deque | set) and list(now)[: len(kept)] == kept
        keys = _changed_keys(self.heap, box) if by_key else list(now)
        put = tuple((key, self.flattener.entry(now[key])) for key in keys if key in now)
        removed = tuple(key for key in start if key not in now) if by_key else ()
        return ObjectChange(self._place(box), put, removed, not by_key)

    def _place(self, box: Any) -> int:
        """Return the number of an object that was read, or ~number of a fixed box."""
        number = self.numbers.get(id(box))
        if number is None:
            number = self.numbers[id(box)] = ~len(self.fixed)
            self.fixed.append(box)
        return number
