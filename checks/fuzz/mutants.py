"""The part "mutants": broken schedules, which the verifier rejects or the emulator shows correct.

The programs that are broken are those of `tests/schedule/specimens.py`, where this is a clone of
the repository. A case is some mutants of a few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from checks.fuzz.clone import from_tests, has_tests
from checks.fuzz.outcome import Outcome, Verdict
from checks.fuzz.trial import Note
from checks.fuzz.workers import Job
from checks.mutants import Specimen, Tally, run

PER_CASE = 50
"""Mutants of one case."""
SPECIMENS = 10
"""Programs that they are made of."""
SPECIMENS_MODULE = "tests.schedule.specimens"

VERDICTS: dict[str, Verdict] = {
    "accepted and wrong": "wrong",
    "unsafe": "wrong",
    "crash": "internal error",
    "undecided": "hang",
}


def mutants(seed: int, count: int, seconds: float) -> Job[int]:
    """About `count` mutants; none where this is not a clone."""
    firsts: Sequence[int] = range(seed, seed + count, PER_CASE)
    if not has_tests(SPECIMENS_MODULE):
        firsts = ()
    return Job(firsts, _try, lambda first: f"mutants {first}", seconds=PER_CASE * seconds)


def specimens(count: int, seed: int) -> list[Specimen]:
    """Correct programs of many kinds, drawn by the seed."""
    made: Callable[[int, int], list[Specimen]] = from_tests(SPECIMENS_MODULE).specimens
    return made(count, seed)


def _try(first: int, note: Note) -> Outcome:
    note("specimens")
    chosen = specimens(SPECIMENS, first)
    note("verifying and emulating mutants")
    tally = run(PER_CASE, first, chosen)
    verdict, reason = _verdict(tally)
    return Outcome(f"mutants {first}", verdict, reason=reason, detail=str(tally))


def _verdict(tally: Tally) -> tuple[Verdict, str]:
    if not tally.findings:
        return "equal", ""
    finding = tally.findings[0]
    return VERDICTS[finding.kind], f"{finding.kind}: {finding.detail}"
