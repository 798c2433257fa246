"""Runs passes in the order given, verifies after each, and shows each result to whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from stretto.errors import PassError, VerifyError
from stretto.failures import stage_failures
from stretto.ir.core import Program
from stretto.ir.rewrite import clone_program
from stretto.ir.verifier import verify as verify_program

Dump = Callable[[str, Program], None]
"""Takes the name of a pass and the Program after it, once for each pass that changed something."""


class Pass(Protocol):
    """A step from a valid Program to a valid Program with the same results."""

    name: ClassVar[str]

    def apply(self, program: Program) -> bool:
        """Changes the Program in place; True when it did change."""
        ...


@dataclass(frozen=True, slots=True)
class Repeat:
    """Runs passes in turn until none changes anything, at most `limit` times."""

    passes: tuple[Pass, ...]
    limit: int = 10
    name: ClassVar[str] = "repeat"

    def apply(self, program: Program) -> bool:
        return _repeat(self, lambda step: step.apply(program))


def run_passes(
    program: Program,
    passes: Iterable[Pass],
    *,
    dump: Dump | None = None,
    verify: bool = True,
    skip: Collection[str] = (),
) -> Program:
    """The Program after all passes but those named in `skip`; the given one is left as it is.

    Raises PassError, naming the pass, when a pass leaves a Program that breaks a rule.
    """
    result = clone_program(program)

    def run(step: Pass) -> bool:
        if step.name in program.skipped or step.name in skip:
            return False
        if isinstance(step, Repeat):
            return _repeat(step, run)
        with stage_failures(f"passes, `{step.name}`"):
            changed = step.apply(result)
            if changed and verify:
                _verify_after(step, result)
        if changed and dump is not None:
            dump(step.name, result)
        return changed

    for step in passes:
        run(step)
    return result


def _repeat(repeat: Repeat, run: Callable[[Pass], bool]) -> bool:
    for rounds in range(repeat.limit):
        changed = [run(step) for step in repeat.passes]  # all of them, whatever the first says
        if not any(changed):
            return rounds > 0
    return repeat.limit > 0


def _verify_after(step: Pass, program: Program) -> None:
    try:
        verify_program(program)
    except VerifyError as error:
        raise PassError(
            f"the pass `{step.name}` left a wrong Program: {error.message}",
            op=error.op,
            location=error.location,
        ) from error
