"""Accesses to scratch that no barrier orders, across the calls of a compiled program.

Triton's scratch is the shared memory in which its own reductions, conversions and products exchange
values. The scratch of every function begins at the same address. Triton 3.6 and 3.7 insert the
barriers between accesses within a function, but summarise a function that is called only by its
pending accesses at its end (triton-lang/triton issue 11326). If it ends with a barrier, nothing
orders the last scratch accesses of the caller before the first ones of the callee:

    caller                      callee
      ld.shared  its result       st.shared  its own, before the callee's first barrier
      call callee                 ...
                                  bar.sync

Each function has a summary: its accesses before its first barrier, its pending accesses at its end,
and whether some path through it has no barrier. The state before each instruction is the union over
all paths. Addresses are not compared: two functions' scratch begins at one address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stretto.machines.cuda.machine_code import Instruction, MachineFunction, MemoryEffect, called_by

_WRITES = {
    MemoryEffect.READ: False,
    MemoryEffect.WRITE: True,
    MemoryEffect.COPY: True,
    MemoryEffect.MULTIPLY: False,
    MemoryEffect.SEND: False,
    MemoryEffect.RECEIVE: True,
}
"""The effects that access scratch: True for those that write."""
_WAITS = {
    MemoryEffect.COPIED: MemoryEffect.COPY,
    MemoryEffect.MULTIPLIED: MemoryEffect.MULTIPLY,
    MemoryEffect.SENT: MemoryEffect.SEND,
    MemoryEffect.RECEIVED: MemoryEffect.RECEIVE,
}
"""The asynchronous accesses that each wait ends. A barrier before the wait does not order them."""
_RELEVANT = {*_WRITES, *_WAITS, MemoryEffect.BARRIER, MemoryEffect.CALL, MemoryEffect.RETURN}


@dataclass(frozen=True, slots=True)
class Hazard:
    """Two accesses to scratch, of which one writes, with no barrier between them on some path.

    first, second: the functions called by `caller` that make the accesses, "" if it makes one
    itself. kind: such as "a write after a read". place: position of the second access, or of its
    call.
    """

    caller: str
    first: str
    second: str
    kind: str
    place: str

    def __str__(self) -> str:
        first, second = (one or "the function itself" for one in (self.first, self.second))
        return f"{self.caller} {self.place}: {self.kind}, of {second} after {first}"


@dataclass(frozen=True, slots=True)
class PendingAccess:
    """An access that no barrier has ordered yet. callee: the function that made it, "" for the
    function being walked. flying: the effect that began it, if it is asynchronous and may not
    have ended."""

    writes: bool
    callee: str = ""
    flying: MemoryEffect | None = None


@dataclass(frozen=True, slots=True)
class HazardState:
    """Facts that may hold before an instruction. fresh: True if some path from the function's
    beginning to it has no barrier."""

    fresh: bool
    pending: frozenset[PendingAccess] = frozenset()

    def joined(self, other: HazardState) -> HazardState:
        return HazardState(self.fresh or other.fresh, self.pending | other.pending)


@dataclass(slots=True)
class HazardSummary:
    """Facts about a function that its callers need. first: the kinds of its accesses (True for
    writes) before its first barrier. left: accesses pending where it returns. passes: True if some
    path has no barrier. touches: True if the function or one of its callees accesses scratch."""

    first: set[bool] = field(default_factory=set[bool])
    left: frozenset[PendingAccess] = frozenset()
    passes: bool = False
    touches: bool = False


@dataclass(slots=True)
class Calls:
    """Hazards of a program, and the summaries of its functions by name."""

    functions: Sequence[MachineFunction]
    summaries: dict[str, HazardSummary] = field(default_factory=dict[str, HazardSummary])
    hazards: dict[Hazard, None] = field(default_factory=dict[Hazard, None])

    def visit(self, function: MachineFunction) -> HazardSummary:
        """Walk a function, after its callees; return its summary. Triton's functions do not
        recurse."""
        if function.name not in self.summaries:
            _HazardWalk(self, function, self._callees(function)).walk()
        return self.summaries[function.name]

    def _callees(self, function: MachineFunction) -> dict[int, list[tuple[str, HazardSummary]]]:
        """Return the callees of each call and their summaries, by the index of the instruction."""
        named = {one.name: one for one in self.functions}
        calls = [
            (index, one)
            for index, one in enumerate(function.instructions)
            if MemoryEffect.CALL in one.effects
        ]
        return {
            index: [(name, self.visit(named[name])) for name in called_by(one, self.functions)]
            for index, one in calls
        }


def analysed(functions: Iterable[MachineFunction]) -> Calls:
    """Analyse all functions of a program."""
    calls = Calls(tuple(functions))
    for function in calls.functions:
        calls.visit(function)
    return calls


@dataclass(slots=True)
class _HazardWalk:
    """A walk over all paths of one function, to a fixpoint."""

    calls: Calls
    function: MachineFunction
    callees: Mapping[int, list[tuple[str, HazardSummary]]]
    summary: HazardSummary = field(default_factory=HazardSummary)

    def walk(self) -> None:
        self.calls.summaries[self.function.name] = self.summary
        nodes = self._nodes()
        states = {0: HazardState(True)} if self.function.instructions else {}
        waiting = list(states)
        while waiting:
            index = waiting.pop()
            after = self._through(index, states[index])
            for following in self.function.successors(index):
                while following not in nodes:
                    (following,) = self.function.successors(following)
                before = states.get(following)
                joined = after if before is None else before.joined(after)
                if joined != before:
                    states[following] = joined
                    waiting.append(following)

    def _nodes(self) -> set[int]:
        """Return the instructions at which states are stored: those that change the state, and
        those where paths join or part."""
        function = self.function
        return {0, *function.labels.values()} | {
            index
            for index, one in enumerate(function.instructions)
            if _RELEVANT & {*one.effects} or len(function.successors(index)) != 1
        }

    def _through(self, index: int, before: HazardState) -> HazardState:
        instruction = self.function.instructions[index]
        state = before
        for effect in instruction.effects:
            if effect is MemoryEffect.BARRIER:
                state = HazardState(False, frozenset(one for one in state.pending if one.flying))
            elif effect in _WAITS:
                state = HazardState(state.fresh, _landed(state.pending, _WAITS[effect]))
            elif effect in _WRITES:
                state = self._accessed(instruction, effect, state)
            elif effect is MemoryEffect.CALL:
                for name, callee in self.callees[index]:
                    state = self._called(instruction, name, callee, state)
            elif effect is MemoryEffect.RETURN:
                self.summary.left |= state.pending
                self.summary.passes |= state.fresh
        return before.joined(state) if instruction.may_do_nothing else state

    def _accessed(
        self, instruction: Instruction, effect: MemoryEffect, state: HazardState
    ) -> HazardState:
        """Record an access. Only accesses of callees are compared with it: Triton orders a
        function's own."""
        writes = _WRITES[effect]
        self.summary.touches = True
        if state.fresh:
            self.summary.first.add(writes)
        for one in state.pending:
            if one.callee:
                self._compare(instruction, one, "", writes)
        flying = effect if effect in _WAITS.values() else None
        return HazardState(state.fresh, state.pending | {PendingAccess(writes, flying=flying)})

    def _called(
        self, instruction: Instruction, name: str, callee: HazardSummary, state: HazardState
    ) -> HazardState:
        self.summary.touches |= callee.touches
        if state.fresh:
            self.summary.first |= callee.first
        for one in state.pending:
            for writes in callee.first:
                self._compare(instruction, one, name, writes)
        kept = {one for one in state.pending if callee.passes or one.flying}
        left = {replace(one, callee=name) for one in callee.left}
        return HazardState(state.fresh and callee.passes, frozenset(kept | left))

    def _compare(
        self, instruction: Instruction, one: PendingAccess, name: str, writes: bool
    ) -> None:
        if one.writes or writes:
            kind = f"a {_word(writes)} after a {_word(one.writes)}"
            found = Hazard(self.function.name, one.callee, name, kind, instruction.place)
            self.calls.hazards[found] = None


def _landed(pending: frozenset[PendingAccess], ended: MemoryEffect) -> frozenset[PendingAccess]:
    return frozenset(replace(one, flying=None) if one.flying is ended else one for one in pending)


def _word(writes: bool) -> str:
    return "write" if writes else "read"
