"""Schedules of every kind by every policy, and what is rejected of them: each wait dropped or
moved, tasks swapped, buffers put where others still are."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, product

import pytest

from checks.mutants import Tally, judge_mutant
from checks.mutation import Mutant
from checks.mutation.parts import at_path, places, with_part
from stretto.device.program import DeviceProgram, Item, Placement, Run, Schedule, Wait
from stretto.device.verifier import verify
from tests.sampling import sampled
from tests.schedule.kinds import CHOICES, KINDS, kind_specimen

Units = tuple[tuple[Item, ...], ...]
Changes = Iterator[tuple[str, DeviceProgram]]
MOST = 10
"""Changes of a sort that are tried of one program, drawn at random."""
MOST_OF_LEVELS = 3
"""The same of a program that takes longer to verify."""
ENOUGH = 4
"""So many changes of a sort are not all harmless, unless they only swap tasks."""


def of_leaves(
    change: Callable[[tuple[Item, ...]], Iterator[tuple[Item, ...]]],
) -> Callable[[DeviceProgram], Changes]:
    """A change of the items of one unit of a leaf, made anywhere."""

    def apply(program: DeviceProgram) -> Changes:
        for path in places(program.tree, lambda value: isinstance(value, Schedule)):
            leaf: Schedule = at_path(program.tree, path)
            for unit, items in enumerate(leaf.units):
                for number, changed in enumerate(change(items)):
                    units = (*leaf.units[:unit], changed, *leaf.units[unit + 1 :])
                    tree = with_part(program.tree, path, replace(leaf, units=units))
                    text = f"{path}, unit {unit}, {number}"
                    yield text, replace(program, tree=tree)

    return apply


@of_leaves
def waits_dropped(items: tuple[Item, ...]) -> Iterator[tuple[Item, ...]]:
    for place, item in enumerate(items):
        if isinstance(item, Wait):
            yield (*items[:place], *items[place + 1 :])


@of_leaves
def waits_moved(items: tuple[Item, ...]) -> Iterator[tuple[Item, ...]]:
    """Behind the run that they stand before."""
    for place, item in enumerate(items):
        later = [at for at in range(place, len(items)) if isinstance(items[at], Run)]
        if isinstance(item, Wait) and later:
            behind = later[0] + 1
            yield (*items[:place], *items[place + 1 : behind], item, *items[behind:])


@of_leaves
def runs_swapped(items: tuple[Item, ...]) -> Iterator[tuple[Item, ...]]:
    """Each with the next one of its unit, which is of another kernel."""
    runs = [place for place, item in enumerate(items) if isinstance(item, Run)]
    for one, other in pairwise(runs):
        first, second = items[one], items[other]
        assert isinstance(first, Run) and isinstance(second, Run)
        if first.kernel != second.kernel:
            changed = list(items)
            changed[one], changed[other] = second, first
            yield tuple(changed)


def lifetimes_shortened(program: DeviceProgram) -> Changes:
    """A buffer lies where another one is, as if that one were no longer needed."""
    for number, (name, frame) in enumerate(program.frames):
        for (at, (one, place)), (other, there) in product(
            enumerate(frame.placements), frame.placements
        ):
            if one != other and place.offset != there.offset and place.nbytes <= there.nbytes:
                placed = list(frame.placements)
                placed[at] = one, Placement(there.offset, place.nbytes, place.copies)
                frames = list(program.frames)
                frames[number] = name, replace(frame, placements=tuple(placed))
                text = f"{one} in the place of {other}"
                yield text, replace(program, frames=tuple(frames))


CHANGES = (waits_dropped, waits_moved, runs_swapped, lifetimes_shortened)
CASES = [
    (kind, policy, uniform) for kind, policy, uniform in product(KINDS, CHOICES, (False, True))
]
SAMPLE = [
    (kind, CHOICES[number % len(CHOICES)], number % 2 == 1) for number, kind in enumerate(KINDS)
]


@pytest.mark.parametrize(("kind", "policy", "uniform"), sampled(CASES, SAMPLE))
def test_broken_schedules_are_rejected(kind: str, policy: str, uniform: bool) -> None:
    """What is accepted gives what the program gives, in whatever order the units run."""
    specimen = kind_specimen(kind, policy, uniform=uniform)
    verify(specimen.program, specimen.source)
    rng = random.Random(kind)
    for change in CHANGES:
        found = list(change(specimen.program))
        most = MOST_OF_LEVELS if kind == "recursion_levels" else MOST
        drawn = rng.sample(found, min(most, len(found)))
        tally = Tally()
        for text, program in drawn:
            judge_mutant(specimen, Mutant(program, specimen.source, text), tally)
        assert not tally.findings, str(tally)
        assert tally.counts["rejected"] or len(drawn) < ENOUGH or change is runs_swapped
