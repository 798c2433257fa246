"""Search for the state that a repeated region carries: trace it and compare states.

A *slot* is a place in the state: a variable or an item of a container, with a path through
tuples. `begin` puts block parameters into the slots known to be carried. `end` compares the
state with that at the start and learns further slots; if it learns nothing, the region is
complete. Storages written inside are carried too. Lists whose length changes become TracedLists
everywhere they are referenced.
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from stretto.frontends.python.aliasing.carried import CarriedAliases, LoopOp
from stretto.frontends.python.control.carried_options import (
    CarriedOptions,
    are_numbers,
    rows_of,
    unified,
)
from stretto.frontends.python.objects.copies import (
    check_growth,
    note_copies_of_one,
    note_copy,
    note_origin,
)
from stretto.frontends.python.tracing.frames import UNDEFINED, CallFrame, Maybe, is_internal
from stretto.frontends.python.tracing.signals import (
    Abort,
    NeedsPeel,
    NeedsUnroll,
    Poison,
    abort,
    fail_length_change,
    length_change_error,
)
from stretto.frontends.python.tracing.tensor import ListLength, Storage, StorageState, TracedTensor
from stretto.frontends.python.tracing.tracer import TracedRegion, tracer
from stretto.frontends.python.values.arithmetic import check_counter, is_counter
from stretto.frontends.python.values.either import Either, options_of
from stretto.frontends.python.values.leaves import (
    Carried,
    Slot,
    device_of,
    items_kind,
    kind_of,
    layout_of,
    list_kind,
    loops_of,
    materialize,
    of_rows,
    placeholder,
    rows_sizes,
    wrap,
)
from stretto.frontends.python.values.scalars import LeafKind, unify
from stretto.frontends.python.values.state import (
    Snapshot,
    TracedList,
    are_of_one_form,
    contents,
    describe,
    equal_leaves,
    is_box,
    parts_of,
    rebuild_tuple,
    refill,
    shown_name,
    with_part,
)
from stretto.ir.core import Value
from stretto.ir.size_bounds import bounds
from stretto.ir.sizes import Size
from stretto.ir.types import Dim, TensorListType, TensorType


@dataclass(eq=False)
class LoopState:
    """State carried around a loop or through a recursion; see the module's docstring."""

    base: Snapshot
    frame: CallFrame | None
    live: frozenset[str]
    runs_once: bool
    loops: frozenset[int] = frozenset()
    leaves: dict[Slot, Carried] = field(default_factory=dict[Slot, Carried])
    """Slots that are carried as values."""
    rebuilt: dict[Slot, Any] = field(default_factory=dict[Slot, Any])
    """Slots whose containers are carried as copies, with the containers before the region."""
    grown: dict[int, Carried] = field(default_factory=dict[int, Carried])
    """Python lists that become lists of the Program, by id."""
    storages: dict[Storage, StorageState] = field(default_factory=dict[Storage, StorageState])
    """Storages written inside, with their states before the region."""
    dropped: set[Storage] = field(default_factory=set[Storage])
    """Storages that were dropped once, because they were not written."""
    lengths: dict[Storage, object] = field(default_factory=dict[Storage, object])
    """Markers that represent the lengths of lists at the start of the body."""
    deltas: dict[Any, Dim | None] = field(default_factory=dict[Any, Dim | None])
    """Change of the length of each list in an iteration; None if unknown."""
    poisoned: dict[Slot, Poison] = field(default_factory=dict[Slot, Poison])
    """Slots that cannot be read after the region."""
    params: dict[Storage, Value] = field(default_factory=dict[Storage, Value])
    """Values placed in the storages: params of the body, or results."""
    stale: dict[Storage, Abort] = field(default_factory=dict[Storage, Abort])
    """Storages that a write through another one may have changed, with the error of
    reading them."""
    aliases: CarriedAliases = field(init=False)
    changed: bool = False
    made: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """Values placed in slots, and lists of the Program by the id of the Python list."""
    copied: dict[Slot, Any] = field(default_factory=dict[Slot, Any])
    """Copies of containers placed in slots."""
    ends: dict[int, Slot] = field(default_factory=dict[int, Slot])
    """The slots of the copies, by the ids of the objects that they are after an iteration."""
    twins: dict[Slot, Slot] = field(default_factory=dict[Slot, Slot])
    """Slots whose copies represent the same object, although each is a separate copy."""
    has_run: bool = False
    """True if the placed values are those after at least one iteration."""
    splits: bool = False
    """True if a slot that holds another kind of value after an iteration is carried as one of
    several."""

    def __post_init__(self) -> None:
        self.options = CarriedOptions(self.base)
        self.aliases = CarriedAliases(self.leaves, self.grown, exact=self.frame is not None)

    # -- entering -------------------------------------------------------------------------------

    def _carried(self) -> list[Carried]:
        return [*self.leaves.values(), *self.grown.values()]

    def kinds(self) -> list[LeafKind]:
        """Return the kinds of all carried values, in the order of params, inits and yields."""
        known = [leaf.kind for leaf in self._carried()]
        stored = [LeafKind(tracer().type_in(state), False) for state in self.storages.values()]
        return known + stored + self.aliases.kinds()

    def inits(self) -> list[Value]:
        """Return the carried values before the region, in the current scope."""
        self.base.restore()
        for leaf in self.leaves.values():
            if leaf.counts and leaf.kind.number:
                check_counter(leaf.init)
        made = [
            placeholder(leaf.kind) if leaf.init is UNDEFINED else materialize(leaf.init, leaf.kind)
            for leaf in self._carried()
        ]
        made += [tracer().current(storage) for storage in self.storages]
        return made + self.aliases.inits()

    def begin(self) -> tuple[Value, ...]:
        """Restore the state with fresh params in the carried slots. Returns the params."""
        state = tracer()
        params = tuple(state.param(kind.type) for kind in self.kinds())
        self.place(params, self.loops, in_body=True)
        return params

    def place(
        self,
        values: tuple[Value, ...],
        loops: frozenset[int] = frozenset(),
        *,
        in_body: bool = False,
        trips: Dim | None = None,
    ) -> None:
        """Set the state to `base`, with `values` in the carried slots. trips: trip count of the
        loop that made them; None if unknown."""
        self.base.restore()
        supply = iter(values)
        self.has_run = self.runs_once and not in_body
        self.made, self.copied = {}, {}
        sizes: dict[Any, Any] = {}
        for slot, leaf in self.leaves.items():
            if leaf.kind.rows is not None:
                known = None if in_body else trips
                self.made[slot], size = self._of_rows(next(supply), leaf, sizes, known)
                leaf.size = size if in_body else leaf.size
                continue
            marked = loops | loops_of(leaf.init) if leaf.kind.number else frozenset[int]()
            device = device_of(leaf.init, leaf.end)
            self.made[slot] = wrap(
                next(supply),
                leaf.kind,
                device=device,
                loops=marked,
                layout=leaf.layout,
                bits=leaf.bits,
            )
        for key, grown in self.grown.items():
            length = self._length(grown, ListLength(None, len(grown.init)), in_body, trips)
            device = device_of(grown.init, grown.end)
            self.made[key] = wrap(next(supply), grown.kind, device=device, length=length)
            note_origin(self.made[key], key)
        for storage, before in self.storages.items():
            length = before.length and self._length(storage, before.length, in_body, trips)
            self.params[storage] = next(supply)
            tracer().set_state(storage, StorageState(self.params[storage], length))
        for storage, origin in self.stale.items():
            before = storage.state
            tracer().set_state(storage, StorageState(before.base, before.length, origin))
        self._substitute()
        self.aliases.place(self.made, tuple(supply), in_body=in_body, has_run=self.has_run)

    def _of_rows(
        self, value: Value, leaf: Carried, sizes: dict[Any, Any], trips: Dim | None
    ) -> tuple[Any, Dim]:
        """Return a tensor whose size changes, and that size.

        sizes: known sizes, by (group, size before the loop); and for each group alone the size of
        its first tensor, now and before the loop.
        """
        dim = leaf.kind.rows
        assert dim is not None
        before = _size_before(leaf, dim)
        key = (leaf.group, before)
        known = None if trips is None else self._size_after(leaf, dim, trips)
        if known is None and before is not None and leaf.group in sizes:
            first, start = sizes[leaf.group]
            known = (first + before - start).dim
        if known is not None:
            sizes.setdefault(key, known)
        device = device_of(*options_of(leaf.init), *options_of(leaf.end))
        made = of_rows(value, dim, device, sizes, key, self._least_of_group(leaf, before))
        if before is not None:
            sizes.setdefault(leaf.group, (Size.of(sizes[key]), before))
        return made, sizes[key]

    def _least_of_group(self, leaf: Carried, before: Size | None) -> int:
        """Return the least size of a tensor, as far as it follows from all tensors of its group."""
        least = leaf.least
        if before is None:
            return least
        for other, dim in self._grown_leaves():
            start = _size_before(other, dim) if other.group == leaf.group else None
            more = None if start is None else bounds(before - start)[0]
            if more is not None:
                least = max(least, other.least + more)
        return least

    def _length(self, key: Any, before: ListLength, in_body: bool, trips: Dim | None) -> ListLength:
        """Return the length of a list at the start of the body, or after `trips` iterations."""
        if in_body:
            marker = object()
            self.lengths[key] = marker
            return ListLength(marker, 0)
        delta = self.deltas.get(key)
        if delta == 0:
            return before
        if delta is None or trips is None:
            return ListLength(object(), 0)
        return before.plus((Size.of(delta) * trips).dim)

    def _substitute(self) -> None:
        """Put the placed values into variables and containers."""
        for (number, name), value in self.base.cells.items():
            placed = self._placed((("cell", number, name),), value)
            if placed is not value:
                self.base.frames[number].set(name, placed)
        for key, (box, values) in self.base.boxes.items():
            if key in self.grown:
                continue
            placed = {k: self._placed((("box", key), k), v) for k, v in values.items()}
            if any(placed[k] is not v for k, v in values.items()):
                refill(box, placed)

    def _placed(self, slot: Slot, value: Any) -> Any:
        """Return the value to place in a slot that holds `value` before the region."""
        if slot in self.made:
            return self.made[slot]
        if isinstance(value, list) and id(value) in self.made:
            return self.made[id(value)]
        if slot in self.rebuilt:
            made = copy.copy(value)
            if not self.has_run:
                note_copy(made, [value])
            refill(made, {k: self._placed((*slot, k), v) for k, v in self._items(slot, value)})
            self.copied[slot] = made
            if self.twins.get(slot) in self.copied:
                note_copies_of_one(made, self.copied[self.twins[slot]])
            return made
        parts = parts_of(value)
        if parts is not None:
            items = [self._placed((*slot, i), v) for i, v in enumerate(parts)]
            if any(a is not b for a, b in zip(items, parts, strict=True)):
                value = rebuild_tuple(value, items)
            if isinstance(value, Either):
                self.options.placed[slot] = value
        return value

    def _items(self, slot: Slot, box: Any) -> list[tuple[Any, Any]]:
        """Return the items, before the region, of a container that is carried as a copy."""
        return [(k, self.options.inside.get((*slot, k), v)) for k, v in contents(box).items()]

    # -- leaving --------------------------------------------------------------------------------

    def end(self, region: TracedRegion, *, is_last: bool = True) -> bool:
        """Compare the state with that at the start. Returns True if nothing new has to be carried.

        is_last: the region is complete, so a storage not written by now need not be carried.
        """
        self.changed = False
        self.poisoned, self.ends = {}, {}
        after = Snapshot.take()
        for key, before in self.base.cells.items():
            number, name = key
            dead = self.base.frames[number] is self.frame and name not in self.live
            if not dead:
                self._compare(
                    (("cell", number, name),), before, after.cells.get(key, UNDEFINED), name
                )
        for key, (box, values) in self.base.boxes.items():
            found = after.boxes.get(key)
            if found is not None and key not in self.grown:
                self._compare_box((("box", key),), box, values, found[1])
        self._compare_sizes()
        self._compare_storages(region)
        if is_last:
            self._drop_unwritten()
        self.changed |= self.aliases.compare(region, is_settled=not self.changed)
        if self.changed and self.aliases.has_learned:
            self.stale = {}  # with flags, fewer storages become stale
        return not self.changed

    def yields(self) -> tuple[Value, ...]:
        """Return the carried values at the end of the body."""
        made = [materialize(leaf.end, leaf.kind) for leaf in self._carried()]
        made += [tracer().current(storage) for storage in self.storages]
        return (*made, *self.aliases.yields)

    def finish(
        self, results: tuple[Value, ...], trips: Dim | None = None, loop: LoopOp | None = None
    ) -> None:
        """Set the state after the region: results in the carried slots, poison where nothing is
        known."""
        self.aliases.loop = loop
        self.place(results, self.loops, trips=trips)
        if self.runs_once:
            self._settle_bound()
        for slot, poison in self.poisoned.items():
            (kind, *rest), *path = slot
            if kind == "cell":
                frame = self.base.frames[rest[0]]
                frame.set(rest[1], with_part(frame.get(rest[1]), path, poison, in_boxes=True))
            else:
                with_part(self.base.boxes[rest[0]][0], path, poison, in_boxes=True)

    def _settle_bound(self) -> None:
        """Replace Maybe by its value for variables that every iteration binds: at least one has
        run."""
        for slot, leaf in self.leaves.items():
            if len(slot) == 2 and slot[0][0] == "cell" and leaf.end is True:
                _, number, name = slot[0]
                frame = self.base.frames[number]
                maybe = frame.get(name)
                if isinstance(maybe, Maybe) and maybe.bound is self.made[slot]:
                    frame.set(name, maybe.value)

    def update(self, values: tuple[Value, ...]) -> None:
        """Put the results of a recursive call in the carried slots. Lists change in place."""
        supply = iter(values)
        for slot, leaf in self.leaves.items():
            self.made[slot] = wrap(next(supply), leaf.kind, device=device_of(leaf.init, leaf.end))
        for key in self.grown:
            made = self.made.get(key)
            if isinstance(made, TracedList):
                after = StorageState(next(supply), ListLength(object(), 0))
                tracer().set_state(made.memory, after)
        for storage, before in self.storages.items():
            length = before.length and ListLength(object(), 0)
            tracer().set_state(storage, StorageState(next(supply), length))
        self._substitute()

    def _compare(self, slot: Slot, before: Any, after: Any, name: str) -> None:
        """Compare a slot before and after an iteration, and learn how to carry it if it has
        changed."""
        if self._compare_rows(slot, before, after, may_broadcast=True):
            return
        if isinstance(before, Maybe) and not isinstance(after, Poison):
            after = Maybe.of(after, name)
        if isinstance(before, Either) and not isinstance(after, Poison):
            arranged = self.options.arranged(slot, before, after)
            if arranged is None:
                if not self._compare_rows(slot, before, after):
                    self._split(slot, before, after, name)
                return
            after = arranged
        if slot in self.leaves:
            self._compare_leaf(slot, self.leaves[slot], before, after, name)
        elif isinstance(before, list) and id(before) in self.grown:
            made = self.made.get(id(before), self.grown[id(before)].end)
            if after is not made and after is not before:
                self._peel(name, before, after)
            self._compare_grown(before, name)
        elif slot in self.rebuilt:
            self._compare_rebuilt(slot, before, after, name)
        elif before is after:
            for i, item in enumerate(parts_of(before) or ()):
                self._compare((*slot, i), item, item, f"{name}[{i}]")
        elif not equal_leaves(before, after):
            self._learn(slot, before, after, name)

    def _compare_rows(
        self, slot: Slot, before: Any, after: Any, *, may_broadcast: bool = False
    ) -> bool:
        """Compare a tensor whose size in one dim may change in an iteration; False for others.

        may_broadcast: a size of 1 may change in the first iteration alone, so it does not count.
        """
        leaf = self.leaves.get(slot)
        if leaf is None and before is after:
            return False
        if leaf is None:
            kind = rows_of(None, before, after, promote=self.splits)
        else:
            kind = rows_of(leaf.kind, after, promote=self.splits)
        if kind is None or kind.rows is None:
            return False
        if leaf is None and may_broadcast and 1 in _known_sizes(before, kind.rows):
            return False
        if leaf is None:
            for part in [part for part in self.leaves if part[: len(slot)] == slot]:
                del self.leaves[part]
            (only, *others) = options_of(before)
            leaf = self.leaves[slot] = Carried(kind, before if others else only)
        if leaf.kind != kind or leaf.group is None:
            leaf.kind, leaf.layout, self.changed = kind, None, True
            leaf.group = "grown"
            if _size_before(leaf, kind.rows) is None:
                sizes = rows_sizes(leaf.init, kind.rows)
                leaf.group = (slot[:-1] if leaf.init is UNDEFINED else sizes,)
            if self.frame is not None:  # a recursion may enter the next call with any size
                leaf.least = _least(leaf.init, kind.rows)
        leaf.end = after
        return True

    def _grown_leaves(self) -> list[tuple[Carried, int]]:
        leaves = ((leaf, leaf.kind.rows) for leaf in self.leaves.values())
        return [(leaf, dim) for leaf, dim in leaves if dim is not None]

    def _size_after(self, leaf: Carried, dim: int, trips: Dim) -> Dim | None:
        """Return the size of a tensor after the loop if each iteration adds a known amount; else
        None."""
        before, after = rows_sizes(leaf.init, dim), rows_sizes(leaf.end, dim)
        if len(before) != 1 or len(after) != 1:
            return None
        if before[0] is None or after[0] is None or leaf.size is None:
            return None
        total = Size.of(before[0]) + (Size.of(after[0]) - leaf.size) * Size.of(trips)
        decided = tracer().symbol_dims
        return None if any(symbol in decided for symbol in total.symbols) else total.dim

    def _compare_sizes(self) -> None:
        """Split groups of tensors whose sizes change by different amounts; find tensors that may
        become smaller than before the loop."""
        for leaf, dim in self._grown_leaves():
            if _least(leaf.end, dim) < leaf.least:
                leaf.least, self.changed = 0, True
        found: dict[Any, list[Any]] = {}
        for leaf, dim in self._grown_leaves():
            changes = found.setdefault(leaf.group, [])
            if _change(leaf, dim) not in changes:
                changes.append(_change(leaf, dim))
        for leaf, dim in self._grown_leaves():
            changes = found[leaf.group]
            if len(changes) > 1:
                leaf.group = (leaf.group, changes.index(_change(leaf, dim)))
                self.changed = True

    def _learn(self, slot: Slot, before: Any, after: Any, name: str) -> None:
        """Learn how to carry a slot that has changed and was not carried."""
        after = _or_poison(after)
        if isinstance(after, Poison):
            self.poisoned[slot] = after
            return
        if before is UNDEFINED:
            self._learn_defined(slot, after, name)
            return
        if isinstance(before, list) and isinstance(after, TracedList):
            self._grow(before, after)
            return
        kind = unified(before, after)
        if kind is not None:
            self.leaves[slot] = Carried(kind, before, after, layout_of(before, after))
            self.changed = True
            return
        if type(before) is type(after):
            parts, others = parts_of(before) or (), parts_of(after) or ()
            if are_of_one_form(before, after):
                for i, item in enumerate(parts):
                    inner = name if isinstance(before, Maybe | Either) else f"{name}[{i}]"
                    self._compare((*slot, i), item, others[i], inner)
                return
            same = is_box(before) and contents(before).keys() == contents(after).keys()
            if same and not self.options.apart(before, after):
                self.rebuilt[slot] = before
                self.changed = True
                if any(item is UNDEFINED for item in contents(before).values()):
                    self._compare_rebuilt(slot, before, after, name)
                return
        if self.splits or isinstance(after, Either) or are_numbers(before, after):
            self._split(slot, before, after, name)
        else:
            self._peel(name, before, after)

    def _split(self, slot: Slot, before: Any, after: Any, name: str) -> None:
        """Carry the slot as one of several kinds, or run the first iteration before the loop."""
        if not self.options.split(slot, before, after):
            self._peel(name, before, after)
        self.changed = True

    def give_up(self) -> None:
        """Restore the state from before the region."""
        self.options.give_up()

    def _learn_defined(self, slot: Slot, after: Any, name: str) -> None:
        """Learn how to carry a variable that got its first value in the body."""
        kind = kind_of(after)
        if is_internal(name) or len(slot) > 1:
            if kind is not None:
                self.leaves[slot] = Carried(kind, UNDEFINED, after, layout_of(after))
                self.changed = True
                return
            (_, *cell), *rest = slot
            if is_internal(name) and not rest and (isinstance(after, tuple) or is_box(after)):
                self.base.cells[cell[0], cell[1]] = self.options.before_round(after)
                self.changed = True
                return
            self._peel(name, UNDEFINED, after)
        value = Maybe.of(after, name).value
        if _has_unbound_form(value):
            self._learn_unbound(slot, value, after, name)
            return
        if self.runs_once:
            self._peel(name, UNDEFINED, after)
        self.poisoned[slot] = Poison(
            f"'{name}' has no value if the loop runs zero times, and is {describe(value)} else",
            f"assign '{name}' before the loop",
        )

    def _learn_unbound(self, slot: Slot, value: Any, after: Any, name: str) -> None:
        """Carry a variable that has no value before the loop, with a flag that it is bound."""
        _, number, variable = slot[0]
        before = Maybe(self.options.before_round(value), False, name)
        if isinstance(value, Either):
            self.options.examples[*slot, 0] = list(value.stretto_options)
        self.base.cells[number, variable] = before
        self._compare(slot, before, after, name)

    def _compare_leaf(self, slot: Slot, leaf: Carried, before: Any, after: Any, name: str) -> None:
        after = _or_poison(after)
        if isinstance(after, Poison):
            after.fail_at_origin()
        kind = kind_of(after)
        joint = None if kind is None else unify(leaf.kind, kind)
        may_split = self.splits or isinstance(after, Either) or are_numbers(before, after)
        if joint is None and may_split and before is not UNDEFINED:
            del self.leaves[slot]
            self._split(slot, before, after, name)
            return
        if joint is None:
            self._peel(name, before, after)
            return
        leaf.end = after
        if leaf.learn_layout():
            self.changed = True
        if joint != leaf.kind:
            leaf.kind = joint
            self.changed = True
        if leaf.counts and not is_counter(leaf.init, after):
            leaf.counts, self.changed = False, True

    def _compare_rebuilt(self, slot: Slot, before: Any, after: Any, name: str) -> None:
        items = dict(self._items(slot, before))
        if type(after) is not type(before) or contents(after).keys() != items.keys():
            self._peel(name, before, after)
            return
        twin = self.ends.setdefault(id(after), slot)
        if twin != slot and self.twins.get(slot) != twin:
            self.twins[slot] = twin
            self.changed = True
        for key, item in contents(after).items():
            self._compare((*slot, key), items[key], item, f"{name}[{key!r}]")

    def _compare_box(
        self, slot: Slot, box: Any, before: dict[Any, Any], after: dict[Any, Any]
    ) -> None:
        if before.keys() == after.keys() and (not isinstance(box, dict) or [*before] == [*after]):
            for key, item in before.items():
                self._compare((*slot, key), item, after[key], f"[{key!r}]")
            return
        if isinstance(box, set | deque) or (isinstance(box, list) and tracer().heap.owns(box)):
            if self.loops:
                raise NeedsUnroll(self.loops, length_change_error(box))
            if not isinstance(box, list):
                fail_length_change(box)
        if isinstance(box, list):
            check_growth(box)
            tracer().replaced_lists[id(box)] = box
            items = list(after.values())
            kind = items_kind(items or list(before.values()))
            if kind is not None and isinstance(kind.type, TensorType):
                list_type = LeafKind(TensorListType(kind.type), kind.number)
                self.grown[id(box)] = Carried(list_type, list(before.values()), items, box=box)
                self.changed = True
                return
        if self.loops:
            raise NeedsUnroll(self.loops, length_change_error(box))
        if isinstance(box, list):
            self._fail_items(list((after or before).values())[-1])
        self._peel("a container", list(before.values()), list(after.values()))

    def _fail_items(self, item: Any) -> None:
        """Fail for a list that grows or shrinks and whose items a Program cannot hold."""
        where = "a traced loop" if self.frame is not None else "a recursive function"
        raise NeedsPeel(
            abort(
                f"a list grows or shrinks in {where} whose items are not tensors or numbers of one "
                f"shape and dtype, but {describe(item)}",
                "append tensors of one shape and dtype; for items of several parts, keep one list "
                "for each part; or compile with fallback=True",
            )
        )

    def _grow(self, box: list[Any], after: TracedList) -> None:
        """Carry a Python list as a list of the Program."""
        items = list(self.base.boxes[id(box)][1].values())
        self.grown[id(box)] = Carried(list_kind(after), items, after, box=box)
        self.changed = True

    def _compare_grown(self, box: list[Any], name: str) -> None:
        grown = self.grown[id(box)]
        made = self.made.get(id(box))
        grown.end = made
        if isinstance(made, TracedList):
            self._count(grown, made.memory)

    def _count(self, key: Any, storage: Storage) -> None:
        """Record the change of a list's length in an iteration, if it is known."""
        length = storage.state.length
        same = length is not None and length.base is self.lengths.get(key)
        self.deltas[key] = length.offset if same and length is not None else None

    def _compare_storages(self, region: TracedRegion) -> None:
        for key, grown in self.grown.items():
            made = self.made.get(key)
            if isinstance(made, TracedList):
                grown.end = made
                self._count(grown, made.memory)
        for storage in self.storages:
            if storage.state.length is not None:
                self._count(storage, storage)
        for storage, before in region.before.items():
            if storage.scope.here is region.scope or not storage.scope.open:
                continue
            if storage.state.stale is not None:
                self._learn_stale(storage, storage.state.stale)
            elif storage not in self.storages and storage.state != before:
                self.storages[storage] = before
                self.changed = True

    def _learn_stale(self, storage: Storage, origin: Abort) -> None:
        """Record that a write to another storage in an iteration may have changed this one."""
        if storage.fake is None or storage not in self.stale:
            self.storages.pop(storage, None)
            self.changed |= storage not in self.stale
            self.stale.setdefault(storage, origin)

    def _drop_unwritten(self) -> None:
        """Drop storages that were written only while another slot was not carried yet.

        Each is dropped only once: a constant assigned to itself is written whenever it is not
        carried.
        """
        for storage, param in list(self.params.items()):
            is_kept = storage in self.dropped or storage not in self.storages
            if storage.state.base is param and not is_kept:
                self.dropped.add(storage)
                del self.storages[storage]
                self.changed = True

    def _peel(self, name: str, before: Any, after: Any) -> None:
        """Raise NeedsPeel: the slot changes its kind, so the first iteration must run before the
        loop."""
        what = ("a traced loop", "one round", "before the loop")
        if self.frame is None:
            what = ("a recursive function is called", "the call", "before the call and behind it")
        around, one, place = what
        shown = shown_name(name)
        raise NeedsPeel(
            abort(
                f"{shown} is {describe(before)} before {around} and {describe(after)} after {one}",
                f"give {shown} the same structure, shape and dtype {place}",
            )
        )


