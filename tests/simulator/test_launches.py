"""A launch per kernel: times by hand, what the host reads, and where it is faster."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from stretto.schedule.scheduler import schedule
from stretto.simulator.devices import CPU, H200
from stretto.simulator.launches import by_kernel, launch_per_kernel, read_seconds
from stretto.simulator.simulate import simulate
from tests.schedule.programs import chain, loop
from tests.schedule.random_trees import random_tree
from tests.schedule.trees import EAGER

US = 1e-6
BARE = replace(
    CPU, memory_bandwidth=inf, unit_bandwidth=inf, start_seconds=0, wait_seconds=0, wake_seconds=0
)


def test_launches_follow_each_other() -> None:
    late = replace(BARE, wait_seconds=0.25 * US, next_launch_seconds=3 * US)
    assert simulate(chain(), late, costs=EAGER).seconds / US == pytest.approx(2.25)
    found = launch_per_kernel(chain(), late, costs=EAGER)
    assert found.count == 2
    assert found.seconds / US == pytest.approx(1 + 3 + 1 + 3)  # and the last one ends
    assert not found.faster(simulate(chain(), late, costs=EAGER), late)


def test_launches_that_are_cheaper_than_waits() -> None:
    late = replace(BARE, wait_seconds=5 * US, next_launch_seconds=0.5 * US)
    whole = simulate(chain(), late, costs=EAGER)
    found = launch_per_kernel(chain(), late, costs=EAGER)
    assert list(found.faster(whole, late)) == ["leaf 0"]
    ((before, after),) = found.faster(whole, late).values()
    assert before / US == pytest.approx(7)
    assert after / US == pytest.approx(3 + 2 * 0.5)


def test_a_launch_in_each_iteration() -> None:
    found = launch_per_kernel(loop(), replace(BARE, next_launch_seconds=US), costs=EAGER)
    whole = simulate(loop(), BARE, costs=EAGER)
    assert found.count == 5 and not found.faster(whole, BARE)
    assert found.stretches["for t, leaf 1"] / US == pytest.approx(3 * (1 + 1))


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_have_the_same_tasks(seed: int) -> None:
    """And the host reads what memory decides, which is nothing where the numbers are known."""
    program = schedule(random_tree(seed), 3, EAGER)
    one, other = (simulate(made, H200, costs=EAGER) for made in (program, by_kernel(program)))
    assert one.tasks == other.tasks and one.titles == other.titles
    found = launch_per_kernel(program, H200, costs=EAGER)
    assert found.seconds >= found.reads * read_seconds(H200)
