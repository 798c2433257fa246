"""One list of steps for all units: every unit's own order, and waits after their signals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.device.program import Item, Run, Schedule, Signal, Wait
from stretto.device.tree import leaves
from stretto.errors import ScheduleError
from stretto.schedule.merge import RunStep, SignalStep, WaitStep, dealt_from, merge
from stretto.schedule.scheduler import schedule
from tests.schedule.random_trees import random_tree
from tests.schedule.trees import EAGER


@given(st.integers(0, 100_000), st.sampled_from([1, 2, 3, 5]))
@settings(max_examples=40)
def test_every_unit_keeps_its_order(seed: int, units: int) -> None:
    program = schedule(random_tree(seed), units, EAGER)
    for function in program.tree.functions:
        for leaf in leaves(function.body):
            lists: list[list[Item]] = [[] for _ in leaf.units]
            published = [0 if items else leaf.steps for items in leaf.units]
            for step in merge(leaf):
                for unit, items in step.items(len(lists)):
                    lists[unit] += items
                    for item in items:
                        if isinstance(item, Wait):
                            others = range(item.unit, item.unit + item.count)
                            assert all(published[o] >= item.step for o in others if o != unit)
                if isinstance(step, SignalStep):
                    for unit, value in step.steps.items():
                        published[unit] = value
                for unit, items in enumerate(lists):
                    if len(items) == len(leaf.units[unit]):
                        published[unit] = leaf.steps
            assert tuple(tuple(items) for items in lists) == leaf.units


def test_equal_lists_become_single_steps() -> None:
    units = tuple((Run("a", u, 1), Signal(1), Wait(0, 1, 4), Run("b", u, 1)) for u in range(4))
    steps = merge(Schedule(units, 2))
    assert [type(step).__name__ for step in steps] == [
        "RunStep", "SignalStep", "WaitStep", "RunStep",
    ]  # fmt: skip
    assert isinstance(steps[2], WaitStep)
    assert set(steps[2].waits.values()) == {(Wait(0, 1, 4),)}


def test_a_chain_over_units_is_in_its_order() -> None:
    """Unit 1 comes first here, although unit 0 is the first in the list."""
    first = (Wait(1, 1), Run("b", 0, 1))
    second = (Run("a", 0, 1), Signal(1))
    names = [
        step.kernel for step in merge(Schedule((first, second), 2)) if isinstance(step, RunStep)
    ]
    assert names == ["a", "b"]


def test_a_deadlock_is_an_error() -> None:
    units = ((Wait(1, 1), Signal(1)), (Wait(0, 1), Signal(1)))
    with pytest.raises(ScheduleError, match="never end"):
        merge(Schedule(units, 2))


def test_tasks_dealt_round_robin_are_recognised() -> None:
    from tests.schedule.programs import chain

    kernel = chain().kernels[0]
    tasks = kernel.tasks
    units = tasks + 2
    runs = {(t + 1) % units: (Run(kernel.name, t, 1, units),) for t in range(tasks)}
    assert dealt_from(RunStep(kernel.name, runs), kernel, units) == 1
    blocks = {0: (Run(kernel.name, 0, tasks),)}
    assert dealt_from(RunStep(kernel.name, blocks), kernel, 2) == (0 if tasks == 1 else None)
