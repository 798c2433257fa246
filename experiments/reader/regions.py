"""Branches and loops of the program: arms and bodies are run on the heap, and their changes joined.

An arm is run, its changes are read off the heap's trail and undone. The values of a place at the
ends of the two arms are joined; those of a loop at the start and the end of its body are made one
form, by running the body again until the forms stay. Forms are trees whose leaves are values of the
program.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from experiments.reader.heap import ITEMS, MISSING, Change, Place, Ref, Table, rebuild_tuple
from stretto.frontends.python.source.syntax_trees import live_before, loads
from stretto.frontends.python.tracing.signals import Abort, NeedsUnroll, Poison, UnknownResult, fail
from stretto.frontends.python.tracing.tensor import SIZE_BITS, Storage, StorageState, TracedTensor
from stretto.frontends.python.tracing.tracer import TracedRegion, tracer
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.leaves import (
    device_of,
    items_kind,
    kind_of,
    layout_of,
    loops_of,
    materialize,
    placeholder,
    to_traced_list,
    wrap,
)
from stretto.frontends.python.values.raises import RaisingArm, check, leave, raises, stop_at
from stretto.frontends.python.values.scalars import (
    LeafKind,
    assuming,
    flag_of,
    logical,
    most_bits,
    unify,
)
from stretto.frontends.python.values.state import TracedList, equal_leaves
from stretto.frontends.python.values.texts import is_text
from stretto.ir.core import Block, Value
from stretto.ir.ops import ForOp, IfOp, WhileOp
from stretto.ir.types import FLAG, INDEX, TensorListType

if TYPE_CHECKING:
    from experiments.reader.interpreter import Frame, Interpreter

RETURN, BREAK, CONTINUE = "return", "break", "continue"


@dataclass(eq=False)
class Arm:
    """The end of an arm: its block, its changes of the heap and of tensors' memory, its result."""

    region: TracedRegion
    changes: dict[Place, Change]
    states: dict[Storage, StorageState]
    result: Any
    born: int