def _known_sizes(value: Any, dim: int) -> list[int]:
    return [size for size in rows_sizes(value, dim) if isinstance(size, int)]


def _or_poison(value: Any) -> Any:
    """Return the value, or a poison for a tensor or list that cannot be read any more."""
    if isinstance(value, TracedTensor | TracedList) and value.memory.state.stale is not None:
        return Poison.of(value.memory.state.stale)
    return value


def _has_unbound_form(value: Any) -> bool:
    parts = parts_of(value)
    if parts is not None:
        return all(map(_has_unbound_form, parts))
    return kind_of(value) is not None or value is None or isinstance(value, str)


def _least(value: Any, dim: int) -> int:
    """Return the least size along a dim of a tensor, or of all options of a value."""
    sizes, known = rows_sizes(value, dim), tracer().sizes
    lows = [0 if size is None else known.least(size) or 0 for size in sizes]
    return max(0, min(lows, default=0))


def _size_before(leaf: Carried, dim: int) -> Size | None:
    """Return the size of a tensor before the loop; None if it is one of several, or undefined."""
    (size, *others) = rows_sizes(leaf.init, dim)
    return None if others or size is None else Size.of(size)


def _change(leaf: Carried, dim: int) -> tuple[Any, ...]:
    """Return the change of a tensor's size in an iteration, as a key; if the size before the loop
    is unknown, the sizes that it may have after the iteration."""
    before, ends = _size_before(leaf, dim), rows_sizes(leaf.end, dim)
    if before is None:
        return ends
    match ends:
        case (int() | Size() as after,):
            return (Size.of(after) - (before if leaf.size is None else leaf.size),)
        case _:
            return (before, ends)
