"""Memory of the tensors that a loop carries: the facts of `aliases`, around the loop.

At the start of an iteration a carried tensor is memory from before the loop, the memory of
another carried tensor, or its own memory. Each of the first two possibilities is a
`ViewCandidate`: a source of the tensor. Its flag is carried around the loop together with the
positions that the view depends on, but only once the flag is used. Lists, and tensors that
cannot be tracked in this way, are linked instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from stretto.frontends.python.aliasing.aliases import (
    has_sources,
    link,
    link_same,
    may_be_same,
    overlapping,
    storages_of,
)
from stretto.frontends.python.tracing.tensor import (
    BlockScope,
    MemorySource,
    Storage,
    TracedTensor,
    ViewStep,
)
from stretto.frontends.python.tracing.tracer import TracedRegion, tracer
from stretto.frontends.python.values.leaves import Carried, Slot, kind_of
from stretto.frontends.python.values.scalars import (
    Flag,
    LeafKind,
    all_of,
    both,
    either,
    negated,
    select,
    value_of,
)
from stretto.ir.core import Value
from stretto.ir.ops import ForOp, LiteralOp, WhileOp
from stretto.ir.types import FLAG, TensorType

# ---- The possible memories of a tensor: the paths through the sources of its storage.


MOST_WAYS = 64
"""Maximum number of paths tracked for one tensor; a tensor with more is linked."""


@dataclass(frozen=True, slots=True)
class MemoryPath:
    """A possible memory of a tensor: it is the view `steps` of `storage` if the flags of all
    `taken` sources hold."""

    storage: Storage
    steps: tuple[ViewStep, ...]
    taken: tuple[MemorySource, ...]
    is_outer: bool


def possible_memories(value: Any, here: BlockScope) -> list[MemoryPath]:
    """Return all possible memories of a tensor: memory from outside of `here`, or created there."""
    tensor, found = tensor_of(value), list[MemoryPath]()

    def visit(storage: Storage, steps: Any, taken: tuple[MemorySource, ...], in_own: bool) -> None:
        is_outer = storage.scope.here is not here
        if len(found) <= MOST_WAYS and not (is_outer and in_own):
            found.append(MemoryPath(storage, steps, taken, is_outer))
        if is_outer or len(found) > MOST_WAYS:
            return
        for source in storage.sources:
            inner, is_own = source.tensor, in_own or source.is_own
            visit(inner.memory, (*inner.steps, *steps), (*taken, source), is_own)

    if tensor is not None:
        visit(tensor.memory, tensor.steps, (), False)
    return found


def after(whole: tuple[ViewStep, ...], view: tuple[ViewStep, ...]) -> tuple[ViewStep, ...] | None:
    """Return the steps from one view of a memory to a view of that view; None if `view` is not
    one."""
    if not all(step.is_comparable for step in (*whole, *view)) or view[: len(whole)] != whole:
        return None
    return view[len(whole) :]


def condition_of(way: MemoryPath) -> Flag | None:
    """Return the condition under which a tensor is the memory of `way`; None if it is not known
    here."""
    state = tracer()
    flags = [source.flag() for source in way.taken]
    others = [] if way.is_outer else [source.flag() for source in way.storage.sources]
    known = [flag for flag in (*flags, *others) if flag is not None and state.is_known(flag)]
    if len(known) < len(flags) + len(others):
        return None
    return all_of((*known[: len(flags)], *map(negated, known[len(flags) :])))


def tensor_of(value: Any) -> TracedTensor | None:
    """Return a tensor of the state as a traced one; None for other values. Numbers have no
    memory."""
    if isinstance(value, TracedTensor):
        return value if value.number is None else None
    return tracer().promote(value) if isinstance(value, torch.Tensor) else None


def values_of(steps: tuple[ViewStep, ...]) -> tuple[Value, ...]:
    return tuple(value for step in steps for value in step.values)


def without_values(steps: tuple[ViewStep, ...]) -> tuple[ViewStep, ...] | None:
    """Return the steps with a placeholder for each value, so that they can be compared; None if
    they cannot."""
    found = tuple(step.mapped(lambda value: _hole(value.tensor)) for step in steps)
    return found if all(step.is_comparable for step in found) else None


@cache
def _hole(type: TensorType) -> Value:
    return Value(type)


LoopOp = ForOp | WhileOp
MemoryPlace = Storage | Slot

_MOST = 16
"""Maximum number of candidates of one tensor; a tensor with more is linked."""


@dataclass(frozen=True, slots=True)
class ViewCandidate:
    """The tensor in `slot` may be a view of the memory of `place`. In `steps`, placeholders
    replace the values that the view depends on."""

    slot: Slot
    place: MemoryPlace
    steps: tuple[ViewStep, ...]


@dataclass(eq=False, slots=True)
class _BodyTrace:
    """One tracing of the body, or the code after the loop, with the flag and the values that each
    candidate has there."""

    scope: BlockScope
    is_body: bool
    known: dict[ViewCandidate, tuple[Value, ...]] = field(
        default_factory=dict[ViewCandidate, tuple[Value, ...]]
    )


@dataclass(eq=False)
class CarriedAliases:
    """The memory of all carried values. `exact`: flags can be carried too."""

    leaves: dict[Slot, Carried]
    grown: dict[int, Carried]
    exact: bool
    candidates: dict[ViewCandidate, torch.Tensor] = field(
        default_factory=dict[ViewCandidate, torch.Tensor]
    )
    """Candidates, each with a fake tensor of the view."""
    types: dict[ViewCandidate, tuple[TensorType, ...]] = field(
        default_factory=dict[ViewCandidate, tuple[TensorType, ...]]
    )
    """The types of the values that the view of a candidate depends on."""
    asked: list[ViewCandidate] = field(default_factory=list[ViewCandidate])
    linked: set[Slot] = field(default_factory=set[Slot])
    """Slots of tensors that are linked, because they cannot be tracked exactly."""
    pairs: set[tuple[Any, Any]] = field(default_factory=set[tuple[Any, Any]])
    """Pairs that may share memory at the start of an iteration: a slot, and another slot or an
    outer storage."""
    same: set[tuple[Any, Any]] = field(default_factory=set[tuple[Any, Any]])
    """Pairs of lists that may be one Python object; others only hold the same items."""
    found: set[ViewCandidate] = field(default_factory=set[ViewCandidate])
    """Candidates after the last round that was traced."""
    loop: LoopOp | None = None
    yields: tuple[Value, ...] = ()
    made: dict[Any, Any] = field(default_factory=dict[Any, Any])
    round: _BodyTrace | None = None
    """The round to which the tensors in `made` belong."""
    body: _BodyTrace | None = None
    """The last round of the body that was traced to its end."""
    region: TracedRegion | None = None
    is_late: bool = False
    """True if a flag was used that this round does not carry yet."""
    has_learned: bool = False
    """True if the last round found something new."""
    written: int = 0

    # -- entering -------------------------------------------------------------------------------

    def enter(self) -> None:
        """Add candidates for the tensors before the loop."""
        self._forget_lost()
        for slot, leaf in self.leaves.items():
            init = tensor_of(leaf.init)
            if init is not None and self._is_followed(slot):
                self._add(slot, init.memory, init.steps, init.fake)
        self.is_late = False

    def kinds(self) -> list[LeafKind]:
        """Return the kinds of the flags and values that are carried."""
        types = [type for one in self.asked for type in (FLAG, *self.types[one])]
        return [LeafKind(type, False) for type in types]

    def inits(self) -> list[Value]:
        """Return these flags and values before the loop, in the current scope."""
        found = list[Value]()
        for one in self.asked:
            values = self._at_start(one)
            found.append(value_of(values is not None))
            found += (
                [tracer().literal(0, type.dtype) for type in self.types[one]]
                if values is None
                else map(tracer().use, values)
            )
        return found

    def _at_start(self, candidate: ViewCandidate) -> tuple[Value, ...] | None:
        """Return the values that the view depends on, if the tensor is that candidate before the
        loop; else None."""
        init = tensor_of(self.leaves[candidate.slot].init)
        if init is None or init.memory is not candidate.place:
            return None
        return values_of(init.steps) if without_values(init.steps) == candidate.steps else None

    def place(
        self, made: dict[Any, Any], carried: tuple[Value, ...], *, in_body: bool, has_run: bool
    ) -> None:
        """Record what the carried tensors and lists in `made` may share memory with.

        has_run: at least one iteration has run, so that no tensor is still its value from before
        the loop.
        """
        state = tracer()
        self.made, self.written = made, state.written
        self.round = _BodyTrace(state.scope, in_body)
        supply = iter(carried)
        for one in self.asked:
            self.round.known[one] = tuple(next(supply) for _ in range(1 + len(self.types[one])))
        if in_body:
            places = {(one.slot, one.place) for one in self.candidates}
            names = Counter(place for _, place in places if isinstance(place, Storage))
            state.regions[-1].kept = {place for place, count in names.items() if count > 1}
        wanted = self.found if has_run else self.candidates
        self._have_sources([one for one in self.candidates if one in wanted])
        for key, item in (*self.leaves.items(), *self.grown.items()):
            if key in made and not has_run and not self._is_followed(key):
                link_same(made[key], [item.init] if item.box is None else item.init)
        for key, other in self.pairs:
            if key in made:
                join = link_same if (key, other) in self.same else link
                join(made[key], [made.get(other, other)])

    def _forget_lost(self) -> None:
        """Remove slots that are no longer carried, because their values turned out to be of
        several kinds."""
        slots = set(self.leaves)
        for one in list(self.candidates):
            if one.slot not in slots or (isinstance(one.place, tuple) and one.place not in slots):
                del self.candidates[one], self.types[one]
        self.asked = [one for one in self.asked if one in self.candidates]

    def _is_followed(self, slot: Any) -> bool:
        leaf = self.leaves.get(slot)
        return self.exact and leaf is not None and slot not in self.linked

    def _is_known(self, candidate: ViewCandidate) -> bool:
        """True if the view can be made in this round."""
        assert self.round is not None
        has_values = not self.types[candidate] or candidate in self.round.known
        return has_values and self._is_followed(candidate.slot)

    def _add(self, slot: Slot, place: MemoryPlace, steps: Any, fake: torch.Tensor) -> bool:
        """Add a candidate. Return True if it is new."""
        key = without_values(steps)
        if key is None:
            self.linked.add(slot)
            return True
        one = ViewCandidate(slot, place, key)
        self.found.add(one)
        if one in self.candidates:
            return False
        self.candidates[one] = fake
        self.types[one] = tuple(value.tensor for value in values_of(steps))
        if self.types[one]:
            self.asked.append(one)
            self.is_late = True
        if sum(other.slot == slot for other in self.candidates) > _MOST:
            self.linked.add(slot)
        return True

    def _have_sources(self, candidates: list[ViewCandidate]) -> None:
        """Give the carried tensors of this round their sources. A tensor comes after its
        sources."""
        done = set[Any]()

        def visit(slot: Any) -> None:
            if slot in done or slot not in self.made:
                return
            done.add(slot)
            mine = [one for one in candidates if one.slot == slot and self._is_known(one)]
            mine = [o for o in mine if isinstance(o.place, Storage) or o.place in self.made]
            for one in mine:
                visit(one.place)
            if mine:
                has_sources(self.made[slot].memory, map(self._source, mine))

        for slot in self.leaves:
            visit(slot)

    def _source(self, candidate: ViewCandidate) -> MemorySource:
        here = self.round
        assert here is not None
        place = candidate.place
        storage = place if isinstance(place, Storage) else self.made[place].memory
        known = here.known.get(candidate, ())
        supply = iter(known[1:])
        steps = tuple(step.mapped(lambda _: next(supply)) for step in candidate.steps)
        tensor = TracedTensor(self.candidates[candidate], storage, steps)
        return MemorySource(tensor, lambda: self._flag(candidate, here), isinstance(place, tuple))

    # -- flags ----------------------------------------------------------------------------------

    def _flag(self, candidate: ViewCandidate, here: _BodyTrace) -> Value | None:
        if candidate not in here.known:
            if not here.is_body:
                self._extend(candidate, here)
                return here.known[candidate][0] if candidate in here.known else None
            if not here.scope.open:
                return None
            here.known[candidate] = (_param(here, FLAG),)
            self.asked.append(candidate)
            self.is_late = True
        return here.known[candidate][0]

    def _extend(self, candidate: ViewCandidate, behind: _BodyTrace) -> None:
        """Carry the flag of one more candidate around the loop, which is already emitted. Changes
        nothing if a flag is not known at the end of the body."""
        state, loop, body, region = tracer(), self.loop, self.body, self.region
        if loop is None or body is None or region is None or not behind.scope.open:
            return
        known, count = dict(body.known), len(self.asked)
        body.known[candidate] = (_param(body, FLAG),)
        self.asked.append(candidate)
        yields = list[Value]()
        with state.reopened(region, {}):
            last = state.last_op()
            while count + len(yields) < len(self.asked):
                found = self._at_end(self.asked[count + len(yields)])
                if found is None:
                    state.take_back(region.scope.block, last)
                    body.known = known
                    del self.asked[count:]
                    return
                yields += found
        added = self.asked[count:]
        params = tuple(body.known[one][0] for one in added)
        results = tuple(Value(FLAG) for _ in added)
        behind.known |= {one: (result,) for one, result in zip(added, results, strict=True)}
        loop.body.params = (*loop.body.params, *params)
        loop.body.yields = (*loop.body.yields, *yields)
        if isinstance(loop, WhileOp):
            loop.condition.params = (*loop.condition.params, *(Value(FLAG) for _ in added))
        loop.inits = (*loop.inits, *(self._init_before(loop, one, behind) for one in added))
        loop.results = (*loop.results, *results)
        for result in results:
            state.home[result] = behind.scope

    def _init_before(self, loop: LoopOp, candidate: ViewCandidate, behind: _BodyTrace) -> Value:
        """Return the initial flag of a candidate as a literal inserted before the loop."""
        value = Value(FLAG)
        tracer().home[value] = behind.scope
        ops = behind.scope.here.block.ops
        op = LiteralOp(self._at_start(candidate) is not None, results=(value,))
        op.location = loop.location
        ops.insert(next(place for place, other in enumerate(ops) if other is loop), op)
        return value

    # -- leaving --------------------------------------------------------------------------------

    def compare(self, region: TracedRegion, *, is_settled: bool) -> bool:
        """Find what is shared after a round. Return True if the round has to be traced again.

        is_settled: everything else that is carried was known at the start of the round.
        """
        self.region, self.body, self.yields = region, self.round, ()
        writes = tracer().written > self.written
        before = len(self.pairs), len(self.same), len(self.candidates), len(self.linked)
        while True:
            self.found = set()
            ways = {slot: self._ways(slot) for slot in self.leaves if self._is_followed(slot)}
            grown = self._compare_ways(ways)
            if writes or not grown:
                break
            self._have_sources(list(self.candidates))
        self._compare_links(ways, region)
        learned = before != (
            len(self.pairs),
            len(self.same),
            len(self.candidates),
            len(self.linked),
        )
        self.has_learned = learned
        again, self.is_late = (writes and learned) or self.is_late, False
        if is_settled and not again:
            again = self._find_yields()
        return again

    def _find_yields(self) -> bool:
        found = list[Value]()
        for one in self.asked:
            values = self._at_end(one)
            if values is None:
                self.linked.add(one.slot)
                self.asked = [other for other in self.asked if other.slot != one.slot]
                return True
            found += values
        self.yields = tuple(found)
        late, self.is_late = self.is_late, False
        return late

    def _ways(self, slot: Slot) -> list[MemoryPath]:
        """Return the possible memories of the tensor of a slot after the round."""
        assert self.region is not None
        return possible_memories(self.leaves[slot].end, self.region.scope)

    def _compare_ways(self, ways: dict[Slot, list[MemoryPath]]) -> bool:
        """Add candidates for the tensors' memories after the round. Return True if any is new."""
        grown = False
        users = dict[Storage, dict[Slot, list[MemoryPath]]]()
        for slot, mine in ways.items():
            leaf = self.leaves[slot]
            kind = kind_of(leaf.end)
            is_closed = any(not way.storage.scope.open for way in mine)
            is_cast = kind is None or kind.type != leaf.kind.type
            if mine and (len(mine) > MOST_WAYS or is_closed or is_cast):
                self.linked.add(slot)
                grown = True
                continue
            for way in mine:
                if way.is_outer:
                    grown |= self._add(slot, way.storage, way.steps, leaf.end)
                else:
                    users.setdefault(way.storage, {}).setdefault(slot, []).append(way)
        for group in users.values():
            grown |= self._compare_group(group)
        return grown

    def _compare_group(self, group: dict[Slot, list[MemoryPath]]) -> bool:
        """Add candidates for tensors that may be in the same memory, created in the loop. Return
        True if anything is new.

        Of any two, one becomes a source of the other, because a third tensor need not be in that
        memory too. If that is impossible they are linked.
        """
        before = len(self.pairs)
        grown = False
        slots = list(group)
        for number, slot in enumerate(slots):
            for other in slots[:number]:
                for one, place in ((slot, other), (other, slot)):
                    views = self._views(group[one], group[place])
                    if views is not None and not self._is_above(one, place):
                        for steps in views:
                            grown |= self._add(one, place, steps, self.leaves[one].end)
                        break
                else:
                    self.pairs |= {(slot, other), (other, slot)}
        return grown or len(self.pairs) > before

    def _views(
        self, ways: list[MemoryPath], places: list[MemoryPath]
    ) -> list[tuple[ViewStep, ...]] | None:
        """Return the steps by which a tensor is a view of another one in the same memory; None if
        it may be something else."""
        views = [after(place.steps, way.steps) for place in places for way in ways]
        known = [view for view in views if view is not None]
        return known if len(known) == len(views) else None

    def _is_above(self, slot: Slot, other: Slot) -> bool:
        """True if `other` may be in the memory of `slot`, by the candidates known so far."""
        pending, seen = [other], set[Any]()
        while pending:
            place = pending.pop()
            if place == slot:
                return True
            if place not in seen:
                seen.add(place)
                pending += [
                    one.place
                    for one in self.candidates
                    if one.slot == place and isinstance(one.place, tuple)
                ]
        return False

    def _compare_links(self, ways: dict[Slot, list[MemoryPath]], region: TracedRegion) -> None:
        """Record what is linked after a round."""
        own, linked = dict[Any, set[Storage]](), dict[Any, set[Storage]]()
        items: dict[Any, Carried] = {**self.leaves, **self.grown}
        for key, item in items.items():
            if self._is_followed(key):
                own[key] = {way.storage for way in ways.get(key, ())}
                inside = (way.storage for way in ways.get(key, ()) if not way.is_outer)
                linked[key] = set[Storage]().union(*(s.links or () for s in inside))
            else:
                own[key] = set(storages_of(item.end))
                linked[key] = set[Storage]().union(*map(overlapping, own[key]))
        for key, found in linked.items():
            outside = (s for s in found if s.scope.open and s.scope.here is not region.scope)
            self.pairs.update((key, storage) for storage in outside)
            for other, theirs in linked.items():
                if other != key and not (
                    own[key].isdisjoint(theirs) and found.isdisjoint(own[other])
                ):
                    self.pairs.add((key, other))
                    if may_be_same(own[key], own[other]):
                        self.same.add((key, other))

    def _at_end(self, candidate: ViewCandidate) -> tuple[Value, ...] | None:
        """Return flag and values of a candidate after the round, or None if they are not known."""
        here = self.body
        assert here is not None
        flag: Flag = False
        values = here.known[candidate][1:]
        for condition, steps in self._matches(candidate):
            if condition is None:
                return None
            found = values_of(steps)
            if not all(map(tracer().is_known, found)):
                return None
            pairs = zip(found, values, strict=True)
            values = tuple(select(condition, one, other) for one, other in pairs)
            flag = either(flag, condition)
        return (value_of(flag), *map(tracer().use, values))

    def _matches(self, candidate: ViewCandidate) -> Iterable[tuple[Flag | None, Any]]:
        """Yield the conditions under which the tensor is the candidate after the round, each with
        the steps of the view."""
        place = candidate.place
        mine = self._ways(candidate.slot)
        if isinstance(place, Storage):
            for way in mine:
                if way.storage is place and without_values(way.steps) == candidate.steps:
                    yield condition_of(way), way.steps
            return
        for theirs in self._ways(place):
            for way in mine:
                rest = after(theirs.steps, way.steps)
                if theirs.storage is not way.storage or way.is_outer or rest is None:
                    continue
                if without_values(rest) == candidate.steps:
                    conditions = condition_of(way), condition_of(theirs)
                    known = None if None in conditions else both(*conditions)  # type: ignore[arg-type]
                    yield known, rest


def _param(here: _BodyTrace, type: TensorType) -> Value:
    value = Value(type)
    tracer().home[value] = here.scope
    return value