class Regions:
    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap
        self.depth = 0

    # -- values that are bound in some runs -----------------------------------------------------

    def is_bound(self, value: Any) -> Any:
        if value is MISSING:
            return False
        if isinstance(value, Either) and any(x is MISSING for x in value.stretto_options):
            pairs = zip(value.stretto_flags, value.stretto_options, strict=True)
            return self.negated(self.any_of([f for f, x in pairs if x is MISSING]))
        return True

    def bound(self, value: Any, name: str) -> Any:
        """Return a value that is surely there; the program checks it, if only the run knows."""
        if isinstance(value, Poison):
            value.fail()
        found = self.is_bound(value)
        if found is True or found is False:
            return value
        check(
            found,
            "UnboundLocalError",
            f"cannot access local variable '{name}' where it is not associated with a value",
        )
        pairs = [
            (flag, x)
            for flag, x in zip(value.stretto_flags, value.stretto_options, strict=True)
            if x is not MISSING
        ]
        return pairs[0][1] if len(pairs) == 1 else Either(*zip(*pairs, strict=True))

    def any_of(self, flags: Iterable[Any]) -> Any:
        return reduce(self.either_flag, flags)

    def either_flag(self, one: Any, other: Any) -> Any:
        if isinstance(one, bool):
            return one or other
        if isinstance(other, bool):
            return True if other else one
        return tracer().number(logical("or", flag_of(one), flag_of(other)))

    def negated(self, flag: Any) -> Any:
        return (
            not flag if isinstance(flag, bool) else tracer().number(logical("not", flag_of(flag)))
        )

    def each_option(self, value: Either, operation: Callable[[Any], Any]) -> Any:
        (flag, option), *rest = zip(value.stretto_flags, value.stretto_options, strict=True)
        if not rest:
            return operation(option)
        other = rest[0][1] if len(rest) == 1 else Either(*zip(*rest, strict=True))
        following = (
            (lambda: operation(other))
            if not isinstance(other, Either)
            else (lambda: self.each_option(other, operation))
        )
        if isinstance(flag, bool):
            return operation(option) if flag else following()
        return self.branch(flag, lambda: operation(option), following)

    def choose(self, flag: Any, first: Any, second: Any) -> Any:
        if isinstance(flag, bool):
            return first if flag else second
        return self.branch(flag, lambda: first, lambda: second)

    def forced(self, end: Any) -> Any:
        """Return the end of a block that has ended, in the arm that knows so."""
        from experiments.reader.interpreter import End, Perhaps

        if len(end.flags) == 1:
            (jump,) = end.flags
            return End(jump, None if end.value is MISSING else end.value)
        return end

    # -- branches -------------------------------------------------------------------------------

    def branch(
        self,
        condition: Any,
        then: Callable[[], Any],
        orelse: Callable[[], Any],
        *,
        joins_ends: bool = False,
    ) -> Any:
        """Run both arms, and return their joint result. joins_ends: it says how a block ends."""
        if isinstance(condition, bool):
            return then() if condition else orelse()
        flag = flag_of(condition)
        arms = [self.arm(then, flag, True), self.arm(orelse, flag, False)]
        for arm, when in zip(arms, (True, False), strict=True):
            if isinstance(arm, RaisingArm):
                leave(flag, when, arm)
        first, second = arms
        if isinstance(first, UnknownResult) or isinstance(second, UnknownResult):
            only = next((arm for arm in arms if isinstance(arm, Arm)), None)
            if only is None:
                raise first if isinstance(first, UnknownResult) else second
            return self.go_on(only)
        if isinstance(first, Arm) and isinstance(second, Arm):
            return Join(self, first, second, flag, condition).run(joins_ends=joins_ends)
        only = next((arm for arm in arms if isinstance(arm, Arm)), None)
        if only is None:
            assert isinstance(first, RaisingArm)
            raise first.again()
        return self.go_on(only)

    def arm(
        self, run: Callable[[], Any], flag: Value, taken: bool
    ) -> Arm | RaisingArm | UnknownResult:
        mark, born = self.heap.mark(), self.heap.count
        frames = list(self.interpreter.frames)
        self.depth += 1
        try:
            with tracer().region() as region, assuming(flag, taken):
                try:
                    result = run()
                except UnknownResult as unknown:
                    return unknown
                except Exception as error:
                    if not raises(error):
                        raise
                    return stop_at(region, error)
                states = {storage: storage.state for storage in region.before}
                return Arm(region, self.heap.changes(mark), states, result, born)
        finally:
            self.depth -= 1
            self.interpreter.frames[:] = frames
            self.heap.undo(mark)

    def go_on(self, arm: Arm) -> Any:
        state = tracer()
        state.adopt(arm.region)
        for change in arm.changes.values():
            self.heap.set(change.table, change.key, change.new)
        for storage, after in arm.states.items():
            if storage.state != after:
                state.set_state(storage, after)
        return arm.result

    # -- loops ----------------------------------------------------------------------------------

    def traced_while(self, frame: Frame, node: ast.While) -> Any:
        interpreter = self.interpreter

        def head() -> Any:
            return interpreter.test(frame, node.test)

        return Loop(self, frame, node).run_while(head)

    def while_again(self, frame: Frame, node: ast.While) -> Any:
        """Go on with a loop that perhaps has ended: as a loop of the program if it has one form."""
        interpreter = self.interpreter
        mark, block, last = self.heap.mark(), tracer().scope.block, tracer().last_op()
        try:
            return interpreter.after_loop(frame, node, self.traced_while(frame, node))
        except (Abort, NeedsUnroll, NotOneForm):
            self.heap.undo(mark)
            tracer().take_back(block, last)
            return interpreter.finish(interpreter.statement_while(frame, node))

    def traced_for(self, frame: Frame, node: ast.For, source: Any) -> Any:
        """Emit a loop over a sequence; NotImplemented if it is to be unrolled."""
        static = source.length if isinstance(source.length, int) else None
        if static is not None and static <= max(tracer().options.debug.unroll, 1):
            return NotImplemented
        mark, block, last = self.heap.mark(), tracer().scope.block, tracer().last_op()
        try:
            return Loop(self, frame, node).run_for(source)
        except (Abort, NeedsUnroll, NotOneForm) as stop:
            if isinstance(source.length, TracedTensor):
                if isinstance(stop, NotOneForm):
                    fail(str(stop), "give it one form before the loop")
                raise
            self.heap.undo(mark)
            tracer().take_back(block, last)
            return NotImplemented


class NotOneForm(Exception):
    """Values at the start and the end of a loop's body have no form in common."""


