"""Test the verifier with mutants of correct programs; those that it accepts are emulated.

A mutant is verified on its own, and as a schedule of its source. One that is accepted on
its own must be safe: no race, no deadlock, no read of unwritten memory, and the same
results in all interleavings. One that is accepted as a schedule of its source must give the
results of the source, or fail as the source fails.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from checks.mutation import Mutant, mutate
from stretto.device.program import DeviceProgram
from stretto.device.regions import Body
from stretto.device.tree import Tree
from stretto.device.verifier import verify
from stretto.device.verifier.initialisation import loose_names
from stretto.errors import StrettoError, VerifyError
from stretto.machines.emulator.memory import RaceError, UninitialisedRead
from stretto.runtime.results import DeadlockError

VERIFY_SECONDS = 5.0
"""Time limit of a decision; one that takes longer counts as none."""
RUN_SECONDS = 30.0
"""Time limit of an emulated run."""
SAFETY_SECONDS = 2.0
"""Time limit of an emulated run that is not a schedule of its source: it may run for ever."""
SEEDS = (0, 1)
"""Seeds of the interleavings of each accepted mutant."""

Outcome = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Specimen:
    """A correct program and the tree that it schedules.

    run: returns the results under an interleaving; raises what the emulator raises.
    sequential: returns the results of a source tree, run without a schedule.
    """

    name: str
    program: DeviceProgram
    source: Tree[Body]
    run: Callable[[DeviceProgram, int], Outcome]
    sequential: Callable[[Tree[Body]], Outcome]


@dataclass(frozen=True, slots=True)
class Finding:
    """An error of the verifier, with everything needed to reproduce it."""

    kind: str
    specimen: str
    seed: int
    change: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.specimen}, seed {self.seed}, {self.change}: {self.detail}"


@dataclass(slots=True)
class Tally:
    """Counts of the outcomes of mutants."""

    counts: Counter[str] = field(default_factory=Counter[str])
    reasons: Counter[str] = field(default_factory=Counter[str])
    findings: list[Finding] = field(default_factory=list[Finding])
    slowest: float = 0.0

    def add(self, other: Tally) -> None:
        """Add the mutants of another tally."""
        self.counts += other.counts
        self.reasons += other.reasons
        self.findings += other.findings
        self.slowest = max(self.slowest, other.slowest)

    def __str__(self) -> str:
        lines = [f"{count:6} {what}" for what, count in sorted(self.counts.items())]
        lines.append(f"longest decision {self.slowest:.2f} s")
        return "\n".join([*lines, *(str(finding) for finding in self.findings)])


class _TooLong(Exception):
    pass


def run(
    count: int,
    seed: int,
    specimens: Sequence[Specimen],
    report: Callable[[str], None] = lambda line: None,
) -> Tally:
    """Test `count` mutants, of the specimens in turn; mutant n depends on `seed` + n alone."""
    tally = Tally()
    for number in range(count):
        specimen = specimens[number % len(specimens)]
        before = len(tally.findings)
        judge(specimen, seed + number, tally)
        for finding in tally.findings[before:]:
            report(str(finding))
    return tally


def judge(specimen: Specimen, seed: int, tally: Tally) -> None:
    """Make one mutant, and judge it."""
    judge_mutant(
        specimen, mutate(specimen.program, specimen.source, random.Random(seed)), tally, seed
    )


def judge_mutant(specimen: Specimen, mutant: Mutant, tally: Tally, seed: int = 0) -> None:
    """Verify a mutant, and run it if it was accepted. seed: the one it was made with, for
    reports."""

    def found(kind: str, detail: str) -> None:
        tally.counts[kind] += 1
        tally.findings.append(Finding(kind, specimen.name, seed, mutant.change, detail))

    reason = _decide(mutant, None, tally, found)
    if reason is not None:
        tally.counts["rejected"] += 1
        tally.reasons[reason] += 1
        return
    if (unlike := _decide(mutant, mutant.source, tally, found)) is not None:
        tally.counts["rejected as a schedule of its source"] += 1
        tally.reasons[unlike] += 1
        _check_safety(specimen, mutant, found)
    else:
        _check_results(specimen, mutant, tally, found)


Found = Callable[[str, str], None]


def _check_safety(specimen: Specimen, mutant: Mutant, found: Found) -> None:
    """Check for errors that no accepted program may have, whatever it computes. It may stop, or
    run for ever."""
    outcomes: list[Outcome] = []
    for seed in SEEDS:
        try:
            with _limit(SAFETY_SECONDS):
                outcomes.append(specimen.run(mutant.program, seed))
        except UninitialisedRead as error:
            # Which elements of loose buffers are written can only be checked against the source.
            if error.buffer not in loose_names(mutant.program):
                found("unsafe", f"{type(error).__name__}: {error}")
            return
        except (RaceError, DeadlockError) as error:
            found("unsafe", f"{type(error).__name__}: {error}")
            return
        except (StrettoError, _TooLong, RuntimeError, ValueError, LookupError):
            return  # an allowed failure, such as a constant that the machine does not have
    if any(not _equal(outcomes[0], other) for other in outcomes[1:]):
        found("unsafe", "interleavings give different results")


def _check_results(specimen: Specimen, mutant: Mutant, tally: Tally, found: Found) -> None:
    wanted = _attempt(lambda: specimen.sequential(mutant.source))
    for seed in SEEDS:
        outcome = _attempt(lambda seed=seed: specimen.run(mutant.program, seed))
        if isinstance(outcome, str):
            if outcome != wanted:
                found("accepted and wrong", outcome)
                return
        elif isinstance(wanted, str) or not _equal(outcome, wanted):
            found("accepted and wrong", "the results are not those of the source")
            return
    if isinstance(wanted, str):
        tally.counts["accepted, and fails as its source does"] += 1
        tally.reasons[f"source: {wanted}"] += 1
    else:
        tally.counts["accepted and equal"] += 1


def _attempt(run: Callable[[], Outcome]) -> Outcome | str:
    """Return the results, or the kind of error."""
    try:
        with _limit(RUN_SECONDS):
            return run()
    except _TooLong:
        return f"no result after {RUN_SECONDS} s"
    except Exception as error:  # a broken program may do anything; the name is the finding
        return type(error).__name__


def _decide(
    mutant: Mutant,
    source: Tree[Body] | None,
    tally: Tally,
    found: Found,
) -> str | None:
    """Return why the verifier rejects the mutant; None if it accepts it."""
    start = time.perf_counter()
    reason = None
    try:
        with _limit(VERIFY_SECONDS):
            verify(mutant.program, source)
    except VerifyError as error:
        reason = error.message
    except _TooLong:
        found("undecided", f"after {VERIFY_SECONDS} s")
        reason = "undecided"
    except Exception as error:  # a verifier that fails otherwise than by a VerifyError has crashed
        found("crash", f"{type(error).__name__}: {error}")
        reason = "crash"
    tally.slowest = max(tally.slowest, time.perf_counter() - start)
    return reason


def _equal(one: Outcome, other: Outcome) -> bool:
    if len(one) != len(other):
        return False
    return all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


@contextmanager
def _limit(seconds: float) -> Generator[None]:
    """Raise _TooLong inside the block after this many seconds (main thread only)."""

    def ring(number: int, frame: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
