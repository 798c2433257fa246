"""Runner of passes: applies them in order, verifies the Program after each, and dumps it on
request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from stretto.errors import PassError, VerifyError
from stretto.failures import stage_failures
from stretto.ir.core import Program
from stretto.ir.rewrite import clone_program
from stretto.ir.types import Dim
from stretto.ir.verifier import verify as verify_program

Dump = Callable[[str, Program], None]
"""Called with the name of a pass and the Program after it, once for each pass that changed
something."""


class Pass(Protocol):
    """A step from a valid Program to a valid Program with the same results."""

    name: ClassVar[str]

    def apply(self, program: Program) -> bool:
        """Change the Program in place; return True if it did change."""
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
    """Return the Program after all passes but those named in `skip`; the given Program is not
    modified.

    dump: called after each pass that changed something. verify: check the Program after each of
    these, and raise PassError, which names the pass, if it is not valid.
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
        changed = [run(step) for step in repeat.passes]  # no `any(...)`, which would stop early
        if not any(changed):
            return rounds > 0
    return repeat.limit > 0


def _verify_after(step: Pass, program: Program) -> None:
    try:
        verify_program(program)
    except VerifyError as error:
        raise PassError(
            f"the pass `{step.name}` left an invalid Program: {error.message}",
            op=error.op,
            location=error.location,
        ) from error


# ---- Costs of the machine that a Program is compiled for, as passes see them.


class PassCosts(Protocol):
    """The figures of `device.costs.CostModel` that passes use; times are in seconds."""

    @property
    def uniform(self) -> bool: ...

    @property
    def wait_seconds(self) -> float: ...

    @property
    def wake_seconds(self) -> float: ...

    @property
    def start_seconds(self) -> float: ...

    @property
    def element_seconds(self) -> float: ...

    @property
    def branch_miss_seconds(self) -> float: ...

    @property
    def small_waits(self) -> float: ...

    @property
    def speculated_bytes(self) -> int: ...

    @property
    def early_lookups(self) -> bool: ...

    @property
    def rows_before(self) -> bool: ...

    @property
    def level_rows(self) -> int: ...

    @property
    def stacked_layers(self) -> int: ...

    @property
    def level_bytes(self) -> float: ...

    @property
    def activation_seconds(self) -> float: ...

    @property
    def in_turn(self) -> bool: ...

    @property
    def dependent_seconds(self) -> float: ...

    @property
    def unknown_trips(self) -> int: ...

    @property
    def unknown_activations(self) -> int: ...

    def product_seconds(self, operations: float, nbytes: float, units: int) -> float: ...

    def size(self, extent: Dim, /) -> int: ...

    def points(self, extents: Iterable[Dim], /) -> int: ...


@dataclass(frozen=True, slots=True)
class Target:
    """The machine's costs, and the number of its units that run the program."""

    costs: PassCosts
    units: int

    @property
    def is_alone(self) -> bool:
        """True if one unit runs the program, and therefore never waits."""
        return self.units == 1 and not self.costs.uniform