@dataclass(eq=False)
class Join:
    """Joins the ends of two arms."""

    regions: Regions
    first: Arm
    second: Arm
    flag: Value
    condition: Any
    pairs: list[tuple[Any, Any, LeafKind, Value]] = field(default_factory=list)
    memo: dict[tuple[int, int], Any] = field(default_factory=dict)
    keep: list[Any] = field(default_factory=list)
    behind: list[Any] = field(default_factory=list)

    def run(self, *, joins_ends: bool) -> Any:
        heap = self.regions.heap
        joined: list[tuple[Table, Any, Any]] = []
        for place in {**self.first.changes, **self.second.changes}:
            one, other = self.first.changes.get(place), self.second.changes.get(place)
            known = one or other
            assert known is not None
            if self.is_inside(known):
                continue
            a = known.old if one is None else one.new
            b = known.old if other is None else other.new
            joined.append((known.table, known.key, self.value(a, b, known.key)))
        result = (
            self.ends()
            if joins_ends
            else self.value(self.first.result, self.second.result, "result")
        )
        writes = self.storages()
        self.emit()
        for table, key, value in joined:
            heap.set(table, key, value)
        for storage, after in writes:
            tracer().set_state(storage, after)
        return result

    def is_inside(self, change: Change) -> bool:
        return self.regions.heap.is_born_after(change.table, self.first.born)

    def value(self, first: Any, second: Any, name: Any) -> Any:
        key = id(first), id(second)
        if key not in self.memo:
            self.keep += [first, second]
            self.memo[key] = self._value(first, second, name)
        return self.memo[key]

    def _value(self, first: Any, second: Any, name: Any) -> Any:
        if first is second or equal_leaves(first, second):
            return first
        if isinstance(first, Poison) or isinstance(second, Poison):
            return first if isinstance(first, Poison) else second
        if first is MISSING or second is MISSING:
            return self.either(first, second)
        if isinstance(first, Either) or isinstance(second, Either):
            return self.either(first, second)
        kinds = kind_of(first), kind_of(second)
        if kinds[0] is not None and kinds[1] is not None:
            kind = unify(kinds[0], kinds[1])
            if kind is not None:
                return self.leaf(first, second, kind)
        if isinstance(first, Ref) and isinstance(second, Ref) and first.kind is second.kind:
            if first.born > self.first.born and second.born > self.first.born:
                return self.ref(first, second)
        if (
            name is ITEMS
            and isinstance(first, tuple | TracedList)
            and isinstance(second, tuple | TracedList)
        ):
            return self.items(first, second)
        if isinstance(first, tuple) and type(first) is type(second) and len(first) == len(second):
            items = [
                self.value(a, b, n) for n, (a, b) in enumerate(zip(first, second, strict=True))
            ]
            return rebuild_tuple(first, items)
        if name is ITEMS and isinstance(first, dict) and isinstance(second, dict):
            keys = [*first, *(key for key in second if key not in first)]
            return {
                key: self.value(first.get(key, MISSING), second.get(key, MISSING), key)
                for key in keys
            }
        return self.either(first, second)

    def items(self, first: Any, second: Any) -> Any:
        """Join the contents of a list."""
        if isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
            return tuple(
                self.value(a, b, n) for n, (a, b) in enumerate(zip(first, second, strict=True))
            )
        kinds = [
            _list_kind(side)
            for side in (first, second)
            if not (isinstance(side, tuple) and not side)
        ]
        kind = kinds[0]
        for other in kinds[1:]:
            kind = unify(kind, other) if kind and other else None
        if kind is None:
            return self.either(first, second)
        return self.leaf(*(list(s) if isinstance(s, tuple) else s for s in (first, second)), kind)

    def ref(self, first: Ref, second: Ref) -> Any:
        """Join two containers that the arms have made."""
        a, b = self._table(first, self.first), self._table(second, self.second)
        made = self.new_ref(first.kind)
        self.memo[id(first), id(second)] = made
        for key in {**a, **b}:
            made.table[key] = self.value(a.get(key, MISSING), b.get(key, MISSING), key)
        return made

    def new_ref(self, kind: type) -> Ref:
        heap = self.regions.heap
        table = heap.new_table()
        return Ref(kind, table, heap.count)

    def _table(self, ref: Ref, arm: Arm) -> Table:
        found = dict(ref.table)
        for (number, key), change in arm.changes.items():
            if number == id(ref.table):
                found[key] = change.new
        return found

    def leaf(self, first: Any, second: Any, kind: LeafKind) -> Any:
        state = tracer()
        value = Value(kind.type)
        state.home[value] = state.scope
        block, before = state.scope.block, len(state.scope.block.ops)
        made = wrap(
            value,
            kind,
            device=device_of(first, second),
            loops=loops_of(first, second),
            bits=most_bits(first, second),
            layout=layout_of(first, second),
        )
        self.behind += block.ops[before:]
        del block.ops[before:]
        self.pairs.append((first, second, kind, value))
        return made

    def either(self, first: Any, second: Any) -> Any:
        taken = tracer().number(self.flag)
        options: list[list[Any]] = []
        for number, side in enumerate((first, second)):
            pairs = [(True, side)]
            if isinstance(side, Either):
                pairs = list(zip(side.stretto_flags, side.stretto_options, strict=True))
            for holds, option in pairs:
                same = next(
                    (o for o in options if o[2] is option or equal_leaves(o[2], option)), None
                )
                if same is None:
                    options.append([False, False, option, number])
                    same = options[-1]
                same[number] = holds
        flags, values = [], []
        for a, b, option, number in options:
            if a is True and b is False:
                flag = taken
            elif a is False and b is True:
                flag = self.regions.negated(taken)
            else:
                flag = a if a is b else self.leaf(a, b, LeafKind(FLAG, True))
            flags.append(flag)
            both = a is not False and b is not False
            values.append(
                option if option is MISSING or both else self.guarded(option, number == 1)
            )
        return Either(flags, values) if len(values) > 1 else values[0]

    def ends(self) -> Any:
        """Join how two blocks end."""
        from experiments.reader.interpreter import End, Perhaps

        taken = tracer().number(self.flag)
        sides = []
        for arm, when in ((self.first, taken), (self.second, self.regions.negated(taken))):
            match arm.result:
                case None:
                    sides.append(({}, MISSING))
                case End(jump=jump, value=value):
                    sides.append(({jump: True}, value if jump == RETURN else MISSING))
                case Perhaps(flags=flags, value=value):
                    sides.append((dict(flags), value))
        (a, first), (b, second) = sides
        if not a and not b:
            return None
        if first is MISSING or second is MISSING:
            value = second if first is MISSING else first
            if value is not MISSING:
                value = self.guarded(value, first is MISSING)
        else:
            value = self.value(first, second, "result")
        flags = {}
        for jump in {**a, **b}:
            one, other = a.get(jump, False), b.get(jump, False)
            flags[jump] = one if one is other else self.leaf(one, other, LeafKind(FLAG, True))
        if set(flags) == {RETURN} and flags[RETURN] is True:
            return End(RETURN, value)
        if len(flags) == 1 and next(iter(flags.values())) is True:
            return End(next(iter(flags)))
        return Perhaps(flags, value)

    def guarded(self, value: Any, in_second: bool) -> Any:
        """Return a value of one arm, after the branch, where a flag tells that it is there."""
        kind = kind_of(value)
        if kind is not None and not isinstance(value, bool | int | float):
            return self.leaf(None, value, kind) if in_second else self.leaf(value, None, kind)
        if isinstance(value, tuple):
            return rebuild_tuple(value, [self.guarded(item, in_second) for item in value])
        if isinstance(value, Ref) and value.born > self.first.born:
            table = self._table(value, self.second if in_second else self.first)
            made = self.new_ref(value.kind)
            for key, item in table.items():
                if isinstance(item, dict):
                    made.table[key] = {k: self.guarded(v, in_second) for k, v in item.items()}
                else:
                    made.table[key] = self.guarded(item, in_second)
            return made
        return value

    def storages(self) -> list[tuple[Storage, StorageState]]:
        found = []
        for storage in {**self.first.states, **self.second.states}:
            if not storage.scope.open:
                continue
            a = self.first.states.get(storage, storage.state)
            b = self.second.states.get(storage, storage.state)
            if a == b:
                continue
            kind = LeafKind(tracer().type_in(storage.state), False)
            value = Value(kind.type)
            tracer().home[value] = tracer().scope
            self.pairs.append((_InState(storage, a), _InState(storage, b), kind, value))
            found.append((storage, StorageState(value)))
        return found

    def emit(self) -> None:
        state = tracer()
        blocks = []
        for arm, side in ((self.first, 0), (self.second, 1)):
            with state.reopened(arm.region, arm.states):
                yields = []
                for pair in self.pairs:
                    given, kind = pair[side], pair[2]
                    if isinstance(given, _InState):
                        yields.append(state.current(given.storage))
                    elif given is None:
                        yields.append(placeholder(kind))
                    else:
                        yields.append(materialize(given, kind))
                arm.region.scope.block.yields = tuple(yields)
            blocks.append(arm.region.scope.block)
        if self.pairs or any(block.ops for block in blocks):
            state.place(IfOp(self.flag, *blocks), tuple(pair[3] for pair in self.pairs))
        state.scope.block.ops += self.behind


