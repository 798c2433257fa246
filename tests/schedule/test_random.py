"""Random trees with nested control: scheduled for several numbers of units, verified and run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.device.costs import CostModel
from stretto.device.program import DeviceProgram, Schedule, Wait
from stretto.device.text import parse_program, print_program
from stretto.device.tree import Tree, leaves, map_tree
from stretto.device.verifier import verify
from stretto.errors import VerifyError
from stretto.machines.emulator.memory import RaceError, UninitialisedRead
from stretto.machines.emulator.run import Emulator
from stretto.schedule.policies import POLICIES
from stretto.schedule.policy import Policy
from stretto.schedule.scheduler import schedule
from tests.sampling import sampled
from tests.schedule.policies import POLICIES as TRIED
from tests.schedule.random_trees import random_memory, random_tree
from tests.schedule.sequential import run_tree
from tests.schedule.trees import EAGER

seeds = st.integers(0, 100_000)
UNIFORM = replace(EAGER, uniform=True, wait_seconds=2e-7)
units = st.sampled_from([1, 2, 3, 7])
policies = st.sampled_from([None, *TRIED.values()])


@pytest.mark.whole
@given(seeds, units, policies, st.sampled_from([EAGER, UNIFORM]))
@settings(max_examples=35)
def test_schedules_are_right(
    seed: int, count: int, policy: Policy | None, costs: CostModel
) -> None:
    check(seed, count, policy, costs)


@pytest.mark.whole
@pytest.mark.parametrize("policy", sampled(sorted(TRIED), ["list"]))
def test_schedules_of_many_units_are_right(policy: str) -> None:
    check(5, 132, TRIED[policy], UNIFORM)


def check(seed: int, count: int, policy: Policy | None, costs: CostModel) -> None:
    """A random tree does on all units what it does when its text is followed."""
    tree = random_tree(seed)
    program = schedule(tree, count, costs, policy)
    assert program.units == count
    verify(program)
    assert parse_program(print_program(program)) == program
    expected, memory = random_memory(seed), random_memory(seed)
    run_tree(tree, expected)
    Emulator(program, seed).run(memory)
    for slot, tensor in expected.items():
        torch.testing.assert_close(memory[slot], tensor, rtol=0, atol=0, equal_nan=True)


@pytest.mark.whole
@given(seeds, st.sampled_from([2, 3]))
@settings(max_examples=8)
def test_a_missing_wait_is_found(seed: int, count: int) -> None:
    """The verifier rejects the program, or the wait was redundant: then no run finds a race."""
    program = schedule(random_tree(seed), count, EAGER)
    for place in wait_places(program):
        broken = without(program, place)
        try:
            verify(broken)
        except VerifyError:
            continue
        for order in range(2):
            Emulator(broken, order).run(random_memory(seed))


def test_an_access_that_one_arm_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unit 0 asked a unit that knew of the access only when the other arm had run."""
    monkeypatch.delitem(POLICIES, "team")
    verify(schedule(random_tree(36), 9, EAGER))


@pytest.mark.whole
def test_few_waits_are_redundant() -> None:
    waits = redundant = 0
    for seed in range(12):
        program = schedule(random_tree(seed), 2, EAGER)
        for place in wait_places(program):
            waits += 1
            try:
                verify(without(program, place))
                redundant += 1
            except VerifyError:
                pass
    assert waits > 50
    assert redundant < 0.03 * waits


@pytest.mark.whole
@given(seeds, st.sampled_from([2, 3]), st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_what_a_run_finds_the_verifier_finds(seed: int, count: int, rng) -> None:  # pyright: ignore
    program = schedule(random_tree(seed), count, EAGER)
    places = wait_places(program)
    if not places:
        return
    broken = without(program, rng.choice(places))
    try:
        Emulator(broken, seed).run(random_memory(seed))
    except (RaceError, UninitialisedRead):
        with pytest.raises(VerifyError, match="race|may still access"):
            verify(broken)


Place = tuple[int, int, int]


def wait_places(program: DeviceProgram) -> list[Place]:
    """Every wait as (leaf, unit, index), leaves counted over all functions."""
    return [
        (number, unit, index)
        for number, leaf in enumerate(all_leaves(program))
        for unit, items in enumerate(leaf.units)
        for index, item in enumerate(items)
        if isinstance(item, Wait)
    ]


def all_leaves(program: DeviceProgram) -> list[Schedule]:
    return [leaf for function in program.tree.functions for leaf in leaves(function.body)]


def without(program: DeviceProgram, place: Place) -> DeviceProgram:
    """The program with one item less."""
    number = iter(range(len(all_leaves(program))))

    def change(leaf: Schedule) -> Schedule:
        if next(number) != place[0]:
            return leaf
        items = list(leaf.units)
        items[place[1]] = items[place[1]][: place[2]] + items[place[1]][place[2] + 1 :]
        return Schedule(tuple(items), leaf.steps)

    tree: Tree[Schedule] = map_tree(program.tree, change)
    return replace(program, tree=tree)
