"""What the scheduling policy assumes of a machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MachineCosts:
    """Times in seconds.

    wait_seconds: one unit waits for another that has just finished.
    wake_seconds: the workers are woken for a launch that uses more than one unit.
    task_seconds: a task whose kernel has no estimate.
    call_seconds: a library call.
    unknown_trips: iterations of a loop without a static trip count, activations of a recursive
        function, tasks of a dynamic grid.
    small_waits: a kernel that takes less than this many waits runs on one unit.
    team: the units are alike and many, as the thread blocks of one GPU kernel. All of them run
        whatever is gained, tasks are dealt among them (`team`), and buffers share no memory.
    share_bytes: a smaller buffer gets memory of its own, so that it causes no waits.
    """

    wait_seconds: float = 2e-7
    wake_seconds: float = 5e-6
    task_seconds: float = 1e-6
    call_seconds: float = 2e-5
    unknown_trips: int = 16
    small_waits: float = 1.5
    share_bytes: int = 16384
    team: bool = False


GPU_COSTS = MachineCosts(wait_seconds=1e-6, wake_seconds=0.0, task_seconds=1e-6, team=True)
"""Of an H200, from design figures: a wait goes through the second-level cache twice."""