@dataclass(frozen=True, eq=False)
class _InState:
    storage: Storage
    state: StorageState


def _list_kind(side: Any) -> LeafKind | None:
    if isinstance(side, TracedList):
        return kind_of(side)
    kind = items_kind(side)
    return None if kind is None else LeafKind(TensorListType(kind.type), kind.number)


# ---- Forms of values that a loop carries.


@dataclass(eq=False)
class Leaf:
    kind: LeafKind
    layout: Any = None
    device: Any = None


@dataclass(eq=False)
class Same:
    value: Any


@dataclass(eq=False)
class Parts:
    """A tuple, or the content of a container."""

    like: Any
    parts: dict[Any, Any]


@dataclass(eq=False)
class Made:
    """A container that each iteration makes anew."""

    kind: type
    table: dict[Any, Any]


@dataclass(eq=False)
class OneOf:
    """One of several forms; flags tell which one."""

    options: list[Any]


def form_of(value: Any, born: int) -> Any:
    """Return the form of a value alone."""
    kind = None if isinstance(value, torch.SymInt) else kind_of(value)
    if kind is not None:
        return Leaf(kind, layout_of(value), device_of(value))
    if isinstance(value, tuple):
        return Parts(value, {n: form_of(item, born) for n, item in enumerate(value)})
    if isinstance(value, Ref) and value.born > born:
        return Made(value.kind, {k: form_of(v, born) for k, v in value.table.items()})
    return Same(value)


