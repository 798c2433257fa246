"""Instructions of a compiled program by what they do to memory, and the paths through them.

PTX is read into the same functions (`ptx.py`) as the SASS of tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Effect(Enum):
    """Effects of an instruction on memory, or on the order of accesses to it. Shared memory has
    two parts: Triton's own, its scratch, and the one where the program keeps constants."""

    LOOK = "a relaxed strong load of a word that other units write"
    ACQUIRE = "an acquire load of such a word"
    LOAD = "a weak load"
    STORE = "a weak store"
    UPDATE = "an atomic operation without an order"
    FAIL = "a compare-and-swap, by which one thread claims the error word for its unit"
    NON_COHERENT = "a load through the non-coherent cache (.nc, .CONSTANT, textures)"
    ASYNC_PROXY = "a copy of the async proxy (TMA), which fences of the generic proxy do not order"
    COPY = "the start of an asynchronous copy to scratch (cp.async)"
    COMMIT = "the end of a group of such copies"
    COPIED = "a wait for all groups of copies"
    FENCE = "a fence of gpu scope or wider"
    INVALIDATE = "what makes the thread read nothing older from its L1 cache"
    BARRIER = "a barrier of all threads of the unit"
    PUBLISH = "an exchange or a strong store, which others look at"
    READ = "a load of scratch"
    WRITE = "a store to scratch"
    MULTIPLY = "the start of an asynchronous product of blocks in scratch (wgmma)"
    MULTIPLIED = "a wait for all such products"
    SEND = "the start of a copy from scratch by the async proxy"
    SENT = "a wait for all such copies"
    RECEIVE = "the start of a copy to scratch by the async proxy"
    RECEIVED = "the end of a memory barrier (mbarrier) by which a thread waited for such copies"
    KEEP = "a store of a constant in shared memory"
    KEPT = "a load of such a constant"
    CALL = "a call of another function"
    RETURN = "the end of the function"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. place: its line in PTX, its address in SASS. effects: in this order.

    conditional: a predicate decides whether it is executed. targets: the labels that it may jump
    to. falls_through: the next instruction may be the next one.
    """

    place: str
    text: str
    effects: tuple[Effect, ...] = ()
    conditional: bool = False
    targets: tuple[str, ...] = ()
    falls_through: bool = True

    @property
    def may_do_nothing(self) -> bool:
        """One thread fails for the unit as a whole, and ends a memory barrier for it."""
        for_all = Effect.FAIL in self.effects or Effect.RECEIVED in self.effects
        return self.conditional and not for_all


@dataclass(frozen=True, slots=True)
class Function:
    """labels: the index of the instruction behind each; that of one at the end is their number."""

    name: str
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int] = field(default_factory=dict[str, int])

    def successors(self, index: int) -> tuple[int, ...]:
        """The instructions that may follow one."""
        instruction = self.instructions[index]
        following = [self.labels[target] for target in instruction.targets]
        if instruction.falls_through:
            following.append(index + 1)
        return tuple(index for index in following if index < len(self.instructions))


def definitions(
    function: Function, index: int, defines: Callable[[Instruction], bool]
) -> list[int] | None:
    """The instructions for which `defines` holds, of which one is the last such on a path to
    `index`; None if there is a path without any."""
    before: dict[int, list[int]] = {}
    for one in range(len(function.instructions)):
        for other in function.successors(one):
            before.setdefault(other, []).append(one)
    found: list[int] = []
    seen: set[int] = set()
    pending = [index]
    while pending:
        current = pending.pop()
        if current == 0:
            return None
        for previous in before.get(current, ()):
            if previous in seen:
                continue
            seen.add(previous)
            instruction = function.instructions[previous]
            if defines(instruction):
                found.append(previous)
            if not defines(instruction) or instruction.conditional:
                pending.append(previous)
    return found


def called_by(call: Instruction, functions: Sequence[Function]) -> list[str]:
    """The functions that have a body and that an instruction calls."""
    names = {*re.findall(r"[\w$]+", call.text)}
    return [function.name for function in functions if function.name in names]
