"""Calls of functions that call themselves: functions of the Program.

A call whose arguments have the same form as those of a call that is being interpreted would never
end. Interpretation goes back to that call, which becomes a function: its params are the leaves of
the arguments and of the places that it changes, as for a loop; its results those of its value and
of these places. A recursive call is a CallOp. Its result type comes from the arm that does not
recurse: that arm is interpreted first, with the other one left out (`UnknownResult`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NoReturn

from stretto.frontends.python.aliasing.aliases import link, overlapping, storages_of
from stretto.frontends.python.interpreter.carried_state import CarriedState, renamed
from stretto.frontends.python.interpreter.forms import (
    FormLearning,
    MadeForm,
    is_tensor,
    list_kind,
    walk,
)
from stretto.frontends.python.interpreter.heap import ITEMS, HeapObject, PlaceChange, Table
from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.signals import (
    CaptureSignal,
    NeedsPeel,
    Poison,
    UnknownResult,
    abort,
    about_definition,
    fail,
)
from stretto.frontends.python.tracing.tensor import FunctionContext, Storage, TracedTensor
from stretto.frontends.python.tracing.tracer import TracedRegion, tracer
from stretto.frontends.python.values.data import DataObject, DataUnion
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.leaves import Carried, Slot
from stretto.frontends.python.values.scalars import LeafKind, decided_rows
from stretto.frontends.python.values.state import TracedList, equal_leaves, parts_of
from stretto.ir.core import Function, Value
from stretto.ir.ops import CallOp


class Again(CaptureSignal):
    """More must be known when the function is entered, so it is interpreted again."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadContent:
    """The content of everything that a function can reach when it is called."""

    tables: tuple[tuple[Table, Table], ...]
    storages: tuple[tuple[Storage, Any], ...]

    @staticmethod
    def of(heap: Any, roots: list[Any], captures: list[Value]) -> ReadContent:
        tables: list[tuple[Table, Table]] = []
        pending, seen, storages = list(roots), set[int](), list[tuple[Storage, Any]]()
        while pending:
            value = pending.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, HeapObject) or id(value) in heap.tables:
                table = heap.table_of(value)
                tables.append((table, dict(dict.items(table))))
            if isinstance(value, TracedTensor | TracedList):
                storages.append((value.memory, value.memory.state.base))
            pending += heap.referents(value)
        bases = set(captures)
        kept = [pair for pair in storages if isinstance(pair[1], Value) and pair[1] in bases]
        return ReadContent(tuple(tables), tuple(kept))

    def holds(self, heap: Any) -> bool:
        """True if nothing has changed since. What has only been read since is as it was."""
        changed = {(id(table), key) for table, key, _ in heap.trail}
        return all(
            known.keys() <= table.keys()
            and all(equal_leaves(dict.__getitem__(table, k), v) for k, v in known.items())
            and not any((id(table), k) in changed for k in table.keys() - known.keys())
            for table, known in self.tables
        ) and all(storage.state.base is base for storage, base in self.storages)


