"""Check the compiled code of a program's waits, signals and calls.

The prelude's comments argue with the memory model of PTX that the program text is correct.
This package checks that compilers keep it so, in PTX, which Triton makes, and in SASS,
which ptxas makes from that: `stretto.machines.cuda.machine_code` is the form that both are
parsed into, `rules.py` has the rules for every path.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from checks.machine_code import sass as _sass
from checks.machine_code.rules import RULES, Violation, is_poll, violations
from stretto.machines.cuda import machine_code as _ptx
from stretto.machines.cuda.machine_code import MachineFunction, MemoryEffect

__all__ = ["VERIFIED", "Checked", "Violation", "check", "check_cubin", "check_ptx"]

VERIFIED = ("3.6.0", "3.7.1")
"""Versions of Triton with which the whole zoo was compiled for sm_90 without a violation, and with
every hazard across calls ordered."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check. polls: number of functions that poll counters. releases: number of
    instructions that publish progress. The caller must check that they are not 0 for a program
    with waits or signals."""

    violations: tuple[Violation, ...]
    polls: int
    releases: int


def check(functions: Iterable[MachineFunction]) -> Checked:
    """Apply all rules to all functions of a program."""
    functions = tuple(functions)
    found = [one for function in functions for rule in RULES for one in violations(function, rule)]
    polls = [function for function in functions if is_poll(function)]
    found += [
        Violation("wait", poll.name, "", "", "no counter is looked at by a strong load")
        for poll in polls
        if not _count((poll,), MemoryEffect.LOOK, MemoryEffect.ACQUIRE)
    ]
    return Checked(tuple(found), len(polls), _count(functions, MemoryEffect.PUBLISH))


def check_ptx(ptx: str) -> Checked:
    return check(_ptx.functions(ptx))


def check_cubin(cubin: bytes) -> Checked:
    """Check a cubin. Raises BuildError if Triton's disassembler is missing."""
    from triton import knobs

    return check(_sass.functions(_sass.disassemble(cubin, knobs.nvidia.nvdisasm.path)))


def _count(functions: Iterable[MachineFunction], *effects: MemoryEffect) -> int:
    return sum(
        effect in effects
        for function in functions
        for instruction in function.instructions
        for effect in instruction.effects
    )
