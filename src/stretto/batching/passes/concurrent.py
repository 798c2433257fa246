"""Concurrent calls: parts of an instance that do not depend on each other wait at the same time.

    %l = invoke @grow(%a)                 fork:
    %b = record 0(%x)                       %l = invoke @grow(%a)
    %r = invoke @grow(%b)        =>       and:
                                            %b = record 0(%x)
                                            %r = invoke @grow(%b)

Whenever a call waits for the value of a tensor, everything recorded so far is run; so the
number of launches of a batch is the number of waits that an instance does one after the other.
Independent calls that both wait become the bodies of a `ForkOp`, which are fibers of the
instance. (ACRoBat, section 4.2, where the user has to mark concurrent calls.)
`concurrent_loops.py` does this for loops.

Changes: neighbouring statements become a `ForkOp`; statements between them move before it,
into a body, or after it. Forks without a benefit become sequences. Needs: nothing. Guarantees: the
same values and effects; of several exceptions the first in program order is raised: the host
raises that of the first body, and no statement that may raise moves over another one that may
(for exceptions to this see `concurrent_loops.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from stretto.batching.instance_program import (
    Body,
    InstanceProgram,
    PassRemark,
    first_location,
    walk,
)
from stretto.batching.passes.concurrent_loops import (
    StatementEffects,
    concurrent_loop,
    with_split_branches,
    without_continue,
)
from stretto.batching.passes.effects import AllEffects, FunctionObjects
from stretto.batching.passes.uses import (
    FunctionUses,
    all_assigned,
    count_uses,
    with_bodies,
)
from stretto.ir.core import Op
from stretto.ir.data import (
    ForkLoopOp,
    ForkOp,
    InstanceFunction,
    InvokeOp,
    LoopOp,
    OperateOp,
    PhaseOp,
    ReadOp,
    body_of,
)

_BEFORE, _AFTER = -1, 1 << 30
"""Places of statements before and after a fork; its bodies are places 0, 1, ..."""


_CALLS = "calls wait at the same time"
_APART = "found: they do not depend on each other"


@dataclass(frozen=True, slots=True)
class Concurrent:
    """finds: create forks; if False, even those of the user become sequences. always: treat
    everything that records or calls as waiting, for tests."""

    finds: bool = True
    always: bool = False
    name: ClassVar[str] = "concurrent"

    def apply(self, program: InstanceProgram) -> None:
        effects = AllEffects(program)
        for function in program.functions.values():
            finder = _ConcurrencyFinder(program, function, effects, self.finds, self.always)
            function.body.ops = list(finder.body(function.body.ops))


@dataclass(slots=True)
class _ConcurrencyFinder:
    program: InstanceProgram
    function: InstanceFunction
    effects: AllEffects
    finds: bool
    always: bool
    uses: FunctionUses = field(init=False)
    objects: FunctionObjects = field(init=False)

    def __post_init__(self) -> None:
        self.uses = FunctionUses.of(self.function)
        self.objects = self.effects.objects(self.function)

    def body(self, body: Body) -> Body:
        parts: list[StatementEffects] = []
        for original in body:
            statement = with_bodies(original, self.body)
            if isinstance(statement, ForkOp):
                kept = self._kept_or_flat(statement)
                if kept == (statement,):
                    self._say(_CALLS, "asserted by `stretto.concurrent`", kept)
                parts += map(self.part, kept)
                continue
            if self.finds and isinstance(statement, LoopOp):
                statement = self._loop(statement, original)
            parts.append(self.part(statement))
        return tuple(self._forked(parts)) if self.finds else _statements(parts)

    def part(self, statement: Op, around: Body = ()) -> StatementEffects:
        effects = self.effects.of((statement,), around, self.objects)
        if self.always and any(isinstance(s, InvokeOp | OperateOp) for s in walk((statement,))):
            effects = replace(effects, waits=True)
        return StatementEffects(statement, effects)

    def _loop(self, loop: LoopOp, original: Op) -> Op:
        """Return the loop with concurrent iterations, or the loop itself if they cannot be
        concurrent."""
        body = with_split_branches(
            without_continue(loop.body.ops), lambda s: self.part(s).effects.waits, self.uses
        )
        parts = [self.part(item) for item in body]
        within = [self.part(item, body).effects for item in body]
        inside = count_uses((original,))
        made = all_assigned(original)
        later = frozenset(v for v in made if self.uses.reads[v] != inside[v])
        found = concurrent_loop(LoopOp(body_of(body)), parts, within, later)
        if isinstance(found, PassRemark):
            self.program.notes.append(found)
            return loop
        if isinstance(found, ForkLoopOp):
            self._say("iterations of a loop wait at the same time", _APART, (found,))
            return found
        return loop

    def _say(self, what: str, reason: str, body: Body) -> None:
        self.program.notes.append(PassRemark(what, reason, first_location(body), is_done=True))

    def _kept_or_flat(self, fork: ForkOp) -> Body:
        """Return a fork of the user if at least two bodies wait; otherwise the sequence of its
        statements."""
        flat = tuple(item for inner in fork.bodies for item in inner.ops)
        if not self.finds or any(isinstance(item, PhaseOp) for item in walk(flat)):
            return flat
        waiting = sum(self.part(ForkOp((inner,))).effects.waits for inner in fork.bodies)
        return (fork,) if waiting > 1 else flat

    def _forked(self, parts: list[StatementEffects]) -> Iterable[Op]:
        while parts:
            if not parts[0].effects.waits or parts[0].stays:
                yield parts.pop(0).statement
                continue
            region = _Region()
            count = 0
            for part in parts:
                if not region.takes(part):
                    break
                count += 1
            made = region.finished()
            if made is None:
                self._remark(parts)
                yield parts.pop(0).statement
            else:
                forks = tuple(item for item in made if isinstance(item, ForkOp))
                self._say(_CALLS, _APART, forks)
                yield from made
                del parts[:count]

    def _remark(self, parts: list[StatementEffects]) -> None:
        """Add a remark why the first statement and the next call that waits are not concurrent."""
        first = parts[0]
        if not is_deep([first]):
            return
        for other in parts[1:]:
            if is_deep([other]):
                between = parts[1 : parts.index(other)]
                reason = why_not_concurrent(first, between, other)
                what = "calls that wait one after the other"
                place = first_location((other.statement,)) or first_location((first.statement,))
                self.program.notes.append(PassRemark(what, reason, place))
                return


def why_not_concurrent(
    first: StatementEffects, between: Sequence[StatementEffects], second: StatementEffects
) -> str:
    """Return why two statements that wait cannot be bodies of a fork."""
    needed = [second]
    for part in reversed(between):
        if any(part.why_before(other) is not None for other in needed):
            needed.append(part)
    reasons = (first.why_before(part) for part in needed)
    found = next((reason for reason in reasons if reason is not None), None)
    if found is None and any(part.stays for part in (first, *between, second)):
        return "a `return`, `break` or `continue`, or the begin of a phase, comes before the second"
    return found or "what stands between them may raise, or needs several others"


def is_deep(parts: Sequence[StatementEffects]) -> bool:
    """Return True if statements wait for more than what was recorded before them. A value recorded
    before is computed at the next launch anyway, so waiting for it adds no launch."""
    own = {v for part in parts for v in all_assigned(part.statement)}
    for part in parts:
        if not part.effects.waits:
            continue
        for item in walk((part.statement,)):
            if isinstance(item, InvokeOp) or (isinstance(item, ReadOp) and item.tensor in own):
                return True
    return False


@dataclass(slots=True)
class _Region:
    """Consecutive statements, each with its place: before the fork, in one of its bodies, or after
    it."""

    parts: list[StatementEffects] = field(default_factory=list[StatementEffects])
    places: list[int] = field(default_factory=list[int])
    bodies: int = 0

    def takes(self, part: StatementEffects) -> bool:
        """Give the next statement a place and return True; return False if no place is possible."""
        if part.stays:
            return False
        for place in self._choices(part):
            if all(self._in_order(n, part, place) for n in range(len(self.parts))):
                self.parts.append(part)
                self.places.append(place)
                self.bodies = max(self.bodies, place + 1 if place != _AFTER else 0)
                return True
        return False

    def _choices(self, part: StatementEffects) -> list[int]:
        needed = {
            place
            for other, place in zip(self.parts, self.places, strict=True)
            if place != _BEFORE and other.why_before(part) is not None
        }
        is_open = bool(self.bodies) and not self._waits(self.bodies - 1)
        if part.effects.waits:
            if needed:
                return list(needed) if len(needed) == 1 and _AFTER not in needed else []
            return [self.bodies - 1 if is_open else self.bodies]
        if not needed:
            return [_BEFORE, self.bodies - 1 if is_open else self.bodies]
        return [*needed, _AFTER] if len(needed) == 1 else [_AFTER]

    def _waits(self, body: int) -> bool:
        return any(
            part.effects.waits
            for part, place in zip(self.parts, self.places, strict=True)
            if place == body
        )

    def _in_order(self, number: int, part: StatementEffects, place: int) -> bool:
        """Return True if an earlier statement and this one, in this place, keep their order as far
        as it matters."""
        return _is_in_order(self.parts[number], self.places[number], part, place)

    def finished(self) -> list[Op] | None:
        """Return the statements with the fork; None if the fork has no benefit."""
        self._move_tails()
        found: dict[int, list[StatementEffects]] = {}
        for part, place in zip(self.parts, self.places, strict=True):
            found.setdefault(place, []).append(part)
        before, after = found.pop(_BEFORE, []), found.pop(_AFTER, [])
        if sum(is_deep(body) for body in found.values()) < 2:
            return None
        several = [_statements(found[place]) for place in sorted(found)]
        return [
            *_statements(before),
            ForkOp(tuple(map(body_of, tuple(several)))),
            *_statements(after),
        ]

    def _move_tails(self) -> None:
        """Move statements that nothing after them in their body needs behind the fork, where later
        operators can join them in larger blocks."""
        for number in reversed(range(len(self.parts))):
            part = self.parts[number]
            if part.effects.waits or self.places[number] in (_BEFORE, _AFTER):
                continue
            later = zip(self.parts[number + 1 :], self.places[number + 1 :], strict=True)
            if all(_is_in_order(part, _AFTER, other, place) for other, place in later):
                self.places[number] = _AFTER


def _is_in_order(first: StatementEffects, place: int, second: StatementEffects, other: int) -> bool:
    """Return True if two statements, the first of which is earlier in the program, may have these
    places."""
    if first.effects.fails and second.effects.fails and place > other:
        return False
    if place == other or (place == _BEFORE or other == _AFTER):
        return True
    return first.why_before(second) is None


def _statements(parts: Iterable[StatementEffects]) -> Body:
    return tuple(part.statement for part in parts)
