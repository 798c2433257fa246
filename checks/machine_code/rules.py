"""Rules for every path of a compiled program, as tables: automata over `MemoryEffect`.

A rule follows every path of every function from instruction to instruction, in a state that the
effects change. `wrong` has the pairs of a state and an effect that break the rule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from stretto.machines.cuda.machine_code import MachineFunction, MemoryEffect

POLL = re.compile(r"(?:^|\$_)poll__")
"""Matches the compiler's names of functions made from the prelude's `poll`."""


class State(Enum):
    START = auto()
    # States of waits.
    POLLING = auto()  # in a function that polls, before it has read a counter
    LOOKED = auto()  # the last instruction with an effect read a counter
    UNFENCED = auto()  # a counter was read earlier; its value has not been acquired
    FENCED = auto()  # as UNFENCED, with a fence since
    ACQUIRED = auto()  # each thread has acquired the value that it has read itself
    FAILING = auto()  # the unit stops: its reads and writes no longer matter
    # States of signals.
    ORDERED = auto()  # a barrier follows all earlier work of the unit
    SEALED = auto()  # a fence follows that barrier
    # States of copies to shared memory.
    COPYING = auto()
    COMMITTED = auto()
    # States of constants in shared memory.
    KEEPING = auto()  # stored, without a barrier since
    READING = auto()  # loaded, without a barrier since


Moves = Mapping[tuple[State, MemoryEffect], State]
Wrong = Mapping[tuple[State, MemoryEffect], str]


@dataclass(frozen=True, slots=True)
class Rule:
    """An automaton. moves: effects without an entry leave the state unchanged. in_polls: the
    initial state in functions that poll; all others begin in START."""

    name: str
    moves: Moves
    wrong: Wrong
    in_polls: State = State.START


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    function: str
    place: str
    instruction: str
    why: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.function} {self.place}: {self.instruction}: {self.why}"


def violations(function: MachineFunction, rule: Rule) -> list[Violation]:
    """Return each instruction that breaks the rule on some path from the beginning of the
    function."""
    instructions = function.instructions
    pending = [(0, rule.in_polls if is_poll(function) else State.START)] if instructions else []
    seen = set(pending)
    found: set[tuple[int, str]] = set()
    while pending:
        index, before = pending.pop()
        after = before
        for effect in instructions[index].effects:
            if (why := rule.wrong.get((after, effect))) is not None:
                found.add((index, why))
            after = rule.moves.get((after, effect), after)
        states = {before, after} if instructions[index].may_do_nothing else {after}
        for node in ((n, state) for n in function.successors(index) for state in states):
            if node not in seen:
                seen.add(node)
                pending.append(node)
    return [
        Violation(rule.name, function.name, instructions[n].place, instructions[n].text, why)
        for n, why in sorted(found)
    ]


def is_poll(function: MachineFunction) -> bool:
    return POLL.search(function.name) is not None


# ---- the rules -----------------------------------------------------------------------------------

_DATA = (MemoryEffect.LOAD, MemoryEffect.STORE, MemoryEffect.UPDATE, MemoryEffect.COPY)
_LOOKED = (State.LOOKED, State.UNFENCED, State.FENCED)
_LEAVING = (*_DATA, MemoryEffect.PUBLISH, MemoryEffect.CALL, MemoryEffect.RETURN)


def _waits() -> Rule:
    """After reading a counter: a fence of the thread that has read it, a barrier, and only
    then anything else.

    The fence may be part of the read: an acquire load, which in SASS is a strong load
    directly followed by the invalidation.
    """
    before = (State.START, State.POLLING, State.ACQUIRED)
    moves = {
        **{(state, MemoryEffect.LOOK): State.LOOKED for state in before},
        **{(state, MemoryEffect.ACQUIRE): State.ACQUIRED for state in before},
        **{(state, MemoryEffect.LOOK): State.UNFENCED for state in _LOOKED},
        (State.LOOKED, MemoryEffect.INVALIDATE): State.ACQUIRED,
        (State.LOOKED, MemoryEffect.BARRIER): State.UNFENCED,
        (State.LOOKED, MemoryEffect.FENCE): State.FENCED,
        (State.UNFENCED, MemoryEffect.FENCE): State.FENCED,
        (State.FENCED, MemoryEffect.BARRIER): State.UNFENCED,
        (State.FENCED, MemoryEffect.INVALIDATE): State.ACQUIRED,
        # A barrier before the fence is no help: other threads would read before this one's fence.
        (State.ACQUIRED, MemoryEffect.BARRIER): State.START,
        **{(state, MemoryEffect.FAIL): State.FAILING for state in (*_LOOKED, *before[1:])},
    }
    wrong = {
        **{(State.POLLING, effect): "a poll looks by strong loads only" for effect in _DATA},
        **{(state, e): "no fence since the look" for state in _LOOKED for e in _LEAVING},
        **{(State.ACQUIRED, effect): "no barrier since the fence" for effect in _LEAVING},
    }
    return Rule("wait", moves, wrong, in_polls=State.POLLING)


def _signals() -> Rule:
    done = (*_DATA, MemoryEffect.FAIL, MemoryEffect.CALL)
    moves = {
        **{
            (state, effect): State.START
            for state in (State.ORDERED, State.SEALED)
            for effect in done
        },
        (State.START, MemoryEffect.BARRIER): State.ORDERED,
        (State.ORDERED, MemoryEffect.FENCE): State.SEALED,
        (State.SEALED, MemoryEffect.BARRIER): State.ORDERED,
        (State.SEALED, MemoryEffect.PUBLISH): State.ORDERED,
    }
    wrong = {
        (State.START, MemoryEffect.PUBLISH): "no barrier since the unit has read or written memory",
        (State.ORDERED, MemoryEffect.PUBLISH): "no fence since the barrier",
    }
    return Rule("signal", moves, wrong)


def _copies() -> Rule:
    pending = (State.COPYING, State.COMMITTED)
    moves = {
        (State.START, MemoryEffect.COPY): State.COPYING,
        (State.COMMITTED, MemoryEffect.COPY): State.COPYING,
        (State.COPYING, MemoryEffect.COMMIT): State.COMMITTED,
        (State.COMMITTED, MemoryEffect.COPIED): State.START,
    }
    wrong = {
        (state, effect): "a copy of global memory may not have ended"
        for state in pending
        for effect in (MemoryEffect.PUBLISH, MemoryEffect.CALL, MemoryEffect.RETURN)
    }
    return Rule("copies", moves, wrong)


def _kept() -> Rule:
    moves = {
        **{(state, MemoryEffect.KEEP): State.KEEPING for state in (State.START, State.READING)},
        (State.START, MemoryEffect.KEPT): State.READING,
        (State.KEEPING, MemoryEffect.BARRIER): State.START,
        (State.READING, MemoryEffect.BARRIER): State.START,
    }
    wrong = {
        **{
            (State.KEEPING, effect): "no barrier since constants were stored in shared memory"
            for effect in (MemoryEffect.KEPT, MemoryEffect.CALL, MemoryEffect.RETURN)
        },
        (State.READING, MemoryEffect.KEEP): "another thread may still read what is stored over",
    }
    return Rule("kept", moves, wrong)


def _coherence() -> Rule:
    return Rule(
        "coherence",
        {},
        {
            (State.START, MemoryEffect.NON_COHERENT): "may give what memory held before a wait",
            (
                State.START,
                MemoryEffect.ASYNC_PROXY,
            ): "is not ordered by the fences of waits and signals",
        },
    )


RULES: Sequence[Rule] = (_waits(), _signals(), _copies(), _kept(), _coherence())