@dataclass(eq=False)
class FunctionSummary(CarriedState):
    """A function of the Program that is found by interpreting it until its forms stay."""

    name: str = ""
    code: CodeType | None = None
    key: Any = None
    given: Table = field(default_factory=dict)
    """The arguments, which are places like others."""
    result: Any = None
    captures: list[Value] = field(default_factory=list[Value])
    mutated: list[Slot] = field(default_factory=list[Slot])
    """Tensors among the arguments that are changed in place."""
    aliased: set[tuple[Slot, Any]] = field(default_factory=set[tuple[Slot, Any]])
    """Tensors among the arguments that may share memory, each with another one, or with a storage
    of an outer tensor."""
    shared: list[Any] = field(default_factory=list[Any])
    """Memory that results may share: slots of arguments, and storages of outer tensors."""
    returned: dict[int, Slot] = field(default_factory=dict[int, Slot])
    """Results that are an argument itself, by their number."""
    differing: set[int] = field(default_factory=set[int])
    """Results that are an argument on some paths only."""
    surroundings: ReadContent | None = None
    containers: list[HeapObject] = field(default_factory=list[HeapObject])
    """The program's containers among the arguments of the first call. A call with other ones uses
    these in their place."""
    pairs: list[tuple[HeapObject, HeapObject]] = field(
        default_factory=list[tuple[HeapObject, HeapObject]]
    )
    """Those of them for which the call that is being emitted has others, with these."""
    tables: dict[int, Table] = field(default_factory=dict[int, Table])
    """The tables of the containers of a call in place of these, by id."""
    depends: set[Any] = field(default_factory=set[Any])
    """The keys of functions that it calls and that were not finished when it was made."""
    dependents: set[Any] = field(default_factory=set[Any])
    """The keys of functions that depend on it."""
    depth: int = 0
    is_finished: bool = False
    returns_argument: bool = False
    """True if an object in the result may be one of the arguments."""
    has_other_result: bool = False
    """True if the last attempt has returned a value of another form."""

    def __post_init__(self) -> None:
        self.regions.heap.note(self.given)
        super().__post_init__()
        self.learning.where = "a recursive function is called"
        self.given = self.regions.heap.new_table()
        self.depth = tracer().scope.depth

    # -- arguments ------------------------------------------------------------------------------

    def take(self, arguments: tuple[Any, ...], *, is_loose: bool) -> None:
        """Make places of the arguments, and of the content of containers among them."""
        self.given.update(enumerate(arguments))
        self.containers = containers_in(arguments)
        for number, value in enumerate(arguments):
            self.add_place(self.given, number, value, is_loose=is_loose)
        for value in arguments:
            self.take_content(value, is_loose=is_loose)

    def take_content(self, value: Any, *, is_loose: bool) -> None:
        if isinstance(value, tuple):
            for item in value:
                self.take_content(item, is_loose=is_loose)
        elif isinstance(value, DataObject):
            return
        elif isinstance(value, HeapObject) or self.regions.heap.is_own(value):
            table = self.regions.heap.table_of(value)
            if any(change.table is table for change in self.changes.values()):
                return
            for key, item in list(table.items()):
                self.add_place(table, key, item, is_loose=is_loose)
                for inner in item if isinstance(item, tuple) else (item,):
                    self.take_content(inner, is_loose=is_loose)

    def add_place(self, table: Table, key: Any, value: Any, *, is_loose: bool) -> None:
        learning = FormLearning(self.regions, self.regions.heap.count, splits=True)
        form = learning.of_content(value) if key is ITEMS else learning.alone(value)
        if is_loose and key is ITEMS and isinstance(value, tuple) and value and list_kind(value):
            kind = list_kind(value)
            assert kind is not None
            form = Carried(kind, value)
        if self.code in tracer().hints.sized:
            for leaf in walk(form):
                if isinstance(leaf, Carried):
                    leaf.kind = decided_rows(leaf.kind)
        place = id(table), key
        self.forms[place] = form
        self.changes[place] = PlaceChange(table, key, value, value)

    def is_argument(self, slot: Slot) -> bool:
        return slot[0][0] == id(self.given)

    def current(self) -> Iterator[tuple[Slot, Carried, Any]]:
        """Yield the leaves of the carried places with what they hold now."""
        for place, form in self.forms.items():
            yield from self.spread(form, self.now(self.changes[place]), (place,))

    def now(self, change: PlaceChange) -> Any:
        """Return what a place holds when the function is called."""
        table = self.tables.get(id(change.table), change.table)
        names = {id(item): known for known, item in self.pairs}
        return renamed(self.readable(table.get(change.key, UNDEFINED)), names)

    def alias_pairs(self, held: dict[Slot, Any]) -> set[tuple[Slot, Any]]:
        """Return the pairs of tensors, or of a tensor and an outer storage, that may share
        memory."""
        found = set[tuple[Slot, Any]]()
        known: list[tuple[Slot, set[Storage]]] = []
        for slot, value in held.items():
            others = set[Storage]().union(*map(overlapping, storages_of(value)))
            for other, theirs in known:
                if not others.isdisjoint(theirs):
                    found.add((slot, other))
            known.append((slot, set(storages_of(value))))
            outer = (s for s in others if s.scope.open and s.scope.here.depth <= self.depth)
            found.update((slot, storage) for storage in outer)
        return found

    # -- interpretation -------------------------------------------------------------------------

    def attempt(self, run: Any) -> bool:
        """Interpret the function once. True if nothing new has been learned."""
        state, heap = tracer(), self.regions.heap
        context, mark = FunctionContext(self.name), heap.mark()
        frames = list(self.regions.interpreter.frames)
        known, runs = self.size(), self.regions.runs.copy()
        self.refresh()
        self.regions.depth += 1
        self.regions.rounds.append(object())
        try:
            with self.regions.loop(None), state.region(context) as region:
                self.region = region
                params = self.begin()
                for value in self.captures:
                    context.captures[value] = state.param(value.type, value.hint)
                for slot, other in self.aliased:
                    if slot in self.made and (isinstance(other, Storage) or other in self.made):
                        link(self.made[slot], [self.made.get(other, other)])
                before = {
                    slot: made.memory.state.base
                    for slot, made in self.made.items()
                    if is_tensor(made)
                }
                self.begun = heap.count
                result = run(tuple(self.given[number] for number in range(len(self.given))))
                with about_definition(self.code):  # type: ignore[arg-type]
                    settled = self.learn_result(result)
                    settled &= self.learn(region, mark, is_last=False)
                for slot, base in before.items():
                    if self.made[slot].memory.state.base is not base and slot not in self.mutated:
                        self.check_size(slot)
                        self.mutated.append(slot)
                leaves = [item for _, _, item in self.spread(self.result, result, ())]
                settled &= self.learn_shared(leaves)
                self.learn_returned_arguments()
                self.captures = list(context.captures)
                settled &= known == self.size() and len(params) == len(self.kinds())
                if settled:
                    self.complete(context, region, params, leaves)
                return settled
        except Again:
            self.captures = list(context.captures)
            return False
        finally:
            self.regions.depth -= 1
            self.regions.rounds.pop()
            self.regions.interpreter.frames[:] = frames
            self.regions.runs = runs
            heap.undo(mark)

    def check_size(self, slot: Slot) -> None:
        leaf = next(leaf for known, leaf in self.order if known == slot)
        if leaf.kind.rows is not None:
            with about_definition(self.code):  # type: ignore[arg-type]
                fail(
                    f"'{self.shown}' calls itself with tensors whose size data decide, another one "
                    "on each level, and changes one of them in place",
                    "return the changed tensor, or compile with fallback=True",
                )

    def size(self) -> tuple[int, ...]:
        return len(self.captures), len(self.mutated), len(self.aliased)

    def learn_result(self, result: Any) -> bool:
        if isinstance(result, Poison):
            result.fail_at_origin()
        if tracer().data is not None:
            tracer().data.learn_result(result)
            kind = tracer().data.kind_of_result(self.code, result)
            if kind is not None:
                before = self.result
                same = before is not None and before.kind == kind
                self.result = before if same else Carried(kind, UNDEFINED, result)
                self.has_other_result = before is not None and not same
                return same
        before = self.result
        if before is None:
            self.result = self.learning.alone(result)
        else:
            try:
                self.result = self.learning.wider(before, UNDEFINED, result, "<value")
            except NeedsPeel:
                if tracer().data is not None:
                    tracer().data.let_be_data(result)
                    tracer().data.let_result_be_data(self.code)
                self.fail_result()
        self.has_other_result = before is not None and self.result is not before
        return self.result is before

    @property
    def shown(self) -> str:
        """The name of the function in the source."""
        return self.code.co_name if self.code else self.name

    def fail_result(self) -> NoReturn:
        fail(
            f"the recursive function '{self.shown}' returns values of different structure",
            "return the same structure in all cases; where the length of a list differs, pass a "
            "list as an argument and append to it",
        )

    def learn_returned_arguments(self) -> None:
        """Find out if an object in the result may be one of the arguments."""
        heap, given = self.regions.heap, [*self.built.values(), *self.containers]
        held = [form.end for form in walk(self.result) if isinstance(form, MadeForm)]
        self.returns_argument |= any(
            item is made or heap.are_copies(item, made) for item in held for made in given
        )

    def learn_shared(self, leaves: list[Any]) -> bool:
        """Learn which memory the results may share. True if the same results are arguments as
        before."""
        reached = set[Storage]().union(*map(overlapping, storages_of(leaves)))
        tensors = {slot: made for slot, made in self.made.items() if is_tensor(made)}
        slots = [slot for slot, tensor in tensors.items() if tensor.memory in reached]
        outer = (s for s in reached if s.scope.open and s.scope.here is not self.region.scope)
        self.shared = [*slots, *outer]
        returned = {
            number: slot
            for number, leaf in enumerate(leaves)
            for slot, tensor in tensors.items()
            if number not in self.differing and leaf is tensor
        }
        self.differing |= self.returned.keys() - returned.keys()
        known, self.returned = self.returned, returned
        return known == returned

    def complete(
        self,
        context: FunctionContext,
        region: TracedRegion,
        params: tuple[Value, ...],
        leaves: list[Any],
    ) -> None:
        """Make the function: its yields are the results, and what it has changed."""
        state = tracer()
        kinds = [leaf.kind for _, leaf, _ in self.spread(self.result, UNDEFINED, ())]
        yields = [self.value_of(leaf, kind) for leaf, kind in zip(leaves, kinds, strict=True)]
        yields += [state.read(self.made[slot]) for slot in self.mutated]
        values = zip(self.order, self.ends, strict=True)
        yields += [value for (slot, _), value in values if not self.is_argument(slot)]
        yields += [state.current(storage) for storage in self.storages]
        block = region.scope.block
        block.params = (*params, *context.captures.values())
        block.yields = tuple(yields)
        state.close_function(context, block)
        state.functions[self.name] = Function(self.name, block)

    # -- calls ----------------------------------------------------------------------------------

    def call(self, arguments: tuple[Any, ...], *, is_first: bool = False) -> Any:
        """Emit a call of the function, and return its result."""
        if self.result is None:
            raise UnknownResult(
                self.key,
                abort(
                    f"the recursive function '{self.shown}' has no base case: "
                    "each path calls it again",
                    "add a branch that returns without recursion",
                ),
            )
        before, placed = dict(self.given), (self.made, self.built)
        self.given.update(enumerate(arguments))
        self.made, self.built, self.is_called = {}, {}, True
        self.pairs = self.other_containers(arguments)
        self.renaming = {id(known): item for known, item in self.pairs}
        self.tables = {id(known.table): item.table for known, item in self.pairs}
        try:
            return self.emit_call(is_first=is_first)
        finally:
            self.given.update(before)
            (self.made, self.built), self.is_called = placed, False
            self.pairs, self.renaming, self.tables = [], {}, {}

    def other_containers(self, arguments: tuple[Any, ...]) -> list[tuple[HeapObject, HeapObject]]:
        """Return the containers of the first call for which this one has others, with these."""
        pairs = zip(self.containers, containers_in(arguments), strict=True)
        return [(known, item) for known, item in pairs if known is not item]

    def emit_call(self, *, is_first: bool) -> Any:
        state = tracer()
        if not is_first:
            self.enter_again()
        held = {slot: (leaf, item) for slot, leaf, item in self.current()}
        if not is_first:
            self.learn_aliases({slot: item for slot, (_, item) in held.items() if is_tensor(item)})
        values = [self.value_of(item, leaf.kind) for leaf, item in held.values()]
        values += [state.current(storage) for storage in self.storages]
        values += [state.use(value) for value in self.captures]
        own = [leaf.kind for _, leaf, _ in self.spread(self.result, UNDEFINED, ())]
        changed = [held[slot][0].kind for slot in self.mutated]
        rest = [leaf.kind for slot, (leaf, _) in held.items() if not self.is_argument(slot)]
        rest += [LeafKind(state.type_in(s.state), False) for s in self.storages]
        types = [kind.type for kind in (*own, *changed, *rest)]
        results = state.emit(CallOp(self.name, tuple(values)), types)
        self.put_back(results[len(own) + len(changed) :])
        for slot, value in zip(self.mutated, results[len(own) :], strict=False):
            state.assign(held[slot][1], value)
        sources = [held[item][1] if isinstance(item, tuple) else item for item in self.shared]
        return self.built_result(results[: len(own)], held, sources)

    def built_result(
        self,
        values: tuple[Value, ...],
        held: dict[Slot, Any],
        sources: list[Any],
    ) -> Any:
        self.made = {}
        slots = [slot for slot, _, _ in self.spread(self.result, UNDEFINED, ())]
        self.known = {slots[number]: held[slot][1] for number, slot in self.returned.items()}
        try:
            result = self.build(self.result, iter(values), (), True, None)
        finally:
            self.known = {}
        for made in self.made.values():
            link(made, sources)
        if self.returns_argument:
            holders = containers_in(tuple(self.given.values()))
            self.regions.heap.note_copies([*self.objects_in(result), *holders])
        return result

    def objects_in(self, value: Any) -> list[Any]:
        """Return the objects in a result that the call has made."""
        if isinstance(value, HeapObject):
            return [value]
        parts = parts_of(value)
        return [] if parts is None else [x for part in parts for x in self.objects_in(part)]

    def put_back(self, values: tuple[Value, ...]) -> None:
        """Set the places that the function has changed."""
        supply, heap = iter(values), self.regions.heap
        for place, form in self.forms.items():
            change = self.changes[place]
            if change.table is not self.given:
                made = self.build(form, supply, (place,), True, None)
                table = self.tables.get(id(change.table))
                if table is None:
                    heap.put(change.table, change.key, made)
                else:
                    heap.set(table, change.key, made)
        for storage in self.storages:
            before = storage.state
            tracer().set_state(storage, type(before)(next(supply)))

    def enter_again(self) -> None:
        """Learn what this call needs that the first one does not."""
        if self.is_finished:
            return
        for place, form in self.forms.items():
            change = self.changes[place]
            wider = self.learning.wider(form, change.old, self.now(change), change.key)
            if wider is not form:
                self.forms[place] = wider
                raise Again

    def learn_aliases(self, held: dict[Slot, Any]) -> None:
        """Learn how the arguments of this call may share memory where those of the first call do
        not."""
        found = self.alias_pairs(held)
        if found <= self.aliased:
            return
        if not self.is_finished:
            self.aliased |= found
            raise Again
        pairs = {pair for pair in found - self.aliased if isinstance(pair[1], tuple)}
        if pairs and (self.mutated or self.storages):
            fail(
                f"'{self.shown}' changes a tensor in place, and its arguments may share memory",
                "pass a clone() of one of them",
            )

    def is_usable(self, function: Any, arguments: tuple[Any, ...]) -> bool:
        """True if a call may use the function: it would read the same."""
        if len(containers_in(arguments)) != len(self.containers):
            return False
        others = self.other_containers(arguments)
        if others and self.reaches(function, arguments, others):
            return False
        if not self.is_finished:
            return True
        known = all(tracer().is_known(value) for value in self.captures)
        return (
            known and self.surroundings is not None and self.surroundings.holds(self.regions.heap)
        )

    def reaches(
        self,
        function: Any,
        arguments: tuple[Any, ...],
        others: list[tuple[HeapObject, HeapObject]],
    ) -> bool:
        """True if the function can reach a container that differs from the first call's in another
        way than through the arguments."""
        heap = self.regions.heap
        wanted = {id(item) for pair in others for item in pair}
        outside = (entry for entry in heap.trail if id(entry[0]) not in heap.births)
        pending = [function, *parts_of_arguments(arguments)[1]]
        pending += [table.get(key) for table, key, _ in outside]
        seen = set[int]()
        while pending:
            value = pending.pop()
            if id(value) in wanted:
                return True
            if id(value) not in seen:
                seen.add(id(value))
                pending += heap.referents(value)
        return False


def containers_in(arguments: tuple[Any, ...]) -> list[HeapObject]:
    return parts_of_arguments(arguments)[0]


def parts_of_arguments(arguments: tuple[Any, ...]) -> tuple[list[HeapObject], list[Any]]:
    """Return the containers of the program in the arguments of a call, in the order of the key,
    and the other values there."""
    found: dict[int, HeapObject] = {}
    others: list[Any] = []

    def visit(value: Any) -> None:
        if isinstance(value, DataObject | DataUnion):
            return
        if isinstance(value, HeapObject) and value.origin is None:
            if id(value) not in found:
                found[id(value)] = value
                for item in list(value.table.values()):
                    visit(item)
            return
        match value:
            case dict():
                parts = list(value.values())
            case Either():
                parts = list(value.stretto_options)
            case tuple():
                parts = list(value)
            case _:
                others.append(value)
                return
        for part in parts:
            visit(part)

    visit(arguments)
    return list(found.values()), others
