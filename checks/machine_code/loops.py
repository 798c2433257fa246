"""Find the instructions of a compiled program that run in loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stretto.components import components, cyclic
from stretto.machines.cuda.machine_code import Instruction, MachineFunction, MemoryEffect, called_by


def looped(
    functions: Sequence[MachineFunction], wanted: Callable[[Instruction], bool]
) -> list[tuple[Instruction, bool]]:
    """Return the wanted instructions of a program, each with True if it runs in a loop: it can
    follow itself, or its function is called by an instruction that runs in a loop."""
    inside = {function.name: _in_loops(function) for function in functions}
    repeated: set[str] = set()
    while True:
        called = {
            callee
            for function in functions
            for index, one in enumerate(function.instructions)
            if MemoryEffect.CALL in one.effects
            and (function.name in repeated or index in inside[function.name])
            for callee in called_by(one, functions)
        }
        if called <= repeated:
            break
        repeated |= called
    return [
        (one, function.name in repeated or index in inside[function.name])
        for function in functions
        for index, one in enumerate(function.instructions)
        if wanted(one)
    ]


def _in_loops(function: MachineFunction) -> set[int]:
    """Return the instructions that can follow themselves."""
    following = {n: list(function.successors(n)) for n in range(len(function.instructions))}
    groups = (group for group in components(following) if cyclic(group, following))
    return {n for group in groups for n in group}