def accepts(form: Any, value: Any) -> bool:
    """True if a form can hold a value."""
    match form:
        case Same(value=known):
            return known is value or equal_leaves(known, value)
        case Leaf(kind=kind):
            if isinstance(value, tuple):
                return isinstance(kind.type, TensorListType) and (
                    not value or _list_kind(value) == kind
                )
            return kind_of(value) == kind
        case Parts(like=like, parts=parts):
            if isinstance(like, dict) or isinstance(value, dict):
                return (
                    isinstance(value, dict)
                    and list(value) == list(parts)
                    and all(accepts(parts[k], value[k]) for k in parts)
                )
            return (
                type(value) is type(like)
                and len(value) == len(parts)
                and all(accepts(inner, value[n]) for n, inner in parts.items())
            )
        case Made(kind=kind, table=table):
            return (
                isinstance(value, Ref)
                and value.kind is kind
                and value.table.keys() == table.keys()
                and all(accepts(inner, value.table[k]) for k, inner in table.items())
            )
        case _:
            return False


def accepts_shape(form: Any, value: Any) -> bool:
    match form:
        case Parts(like=like, parts=parts):
            if isinstance(like, dict):
                return isinstance(value, dict)
            return isinstance(value, tuple | TracedList) and (
                type(value) is type(like) and len(value) == len(parts) or like == ()
            )
        case Made(kind=kind, table=table):
            return (
                isinstance(value, Ref) and value.kind is kind and value.table.keys() == table.keys()
            )
    return True


def pairs_of(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Either):
        return list(zip(value.stretto_flags, value.stretto_options, strict=True))
    return [(True, value)]


