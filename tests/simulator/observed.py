"""What an emulated run shows: which way it took, and which tasks surely come before which."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stretto.device.program import DeviceProgram, Schedule
from stretto.device.tree import If, Loop
from stretto.machines.emulator import run as emulator
from stretto.machines.emulator.run import Emulator
from stretto.simulator.run_path import Choices
from tests.schedule.random_trees import random_memory


@dataclass(frozen=True, slots=True)
class Done:
    """A task of a unit, the unit's own clock then, and what the unit knew of all units."""

    unit: int
    kernel: str
    own: int
    known: NDArray[np.int32]

    def is_before(self, other: Done) -> bool:
        """Whether every run does this task first, by program order or by waits."""
        return self.unit != other.unit and self.own <= other.known[self.unit]


@dataclass
class Observed(Choices):
    """Tasks in an order in which they were run. As `Choices` it repeats the way of the run: what
    each branch and loop did, each time that it was come to."""

    done: list[Done] = field(default_factory=list[Done])
    arms: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    turns: dict[int, list[list[int]]] = field(default_factory=lambda: defaultdict(list))
    active: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    depth: int = 1000

    def arm(self, node: If[Schedule], seconds: object, ends: object) -> int:
        return self.arms[id(node)].pop(0)

    def goes_on(self, node: Loop[Schedule], done: int) -> bool:
        """Of a loop that comes to itself by recursion the inner ones end first."""
        active = self.active[id(node)]
        if done == 0:
            active.append(self.turns[id(node)].pop(0)[0])
        if done < active[-1]:
            return True
        active.pop()
        return False


def observe(program: DeviceProgram, seed: int) -> Observed:
    """Runs a scheduled random tree in the emulator."""
    found = Observed()
    active: dict[tuple[int, int], list[int]] = {}
    unit_class: Any = emulator._EmulatedUnit  # pyright: ignore[reportPrivateUsage]
    decide, run_task = unit_class.holds, unit_class._task

    def holds(self: Any, node: Any, at: Any, done: int) -> bool:
        result = decide(self, node, at, done)
        if self.number == 0:
            if isinstance(node, If):
                found.arms[id(node)].append(0 if result else 1)
            elif done:
                active[id(node), id(at)][0] = done
            else:
                trips = active[id(node), id(at)] = [0]
                found.turns[id(node)].append(trips)
        return result

    def task(self: Any, kernel: Any, number: int, at: Any) -> None:
        known = self.machine.clocks.known[self.number]
        own = int(known[self.number])
        found.done.append(Done(self.number, kernel.name, own, known.copy()))
        run_task(self, kernel, number, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit_class, "holds", holds)
        patch.setattr(unit_class, "_task", task)
        Emulator(program, seed).run(random_memory(seed))
    return found
