"""The parts whose programs are written: random functions, and random programs for one instance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from checks.fuzz.instances import Instances
from checks.fuzz.machines import MACHINES, ORACLES
from checks.fuzz.outcome import Outcome
from checks.fuzz.source import Source
from checks.fuzz.trial import Note, try_program
from checks.fuzz.workers import WRITING, Job, Workers
from checks.fuzz.writer import WRITERS, smallest, write

WRITTEN = tuple(WRITERS)


def machines_of(seed: int, chosen: tuple[str, ...]) -> tuple[str, ...]:
    """The machines chosen by the user, else those that try the function of this seed."""
    return chosen or tuple(n for n, m in MACHINES.items() if seed % m.every == 0)


def source_of(part: str, seed: int, machines: tuple[str, ...], text: str) -> Source:
    """A text of a part. Every third function over sizes makes only those sizes symbols that have
    been seen to differ."""
    chosen = machines or ORACLES if part == "python" else machines_of(seed, machines)
    source = (Instances if part == "instances" else Source)(f"seed {seed}", text, seed, chosen)
    if part == "sizes":
        return replace(source, dynamic=None if seed % 3 == 0 else True, goes_on=True)
    return source


def random_programs(
    part: str, first: int, count: int, machines: tuple[str, ...], seconds: float
) -> Job[int]:
    """Programs of the seeds from `first` on."""

    def text(seed: int) -> str:
        return write(part, seed)

    def run(seed: int, note: Note) -> Outcome:
        note(WRITING)
        source = source_of(part, seed, machines, text(seed))
        outcome = try_program(source.program(), note)
        return replace(outcome, source="" if outcome.verdict == "equal" else source.text)

    return Job(range(first, first + count), run, lambda seed: f"seed {seed}", text, seconds)


def reduced_source(part: str, outcome: Outcome, limit: float, seconds: float = 240.0) -> str:
    """The smallest source that fails as one did on its backend, with how to run it again."""
    seed, machines = int(outcome.name.split()[-1]), (outcome.backend,)
    limit = limit if outcome.verdict != "hang" else min(limit, 10.0)

    def run(source: Source, note: Note) -> Outcome:
        return try_program(source.program(), note)

    with Workers(Job((), run, lambda one: one.name, seconds=limit), 1) as workers:

        def fails(text: str) -> bool:
            (again,) = workers.run([source_of(part, seed, machines, text)])
            same = again.verdict == outcome.verdict
            return same and (again.reason == outcome.reason or outcome.verdict == "hang")

        return smallest(part, seed, fails, seconds) + AGAIN.format(
            part=part, seed=seed, machine=outcome.backend
        )


AGAIN = """

if __name__ == "__main__":
    from checks.fuzz.programs import run_again

    print(run_again(__file__, "{part}", {seed}, "{machine}"))
"""


def run_again(path: str, part: str, seed: int, machine: str) -> str:
    """The verdict on a printed source."""
    source = source_of(part, seed, (machine,), Path(path).read_text())
    outcome = try_program(source.program())
    return f"{outcome.verdict}: {outcome.reason}\n{outcome.detail}"
