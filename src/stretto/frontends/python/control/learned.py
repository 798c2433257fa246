"""Record of what tracing a loop has learned, for the next time that it is traced.

A loop is traced until it learns nothing more to carry, and each of these attempts traces its
inner loops anew. If these started from nothing each time, the number of traces would be
exponential in the depth. So what a loop has learned is stored with the state at its entry. If
the loop is entered in a state that is as general (equal, except that some values have become
traced), it starts with what it learned before. This affects only the start: `LoopState.end` still
compares everything, so the program is right whatever is stored.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from stretto.frontends.python.aliasing.carried import CarriedAliases, ViewCandidate, without_values
from stretto.frontends.python.control.loop_state import Carried, LoopState, Slot
from stretto.frontends.python.tracing.frames import UNDEFINED, Maybe, is_internal
from stretto.frontends.python.tracing.signals import Poison
from stretto.frontends.python.tracing.tensor import Storage, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.either import NONE
from stretto.frontends.python.values.leaves import items_kind, kind_of
from stretto.frontends.python.values.scalars import LeafKind
from stretto.frontends.python.values.state import (
    Snapshot,
    TracedList,
    are_of_one_form,
    equal_leaves,
    is_box,
    parts_of,
)
from stretto.ir.types import TensorListType

LoopKey = tuple[Any, ...]
"""A loop of the source: its code, its first traced iteration, and the number of active frames."""

_MOST_STATES = 4
"""The largest number of states stored per loop."""


def place_of(code: Hashable, *, first: int = 0) -> LoopKey:
    """Return the key of a loop entered here and traced from iteration `first` on. code: identifies
    the loop, mostly the code of its body."""
    return code, first, len(tracer().frames)


def recall(place: LoopKey, carry: LoopState) -> bool:
    """Give `carry`, which has just begun, what an earlier trace has learned. Returns False if
    there is nothing."""
    if not carry.splits:
        for then in tracer().learned.get(place, ()):
            match = _Match(then.base, carry.base)
            if match.holds():
                _Translation(match, then, carry).run()
                return True
    return False


def needs_no_peeling(place: LoopKey, now: Snapshot) -> bool:
    """Return True if an earlier trace from such a state needed no copy of the first iteration
    before the loop."""
    known: list[LoopState] = tracer().learned.get(place, [])
    return any(then.runs_once and _Match(then.base, now).holds() for then in known)


def remember(place: LoopKey, carry: LoopState) -> None:
    """Store what a loop has learned, once it is complete."""
    if not (carry.splits or carry.options.replaced or carry.options.examples or carry.twins):
        known: list[LoopState] = tracer().learned.setdefault(place, [])
        known.insert(0, carry)
        del known[_MOST_STATES:]


def forget(place: LoopKey) -> None:
    """Remove everything stored for a loop."""
    tracer().learned.pop(place, None)


@dataclass(eq=False)
class _Match:
    """Comparison of an earlier state at the entry of a loop with the current one."""

    then: Snapshot
    now: Snapshot
    boxes: dict[int, int] = field(default_factory=dict[int, int])
    storages: dict[Storage, Storage] = field(default_factory=dict[Storage, Storage])
    lists: dict[int, Storage] = field(default_factory=dict[int, Storage])
    """Python lists of the earlier state that are traced lists now."""
    parted: set[Storage] = field(default_factory=set[Storage])
    """Storages of the earlier state that are several storages now, or of which a tensor is another
    view now."""
    unbound: dict[tuple[int, str], Any] = field(default_factory=dict[tuple[int, str], Any])
    """Variables without a value now, with the form in which the loop carries them."""

    def holds(self) -> bool:
        """Return True if each value equals that of the earlier state, or is traced now."""
        then, now = self.then.cells, self.now.cells
        if then.keys() != now.keys():
            return False
        for key, value in then.items():
            is_form = isinstance(value, Maybe) or (isinstance(value, tuple) and is_internal(key[1]))
            if now[key] is UNDEFINED and is_form and _is_unbound(value):
                self.unbound[key] = value
            elif not self._is_alike(value, now[key]):
                return False
        seen = self.boxes.keys() | self.lists.keys()
        rest = (box for key, (box, _) in self.then.boxes.items() if key not in seen)
        return all(id(box) in self.now.boxes and self._box(box, box) for box in rest)

    def _is_alike(self, then: Any, now: Any) -> bool:
        match now:
            case TracedTensor():
                if isinstance(then, TracedTensor):
                    return self._same_kind(then, now)
                return then is UNDEFINED or kind_of(then) is not None
            case TracedList():
                if isinstance(then, list):
                    self.lists[id(then)] = now.memory  # pyright: ignore[reportUnknownArgumentType]
                    return True
                return isinstance(then, TracedList) and self._same_kind(then, now)
            case Poison():
                return then is UNDEFINED or isinstance(then, Poison)
            case Maybe() if then is UNDEFINED:
                return True
            case _:
                pass
        parts, others = parts_of(then), parts_of(now)
        if parts is not None and others is not None:
            return are_of_one_form(then, now) and all(map(self._is_alike, parts, others))
        if is_box(then) and is_box(now):
            return self._box(then, now)
        return equal_leaves(then, now)

    def _same_kind(self, then: TracedTensor | TracedList, now: TracedTensor | TracedList) -> bool:
        is_same_view = _view_of(then) == _view_of(now)
        if not is_same_view or self.storages.setdefault(then.memory, now.memory) is not now.memory:
            self.parted.add(then.memory)
        return kind_of(then) == kind_of(now)

    def _box(self, then: Any, now: Any) -> bool:
        if id(then) in self.boxes:
            return self.boxes[id(then)] == id(now)
        self.boxes[id(then)] = id(now)
        before, after = self.then.boxes.get(id(then)), self.now.boxes.get(id(now))
        if before is None or after is None or type(then) is not type(now):
            return False
        return [*before[1]] == [*after[1]] and all(
            map(self._is_alike, before[1].values(), after[1].values())
        )


def _view_of(value: TracedTensor | TracedList) -> Any:
    """Return how a tensor is a view of its memory. If it differs from the earlier state, a branch
    or loop has joined the tensor with another one since, and its memory is another one."""
    return without_values(value.steps) if isinstance(value, TracedTensor) else ()


def _is_unbound(value: Any) -> bool:
    """Return True if the value is the form that a loop gives to a variable without a value."""
    parts = parts_of(value)
    if parts is not None:
        return all(map(_is_unbound, parts))
    return value is UNDEFINED or value is False or value is None or isinstance(value, str)


@dataclass(eq=False, slots=True)
class _Translation:
    """Transfer of what was learned to the current state. Items without a counterpart there are
    left out and learned again."""

    match: _Match
    then: LoopState
    carry: LoopState

    def run(self) -> None:
        self.carry.base.cells.update(self.match.unbound)
        for slot, leaf in self.then.leaves.items():
            self._leaf(slot, leaf)
        for slot in self.then.rebuilt:
            own = self._slot(slot)
            value = self._value(own)
            if own is not None and is_box(value):
                self.carry.rebuilt[own] = value
        for key, grown in self.then.grown.items():
            self._grown(key, grown)
        for storage, state in self.then.storages.items():
            own = self._storage(storage)
            if own is not None and tracer().type_in(own.state) == tracer().type_in(state):
                self.carry.storages[own] = own.state
        for storage, origin in self.then.stale.items():
            own = self._storage(storage)
            if own is not None:
                self.carry.stale[own] = origin
        self.carry.dropped |= set(filter(None, map(self._storage, self.then.dropped)))
        self._aliases(self.then.aliases, self.carry.aliases)

    def _aliases(self, then: CarriedAliases, now: CarriedAliases) -> None:
        leaves = self.carry.leaves
        now.linked |= {slot for slot in map(self._slot, then.linked) if slot in leaves}
        for key, other in then.pairs:
            first, second = self._key(key), self._key(other)
            if first is not None and second is not None:
                now.pairs.add((first, second))
        for one, fake in then.candidates.items():
            slot, place = self._slot(one.slot), self._key(one.place)
            if slot in leaves and (isinstance(place, Storage) or place in leaves):
                own = ViewCandidate(slot, place, one.steps)
                now.candidates[own], now.types[own] = fake, then.types[one]
                if one in then.asked:
                    now.asked.append(own)

    def _leaf(self, slot: Slot, leaf: Carried) -> None:
        own = self._slot(slot)
        init = self._value(own)
        if own is not None and (kind_of(init) == leaf.kind or equal_leaves(init, leaf.init)):
            self.carry.leaves[own] = Carried(leaf.kind, init, layout=leaf.layout)

    def _grown(self, key: int, grown: Carried) -> None:
        own = self.match.boxes.get(key)
        memory = self.match.lists.get(key)
        if memory is not None:
            self.carry.storages[memory] = memory.state
        if own is None:
            return
        box, contents = self.carry.base.boxes[own]
        items = list(contents.values())
        kind = items_kind(items)
        assert isinstance(grown.kind.type, TensorListType)
        if not items or kind == LeafKind(grown.kind.type.element, grown.kind.number):
            self.carry.grown[own] = Carried(grown.kind, items, box=box)

    # ---- names of places -----------------------------------------------------------------------
    def _key(self, key: Any) -> Any:
        if isinstance(key, Storage):
            return self._storage(key)
        return self.match.boxes.get(key) if isinstance(key, int) else self._slot(key)

    def _storage(self, storage: Storage) -> Storage | None:
        own = self.match.storages.get(storage, storage)
        return own if own.scope.open and storage not in self.match.parted else None

    def _slot(self, slot: Slot) -> Slot | None:
        """Return the slot of the same place in the current state; None if there is none."""
        (kind, *place), *path = slot
        if kind == "cell":
            return slot
        own = self.match.boxes.get(place[0])
        return None if own is None else (("box", own), *path)

    def _value(self, slot: Slot | None) -> Any:
        """Return the value of a slot before the loop; NONE if there is no such slot."""
        if slot is None:
            return NONE
        (kind, *place), *path = slot
        base = self.carry.base
        value: Any = base.cells[place[0], place[1]] if kind == "cell" else base.boxes[place[0]][0]
        for key in path:
            parts = parts_of(value)
            if parts is None and id(value) not in base.boxes:
                return NONE
            value = base.boxes[id(value)][1][key] if parts is None else parts[key]
        return value
