"""Join of the states at the ends of the two arms of a traced branch.

Leaves that differ become results of the IfOp. Containers are joined item by item. A list with
different lengths in the arms becomes a TracedList. Values that cannot be joined become a
Poison, which is an error only if it is used later.
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from stretto.frontends.python.aliasing.joined import JoinedAliases
from stretto.frontends.python.objects.copies import check_growth, note_copy, note_origin
from stretto.frontends.python.tracing.frames import UNDEFINED, CallFrame, Maybe, is_internal
from stretto.frontends.python.tracing.signals import Poison, fail, fail_length_change
from stretto.frontends.python.tracing.tensor import ListLength, Storage, StorageState, TracedTensor
from stretto.frontends.python.tracing.tracer import TracedRegion, tracer
from stretto.frontends.python.values.either import NONE, Either
from stretto.frontends.python.values.leaves import (
    device_of,
    items_kind,
    kind_of,
    layout_of,
    loops_of,
    materialize,
    of_rows,
    placeholder,
    rows_sizes,
    wrap,
)
from stretto.frontends.python.values.scalars import (
    LeafKind,
    assuming,
    kind_after_branch,
    most_bits,
    negation,
    possible,
    unify,
    unify_rows,
)
from stretto.frontends.python.values.state import (
    Snapshot,
    TracedList,
    are_of_one_form,
    contents,
    equal_leaves,
    is_box,
    parts_of,
    rebuild_tuple,
    refill,
)
from stretto.ir.core import Op, Value
from stretto.ir.ops import IfOp
from stretto.ir.sizes import Size
from stretto.ir.symbols import dims_of
from stretto.ir.types import Dim, TensorListType
from stretto.ops.effects import may_have_effect, may_stop


@dataclass(eq=False, slots=True)
class ArmEnd:
    """The state at the end of an arm."""

    region: TracedRegion
    after: Snapshot
    states: dict[Storage, StorageState]
    result: Any

    def inside(self, box: Any) -> dict[Any, Any]:
        """Return the contents of a container at the end of the arm."""
        found = self.after.boxes.get(id(box))
        return contents(box) if found is None else found[1]

    def stale(self, value: Any) -> Poison | None:
        """Return the poison for a tensor or list that cannot be read at the end of the arm; else
        None."""
        if not isinstance(value, TracedTensor | TracedList):
            return None
        stale = self.states.get(value.memory, value.memory.state).stale
        return None if stale is None else Poison.of(stale)


@dataclass(eq=False, slots=True)
class BranchResult:
    """One result of the IfOp: the values that the arms yield, and the joint value."""

    first: Any
    second: Any
    kind: LeafKind
    value: Value
    made: Any = None


@dataclass(eq=False)
class Joiner:
    """Joins the ends of two arms; `run` emits the IfOp and sets the joint state."""

    base: Snapshot
    first: ArmEnd
    second: ArmEnd
    condition: Value
    frame: CallFrame | None = None
    live: frozenset[str] = frozenset()
    pairs: list[BranchResult] = field(default_factory=list[BranchResult])
    """The results of the IfOp."""
    memo: dict[tuple[int, int], Any] = field(default_factory=dict[tuple[int, int], Any])
    """Joint values by the ids of the values in the arms, so that identical pairs stay identical."""
    behind: list[Op] = field(default_factory=list[Op])
    """Ops on results of the branch, to be placed after it."""
    sizes: dict[Any, Dim] = field(default_factory=dict[Any, Dim])
    """Sizes of tensors whose size differs in the arms, by their sizes in the arms."""
    guarded: dict[tuple[int, bool], Any] = field(default_factory=dict[tuple[int, bool], Any])
    """Joint values that only one arm has, by id and arm."""
    keep: list[Any] = field(default_factory=list[Any])
    """Values kept alive, since their ids are keys."""
    is_divided: bool = False
    """True if a value has different kinds at the ends of the arms."""

    def run(self) -> Any:
        """Emit the branch and set the joint state. Returns the joint result of the arms."""
        condition = self.condition
        cells = {key: self._cell(*key) for key in self.base.cells}
        boxes = [self._box(box) for box, _ in self.base.boxes.values()]
        result = self.value(self.first.result, self.second.result, "the result")
        writes = self._storages()
        kept = [pair for pair in self.pairs if pair.made is not None]
        aliases = JoinedAliases(kept, condition, (self.first.region, self.second.region))
        self.pairs += [BranchResult(a, b, kind, value) for a, b, kind, value in aliases.shared()]
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
        """Return the joint value of a variable; UNDEFINED if it differs and is not read
        afterwards."""
        first = self.first.after.cells.get((number, name), UNDEFINED)
        second = self.second.after.cells.get((number, name), UNDEFINED)
        is_dead = self.base.frames[number] is self.frame and name not in self.live
        if is_dead:
            return first if first is second else UNDEFINED
        return self.value(first, second, name)

    def _box(self, box: Any) -> tuple[Any, dict[Any, Any]]:
        """Return a container and its joint contents."""
        first, second = self.first.inside(box), self.second.inside(box)
        if first.keys() != second.keys():
            if isinstance(box, list):
                check_growth(box)
                tracer().replaced_lists[id(box)] = box
                if not tracer().heap.owns(box):
                    return box, first
                if isinstance(self.value(box, box, "of the arguments"), Poison):
                    fail_length_change(
                        box
                    )  # a poison may stay unread although the caller sees the list
                return box, self.base.boxes[id(box)][1]
            if isinstance(box, set | deque):
                fail_length_change(box)
            _check_order(first, second)
            keys = list(first) + [key for key in second if key not in first]
            return box, {key: self._entry(first, second, key) for key in keys}
        if isinstance(box, dict):
            _check_order(first, second)
        return box, {
            key: self.value(item, second[key], f"[{key!r}]") for key, item in first.items()
        }

    def _entry(self, first: dict[Any, Any], second: dict[Any, Any], key: Any) -> Any:
        """Return the joint value of a dict entry that one of the arms may lack."""
        one, other = first.get(key, UNDEFINED), second.get(key, UNDEFINED)
        if key in first and key in second:
            return self.value(one, other, str(key))
        known = other if key in second else one
        return known if isinstance(known, Poison) else self._either(one, other, str(key))

    def value(self, first: Any, second: Any, name: str) -> Any:
        """Return the joint value of one variable or item."""
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
        if any(isinstance(side, Either) for side in (first, second)) or self._apart(first, second):
            return self._either(first, second, name)
        if all(isinstance(side, list | TracedList) for side in (first, second)):
            is_traced = isinstance(first, TracedList) or isinstance(second, TracedList)
            if is_traced or len(self.first.inside(first)) != len(self.second.inside(second)):
                return self._grown(first, second, name)
        kinds = kind_of(first), kind_of(second)
        if kinds[0] is not None and kinds[1] is not None:
            kind = unify(kinds[0], kinds[1])
            kind = kind or unify_rows(kinds[0], kinds[1], promote=False)
            if kind is not None:
                return self._leaf(first, second, kind)
        return self._containers(first, second, name)

    def _same(self, value: Any, name: str) -> Any:
        """Return the joint value of an object left by both arms: its list items may differ."""
        parts = parts_of(value)
        if parts is not None:
            items = [self.value(item, item, f"{name}[{i}]") for i, item in enumerate(parts)]
            changed = any(a is not b for a, b in zip(items, parts, strict=True))
            return rebuild_tuple(value, items) if changed else value
        if isinstance(value, list) and len(self.first.inside(value)) != len(
            self.second.inside(value)
        ):
            return self._grown(value, value, name)
        return value

    def _undefined(self, first: Any, second: Any, name: str) -> Any:
        """Return the joint value of a variable that may have no value at the end of an arm."""
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
        """Return the joint value of a variable that only one arm has: `value` there, a placeholder
        that is never read in the other."""
        key = (id(value), in_second)
        if key not in self.guarded:
            self.keep.append(value)
            self.guarded[key] = self._guard(value, in_second)
        return self.guarded[key]

    def _guard(self, value: Any, in_second: bool) -> Any:
        if isinstance(value, bool | int | float):
            return value
        kind = kind_of(value)
        if kind is not None:
            if isinstance(value, TracedTensor | TracedList) and self._outlives(value):
                return value
            kind = kind_after_branch(kind)
            return self._leaf(None, value, kind) if in_second else self._leaf(value, None, kind)
        parts = parts_of(value)
        if parts is not None:
            return rebuild_tuple(value, [self._guarded(item, in_second) for item in parts])
        if is_box(value) and not self.base.knows(value):
            world = self.second if in_second else self.first
            items = world.inside(value)
            made = copy.copy(value)
            note_copy(made, [value])
            refill(made, {key: self._guarded(item, in_second) for key, item in items.items()})
            return made
        return self.value(value, value, "an item")

    def _outlives(self, value: TracedTensor | TracedList) -> bool:
        """Return True if a tensor or list existed before the branch, so that it is the same after
        it. False for a row of a tensor of unknown size: only the arm knows that the row exists."""
        steps = value.steps if isinstance(value, TracedTensor) else ()
        rows = any(step.target == "aten.select.int" and not step.values for step in steps)
        sizes = dims_of(tracer().type_in(value.memory.state))
        if rows and any(isinstance(size, Size) for size in sizes):
            return False
        values = [item for step in steps for item in step.values]
        return value.memory.scope.open and all(map(tracer().is_known, values))

    def _leaf(
        self, first: Any, second: Any, kind: LeafKind, length: ListLength | None = None
    ) -> Any:
        """Add a result to the IfOp, and return the traced value for it."""
        state = tracer()
        value = Value(kind.type)
        state.home[value] = state.scope
        block, before = state.scope.block, len(state.scope.block.ops)
        device = device_of(first, second)
        if kind.rows is not None:
            sizes = tuple(rows_sizes(side, kind.rows) for side in (first, second))
            made = of_rows(value, kind.rows, device, self.sizes, sizes)
        else:
            made = wrap(
                value,
                kind,
                device=device,
                loops=loops_of(first, second),
                bits=most_bits(first, second),
                length=length,
                layout=layout_of(first, second),
            )
        self.behind += block.ops[before:]
        del block.ops[before:]
        self.pairs.append(BranchResult(first, second, kind, value, made))
        return made

    def _grown(self, first: Any, second: Any, name: str) -> Any:
        """Return the list of the Program that joins two lists of different lengths."""
        sides = [
            side if isinstance(side, TracedList) else list(world.inside(side).values())
            for side, world in ((first, self.first), (second, self.second))
        ]
        kinds = [
            self._list_kind(side) for side in sides if not (isinstance(side, list) and not side)
        ]
        kind = kinds[0]
        for other in kinds[1:]:
            kind = unify(kind, other) if kind and other else None
        if kind is None:
            return Poison(
                f"the list '{name}' has other lengths in the arms of a branch on a tensor, "
                "and its items differ in type",
                "append items of one shape and dtype",
            )
        made = self._leaf(sides[0], sides[1], kind)
        if _origin(first) == _origin(second):
            note_origin(made, _origin(first))
        else:
            note_copy(made, [first, second])
        return made

    def _list_kind(self, side: Any) -> LeafKind | None:
        if isinstance(side, TracedList):
            return kind_of(side)
        kind = items_kind(side)
        return None if kind is None else LeafKind(TensorListType(kind.type), kind.number)  # type: ignore[arg-type]

    def _containers(self, first: Any, second: Any, name: str) -> Any:
        """Join tuples and objects of one form item by item; else return a value that is one of
        several."""
        if type(first) is type(second):
            if are_of_one_form(first, second):
                pairs = zip(parts_of(first) or (), parts_of(second) or (), strict=True)
                return rebuild_tuple(
                    first, [self.value(a, b, f"{name}[{i}]") for i, (a, b) in enumerate(pairs)]
                )
            if is_box(first):
                a, b = self.first.inside(first), self.second.inside(second)
                if a.keys() == b.keys():
                    made = copy.copy(first)
                    refill(made, {k: self.value(a[k], b[k], f"{name}[{k!r}]") for k in a})
                    note_copy(made, [first, second])
                    return made
        return self._either(first, second, name)

    def _apart(self, first: Any, second: Any) -> bool:
        """Return True if two objects must not become one copy, because their identity matters."""
        if not all(is_box(side) or isinstance(side, TracedList) for side in (first, second)):
            return False
        if isinstance(first, TracedList) and isinstance(second, TracedList):
            return False
        if _origin(first) == _origin(second):
            return False
        heap = tracer().heap
        if tracer().keeps_apart:
            return self.base.knows(first) or self.base.knows(second)
        return heap.knows(first) or heap.knows(second)

    def _either(self, first: Any, second: Any, name: str) -> Any:
        """Return a value that is one of several."""
        one_of, other_of = self._possible(first, True), self._possible(second, False)
        pairs = [[option, NONE] for _, option in one_of]
        for _, option in other_of:
            alike = (p for p in pairs if p[1] is NONE and self._joins(p[0], option))
            found = next(alike, None)
            if found is None:
                pairs.append([NONE, option])
            else:
                found[1] = option
        flags, options = list[Any](), list[Any]()
        for one, other in pairs:
            flags.append(self._flag(_flag_of(one_of, one), _flag_of(other_of, other)))
            if one is NONE or other is NONE:
                options.append(self._guarded(other if one is NONE else one, one is NONE))
            else:
                options.append(self.value(one, other, name))
        if len(options) == 1:
            return options[0]
        self.is_divided = True
        return Either(flags, options)

    def _possible(self, value: Any, taken: bool) -> list[tuple[Any, Any]]:
        """Return the options of a value at the end of an arm, each with its flag."""
        if not isinstance(value, Either):
            return [(True, value)]
        with assuming(self.condition, taken):
            pairs = possible(value)
        return [(True, pairs[0][1])] if len(pairs) == 1 else pairs

    def _flag(self, first: Any, second: Any) -> Any:
        """Return the joint value of a flag."""
        if first is True and second is False:
            return tracer().number(self.condition)
        if first is False and second is True:
            return negation(self.condition)
        return self.value(first, second, "flag")

    def _joins(self, first: Any, second: Any) -> bool:
        """Return True if two options are of one kind, so that one value can represent both."""
        if first is second or equal_leaves(first, second):
            return True
        if first is UNDEFINED or second is UNDEFINED or self._apart(first, second):
            return False
        kinds = kind_of(first), kind_of(second)
        if kinds[0] is not None and kinds[1] is not None:
            return unify(kinds[0], kinds[1]) is not None
        if type(first) is not type(second):
            return False
        if parts_of(first) is not None:
            return are_of_one_form(first, second)
        return is_box(first) and (
            self.first.inside(first).keys() == self.second.inside(second).keys()
        )

    def _storages(self) -> list[tuple[Storage, StorageState]]:
        """Return the states after the branch of storages that were written in it."""
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
            self.pairs.append(BranchResult(storage, storage, LeafKind(known.type, False), value))
            length = first.length if first.length == second.length else ListLength(object(), 0)
            writes.append((storage, StorageState(value, length)))
        return writes

    def _emit(self, condition: Value) -> IfOp | None:
        """Emit the IfOp; None if it has no results and its arms no effects."""
        arms = (self.first.region.scope.block, self.second.region.scope.block)
        ops = (op for arm in arms for op in arm.walk())
        if not self.pairs and not any(may_have_effect(o) or may_stop(o) for o in ops):
            return None  # no result is needed, and no arm has effects, raises or may not end
        for world, side in ((self.first, 0), (self.second, 1)):
            with tracer().reopened(world.region, world.states):
                world.region.scope.block.yields = tuple(
                    _yielded((pair.first, pair.second)[side], pair.kind) for pair in self.pairs
                )
        op = IfOp(condition, *arms)
        tracer().place(op, tuple(pair.value for pair in self.pairs))
        tracer().scope.block.ops += self.behind
        return op


def _flag_of(pairs: list[tuple[Any, Any]], option: Any) -> Any:
    """Return the flag of an option; False for NONE."""
    return next((flag for flag, item in pairs if item is option), False)


def _origin(value: Any) -> int:
    """Return the id of the Python list that a list is, or that it replaces."""
    return tracer().list_origins.get(id(value), id(value))


def _yielded(leaf: Any, kind: LeafKind) -> Value:
    if leaf is None:
        return placeholder(kind)
    if isinstance(leaf, Storage):
        return tracer().current(leaf)
    return materialize(leaf, kind)


def _check_order(first: dict[Any, Any], second: dict[Any, Any]) -> None:
    """Fail if the keys that both arms leave in a dict are in different order."""
    if [key for key in first if key in second] != [key for key in second if key in first]:
        fail(
            "the keys of a dict have another order after one arm of a branch on a tensor",
            "change the order outside of the branch, or use a list",
        )
