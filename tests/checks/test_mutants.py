"""Mutants of correct programs: the verifier rejects them, or they do what their source does."""

from __future__ import annotations

import random

import pytest

from checks.mutants import Tally, run
from checks.mutation import KINDS, NotApplicable, mutate
from stretto.device.verifier import verify
from tests.backends import SPREAD
from tests.sampling import sampled
from tests.schedule.kinds import KINDS as SCHEDULES
from tests.schedule.kinds import kind_specimen
from tests.schedule.specimens import sized_specimen, specimens, tree_specimen
from tests.symbolic import EXAMPLES

PARTS = 4
MUTANTS = 75
"""Of each part; `checks.mutants.run` takes as many as one likes."""


@pytest.mark.whole
@pytest.mark.parametrize("part", sampled(range(PARTS), [0, 1]))
def test_no_accepted_mutant_is_wrong(part: int) -> None:
    tally = run(MUTANTS, seed=1000 * part, specimens=specimens(12, seed=part))
    assert not tally.findings, str(tally)
    assert tally.counts["rejected"] > MUTANTS / 2
    assert tally.counts["accepted and equal"] > 0


@pytest.mark.whole
def test_specimens_are_correct() -> None:
    for specimen in specimens(24, seed=99):
        verify(specimen.program, specimen.source)


def test_mutants_depend_on_their_seed_alone() -> None:
    (specimen,) = specimens(1, seed=5)

    def made(seed: int) -> str:
        mutant = mutate(specimen.program, specimen.source, random.Random(seed))
        return mutant.change

    assert [made(seed) for seed in range(20)] == [made(seed) for seed in range(20)]


def test_every_kind_of_change_is_made() -> None:
    """Each kind applies to some specimen, and gives another program."""
    found = [kind_specimen(kind, "list") for kind in SCHEDULES]
    rng = random.Random(0)
    found += [sized_specimen(example, 2, SPREAD, True, rng) for example in EXAMPLES[:3]]
    found += [tree_specimen(seed, 3, SPREAD) for seed in range(3)]
    for kind in dict.fromkeys(KINDS):
        for specimen in found * 3:
            try:
                mutant = kind(specimen.program, specimen.source, rng)
            except NotApplicable:
                continue
            if mutant.program != specimen.program:
                break
        else:
            pytest.fail(f"{kind} changes nothing")


def test_findings_say_what_to_run_again() -> None:
    tally = Tally()
    tally.counts["rejected"] += 3
    assert str(tally).splitlines() == ["     3 rejected", "longest decision 0.00 s"]
