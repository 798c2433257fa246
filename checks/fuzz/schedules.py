"""The part "schedules": random Programs under policies, units and passes, against the interpreter.

Programs and combinations are those of `tests/property/combinations.py`, where this is a clone of
the repository. A case is some of them; of one that fails the smallest program is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from checks.fuzz.clone import from_tests, has_tests
from checks.fuzz.outcome import Outcome, outcome_of_error
from checks.fuzz.trial import Note
from checks.fuzz.workers import Job

PER_CASE = 50
"""Programs of one case."""
COMBINATIONS = "tests.property.combinations"


def schedules(seed: int, count: int, seconds: float) -> Job[int]:
    """About `count` programs; none where this is not a clone."""
    firsts: Sequence[int] = range(seed, seed + count, PER_CASE)
    if not has_tests(COMBINATIONS):
        firsts = ()
    return Job(firsts, _try, lambda first: f"schedules {first}", seconds=PER_CASE * seconds)


def _try(first: int, note: Note) -> Outcome:
    note("drawing, scheduling and emulating programs")
    check_drawn: Callable[[int, int], None] = from_tests(COMBINATIONS).check_drawn
    name = f"schedules {first}"
    try:
        check_drawn(first, PER_CASE)
    except AssertionError as error:
        outcome = outcome_of_error(name, "schedules", error)
        return replace(
            outcome, verdict="wrong", reason="results of a schedule", source=_source(error)
        )
    except Exception as error:  # whatever a stage raises on a program that is right
        outcome = outcome_of_error(name, "schedules", error)
        return replace(outcome, verdict="internal error", source=_source(error))
    return Outcome(name, "equal")


def _source(error: Exception) -> str:
    """The combination and the text of the program, which the check has noted."""
    return next(iter(getattr(error, "__notes__", ())), "")
