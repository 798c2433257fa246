"""Loops of the Program: a body is run until the forms of the places that it changes stay."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.interpreter.carried_state import CarriedState
from stretto.frontends.python.interpreter.forms import (
    MadeForm,
    OneOfForm,
    PartsForm,
    SameForm,
    is_list,
    is_tensor,
    walk,
)
from stretto.frontends.python.interpreter.frames import (
    CONTINUE,
    End,
    Perhaps,
    Raised,
    definition,
    has_value,
)
from stretto.frontends.python.interpreter.heap import (
    MISSING,
    RESULT,
    HeapObject,
    Place,
    PlaceChange,
    Table,
)
from stretto.frontends.python.interpreter.liveness import live_before
from stretto.frontends.python.source.syntax_trees import loads
from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.signals import Abort, NeedsPeel, NeedsUnroll, fail
from stretto.frontends.python.tracing.tensor import SIZE_BITS, Storage, TracedTensor
from stretto.frontends.python.tracing.tracer import TracedRegion, tracer
from stretto.frontends.python.values.leaves import Carried, Slot
from stretto.frontends.python.values.scalars import LeafKind, flag_of, logical
from stretto.frontends.python.values.state import TracedList, parts_of
from stretto.ir.core import Block, Value
from stretto.ir.ops import ForOp, WhileOp
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size
from stretto.ir.types import FLAG, INDEX

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.iteration import RestOfItems
    from stretto.frontends.python.interpreter.regions import Regions

_ATTEMPTS = 30
_LONGEST_WAY = 10
"""More than the length of the longest way to a place that a loop remembers."""


class HeadHasEffects(Exception):
    """The test of a loop changes the state."""


class AdvancedInside(Exception):
    """The body of a loop over an iterator advances it too."""


class WrongGuess(Exception):
    """A loop fails that has started with what it carried before, which is forgotten now."""


class NewJump(Exception):
    """A loop ends by a jump that has no flag yet."""

    def __init__(self, jump: Any) -> None:
        super().__init__(jump)
        self.jump = jump


class SourceLoop:
    """A loop of the source. body: runs an iteration, and returns how it ends.

    Whether the loop has been left by a jump, and the value that it returns, are places.
    """

    def __init__(self, regions: Regions, body: Callable[..., Any]) -> None:
        self.regions, self.body = regions, body
        self.flags, self.results = regions.heap.new_table(), regions.heap.new_table()
        frame, node = regions.loops[-1] if regions.loops else (None, None)
        self.jumps = regions.jumps.setdefault(id(node), set()) if frame is not None else set()
        for jump in self.jumps:
            regions.heap.set(self.flags, jump, False)
        regions.heap.set(self.results, RESULT, UNDEFINED)

    def iteration(self, *given: Any) -> None:
        """Run an iteration, and record how it ends."""
        heap, end = self.regions.heap, self.body(*given)
        found = {end.jump: True} if isinstance(end, End) else dict(end.flags) if end else {}
        for jump, flag in found.items():
            if jump != CONTINUE:
                if jump not in self.flags:
                    raise NewJump(jump)
                heap.set(self.flags, jump, flag)
        if end is not None and end.value is not MISSING and any(map(has_value, found)):
            heap.set(self.results, RESULT, end.value)

    def stopped(self) -> Any:
        """Return whether the loop has been left by a jump: a bool, or a traced flag."""
        return self.regions.any_of([False, *self.flags.values()])

    def left(self) -> Any:
        """Return how the loop ends."""
        value = self.regions.present(self.results[RESULT])
        value = MISSING if value is UNDEFINED else value
        ends = {jump: flag for jump, flag in self.flags.items() if flag is not False}
        sure = next((jump for jump, flag in ends.items() if flag is True), None)
        if sure is not None:
            return End(sure, None if value is MISSING else value)
        return Perhaps(ends, value) if ends else None

    def emit(self, run: Callable[[], Any]) -> Any:
        """Emit the loop; with a flag more if it ends by a jump that has none."""
        while True:
            try:
                self.regions.attempt(run)
            except NewJump as new:
                self.regions.heap.set(self.flags, new.jump, False)
                if not isinstance(new.jump, Raised):
                    self.jumps.add(new.jump)
            except WrongGuess:
                pass
            else:
                return self.left()


@dataclass(frozen=True, slots=True)
class LoopMemory:
    """The forms and the memory that a loop has carried, each by the way to it (`Loop.tables`)."""

    forms: dict[Any, Any]
    storages: dict[Any, Storage]


def _items(value: Any) -> Sequence[Any]:
    """Return what a place holds directly, or in a tuple, or as the content of a container."""
    if isinstance(value, dict):
        return [*value.values()]
    found = parts_of(value)
    return [value] if found is None else found


def _storages(tables: dict[Any, Table]) -> Iterator[tuple[Any, Storage]]:
    """Yield the memory of tensors and lists in tables, with the way to it."""
    for way, table in tables.items():
        for key, value in dict.items(table):
            for number, item in enumerate(_items(value)):
                if is_tensor(item) or isinstance(item, TracedList):
                    yield (way, key, number), item.memory


@dataclass(eq=False)
class Loop(CarriedState):
    """A loop that becomes an op of the Program."""

    of_user: Any = None
    live: dict[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])
    recalled: set[Place] = field(default_factory=set[Place])
    """Places whose forms are those of an earlier trace of the loop."""
    memories: dict[bool, LoopMemory] = field(default_factory=dict[bool, LoopMemory])
    """The memory of earlier traces of this run of the loop, by `splits`."""

    def is_live(self, change: PlaceChange) -> bool:
        """True if a place may be read after an iteration."""
        if self.regions.heap.is_born_after(change.table, self.begun):
            return False
        for frame, node in reversed(self.regions.loops):
            if frame is None:
                return True
            if frame.vars is change.table:
                if change.key.startswith("<"):
                    return True
                if id(node) not in self.live:
                    self.live[id(node)] = live_names(frame, node)
                return change.key in self.live[id(node)]
        return True

    def settle(self, attempt: Callable[[], bool]) -> None:
        """Run the body until one run shows that everything it changes is carried."""
        regions, runs = self.regions, self.regions.runs.copy()
        node, _ = key = regions.run_key()
        self.memories = regions.learned.setdefault(key, {})
        self.recall()
        for _ in range(_ATTEMPTS):
            regions.runs = runs.copy()
            self.refresh()
            try:
                is_settled = attempt()
            except (Abort, NeedsPeel, NeedsUnroll) as stop:
                if self.memories.pop(self.splits, None) is None:
                    raise
                raise WrongGuess from stop
            if is_settled:
                self.remember()
                regions.runs[node] += 1
                return
        if tracer().data is not None:
            every = (one for form in self.forms.values() for one in walk(form))
            tracer().data.let_be_data(*(x.like for x in every if isinstance(x, MadeForm)))
        fail("a loop's variables keep changing their types", "give them one type before the loop")

    # Whenever the body of a loop is traced again, so are the loops inside of it. If these started
    # from nothing each time, the number of traces would be exponential in the depth. So a loop
    # starts with what it carried before. That is a guess: `learn` still compares everything,
    # `forget` drops what turns out to be needless, and if the loop fails it starts from nothing.

    def recall(self) -> None:
        memory = self.memories.get(self.splits)
        if memory is None:
            return
        tables = self.tables()
        for (way, key), form in memory.forms.items():
            if way not in tables:
                continue
            table = tables[way]
            before = self.readable(dict.get(table, key, MISSING))
            found = self.learning.again(form, before)
            if found is not None:
                self.forms[id(table), key] = found
                self.changes[id(table), key] = PlaceChange(table, key, before)
        self.recalled = set(self.forms)
        known = [storage for way, storage in _storages(tables) if way in memory.storages]
        for storage in (*known, *memory.storages.values()):
            if storage.scope.open and storage.state.stale is None:
                self.storages[storage] = storage.state

    def remember(self) -> None:
        tables = self.tables()
        ways = {id(table): way for way, table in tables.items()}
        forms = {(ways[n], key): form for (n, key), form in self.forms.items() if n in ways}
        storages: dict[Any, Storage] = {storage: storage for storage in self.storages}
        storages |= {way: item for way, item in _storages(tables) if item in self.storages}
        self.memories[self.splits] = LoopMemory(forms, storages)

    def tables(self) -> dict[Any, Table]:
        """Return the tables that can be reached from the variables of the frames, and those of the
        loop itself, by ways that are the same whenever the loop is traced."""
        heap, found, seen = self.regions.heap, dict[Any, Table](), set[int]()
        own = [("flags", self.of_user.flags), ("results", self.of_user.results)]
        frames = [frame.vars for frame in self.regions.interpreter.frames]
        pending: list[tuple[tuple[Any, ...], Table]]
        pending = [((name,), table) for name, table in (*own, *enumerate(frames))]
        for way, table in pending:
            if id(table) not in seen and len(way) < _LONGEST_WAY:
                seen.add(id(table))
                found[way] = table
                pending += [
                    ((*way, key, number), heap.table_of(item))
                    for key, value in dict.items(table)
                    for number, item in enumerate(_items(value))
                    if isinstance(item, HeapObject) or id(item) in heap.tables
                ]
        return found

    def forget(self) -> bool:
        """Drop the recalled forms that this loop would not have found. True if there are any."""
        idle = {place for place in self.recalled if self.is_idle(self.forms[place], (place,))}
        for place in idle:
            del self.forms[place], self.changes[place]
        self.recalled -= idle
        return bool(idle)

    def is_idle(self, form: Any, slot: Slot) -> bool:
        """True if an iteration leaves a part of a form as it was, or never makes it what the form
        allows."""

        def stays(leaf: Carried, slot: Slot) -> bool:
            return leaf.end is self.made.get(slot)

        match form:
            case Carried(init=tuple()) if is_list(form):
                return self.deltas.get(slot) == 0
            case Carried():
                return stays(form, slot)
            case PartsForm(parts=parts):
                return any(self.is_idle(inner, (*slot, key)) for key, inner in parts.items())
            case MadeForm(table=table, end=end):
                is_kept = end is self.built.get(id(form))
                return is_kept or any(self.is_idle(f, (*slot, key)) for key, f in table.items())
            case OneOfForm(options=options, flags=flags):
                kept = [stays(flag, (*slot, n, "flag")) for n, flag in enumerate(flags)]
                if any(
                    flag.init is False and (flag.end is False or is_kept)
                    for flag, is_kept in zip(flags, kept, strict=True)
                ):
                    return True
                return all(kept) and all(
                    isinstance(option, SameForm) or self.is_idle(option, (*slot, n))
                    for n, option in enumerate(options)
                )
            case _:
                return False

    def inside(self, run: Callable[[TracedRegion], Any]) -> Any:
        """Run something in a region of its own, whose changes are undone."""
        heap, frames = self.regions.heap, list(self.regions.interpreter.frames)
        place = self.regions.place()
        mark = heap.mark()
        self.regions.depth += 1
        self.regions.rounds.append(object())
        try:
            with tracer().region() as region:
                return run(region)
        finally:
            self.regions.depth -= 1
            self.regions.rounds.pop()
            self.regions.interpreter.frames[:] = frames
            self.regions.return_to(place)
            heap.undo(mark)

    def round(self, region: TracedRegion, *lead: Value) -> bool:
        """Run the body once. True if all that it changes is carried."""
        mark = self.regions.heap.mark()
        self.begun = self.regions.heap.count  # what stands for an object is new, too
        region.scope.block.params = (*lead, *self.begin())
        born, generators = self.regions.heap.count, self.regions.interpreter.generators
        count = len(generators.kept)
        self.run_body(*lead)
        generators.check_dropped(count)
        self.regions.heap.check_order(mark, born)
        if self.learn(region, mark) and not self.forget():
            region.scope.block.yields = self.yields()
            return True
        return False

    def run_body(self, *lead: Value) -> None:
        self.of_user.iteration()

    # -- while ----------------------------------------------------------------------------------

    def run_while(self, test: Callable[[], Any]) -> None:
        head, body = Block(), Block()

        def attempt() -> bool:
            nonlocal head, body

            def of_body(region: TracedRegion) -> bool:
                nonlocal body
                body = region.scope.block
                return self.round(region)

            head = self.inside(lambda region: self.head(region, test))
            return self.inside(of_body)

        self.settle(attempt)
        op = WhileOp(tuple(self.inits()), head, body)
        results = tracer().emit(op, [kind.type for kind in self.kinds()])
        self.finish(results, loop=op)

    def head(self, region: TracedRegion, test: Callable[[], Any]) -> Block:
        """Evaluate the test of a `while` loop, which must not change anything."""
        block, heap = region.scope.block, self.regions.heap
        block.params = self.begin()
        lists = [made.memory for made in self.made.values() if isinstance(made, TracedList)]
        mark, states = heap.mark(), {s: s.state for s in [*region.before, *lists]}
        stopped = self.of_user.stopped()
        going = self.regions.logical(True, self.regions.negated(stopped), test)
        block.yields = (_flag(going),)
        written = [*region.before, *lists]
        writes = any(item.state != states.get(item, item.state) for item in written)
        writes |= any(item not in states for item in region.before)
        if writes or heap.changes(mark):
            raise HeadHasEffects
        return block

    # -- for ------------------------------------------------------------------------------------

    def run_for(self, rest: RestOfItems, first: int) -> None:
        """Emit a loop over items with an index."""
        state, user, source = tracer(), self.of_user, rest.source
        trips = None if isinstance(source.length, TracedTensor) else state.dim(source.length)
        self.runs_once = trips is not None and at_most(first + 1, trips)
        if isinstance(trips, Size):
            state.sized_loops |= self.loops
        body, stops = Block(), False

        def run_body(index: Value) -> None:
            user.iteration(state.number(index, loops=self.loops, bits=SIZE_BITS))

        def of_body(region: TracedRegion) -> bool:
            nonlocal body, stops
            body = region.scope.block
            index = state.param(INDEX, "i")
            state.not_negative.add(index)
            done = self.round(region, index)
            stops = user.stopped() is not False
            if done and stops:
                following: Any = state.number(index, bits=SIZE_BITS) + 1
                body.yields = (state.read(following), *body.yields)
            return done

        self.run_body = run_body  # type: ignore[method-assign]
        self.settle(lambda: self.inside(of_body))
        if stops:
            self.emit_while(rest, body, first)
            return
        length: Any = source.length
        stop = state.read(length) if trips is None else trips
        op = ForOp(first, stop, 1, tuple(self.inits()), body)
        results = state.emit(op, [kind.type for kind in self.kinds()])
        self.finish(results, None if trips is None else (Size.of(trips) - first).dim, op)
        rest.end(self.regions.heap)

    def emit_while(self, rest: RestOfItems, body: Block, first: int) -> None:
        """Emit a `for` that may stop early as a while loop that carries the index."""
        state = tracer()

        def head(region: TracedRegion) -> Block:
            index = state.param(INDEX, "i")
            state.not_negative.add(index)
            params = self.begin()
            length = rest.source.length
            known = length if isinstance(length, TracedTensor) else state.number_of_dim(length)
            more = flag_of(state.number(index, bits=SIZE_BITS) < known)
            going = logical("not", _flag(self.of_user.stopped()))
            region.scope.block.params = (index, *params)
            region.scope.block.yields = (logical("and", more, going),)
            return region.scope.block

        condition = self.inside(head)
        inits = (state.literal(first, INDEX.dtype), *self.inits())
        kinds = [LeafKind(INDEX, True), *self.kinds()]
        op = WhileOp(inits, condition, body)
        results = state.emit(op, [kind.type for kind in kinds])
        self.finish(results[1:], loop=op)
        rest.move(self.regions.heap, state.number(results[0], bits=SIZE_BITS))


def _flag(condition: Any) -> Value:
    if isinstance(condition, bool):
        return tracer().literal(condition, FLAG.dtype)
    return flag_of(condition)


def live_names(frame: Any, node: Any) -> frozenset[str]:
    """Return the variables of a frame that may be read after an iteration of a loop."""

    known = getattr(node, "live_at_head", None)
    if known is not None:  # where the loop is left by a jump, its variables are those of the head
        return known | node.live_after | node.live_at_jumps
    tree = definition(frame.code).tree
    origin = node
    body = [
        s
        for s in origin.body
        if isinstance(s, ast.stmt) and not hasattr(s, "run") and not hasattr(s, "action")
    ]
    found = set(live_before(body, frozenset()))
    if isinstance(origin, ast.While):
        found |= loads(origin.test)
    if frame.parent is not None or tree is None:
        return frozenset(found)
    inside = {id(n) for s in origin.body for n in ast.walk(s)} | {
        id(origin.target) if isinstance(origin, ast.For) else 0
    }
    found |= {
        n.id
        for n in ast.walk(tree)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and id(n) not in inside
    }
    return frozenset(found)
