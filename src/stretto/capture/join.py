"""Joining the states that the two arms of a traced branch leave behind.

Leaves that differ become results of the IfOp; containers are joined item by item; a list that has
different lengths becomes a TracedList. What cannot be joined becomes a Poison, an error only if it
is used later.
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from stretto.capture.frames import UNDEFINED, Frame, Maybe, is_internal
from stretto.capture.join_aliases import JoinedAliases
from stretto.capture.leaves import (
    device_of,
    items_kind,
    kind_of,
    layout_of,
    loops_of,
    materialize,
    placeholder,
    wrap,
)
from stretto.capture.poison import Poison
from stretto.capture.scalars import Kind, unify
from stretto.capture.signals import fail_growth
from stretto.capture.state import (
    Snapshot,
    TracedList,
    contents,
    describe,
    equal_leaves,
    is_box,
    rebuild_tuple,
    refill,
    shown_name,
)
from stretto.capture.tensor import Length, Storage, StorageState, TracedTensor
from stretto.capture.tracer import Region, tracer
from stretto.ir.core import Value
from stretto.ir.ops import IfOp
from stretto.ir.types import ListType


@dataclass(eq=False, slots=True)
class World:
    """The state at the end of an arm."""

    region: Region
    after: Snapshot
    states: dict[Storage, StorageState]
    result: Any

    def inside(self, box: Any) -> dict[Any, Any]:
        """The contents a container had at the end of the arm."""
        found = self.after.boxes.get(id(box))
        return contents(box) if found is None else found[1]

    def stale(self, value: Any) -> Poison | None:
        """What a tensor or list becomes that cannot be read at the end of the arm."""
        if not isinstance(value, TracedTensor | TracedList):
            return None
        stale = self.states.get(value.memory, value.memory.state).stale
        return None if stale is None else Poison.of(stale)


@dataclass(eq=False, slots=True)
class Pair:
    """One result of the IfOp: what each arm yields."""

    first: Any
    second: Any
    kind: Kind
    value: Value
    made: Any = None


@dataclass(eq=False)
class Joiner:
    """Joins two worlds; `run` emits the IfOp and sets the joint state."""

    base: Snapshot
    first: World
    second: World
    frame: Frame | None = None
    live: frozenset[str] = frozenset()
    pairs: list[Pair] = field(default_factory=list[Pair])
    memo: dict[tuple[int, int], Any] = field(default_factory=dict[tuple[int, int], Any])
    keep: list[Any] = field(default_factory=list[Any])

    def run(self, condition: Value) -> Any:
        """Emit the branch; the joint result of the arms."""
        cells = {key: self._cell(*key) for key in self.base.cells}
        boxes = [self._box(box) for box, _ in self.base.boxes.values()]
        result = self.value(self.first.result, self.second.result, "the result")
        writes = self._storages()
        kept = [pair for pair in self.pairs if pair.made is not None]
        aliases = JoinedAliases(kept, condition, (self.first.region, self.second.region))
        self.pairs += [Pair(a, b, kind, value) for a, b, kind, value in aliases.shared()]
        op = self._emit(condition)
        if op is not None:
            aliases.record(op)
        for (number, name), value in cells.items():
            self.base.frames[number].set(name, value)
        for box, values in boxes:
            refill(box, values)
        for storage, after in writes:
            tracer().set_state(storage, after)
        return result

    def _cell(self, number: int, name: str) -> Any:
        first = self.first.after.cells.get((number, name), UNDEFINED)
        second = self.second.after.cells.get((number, name), UNDEFINED)
        is_dead = self.base.frames[number] is self.frame and name not in self.live
        if is_dead:
            return first if first is second else UNDEFINED
        return self.value(first, second, name)

    def _box(self, box: Any) -> tuple[Any, dict[Any, Any]]:
        first, second = self.first.inside(box), self.second.inside(box)
        if first.keys() != second.keys():
            if isinstance(box, list) and not tracer().heap.owns(box):
                return box, first
            if isinstance(box, list | set | deque):
                fail_growth(box)
            missing = sorted(str(key) for key in first.keys() ^ second.keys())
            keys = list(first) + [key for key in second if key not in first]
            reason = f"{', '.join(missing)} is set in one arm of a traced branch only"
            poison = Poison(reason, "set it in both arms")
            both = first.keys() & second.keys()
            return box, {
                key: self.value(first[key], second[key], str(key)) if key in both else poison
                for key in keys
            }
        return box, {
            key: self.value(item, second[key], f"[{key!r}]") for key, item in first.items()
        }

    def value(self, first: Any, second: Any, name: str) -> Any:
        """The joint value of one variable or item."""
        key = (id(first), id(second))
        if key not in self.memo:
            self.keep += [first, second]
            self.memo[key] = self._value(first, second, name)
        return self.memo[key]

    def _value(self, first: Any, second: Any, name: str) -> Any:
        if first is second:
            return self._same(first, name)
        for side, world in ((first, self.first), (second, self.second)):
            if isinstance(side, Poison):
                return side
            stale = world.stale(side)
            if stale is not None:
                return stale
        if any(side is UNDEFINED or isinstance(side, Maybe) for side in (first, second)):
            return self._undefined(first, second, name)
        if equal_leaves(first, second):
            return first
        both_lists = self._growable(first) and self._growable(second)
        if both_lists and self._lengths_differ(first, second):
            return self._grown(first, second, name)
        kinds = kind_of(first), kind_of(second)
        if kinds[0] is not None and kinds[1] is not None:
            kind = unify(kinds[0], kinds[1], promote=False)
            if kind is not None:
                return self._leaf(first, second, kind)
        return self._containers(first, second, name)

    def _same(self, value: Any, name: str) -> Any:
        if isinstance(value, tuple):
            items = [self.value(item, item, f"{name}[{i}]") for i, item in enumerate(value)]
            changed = any(a is not b for a, b in zip(items, value, strict=True))
            return rebuild_tuple(value, items) if changed else value
        if isinstance(value, list) and len(self.first.inside(value)) != len(
            self.second.inside(value)
        ):
            return self._grown(value, value, name)
        return value

    def _undefined(self, first: Any, second: Any, name: str) -> Any:
        """A variable that has no value in one of the arms, or may have none."""
        if is_internal(name):
            return self._guarded(second if first is UNDEFINED else first, first is UNDEFINED)
        one, two = Maybe.of(first, name), Maybe.of(second, name)
        if one.value is UNDEFINED or two.value is UNDEFINED:
            in_second = one.value is UNDEFINED
            value = self._guarded((two if in_second else one).value, in_second)
        else:
            value = self.value(one.value, two.value, name)
        if isinstance(value, Poison):
            return value
        return Maybe(value, self.value(one.bound, two.bound, name), name)

    def _guarded(self, value: Any, in_second: bool) -> Any:
        """`value` of one arm, and a placeholder in the other that is never looked at."""
        kind = kind_of(value)
        if kind is not None:
            return self._leaf(None, value, kind) if in_second else self._leaf(value, None, kind)
        if isinstance(value, tuple):
            return rebuild_tuple(value, [self._guarded(item, in_second) for item in value])
        if is_box(value):
            world = self.second if in_second else self.first
            items = world.inside(value)
            made = copy.copy(value)
            refill(made, {key: self._guarded(item, in_second) for key, item in items.items()})
            return made
        return value

    def _leaf(self, first: Any, second: Any, kind: Kind, length: Length | None = None) -> Any:
        state = tracer()
        value = Value(kind.type)
        state.home[value] = state.scope
        made = wrap(
            value,
            kind,
            device=device_of(first, second),
            loops=loops_of(first, second),
            length=length,
            layout=layout_of(first, second),
        )
        self.pairs.append(Pair(first, second, kind, value, made))
        return made

    def _growable(self, value: Any) -> bool:
        return isinstance(value, list | TracedList)

    def _lengths_differ(self, first: Any, second: Any) -> bool:
        if isinstance(first, TracedList) or isinstance(second, TracedList):
            return True
        return len(self.first.inside(first)) != len(self.second.inside(second))

    def _grown(self, first: Any, second: Any, name: str) -> Any:
        sides = [
            side if isinstance(side, TracedList) else list(world.inside(side).values())
            for side, world in ((first, self.first), (second, self.second))
        ]
        kinds = [
            self._list_kind(side) for side in sides if not (isinstance(side, list) and not side)
        ]
        kind = kinds[0]
        for other in kinds[1:]:
            kind = unify(kind, other, promote=False) if kind and other else None
        if kind is None:
            return Poison(
                f"the list '{name}' has other lengths in the arms of a branch on a tensor, "
                "and its items differ in type",
                "append items of one shape and dtype",
            )
        return self._leaf(sides[0], sides[1], kind)

    def _list_kind(self, side: Any) -> Kind | None:
        if isinstance(side, TracedList):
            return kind_of(side)
        kind = items_kind(side)
        return None if kind is None else Kind(ListType(kind.type), kind.number)  # type: ignore[arg-type]

    def _containers(self, first: Any, second: Any, name: str) -> Any:
        if type(first) is type(second):
            if isinstance(first, tuple) and len(first) == len(second):
                pairs = enumerate(zip(first, second, strict=True))
                return rebuild_tuple(
                    first, [self.value(a, b, f"{name}[{i}]") for i, (a, b) in pairs]
                )
            if is_box(first):
                a, b = self.first.inside(first), self.second.inside(second)
                if a.keys() == b.keys():
                    made = copy.copy(first)
                    refill(made, {k: self.value(a[k], b[k], f"{name}[{k!r}]") for k in a})
                    return made
        return Poison(
            f"{shown_name(name)} is {describe(first)} in one arm of a branch on a tensor and "
            f"{describe(second)} in the other",
            "give it the same structure, shape and dtype in both arms",
        )

    def _storages(self) -> list[tuple[Storage, StorageState]]:
        """The states after the branch of storages that were written in it."""
        writes = list[tuple[Storage, StorageState]]()
        state = tracer()
        for storage in dict.fromkeys([*self.first.states, *self.second.states]):
            if not storage.scope.open:
                continue
            first = self.first.states.get(storage, storage.state)
            second = self.second.states.get(storage, storage.state)
            if first == second and first == storage.state:
                continue
            stale = first.stale or second.stale
            if stale is not None:
                before = storage.state
                writes.append((storage, StorageState(before.base, before.length, stale)))
                continue
            known = next(s.base for s in (first, second) if isinstance(s.base, Value))
            value = Value(known.type)
            state.home[value] = state.scope
            self.pairs.append(Pair(storage, storage, Kind(known.type, False), value))
            length = first.length if first.length == second.length else Length(object(), 0)
            writes.append((storage, StorageState(value, length)))
        return writes

    def _emit(self, condition: Value) -> IfOp | None:
        if not self.pairs:
            return None
        for world, side in ((self.first, 0), (self.second, 1)):
            with tracer().reopened(world.region, world.states):
                world.region.scope.block.yields = tuple(
                    _yielded((pair.first, pair.second)[side], pair.kind) for pair in self.pairs
                )
        op = IfOp(condition, self.first.region.scope.block, self.second.region.scope.block)
        tracer().place(op, tuple(pair.value for pair in self.pairs))
        return op


def _yielded(leaf: Any, kind: Kind) -> Value:
    if leaf is None:
        return placeholder(kind)
    if isinstance(leaf, Storage):
        return tracer().current(leaf)
    return materialize(leaf, kind)
