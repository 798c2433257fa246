"""The part "functions": random functions, each on all backends."""

from __future__ import annotations

from dataclasses import replace

from stretto.tools.fuzz.machines import STANDARD
from stretto.tools.fuzz.outcome import Outcome
from stretto.tools.fuzz.source import Source
from stretto.tools.fuzz.trial import Note, try_program
from stretto.tools.fuzz.workers import Job
from stretto.tools.fuzz.writer import write_source

CUDA_EVERY = 20
"""One function in so many also runs on the emulated GPU, which is slow."""


def machines_of(seed: int, chosen: tuple[str, ...]) -> tuple[str, ...]:
    if chosen:
        return chosen
    return (*STANDARD, "cuda-emulated") if seed % CUDA_EVERY == 0 else STANDARD


def random_functions(first: int, count: int, machines: tuple[str, ...], seconds: float) -> Job[int]:
    """Functions of the seeds from `first` on."""

    def run(seed: int, note: Note) -> Outcome:
        note("eager: writing")
        source = Source(f"seed {seed}", write_source(seed), seed, machines_of(seed, machines))
        outcome = try_program(source.program(), note)
        return replace(outcome, source="" if outcome.verdict == "equal" else source.text)

    return Job(range(first, first + count), run, lambda seed: f"seed {seed}", write_source, seconds)
