"""Joins of the ends of two arms.

Places that either arm has changed get a joint value. Leaves that differ become results of the IfOp.
Containers and objects that both arms have made become one, whose parts are joint values; what only
one arm has stays as it is, with parts that are never read if the other arm ran. Everything else is
one of several values.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.aliasing.joined import JoinedAliases
from stretto.frontends.python.interpreter.forms import is_empty, list_kind
from stretto.frontends.python.interpreter.frames import (
    BoundMethod,
    End,
    Perhaps,
    has_value,
)
from stretto.frontends.python.interpreter.heap import (
    ITEMS,
    MISSING,
    AttributeTable,
    HeapObject,
    Place,
    PlaceChange,
    Table,
)
from stretto.frontends.python.tracing.signals import Poison, fail
from stretto.frontends.python.tracing.tensor import ListLength, Storage, StorageState, TracedTensor
from stretto.frontends.python.tracing.tracer import TracedRegion, tracer
from stretto.frontends.python.values.data import DataObject, DataUnion
from stretto.frontends.python.values.either import NONE, Either
from stretto.frontends.python.values.leaves import (
    device_of,
    is_data,
    kind_beside,
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
    TracedList,
    are_of_one_form,
    equal_leaves,
    parts_of,
    rebuild_tuple,
)
from stretto.ir.core import Op, Value
from stretto.ir.ops import IfOp
from stretto.ir.sizes import Size
from stretto.ir.symbols import dims_of
from stretto.ir.types import Dim
from stretto.ops.effects import may_have_effect, may_stop

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.regions import Regions


@dataclass(eq=False)
class TracedArm:
    """The end of an arm: its block, its changes of the heap and of tensors' memory, its result.

    born: the number of tables at its start.
    """

    region: TracedRegion
    changes: dict[Place, PlaceChange]
    states: dict[Storage, StorageState]
    result: Any
    born: int

    @cached_property
    def of_tables(self) -> dict[int, dict[Any, Any]]:
        """The changed values of each table, by its id."""
        found: dict[int, dict[Any, Any]] = {}
        for (number, key), change in self.changes.items():
            found.setdefault(number, {})[key] = change.new
        return found

    def inside(self, table: Table) -> Table:
        """Return the content of a table at the end of the arm."""
        return {**table, **self.of_tables.get(id(table), {})}

    def stale(self, value: Any) -> Poison | None:
        """Return the poison for a tensor or list that cannot be read at the end of the arm; else
        None."""
        if not isinstance(value, TracedTensor | TracedList):
            return None
        stale = self.states.get(value.memory, value.memory.state).stale
        return None if stale is None else Poison.of(stale)


@dataclass(eq=False, slots=True)
class JoinedLeaf:
    """One result of the IfOp: the values that the arms yield, and the joint value."""

    first: Any
    second: Any
    kind: LeafKind
    value: Value
    made: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class LiveNames:
    """The variables of a frame that may be read after a branch."""

    table: Table
    names: frozenset[str]

    def lack(self, table: Table, key: Any) -> bool:
        """True for a variable of the frame that nothing reads any more."""
        return table is self.table and key not in self.names and not key.startswith("<")

    def unread(self, key: str) -> Poison:
        return Poison(f"'{key}' is read after a branch that sets it", "assign it before the branch")


@dataclass(eq=False)
class ArmJoin:
    """Joins the ends of two arms: `run` emits the IfOp, and sets the joint state."""

    regions: Regions
    first: TracedArm
    second: TracedArm
    flag: Value
    live: LiveNames | None = None
    pairs: list[JoinedLeaf] = field(default_factory=list[JoinedLeaf])
    """The results of the IfOp."""
    memo: dict[tuple[int, int], Any] = field(default_factory=dict[tuple[int, int], Any])
    """Joint values by the ids of the values in the arms, so that equal pairs stay one object."""
    joint: dict[tuple[int, bool], Any] = field(default_factory=dict[tuple[int, bool], Any])
    """The value that represents one of an arm after the branch, by its id, and True for the second
    arm."""
    filled: list[tuple[Table, Table]] = field(default_factory=list[tuple[Table, Table]])
    """Tables of objects that an arm has made, with their joint content."""
    sizes: dict[Any, Dim] = field(default_factory=dict[Any, Dim])
    """Sizes of tensors whose size differs in the arms, by their sizes in the arms."""
    behind: list[Op] = field(default_factory=list[Op])
    """Ops on results of the branch, to be placed after it."""
    keep: list[Any] = field(default_factory=list[Any])
    """Values kept alive, since their ids are keys."""
    tables: tuple[Table, ...] = ()
    """The tables of the containers whose contents are joined."""
    is_divided: bool = False
    """True if a value has different kinds at the ends of the arms."""

    def run(self, *, joins_ends: bool) -> Any:
        heap = self.regions.heap
        joined: list[tuple[Table, Any, Any]] = []
        for place in {**self.first.changes, **self.second.changes}:
            one, other = self.first.changes.get(place), self.second.changes.get(place)
            known = one or other
            assert known is not None
            if heap.is_born_after(known.table, self.first.born):
                continue
            if self.live is not None and self.live.lack(known.table, known.key):
                joined.append((known.table, known.key, self.live.unread(known.key)))
                continue
            self.tables = known.table, known.table
            a = known.old if one is None else one.new
            b = known.old if other is None else other.new
            joined.append((known.table, known.key, self.value(a, b, known.key)))
        results = self.first.result, self.second.result
        result = self.ends() if joins_ends else self.value(*results, "the result")
        writes = self.storages()
        kept = [pair for pair in self.pairs if pair.made is not None]
        aliases = JoinedAliases(kept, self.flag, (self.first.region, self.second.region))
        self.pairs += [JoinedLeaf(a, b, kind, value) for a, b, kind, value in aliases.shared()]
        op = self.emit()
        if op is not None:
            aliases.record(op)
        for table, content in self.filled:
            for key, value in content.items():
                heap.put(table, key, value)
        for table, key, value in joined:
            heap.put(table, key, value)
        for storage, after in writes:
            tracer().set_state(storage, after)
        return result

    def arm(self, in_second: bool) -> TracedArm:
        return self.second if in_second else self.first

    # -- joint values ---------------------------------------------------------------------------

    def value(self, first: Any, second: Any, name: Any) -> Any:
        """Return the joint value of a place or a part."""
        key = id(first), id(second)
        if key not in self.memo:
            self.keep += [first, second]
            self.memo[key] = self._value(first, second, name)
        return self.memo[key]

    def _value(self, first: Any, second: Any, name: Any) -> Any:
        if first is second:
            return first
        for side, arm in ((first, self.first), (second, self.second)):
            if isinstance(side, Poison):
                return side
            stale = arm.stale(side)
            if stale is not None:
                return stale
        if first is MISSING or second is MISSING:
            return self.either(first, second, name)
        if equal_leaves(first, second):
            return first
        if isinstance(first, DataUnion) or isinstance(second, DataUnion):
            kind = self.kind(first, second)
            if kind is not None:
                return self.leaf(first, second, kind)
        if isinstance(first, Either) or isinstance(second, Either):
            return self.either(first, second, name)
        if name is ITEMS:
            return self.content(first, second)
        kind = self.kind(first, second)
        if first is True and second is False:
            return tracer().number(self.flag)
        if kind is not None:
            return self.leaf(first, second, kind)
        if are_of_one_form(first, second):
            pairs = zip(parts_of(first) or (), parts_of(second) or (), strict=True)
            return rebuild_tuple(
                first, [self.value(a, b, f"{name}[{n}]") for n, (a, b) in enumerate(pairs)]
            )
        if self.become_one(first, second):
            return self.made(first, second)
        return self.either(first, second, name)

    def kind(self, first: Any, second: Any) -> LeafKind | None:
        """Return the kind of a leaf that can hold both values; None if there is none."""
        kind = kind_of(first)
        other = kind_beside(second, kind)
        kinds = kind_beside(first, other), other
        if kinds[0] is None or kinds[1] is None:
            return None
        return unify(kinds[0], kinds[1]) or unify_rows(kinds[0], kinds[1], promote=False)

    def content(self, first: Any, second: Any) -> Any:
        """Join the contents of a container."""
        if isinstance(first, dict) and isinstance(second, dict):
            keys = _joint_order(first, second)
            return {
                key: self.value(first.get(key, MISSING), second.get(key, MISSING), f"[{key!r}]")
                for key in keys
            }
        if isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
            pairs = enumerate(zip(first, second, strict=True))
            return tuple(self.value(a, b, f"[{n}]") for n, (a, b) in pairs)
        if tracer().data is not None:
            tracer().data.become_data(*self.tables)
        kinds = [list_kind(side) for side in (first, second) if not is_empty(side)]
        kind = kinds[0]
        for other in kinds[1:]:
            kind = unify(kind, other) if kind and other else None
        if kind is None:
            return self.either(first, second, "the content of a list")
        one, two = (list(s) if isinstance(s, tuple) else s for s in (first, second))
        return self.leaf(one, two, kind)

    def is_made(self, value: Any, in_second: bool) -> bool:
        """True for a container or an object that the arm has made."""
        heap = self.regions.heap
        if not isinstance(value, HeapObject) and not heap.is_own(value):
            return False
        return heap.is_born_after(heap.table_of(value), self.arm(in_second).born)

    def become_one(self, first: Any, second: Any) -> bool:
        """True if one object can represent those of both arms after the branch."""
        heap, type_of = self.regions.heap, self.regions.interpreter.attributes.type_of
        for side in (first, second):
            if isinstance(side, types.FunctionType | type | DataObject):
                return False
            if isinstance(heap.table_of(side), AttributeTable):
                return False
            if not (side.origin is None if isinstance(side, HeapObject) else heap.is_own(side)):
                return False
        if type_of(first) is not type_of(second):
            return False
        if tracer().keeps_apart and not (self.is_made(first, False) and self.is_made(second, True)):
            return False
        if (id(first), False) in self.joint or (id(second), True) in self.joint:
            return False
        tables = heap.table_of(first), heap.table_of(second)
        return self.first.inside(tables[0]).keys() == self.second.inside(tables[1]).keys()

    def made(self, first: Any, second: Any) -> Any:
        """Join two objects: a new one represents both."""
        heap = self.regions.heap
        a, b = self.first.inside(heap.table_of(first)), self.second.inside(heap.table_of(second))
        joint = heap.new_like(first)
        self.memo[id(first), id(second)] = joint
        self.joint[id(first), False] = self.joint[id(second), True] = joint
        old = [
            item
            for item, side in ((first, False), (second, True))
            if not self.is_made(item, side) or id(heap.table_of(item)) in heap.copies
        ]
        heap.note_copies([joint, *old])
        content: Table = {}
        self.filled.append((heap.table_of(joint), content))
        for key in a:
            self.tables = heap.table_of(first), heap.table_of(second)
            content[key] = self.value(a[key], b[key], key)
        return joint

    def leaf(self, first: Any, second: Any, kind: LeafKind) -> Any:
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
                layout=layout_of(first, second),
            )
        self.behind += block.ops[before:]
        del block.ops[before:]
        self.pairs.append(JoinedLeaf(first, second, kind, value, made))
        return made

    # -- values that are one of several ---------------------------------------------------------

    def either(self, first: Any, second: Any, name: Any) -> Any:
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
                options.append(self.guarded(other if one is NONE else one, one is NONE))
            else:
                options.append(self.value(one, other, name))
        poison = next((item for item in options if isinstance(item, Poison)), None)
        if len(options) == 1 or poison is not None:
            return options[0] if poison is None else poison
        self.is_divided |= not any(option is MISSING for option in options)
        return Either(flags, options)

    def _possible(self, value: Any, taken: bool) -> list[tuple[Any, Any]]:
        """Return the options of a value at the end of an arm, each with its flag."""
        if not isinstance(value, Either) or isinstance(value, DataUnion):
            return [(True, value)]
        with assuming(self.flag, taken):
            pairs = possible(value)
        return [(True, pairs[0][1])] if len(pairs) == 1 else pairs

    def _flag(self, first: Any, second: Any) -> Any:
        if first is True and second is False:
            return tracer().number(self.flag)
        if first is False and second is True:
            return negation(self.flag)
        return self.value(first, second, "flag")

    def _joins(self, first: Any, second: Any) -> bool:
        """True if one value can represent two options."""
        if first is second or equal_leaves(first, second):
            return True
        if first is MISSING or second is MISSING:
            return False
        if self.kind(first, second) is not None or are_of_one_form(first, second):
            return True
        return (id(first), id(second)) in self.memo or self.become_one(first, second)

    def guarded(self, value: Any, in_second: bool) -> Any:
        """Return what represents a value that only one arm has: a placeholder, which is never read,
        stands for it in the other."""
        key = id(value), in_second
        if key not in self.joint:
            self.keep.append(value)
            self.joint[key] = self._guarded(value, in_second)
        return self.joint[key]

    def _guarded(self, value: Any, in_second: bool) -> Any:
        if isinstance(value, bool | int | float):
            return value
        stale = self.arm(in_second).stale(value)
        if stale is not None:
            return stale
        kind = kind_of(value)
        if kind is not None:
            if isinstance(value, TracedTensor | TracedList) and self._outlives(value):
                return value
            kind = kind_after_branch(kind)
            return self.leaf(NONE, value, kind) if in_second else self.leaf(value, NONE, kind)
        parts = parts_of(value)
        if parts is not None:
            return rebuild_tuple(value, [self.guarded(item, in_second) for item in parts])
        if isinstance(value, types.MethodType):
            held, function = value.__self__, value.__func__
            found, of = self.guarded(held, in_second), self.guarded(function, in_second)
            return value if found is held and of is function else types.MethodType(of, found)
        if isinstance(value, BoundMethod):
            held = self.guarded(value.holder, in_second)
            return value if held is value.holder else BoundMethod(held, value.name)
        self.guard_tables(value, in_second)
        return value

    def guard_tables(self, value: Any, in_second: bool) -> None:
        """Keep the content of an object that an arm has made, and of what it refers to."""
        heap, arm = self.regions.heap, self.arm(in_second)
        self.joint[id(value), in_second] = value
        for holder in _holders(value):
            if holder is not value:
                if self.guarded(holder, in_second) is not holder:
                    fail(
                        "a method or function leaves an arm of a branch on a tensor whose object "
                        "leaves it as another one",
                        "look the method up after the branch",
                    )
            elif (isinstance(value, HeapObject) or heap.is_own(value)) and self.is_made(
                value, in_second
            ):
                content: Table = {}
                self.filled.append((heap.table_of(value), content))
                for key, item in arm.inside(heap.table_of(value)).items():
                    content[key] = self.guarded_content(item, in_second)

    def guarded_content(self, item: Any, in_second: bool) -> Any:
        if isinstance(item, dict):
            return {key: self.guarded(value, in_second) for key, value in item.items()}
        return self.guarded(item, in_second)

    def _outlives(self, value: TracedTensor | TracedList) -> bool:
        """True if a tensor or list was there before the branch, so that it is the same after it.
        False for a row at a traced position, or of a tensor of unknown size: only the arm knows
        that the row exists."""
        steps = value.steps if isinstance(value, TracedTensor) else ()
        rows = [step for step in steps if step.target == "aten.select.int"]
        if any(step.values for step in rows):
            return False
        sizes = dims_of(tracer().type_in(value.memory.state)) if rows else ()
        if any(isinstance(size, Size) for size in sizes):
            return False
        values = [item for step in steps for item in step.values]
        return value.memory.scope.open and all(map(tracer().is_known, values))

    # -- ends of blocks -------------------------------------------------------------------------

    def ends(self) -> Any:
        """Join how two blocks end."""
        (a, first), (b, second) = _jumps(self.first.result), _jumps(self.second.result)
        if not a and not b:
            return None
        if first is MISSING or second is MISSING:
            value = second if first is MISSING else first
            value = value if value is MISSING else self.guarded(value, first is MISSING)
        else:
            value = self.value(first, second, "the returned value")
        flags = {jump: self._flag(a.get(jump, False), b.get(jump, False)) for jump in {**a, **b}}
        if len(flags) == 1 and next(iter(flags.values())) is True:
            (jump,) = flags
            return End(jump, None if value is MISSING else value)
        return Perhaps(flags, value)

    # -- memory and the op ----------------------------------------------------------------------

    def storages(self) -> list[tuple[Storage, StorageState]]:
        """Return the states after the branch of storages that were written in it."""
        writes = list[tuple[Storage, StorageState]]()
        state = tracer()
        for storage in {**self.first.states, **self.second.states}:
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
            type = next(s.base for s in (first, second) if isinstance(s.base, Value)).type
            value = Value(type)
            state.home[value] = state.scope
            self.pairs.append(JoinedLeaf(storage, storage, LeafKind(type, False), value))
            length = first.length if first.length == second.length else ListLength(object(), 0)
            writes.append((storage, StorageState(value, length)))
        return writes

    def emit(self) -> IfOp | None:
        """Emit the IfOp; return None if it has no results and its arms no effects."""
        arms = (self.first.region.scope.block, self.second.region.scope.block)
        ops = (op for arm in arms for op in arm.walk())
        if not self.pairs and not any(may_have_effect(o) or may_stop(o) for o in ops):
            return None
        for arm, side in ((self.first, 0), (self.second, 1)):
            with tracer().reopened(arm.region, arm.states):
                arm.region.scope.block.yields = tuple(
                    _yielded((pair.first, pair.second)[side], pair.kind) for pair in self.pairs
                )
        op = IfOp(self.flag, *arms)
        tracer().place(op, tuple(pair.value for pair in self.pairs))
        tracer().scope.block.ops += self.behind
        return op


def _jumps(end: Any) -> tuple[dict[str, Any], Any]:
    """Return how a block ends as flags, and the value that it returns."""
    match end:
        case End(jump=jump, value=value):
            return {jump: True}, value if has_value(jump) else MISSING
        case Perhaps(flags=flags, value=value):
            return flags, value
        case _:
            return {}, MISSING


def _flag_of(pairs: list[tuple[Any, Any]], option: Any) -> Any:
    """Return the flag of an option; False for NONE."""
    return next((flag for flag, item in pairs if item is option), False)


def _holders(value: Any) -> Iterator[Any]:
    """Yield an object, and those to which it refers itself, not through its table."""
    yield value
    match value:
        case types.FunctionType():
            yield from value.__closure__ or ()
        case functools.partial():
            yield from (value.func, *value.args, *value.keywords.values())
        case _:
            pass


def _yielded(leaf: Any, kind: LeafKind) -> Value:
    if leaf is NONE or (leaf is None and not is_data(kind)):
        return placeholder(kind)
    if isinstance(leaf, Storage):
        return tracer().current(leaf)
    return materialize(leaf, kind)


def _joint_order(first: dict[Any, Any], second: dict[Any, Any]) -> list[Any]:
    """Return the keys that the arms leave in a dict, in an order that is right for both. Fails if
    those that both leave are in different order."""
    if [key for key in first if key in second] != [key for key in second if key in first]:
        fail(
            "the keys of a dict have another order after one arm of a branch on a tensor",
            "change the order outside of the branch, or use a list",
        )
    found: list[Any] = []
    others = iter(second)
    for key in first:
        if key in second:
            found += itertools.takewhile(
                lambda other, at=key: other is not at and other != at, others
            )
        found.append(key)
    return [*found, *others]
