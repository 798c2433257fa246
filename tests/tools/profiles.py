"""Hand-made profiles, so that pictures and traces can be tested without a run."""

from __future__ import annotations

from stretto.machines.machine import TaskEvent
from stretto.tools.profile import Profile, ProfiledKernel, make_profile

KERNELS = ("cell1", "linear2")


def profile(steps: int, units: int = 2, title: str = "f32[4, 8]") -> Profile:
    """`steps` times a task of 300 ns and one of 100 ns on each unit, then a wait of 100 ns."""
    events = [
        event
        for unit in range(units)
        for step in range(steps)
        for event in (
            TaskEvent(unit, 0, 2 * step + unit, 1000 + 500 * step, 1300 + 500 * step),
            TaskEvent(unit, 1, unit, 1300 + 500 * step, 1400 + 500 * step),
        )
    ]
    kernels = tuple(_kernel(number, name, events) for number, name in enumerate(KERNELS))
    return make_profile(title, units, kernels, events)


def _kernel(number: int, name: str, events: list[TaskEvent]) -> ProfiledKernel:
    mine = [event for event in events if event.kernel == number]
    busy = sum(event.end - event.start for event in mine)
    return ProfiledKernel(
        name, "contraction x4, tanh", "packed 1x64", "64 of 128", "m.py:3", len(mine), busy
    )
