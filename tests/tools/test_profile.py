"""Profiles: what is measured of a run, and the numbers drawn from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import stretto
from stretto.errors import BuildError
from stretto.tools.profile import left_out, make_profile, profile_entry
from tests.tools.profiles import profile
from tests.tools.programs import DECAY, DEPTH, decay, depth

OPTIONS = stretto.Options(threads=2)


def test_times_start_at_the_first_task() -> None:
    made = profile(steps=3)
    assert made.events[0].start == 0
    assert made.nanoseconds == 1400
    assert [event.start for event in made.events] == sorted(e.start for e in made.events)


def test_busy_share_and_tasks_of_a_unit() -> None:
    made = profile(steps=10)
    assert made.tasks(1) == 20
    assert made.busy(1) == 4000
    assert made.busy_share(1) == pytest.approx(4000 / 4900)


def test_a_profile_without_tasks() -> None:
    made = make_profile("f32[0]", 1, (), [])
    assert (made.nanoseconds, made.busy_share(0), made.tasks(0)) == (0, 0.0, 0)


def test_what_is_left_out_is_said() -> None:
    assert left_out(profile(steps=2), most=8) == ""
    assert "only the first 7 of 8 tasks" in left_out(profile(steps=2), most=7).lower()


def test_every_task_of_a_run_is_recorded() -> None:
    fast = stretto.compile(decay, DECAY, backend="cpu", options=OPTIONS)
    (entry,) = fast.signatures
    made = profile_entry(entry, OPTIONS)
    assert entry.stages.device is not None
    assert made.units == entry.stages.device.units
    assert sum(kernel.tasks for kernel in made.kernels) == len(made.events)
    assert all(0 <= event.start <= event.end for event in made.events)
    # The branch in the loop takes one arm in each of its six trips.
    assert len(made.events) >= 6
    assert "programs.py:" in made.kernels[0].lines


def test_tasks_of_recursive_activations_are_recorded() -> None:
    options = replace(OPTIONS, debug=replace(OPTIONS.debug, skip=("unroll_recursion",)))
    fast = stretto.compile(depth, DEPTH, backend="cpu", options=options)
    made = profile_entry(fast.signatures[0], options)
    assert max(kernel.tasks for kernel in made.kernels) >= 5


def test_profiling_changes_neither_inputs_nor_later_results() -> None:
    state = torch.zeros(4)

    def accumulate(x: torch.Tensor) -> torch.Tensor:
        state.add_(x)
        return state * 2

    fast = stretto.compile(accumulate, (torch.ones(4),), backend="cpu", options=OPTIONS)
    profile_entry(fast.signatures[0], OPTIONS)
    assert torch.equal(state, torch.zeros(4))
    assert torch.equal(fast(torch.ones(4)), torch.full((4,), 2.0))


@pytest.mark.parametrize("backend", ["emulator", "interpreter"])
def test_a_backend_without_a_clock_is_refused(backend: str) -> None:
    fast = stretto.compile(decay, DECAY, backend=backend, options=OPTIONS)
    with pytest.raises(BuildError, match=f"the {backend} backend has no timeline") as caught:
        profile_entry(fast.signatures[0], OPTIONS)
    assert caught.value.remedy == 'compile with backend="cpu"'
