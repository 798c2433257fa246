"""The parts of `python -m checks.fuzz`, and how one is run, reported and its failures reduced."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from checks.fuzz.exportdb import database, exportdb
from checks.fuzz.journal import Journal
from checks.fuzz.known import unknown_refusals
from checks.fuzz.machines import NATIVE, STANDARD
from checks.fuzz.mutants import mutants
from checks.fuzz.operators import (
    ABSENT,
    module_samples,
    modules,
    operator_samples,
    operators,
    sized_samples,
    special_samples,
)
from checks.fuzz.outcome import Outcome
from checks.fuzz.programs import WRITTEN, random_programs, reduced_source
from checks.fuzz.python_tests import python_test_cases, python_tests
from checks.fuzz.report import PartReport
from checks.fuzz.sanitizers import sanitizers
from checks.fuzz.schedules import schedules
from checks.fuzz.torch_instances import (
    module_instance_samples,
    module_instances,
    operator_instance_samples,
    operator_instances,
)
from checks.fuzz.workers import Job, run_all

SLOWER = 15
"""A case of the sanitizers is many functions, built by slower compilers."""

MOST_REDUCED = 10
"""Failures with different reasons whose sources are cut down."""

T = TypeVar("T")

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run tries. `machines`: those of the part where empty. `count` 0: all there is."""

    count: int = 1000
    seed: int = 0
    jobs: int = 1
    seconds: float = 60.0
    machines: tuple[str, ...] = ()
    per_entry: int = 10
    reduce: bool = True


def written_job(part: str) -> Callable[[Settings], Job[Any]]:
    """A part whose programs are written."""
    return lambda settings: random_programs(
        part, settings.seed, settings.count or 20_000, settings.machines, settings.seconds
    )


def operators_job(settings: Settings) -> Job[Any]:
    samples = sampled(operator_samples(settings.per_entry), settings)
    return operators(samples, settings.machines or NATIVE[:1], settings.seconds)


def special_job(settings: Settings) -> Job[Any]:
    samples = sampled(special_samples(max(1, settings.per_entry // 3)), settings)
    return operators(samples, settings.machines or NATIVE[:1], settings.seconds)


def operator_sizes_job(settings: Settings) -> Job[Any]:
    samples = sampled(sized_samples(max(1, settings.per_entry // 3)), settings)
    return operators(samples, settings.machines or NATIVE[:1], settings.seconds)


def operator_instances_job(settings: Settings) -> Job[Any]:
    samples = sampled(operator_instance_samples(max(1, settings.per_entry // 3)), settings)
    return operator_instances(samples, settings.machines or NATIVE[:1], settings.seconds)


def module_instances_job(settings: Settings) -> Job[Any]:
    samples = sampled(module_instance_samples(max(1, settings.per_entry // 3)), settings)
    return module_instances(samples, settings.machines or NATIVE[:1], settings.seconds)


def modules_job(settings: Settings) -> Job[Any]:
    samples = sampled(module_samples(settings.per_entry), settings)
    return modules(samples, settings.machines or NATIVE, settings.seconds)


def exportdb_job(settings: Settings) -> Job[Any]:
    return exportdb(list(database()), settings.machines or STANDARD, settings.seconds)


def python_tests_job(settings: Settings) -> Job[Any]:
    return python_tests(sampled(python_test_cases(), settings), settings.machines, settings.seconds)


def sanitizers_job(settings: Settings) -> Job[Any]:
    return sanitizers(settings.seed, settings.count // 10, SLOWER * settings.seconds)


def mutants_job(settings: Settings) -> Job[Any]:
    return mutants(settings.seed, settings.count or 10_000, settings.seconds)


def schedules_job(settings: Settings) -> Job[Any]:
    return schedules(settings.seed, settings.count or 10_000, settings.seconds)


def sampled(samples: list[T], settings: Settings) -> list[T]:
    """As many of them as `count` says, drawn by the seed, in their order."""
    if not settings.count or settings.count >= len(samples):
        return samples
    chosen = random.Random(settings.seed).sample(range(len(samples)), settings.count)
    return [samples[number] for number in sorted(chosen)]


DATABASES = ("operators", "modules", "exportdb")
"""The parts whose refusals are listed."""

PARTS: dict[str, Callable[[Settings], Job[Any]]] = {
    "functions": written_job("functions"),
    "python": written_job("python"),
    "operators": operators_job,
    "special": special_job,
    "sizes": written_job("sizes"),
    "instances": written_job("instances"),
    "operator-sizes": operator_sizes_job,
    "operator-instances": operator_instances_job,
    "modules": modules_job,
    "module-instances": module_instances_job,
    "exportdb": exportdb_job,
    "python-tests": python_tests_job,
    "sanitizers": sanitizers_job,
    "mutants": mutants_job,
    "schedules": schedules_job,
}


def run_part(
    part: str,
    settings: Settings,
    progress: Progress = lambda *_: None,
    journal: Journal | None = None,
) -> PartReport:
    """All cases of a part; those that the journal has are not tried again."""
    job = PARTS[part](settings)
    known = [journal.known(part, job.name(case)) if journal else None for case in job.cases]
    rest = [case for case, outcome in zip(job.cases, known, strict=True) if outcome is None]
    found = [outcome for outcome in known if outcome is not None]
    for outcome in run_all(replace(job, cases=rest), settings.jobs):
        found.append(outcome)
        if journal is not None:
            journal.add(part, outcome)
        progress(len(found), len(known))
    report = report_of(part, found)
    if settings.reduce and part in WRITTEN:
        report.reduced = reduced(part, report.failures, settings)
    return report


def report_of(part: str, outcomes: Iterable[Outcome]) -> PartReport:
    """The report on outcomes of a part, without those of cases that this machine cannot have."""
    report = PartReport(part)
    for outcome in outcomes:
        if outcome.reason != ABSENT:
            report.add(outcome)
    if part in DATABASES:
        report.failures += unknown_refusals(part, report.outcomes)
    return report


def reduced(part: str, failures: Sequence[Outcome], settings: Settings) -> dict[str, str]:
    """The smallest source for each reason, by verdict, reason and name."""
    first: dict[tuple[str, str], Outcome] = {}
    for outcome in failures:
        if outcome.source:
            first.setdefault((outcome.verdict, outcome.reason), outcome)
    found: dict[str, str] = {}
    for outcome in list(first.values())[:MOST_REDUCED]:
        title = f"{outcome.name}, {outcome.backend}, {outcome.verdict}: {outcome.reason}"
        found[title] = reduced_source(part, outcome, settings.seconds)
    return found


def failed(reports: Sequence[PartReport]) -> bool:
    return any(report.failures for report in reports)
