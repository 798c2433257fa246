"""The part "functions": random functions, each on all backends."""

from __future__ import annotations

from dataclasses import replace

from checks.fuzz.machines import MACHINES
from checks.fuzz.outcome import Outcome
from checks.fuzz.source import Source
from checks.fuzz.trial import Note, try_program
from checks.fuzz.workers import WRITING, Job
from checks.fuzz.writer import write_source


def machines_of(seed: int, chosen: tuple[str, ...]) -> tuple[str, ...]:
    """The machines chosen by the user, else those that try the function of this seed."""
    return chosen or tuple(n for n, m in MACHINES.items() if seed % m.every == 0)


def random_functions(first: int, count: int, machines: tuple[str, ...], seconds: float) -> Job[int]:
    """Functions of the seeds from `first` on."""

    def run(seed: int, note: Note) -> Outcome:
        note(WRITING)
        source = Source(f"seed {seed}", write_source(seed), seed, machines_of(seed, machines))
        outcome = try_program(source.program(), note)
        return replace(outcome, source="" if outcome.verdict == "equal" else source.text)

    return Job(range(first, first + count), run, lambda seed: f"seed {seed}", write_source, seconds)
