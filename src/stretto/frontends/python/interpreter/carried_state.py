"""The state that a repeated region carries: a loop, or a function that calls itself.

`begin` puts fresh params into the places that are known to change. `learn` compares the state at
the end of the region with that at its start, and finds further places and forms; if there is
nothing new, the region is complete. Memory of tensors that is written inside is carried too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.aliasing.carried import CarriedAliases, LoopOp
from stretto.frontends.python.interpreter.forms import (
    FormLearning,
    MadeForm,
    OneOfForm,
    PartsForm,
    SameForm,
    equal,
    is_list,
    pairs_of,
    walk,
)
from stretto.frontends.python.interpreter.growing import GrowingTensors, rows_of
from stretto.frontends.python.interpreter.heap import MISSING, Place, PlaceChange
from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.signals import Abort, Poison, Replan
from stretto.frontends.python.tracing.tensor import ListLength, Storage, StorageState, TracedTensor
from stretto.frontends.python.tracing.tracer import TracedRegion, tracer
from stretto.frontends.python.values.arithmetic import check_counter
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.leaves import (
    Carried,
    Slot,
    device_of,
    kind_of,
    loops_of,
    materialize,
    placeholder,
    wrap,
)
from stretto.frontends.python.values.scalars import LeafKind, unify
from stretto.frontends.python.values.state import (
    TracedList,
    are_of_one_form,
    parts_of,
    rebuild_tuple,
)
from stretto.ir.core import Value
from stretto.ir.sizes import Size
from stretto.ir.types import Dim, TensorListType

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.regions import Regions


def _by_name(entry: tuple[Place, Any]) -> tuple[bool, str]:
    """Return the key by which carried places are ordered: variables by name, then the rest."""
    (_, key), _ = entry
    return (False, key) if isinstance(key, str) else (True, "")


@dataclass(eq=False)
class CarriedState:
    """State carried around a loop or through a recursion; see the module's docstring.

    runs_once: at least one iteration runs. exact: it is a loop, so that flags can tell which memory
    a tensor has.
    """

    regions: Regions
    runs_once: bool = False
    splits: bool = True
    loops: frozenset[int] = frozenset()
    exact: bool = True
    forms: dict[Place, Any] = field(default_factory=dict[Place, Any])
    changes: dict[Place, PlaceChange] = field(default_factory=dict[Place, PlaceChange])
    """The carried places, with their values before the region."""
    storages: dict[Storage, StorageState] = field(default_factory=dict[Storage, StorageState])
    stale: dict[Storage, Abort] = field(default_factory=dict[Storage, Abort])
    """Storages that a write through another one may have changed."""
    dropped: set[Storage] = field(default_factory=set[Storage])
    """Storages that were dropped once, because they were not written."""
    params: dict[Storage, Value] = field(default_factory=dict[Storage, Value])
    leaves: dict[Slot, Carried] = field(default_factory=dict[Slot, Carried])
    grown: dict[Any, Carried] = field(default_factory=dict[Any, Carried])
    order: list[tuple[Slot, Carried]] = field(default_factory=list[tuple[Slot, Carried]])
    """All leaves, in the order of params, inits and yields."""
    made: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """Values placed in the leaves."""
    known: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """Values of leaves that are placed as they are."""
    is_called: bool = False
    """True while the results of a call are placed, whose sizes are new."""
    renaming: dict[int, Any] = field(default_factory=dict[int, Any])
    """The container of this call in place of one of the first call, by the id of the latter."""
    lengths: dict[Any, object] = field(default_factory=dict[Any, object])
    """Markers for the lengths of lists at the start of the body."""
    deltas: dict[Any, Dim | None] = field(default_factory=dict[Any, Dim | None])
    """Change of the length of each list in an iteration; None if unknown."""
    unbound: dict[Place, PlaceChange] = field(default_factory=dict[Place, PlaceChange])
    """Places that change, and that no later iteration reads."""
    twins: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Pairs of forms, by id, whose objects may be one object."""
    kin: dict[tuple[int, int], Any] = field(default_factory=dict[tuple[int, int], Any])
    """Objects from before the region that those of a form may be, by the ids of both."""
    ends: list[Value] = field(default_factory=list[Value])
    built: dict[int, Any] = field(default_factory=dict[int, Any])
    """Objects placed for the forms of objects, by id."""
    start: int = 0
    begun: int = 0
    """The number of tables at the start of the iteration."""
    has_run: bool = False

    def __post_init__(self) -> None:
        self.start = self.regions.heap.count
        self.growing = GrowingTensors([])
        self.aliases = CarriedAliases(self.leaves, self.grown, exact=self.exact)
        self.learning = FormLearning(self.regions, self.start, self.splits, self.loops)

    # -- values of forms ------------------------------------------------------------------------

    def spread(self, form: Any, value: Any, slot: Slot) -> Iterator[tuple[Slot, Carried, Any]]:
        """Yield the leaves of a form, each with the part of a value that it holds; UNDEFINED for
        parts that the value does not have."""
        match form:
            case Carried():
                yield slot, form, value
            case PartsForm(like=like, parts=parts):
                if isinstance(like, dict):
                    items: Any = value
                else:
                    items = () if value is UNDEFINED else _parts(value)
                    items = dict(enumerate(items))
                missing = MISSING if isinstance(like, dict) else UNDEFINED
                for key, inner in parts.items():
                    item = UNDEFINED if value is UNDEFINED else items.get(key, missing)
                    yield from self.spread(inner, item, (*slot, key))
            case MadeForm(table=table):
                if isinstance(value, Either):  # objects that are kept apart cannot become one
                    self.regions.heap.fail_shared()
                form.init = form.end = None if value is UNDEFINED else value
                held = {} if value is UNDEFINED else self.regions.heap.table_of(value)
                for key, inner in table.items():
                    yield from self.spread(inner, held.get(key, UNDEFINED), (*slot, key))
            case OneOfForm(options=options, flags=flags):
                pairs = pairs_of(value)
                for number, option in enumerate(options):
                    held = [pair for pair in pairs if self.holds(option, pair[1], options)]
                    pairs = [pair for pair in pairs if all(pair is not p for p in held)]
                    flag = self.regions.any_of([f for f, _ in held]) if held else False
                    yield (*slot, number, "flag"), flags[number], flag
                    yield from self.spread(option, self.chosen(held), (*slot, number))
                assert not pairs, (form, pairs)
            case _:
                pass

    def chosen(self, held: list[tuple[Any, Any]]) -> Any:
        if not held:
            return UNDEFINED
        found = held[-1][1]
        for flag, value in reversed(held[:-1]):
            found = self.regions.choose(flag, value, found)
        return found

    def holds(self, form: Any, value: Any, options: list[Any]) -> bool:
        """True if a form among the options is that of a value."""
        match form:
            case SameForm(value=known):
                return equal(known, value)
            case _ if any(isinstance(o, SameForm) and equal(o.value, value) for o in options):
                return False
            case Carried(kind=kind):
                found = kind_of(value)
                if kind.rows is not None:
                    return rows_of(kind, value, promote=self.splits) == kind
                return found is not None and unify(kind, found) == kind
            case PartsForm(like=like):
                return not isinstance(value, Either) and are_of_one_form(like, value)
            case MadeForm():
                return self.learning.alike_class(form, value)
            case _:
                return False

    def refresh(self) -> None:
        """Find the leaves, and their values before the region. Raises Replan if a guard inside of
        the region has replaced a size: the forms from before have it, those from after have not."""
        if self.begun and tracer().sizes.merged() is not None:
            raise Replan
        self.leaves.clear()
        self.grown.clear()
        self.order = []
        self.forms = dict(sorted(self.forms.items(), key=_by_name))
        for place, form in self.forms.items():
            for slot, leaf, value in self.spread(form, self.changes[place].old, (place,)):
                leaf.init = value
                self.order.append((slot, leaf))
                (self.grown if is_list(leaf) else self.leaves)[slot] = leaf
                self.growing.group(leaf, slot[:-1], exact=self.exact)
        self.growing.leaves = [leaf for _, leaf in self.order if leaf.kind.rows is not None]
        self.note_twins("init")
        self.aliases.enter()

    def note_twins(self, side: str) -> bool:
        """Record the forms whose objects may be one before or after an iteration, and those from
        before the region that they may be. True if there is a new pair."""
        heap, count, seen = self.regions.heap, len(self.twins) + len(self.kin), list[MadeForm]()
        for one in (one for form in self.forms.values() for one in walk(form)):
            held = getattr(one, side) if isinstance(one, MadeForm) else None
            if held is None or any(one is other for other in seen):
                continue
            for other in seen:
                known = getattr(other, side)
                if known is held or heap.are_copies(known, held):
                    self.twins.add((id(other), id(one)))
            seen.append(one)
            for holder in heap.copies.get(id(heap.table_of(held)), {}).values():
                if not heap.is_born_after(heap.table_of(holder), self.start):
                    self.kin[id(one), id(holder)] = holder
        return len(self.twins) + len(self.kin) > count

    def kinds(self) -> list[LeafKind]:
        """Return the kinds of all carried values, in the order of params, inits and yields."""
        found = [leaf.kind for _, leaf in self.order]
        found += [LeafKind(tracer().type_in(state), False) for state in self.storages.values()]
        return found + self.aliases.kinds()

    def inits(self) -> list[Value]:
        """Return the carried values before the region, in the current scope."""
        for _, leaf in self.order:
            if leaf.counts and leaf.kind.number:
                check_counter(leaf.init)
        found = [self.value_of(leaf.init, leaf.kind) for _, leaf in self.order]
        found += [tracer().current(storage) for storage in self.storages]
        return found + self.aliases.inits()

    def value_of(self, value: Any, kind: LeafKind) -> Value:
        if value is UNDEFINED:
            return placeholder(kind)
        is_content = isinstance(value, tuple) and isinstance(kind.type, TensorListType)
        return materialize(list(value) if is_content else value, kind)

    # -- entering -------------------------------------------------------------------------------

    def begin(self) -> tuple[Value, ...]:
        """Put fresh params into the carried places, and return them."""
        state = tracer()
        params = tuple(state.param(kind.type) for kind in self.kinds())
        self.place(params, in_body=True)
        return params

    def place(
        self, values: tuple[Value, ...], *, in_body: bool = False, trips: Dim | None = None
    ) -> None:
        """Put values into the carried places. trips: trip count of the loop that made them."""
        supply = iter(values)
        self.has_run = self.runs_once and not in_body
        self.made = {}
        self.built = {}
        self.growing.known = {}
        for place, form in self.forms.items():
            change = self.changes[place]
            made = self.build(form, supply, (place,), in_body, trips)
            self.regions.heap.put(change.table, change.key, made)
        for storage, before in self.storages.items():
            length = before.length and self.length(storage, before.length, in_body, trips)
            self.params[storage] = next(supply)
            tracer().set_state(storage, StorageState(self.params[storage], length))
        for storage, origin in self.stale.items():
            before = storage.state
            tracer().set_state(storage, StorageState(before.base, before.length, origin))
        for one, other in self.twins:
            if one in self.built and other in self.built:
                self.regions.heap.note_copies([self.built[one], self.built[other]])
        for (one, _), holder in self.kin.items():
            if one in self.built:
                self.regions.heap.note_copies([self.built[one], holder])
        self.aliases.place(self.made, tuple(supply), in_body=in_body, has_run=self.has_run)

    def build(
        self, form: Any, supply: Iterator[Value], slot: Slot, in_body: bool, trips: Dim | None
    ) -> Any:
        match form:
            case Carried():
                value = next(supply)
                if slot in self.known:
                    return self.known[slot]
                self.made[slot] = made = self.leaf(form, value, slot, in_body, trips)
                return made
            case SameForm(value=value):
                return renamed(value, self.renaming)
            case PartsForm(like=like, parts=parts):
                items = {
                    key: self.build(inner, supply, (*slot, key), in_body, trips)
                    for key, inner in parts.items()
                }
                if isinstance(like, dict):
                    return items
                return (
                    tuple(items.values()) if like == () else rebuild_tuple(like, [*items.values()])
                )
            case MadeForm(table=table):
                heap = self.regions.heap
                made = heap.new_like(form.like)
                content = heap.table_of(made)
                for key, inner in table.items():
                    content[key] = self.build(inner, supply, (*slot, key), in_body, trips)
                self.built[id(form)] = made
                if form.init is not None and not self.has_run:
                    heap.note_copies([made, form.init])
                return made
            case OneOfForm(options=options, flags=known):
                flags, made = list[Any](), list[Any]()
                for number, option in enumerate(options):
                    flag = tracer().number(next(supply))
                    self.made[*slot, number, "flag"] = flag
                    value = self.build(option, supply, (*slot, number), in_body, trips)
                    if not self.has_run or known[number].end is not False:
                        flags.append(flag)
                        made.append(value)
                return made[0] if len(made) == 1 else Either(flags, made)
            case _:
                raise AssertionError(form)

    def leaf(
        self, leaf: Carried, value: Value, slot: Slot, in_body: bool, trips: Dim | None
    ) -> Any:
        if leaf.kind.rows is not None and not self.is_called:
            return self.growing.place(leaf, value, in_body=in_body, trips=trips)
        length = None
        if is_list(leaf):
            start = ListLength(object(), 0)
            if isinstance(leaf.init, tuple):
                start = ListLength(None, len(leaf.init))
            elif isinstance(leaf.init, TracedList):
                start = leaf.init.memory.state.length or start
            length = self.length(slot, start, in_body, trips)
        marked = self.loops | loops_of(leaf.init) if leaf.kind.number else frozenset[int]()
        return wrap(
            value,
            leaf.kind,
            device=device_of(leaf.init, leaf.end),
            loops=marked,
            layout=leaf.layout,
            bits=leaf.bits,
            length=length,
        )

    def length(self, key: Any, before: ListLength, in_body: bool, trips: Dim | None) -> ListLength:
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

    # -- leaving --------------------------------------------------------------------------------

    def is_live(self, change: PlaceChange) -> bool:
        """True if a place may be read after an iteration."""
        return not self.regions.heap.is_born_after(change.table, self.begun)

    def learn(self, region: TracedRegion, mark: int, *, is_last: bool = True) -> bool:
        """Compare the state at the end of the region with that at its start. True if nothing new
        has to be carried; then `ends` has the values at the end."""
        settled = True
        self.unbound = {}
        for place, change in self.regions.heap.changes(mark).items():
            new, known = self.readable(change.new), self.changes.get(place)
            self.learning.tables = (change.table,)
            if known is None:
                if not self.is_live(change):
                    self.unbound[place] = change
                    continue
                form = self.learning.joint(change.old, new, change.key)
                if isinstance(form, SameForm) and not isinstance(form.value, Poison):
                    continue
                self.changes[place] = PlaceChange(change.table, change.key, change.old)
                self.forms[place] = form
                settled = False
                continue
            wider = self.learning.wider(self.forms[place], known.old, new, change.key)
            settled &= wider is self.forms[place]
            self.forms[place] = wider
        settled &= self.learn_storages(region)
        if is_last:
            settled &= not self.drop_unwritten()
        if settled:
            self.ends = self.find_ends()
            settled &= not self.note_twins("end")
            settled &= not self.growing.compare()
        return self.learn_memory(region, settled)

    def learn_memory(self, region: TracedRegion, settled: bool) -> bool:
        again = self.aliases.compare(region, is_settled=settled)
        if (again or not settled) and self.aliases.has_learned:
            self.stale = {}  # with flags, fewer storages become stale
        return settled and not again

    def readable(self, value: Any) -> Any:
        """Return the value, or a poison for a tensor or list that cannot be read any more."""
        if isinstance(value, TracedTensor | TracedList) and value.memory.state.stale is not None:
            return Poison.of(value.memory.state.stale)
        return value

    def find_ends(self) -> list[Value]:
        """Return the values of the leaves at the end of the region."""
        found: list[Value] = []
        for place, form in self.forms.items():
            change = self.changes[place]
            value = self.readable(change.table.get(change.key, MISSING))
            for slot, leaf, item in self.spread(form, value, (place,)):
                leaf.end = item
                if isinstance(item, TracedList):
                    self.count(slot, item.memory)
                found.append(self.value_of(item, leaf.kind))
        return found

    def count(self, key: Any, storage: Storage) -> None:
        """Record the change of a list's length in an iteration, if it is known."""
        length = storage.state.length
        same = length is not None and length.base is self.lengths.get(key)
        self.deltas[key] = length.offset if same and length is not None else None

    def learn_storages(self, region: TracedRegion) -> bool:
        settled = True
        for storage in self.storages:
            if storage.state.length is not None:
                self.count(storage, storage)
        for storage, before in region.before.items():
            if storage.scope.here is region.scope or not storage.scope.open:
                continue
            if storage.state.stale is not None:
                if storage.fake is None or storage not in self.stale:
                    self.storages.pop(storage, None)
                    settled &= storage in self.stale
                    self.stale.setdefault(storage, storage.state.stale)
            elif storage not in self.storages and storage.state != before:
                self.storages[storage] = before
                settled = False
        return settled

    def drop_unwritten(self) -> bool:
        """Drop storages that were written only while another place was not carried yet. Each is
        dropped only once: a constant assigned to itself is written whenever it is not carried."""
        found = False
        for storage, param in list(self.params.items()):
            is_kept = storage in self.dropped or storage not in self.storages
            if storage.state.base is param and not is_kept:
                self.dropped.add(storage)
                del self.storages[storage]
                found = True
        return found

    def yields(self) -> tuple[Value, ...]:
        """Return the carried values at the end of the body."""
        found = [*self.ends, *(tracer().current(storage) for storage in self.storages)]
        return (*found, *self.aliases.yields)

    def finish(
        self, results: tuple[Value, ...], trips: Dim | None = None, loop: LoopOp | None = None
    ) -> None:
        """Set the state after the region: results in the carried places, poison where nothing is
        known."""
        self.aliases.loop = loop
        self.place(results, trips=trips)
        heap = self.regions.heap
        for change in self.unbound.values():
            if not heap.is_born_after(change.table, self.start):
                poison = Poison(
                    f"'{change.key}' is not carried by the loop", "assign it before the loop"
                )
                heap.put(change.table, change.key, poison)


def renamed(value: Any, names: dict[int, Any]) -> Any:
    """Return a value with others in place of containers, by their ids."""
    if not names:
        return value
    if id(value) in names:
        return names[id(value)]
    if isinstance(value, dict):
        return {key: renamed(item, names) for key, item in value.items()}
    if isinstance(value, Either):
        return Either(value.stretto_flags, [renamed(x, names) for x in value.stretto_options])
    parts = parts_of(value)
    return value if parts is None else rebuild_tuple(value, [renamed(x, names) for x in parts])


def _parts(value: Any) -> Any:
    found = parts_of(value)
    return value if found is None else found