@dataclass(eq=False)
class Loop:
    regions: Regions
    frame: Any
    node: Any
    forms: dict[Place, Any] = field(default_factory=dict)
    changes: dict[Place, Change] = field(default_factory=dict)
    storages: dict[Storage, StorageState] = field(default_factory=dict)
    born: int = 0
    live: frozenset[str] | None = None
    start: int = 0

    def form(self, before: Any, after: Any, name: Any) -> Any:
        """Return the form that two values have in common."""
        if before is after or equal_leaves(before, after):
            return Same(before)
        kinds = kind_of(before), kind_of(after)
        if kinds[0] is not None and kinds[1] is not None:
            kind = unify(kinds[0], kinds[1])
            if kind is not None:
                return Leaf(kind, layout_of(before, after), device_of(before, after))
        if (
            name is ITEMS
            and isinstance(before, tuple | TracedList)
            and isinstance(after, tuple | TracedList)
        ):
            if isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
                return Parts(
                    (),
                    {
                        n: self.form(a, b, n)
                        for n, (a, b) in enumerate(zip(before, after, strict=True))
                    },
                )
            sides = [s for s in (before, after) if not (isinstance(s, tuple) and not s)]
            found = [_list_kind(s) for s in sides]
            if None not in found and (len(found) == 1 or unify(found[0], found[1])):
                return Leaf(found[0])
        elif (
            isinstance(before, tuple) and type(before) is type(after) and len(before) == len(after)
        ):
            return Parts(
                before,
                {n: self.form(a, b, n) for n, (a, b) in enumerate(zip(before, after, strict=True))},
            )
        if isinstance(before, dict) and isinstance(after, dict) and list(before) == list(after):
            return Parts({}, {k: self.form(before[k], after[k], k) for k in before})
        if isinstance(before, Ref) and isinstance(after, Ref) and before.kind is after.kind:
            if after.born > self.born and before.table.keys() == after.table.keys():
                return Made(
                    before.kind,
                    {k: self.form(before.table[k], after.table[k], k) for k in after.table},
                )
        found = OneOf([])
        for value in (before, after):
            found = self.more(found, value)
        return found

    def more(self, form: OneOf, value: Any) -> OneOf:
        """Return the form with the options that a value needs."""
        options = list(form.options)
        for _, option in pairs_of(value):
            if not any(accepts(known, option) for known in options):
                options.append(form_of(option, self.born))
        if len(options) > 6:
            raise NotOneForm("a value takes more and more forms in a loop")
        return OneOf(options) if len(options) > len(form.options) else form

    def wider(self, form: Any, before: Any, after: Any, name: Any) -> Any:
        """Return the form with what the end of another iteration needs."""
        match form:
            case Same(value=value):
                if after is value or equal_leaves(after, value):
                    return form
                return self.form(value, after, name)
            case Leaf(kind=kind, layout=layout):
                if kind.type.__class__ is TensorListType and isinstance(after, tuple):
                    found = _list_kind(after) if after else kind
                else:
                    found = kind_of(after)
                joint = None if found is None else unify(kind, found)
                if joint is None:
                    return self.more(self.more(OneOf([]), before), after)
                now = layout_of(before, after)
                if joint == kind and now == layout:
                    return form
                return Leaf(joint, now, form.device)
            case OneOf():
                return self.more(form, after)
            case Parts() | Made() if not accepts_shape(form, after):
                return self.more(self.more(OneOf([]), before), after)
            case Parts(like=like, parts=parts):
                items = dict(after) if isinstance(after, dict) else dict(enumerate(after))
                if items.keys() != parts.keys():
                    if name is ITEMS and isinstance(after, tuple):
                        return self.form(before, after, name)
                    raise NotOneForm(f"'{name}' changes its length in a loop")
                olds = dict(before) if isinstance(before, dict) else dict(enumerate(before))
                new = {k: self.wider(parts[k], olds[k], items[k], k) for k in parts}
                return form if all(new[k] is parts[k] for k in parts) else Parts(like, new)
            case Made(kind=kind, table=table):
                new = {
                    k: self.wider(f, before.table[k], after.table[k], k) for k, f in table.items()
                }
                return form if all(new[k] is table[k] for k in table) else Made(kind, new)
        raise AssertionError(form)

    # -- values ---------------------------------------------------------------------------------

    def kinds(self) -> list[LeafKind]:
        found = [leaf.kind for form in self.forms.values() for leaf in leaves(form)]
        return found + [LeafKind(tracer().type_in(s), False) for s in self.storages.values()]

    def values(self, given: dict[Place, Any]) -> list[Value]:
        found: list[Value] = []
        for place, form in self.forms.items():
            self._flatten(form, given[place], found)
        return found + [tracer().current(storage) for storage in self.storages]

    def _flatten(self, form: Any, value: Any, found: list[Value]) -> None:
        match form:
            case Leaf(kind=kind):
                found.append(materialize(list(value) if isinstance(value, tuple) else value, kind))
            case Parts(parts=parts):
                for key, inner in parts.items():
                    self._flatten(inner, value[key], found)
            case Made(table=table):
                for key, inner in table.items():
                    self._flatten(inner, value.table[key], found)
            case OneOf(options=options):
                pairs = pairs_of(value)
                for option in options:
                    held = [(flag, x) for flag, x in pairs if accepts(option, x)]
                    pairs = [pair for pair in pairs if not accepts(option, pair[1])]
                    flag = self.regions.any_of([f for f, _ in held]) if held else False
                    found.append(materialize(flag, LeafKind(FLAG, True)))
                    if not held:
                        found += [placeholder(leaf.kind) for leaf in leaves(option)]
                        continue
                    chosen = held[-1][1]
                    for f, x in reversed(held[:-1]):
                        chosen = self.regions.choose(f, x, chosen)
                    self._flatten(option, chosen, found)
            case _:
                pass

    def place(self, values: Iterator[Value], loops: frozenset[int]) -> None:
        for place, form in self.forms.items():
            change = self.changes[place]
            self.regions.heap.set(change.table, change.key, self._built(form, values, loops))
        for storage in self.storages:
            tracer().set_state(storage, StorageState(next(values)))

    def _built(self, form: Any, values: Iterator[Value], loops: frozenset[int]) -> Any:
        match form:
            case Leaf(kind=kind, layout=layout, device=device):
                marked = loops if kind.number else frozenset[int]()
                return wrap(next(values), kind, device=device, loops=marked, layout=layout)
            case Same(value=value):
                return value
            case Parts(like=like, parts=parts):
                made = {key: self._built(inner, values, loops) for key, inner in parts.items()}
                if isinstance(like, dict):
                    return made
                items = list(made.values())
                return rebuild_tuple(like, items)
            case Made(kind=kind, table=table):
                made = {key: self._built(inner, values, loops) for key, inner in table.items()}
                self.regions.heap.note(made)
                return Ref(kind, made, self.regions.heap.count)
            case OneOf(options=options):
                flags, made = [], []
                for option in options:
                    flags.append(tracer().number(next(values)))
                    made.append(self._built(option, values, loops))
                return Either(flags, made)
        raise AssertionError(form)

    def is_live(self, change: Change) -> bool:
        """True if a place may be read after an iteration."""
        frame = self.frame
        if self.regions.heap.is_born_after(change.table, self.born):
            return False
        if frame is None or change.table is not frame.vars:
            return True
        if change.key.startswith("<"):
            return True
        if self.live is None:
            self.live = live_names(frame, self.node)
        return change.key in self.live

    # -- rounds ---------------------------------------------------------------------------------

    def learn(self, region: TracedRegion, mark: int) -> bool:
        """Compare the state at the end of the body with that at its start. True if all changes are
        carried already."""
        heap = self.regions.heap
        settled = True
        found = heap.changes(mark)
        for place, change in found.items():
            if isinstance(change.new, Poison):
                continue
            known = self.changes.get(place)
            if known is None:
                if not self.is_live(change):
                    self.unbound[place] = change
                    continue
                form = self.form(change.old, change.new, change.key)
                if isinstance(form, Same):
                    continue
                self.forms[place], self.changes[place] = (
                    form,
                    Change(change.table, change.key, change.old),
                )
                settled = False
                continue
            wider = self.wider(self.forms[place], known.old, change.new, change.key)
            settled &= wider is self.forms[place]
            self.forms[place] = wider
            known.new = change.new
        for storage, before in region.before.items():
            if storage.scope.here is region.scope or not storage.scope.open:
                continue
            if storage not in self.storages and storage.state != before:
                self.storages[storage] = before
                settled = False
        return settled

    def ends(self) -> dict[Place, Any]:
        return {
            place: change.table.get(change.key, MISSING) for place, change in self.changes.items()
        }

    def round(self, run: Callable[[], Any], lead: int, loops: frozenset[int]) -> Any:
        """Run the body once, from a state with params; (block, end, settled)."""
        heap = self.regions.heap
        mark = heap.mark()
        frames = list(self.regions.interpreter.frames)
        self.regions.depth += 1
        self.unbound: dict[Place, Change] = {}
        self.new_tables: set[int] = set()
        try:
            with tracer().region() as region:
                block = region.scope.block
                params = [tracer().param(INDEX, "i") for _ in range(lead)]
                for index in params:
                    tracer().not_negative.add(index)
                carried = [tracer().param(kind.type) for kind in self.kinds()]
                block.params = (*params, *carried)
                self.place(iter(carried), loops)
                self.born = heap.count
                begin = heap.mark()
                end = run(*params)
                settled = self.learn_from(region, mark)
                if settled:
                    block.yields = tuple(self.values(self.ends()))
                return block, end, settled, region
        finally:
            self.regions.depth -= 1
            self.regions.interpreter.frames[:] = frames
            heap.undo(mark)

    def learn_from(self, region: TracedRegion, mark: int) -> bool:
        """`learn`, with the values before the loop as the old ones."""
        return self.learn(region, mark)

    def body(self) -> Any:
        interpreter = self.regions.interpreter
        return interpreter.finish(interpreter.block(self.frame, self.node.body))

    def run_while(self, head: Callable[[], Any]) -> Any:
        from experiments.reader.interpreter import End

        heap = self.regions.heap
        self.start = heap.count
        for _ in range(12):
            heads = self._head(head)
            if heads is None:
                return self.with_effects(head)
            body, end, settled, _ = self.round(self.body, 0, frozenset())
            if end is not None and not (isinstance(end, End) and end.jump == CONTINUE):
                return self.with_jumps(head)
            if settled:
                break
        else:
            fail(
                "a loop's variables keep changing their types", "give them one type before the loop"
            )
        inits = self.values({p: c.old for p, c in self.changes.items()})
        op = WhileOp(tuple(inits), heads, body)
        results = tracer().emit(op, [kind.type for kind in self.kinds()])
        self.finish(results)
        return None

    def _head(self, head: Callable[[], Any]) -> Any:
        def run() -> Any:
            condition = head()
            return (
                tracer().literal(condition, FLAG.dtype)
                if isinstance(condition, bool)
                else flag_of(condition)
            )

        heap = self.regions.heap
        mark = heap.mark()
        self.regions.depth += 1
        try:
            with tracer().region() as region:
                carried = [tracer().param(kind.type) for kind in self.kinds()]
                region.scope.block.params = tuple(carried)
                self.place(iter(carried), frozenset())
                begin, states = heap.mark(), {s: s.state for s in region.before}
                region.scope.block.yields = (run(),)
                writes = any(item.state != states.get(item) for item in region.before)
                return None if writes or heap.changes(begin) else region.scope.block
        finally:
            self.regions.depth -= 1
            heap.undo(mark)

    def with_effects(self, head: Callable[[], Any]) -> Any:
        """A loop whose test changes the state: it runs before the loop and after each iteration."""
        heap, frame, name = self.regions.heap, self.frame, f"<test {id(self.node)}>"
        heap.set(frame.vars, name, head())
        run = self.body

        def body() -> Any:
            from experiments.reader.interpreter import End, Perhaps

            end = run()
            if end is None or (isinstance(end, End) and end.jump == CONTINUE):
                heap.set(frame.vars, name, head())
                return None
            if isinstance(end, End):
                return end
            stops = [flag for jump, flag in end.flags.items() if jump != CONTINUE]
            if not stops:
                heap.set(frame.vars, name, head())
                return None
            self.regions.branch(
                self.regions.any_of(stops),
                lambda: None,
                lambda: heap.set(frame.vars, name, head()),
            )
            return end

        inner = Loop(self.regions, frame, self.node)
        inner.body = body
        return inner.run_while(lambda: frame.vars[name])

    def with_jumps(self, head: Callable[[], Any]) -> Any:
        """A loop that may break or return: its flags are variables of the frame."""
        from experiments.reader.interpreter import End, Perhaps

        interpreter, heap, frame = self.regions.interpreter, self.regions.heap, self.frame
        flag, value = f"<ends {id(self.node)}>", f"<value {id(self.node)}>"
        jumps: set[str] = set()
        run = self.body

        def names() -> dict[str, str]:
            return {BREAK: flag + BREAK, RETURN: flag + RETURN}

        for name in names().values():
            heap.set(frame.vars, name, False)

        def body() -> Any:
            end = run()
            found = {end.jump: True} if isinstance(end, End) else dict(end.flags) if end else {}
            for jump, name in names().items():
                if jump in found:
                    jumps.add(jump)
                    heap.set(frame.vars, name, found[jump])
            if RETURN in found:
                given = end.value
                heap.set(frame.vars, value, given)
            return None

        def going() -> Any:
            stopped = self.regions.any_of([frame.vars[name] for name in names().values()])
            if isinstance(stopped, bool):
                return head() if not stopped else False
            return self.regions.branch(stopped, lambda: False, head)

        inner = Loop(self.regions, frame, self.node)
        inner.body = body
        result = inner.run_while(going)
        assert result is None
        ended = {jump: frame.vars[name] for jump, name in names().items() if jump in jumps}
        return Perhaps(ended, frame.vars.get(value, MISSING)) if ended else None

    def run_for(self, source: Any) -> Any:
        from experiments.reader.interpreter import End, Perhaps

        interpreter, frame = self.regions.interpreter, self.frame
        state = tracer()
        loops = (
            frozenset[int]()
            if isinstance(source.length, TracedTensor)
            else frozenset({state.loop_of(source)})
        )

        def run(index: Value) -> Any:
            item = source.item(state.number(index, loops=loops, bits=SIZE_BITS))
            interpreter.assign(frame, self.node.target, item)
            return self.body()

        self.start = self.regions.heap.count
        for _ in range(12):
            body, end, settled, _ = self.round(run, 1, loops)
            if end is not None and not (isinstance(end, End) and end.jump == CONTINUE):
                if set(getattr(end, "flags", {})) - {CONTINUE} or isinstance(end, End):
                    return self.counted(source)
            if settled:
                break
        else:
            fail(
                "a loop's variables keep changing their types", "give them one type before the loop"
            )
        inits = self.values({p: c.old for p, c in self.changes.items()})
        length = source.length
        stop = state.read(length) if isinstance(length, TracedTensor) else state.dim(length)
        op = ForOp(0, stop, 1, tuple(inits), body)
        results = state.emit(op, [kind.type for kind in self.kinds()])
        self.finish(results)
        return None

    def counted(self, source: Any) -> Any:
        """Write a `for` that may stop early as a `while` with an index."""
        interpreter, frame, heap = self.regions.interpreter, self.frame, self.regions.heap
        name = f"<index {id(self.node)}>"
        heap.set(frame.vars, name, 0)

        def head() -> Any:
            return interpreter.objects.truth(frame.vars[name] < source.length)

        def body() -> Any:
            at = frame.vars[name]
            interpreter.assign(frame, self.node.target, source.item(at))
            heap.set(frame.vars, name, at + 1)
            return interpreter.finish(interpreter.block(frame, self.node.body))

        node = SimpleNamespace(body=[_Call(body)], origin=self.node)
        return Loop(self.regions, frame, node).run_while(head)

    def finish(self, results: tuple[Value, ...]) -> None:
        self.place(iter(results), frozenset())
        for change in self.unbound.values():
            if self.regions.heap.is_born_after(change.table, self.start):
                continue
            self.regions.heap.set(
                change.table,
                change.key,
                Poison(f"'{change.key}' is not carried by the loop", "assign it before the loop"),
            )


def live_names(frame: Any, node: Any) -> frozenset[str]:
    """Return the variables of a frame that may be read after an iteration of a loop."""
    from experiments.reader.interpreter import definition

    tree = definition(frame.code)
    origin = getattr(node, "origin", node)
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


class _Call(ast.stmt):
    """A statement that calls a host function, which returns how it ends."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.run, self.lineno = run, 0


def leaves(form: Any) -> Iterator[Leaf]:
    match form:
        case OneOf(options=options):
            for option in options:
                yield Leaf(LeafKind(FLAG, True))
                yield from leaves(option)
        case Leaf():
            yield form
        case Parts(parts=parts):
            for inner in parts.values():
                yield from leaves(inner)
        case Made(table=table):
            for inner in table.values():
                yield from leaves(inner)
        case _:
            pass
