"""Simulation of a DeviceProgram, event by event: when each unit does what, without computing
anything.

A unit walks the items of its leaves. A task first begins, then computes and moves bytes at
the same time; it ends with the last of these. Bytes share the bandwidth of the memory, or
of the cache, with all other transfers at that time. A signal publishes a step, and a
waiting unit continues some time after the last signal that it waits for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf
from types import MappingProxyType

from stretto.device.costs import HOST_COSTS, CostModel
from stretto.device.evaluate import task_count
from stretto.device.expr import Reg, loads
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, Item, Run, Signal, Wait
from stretto.device.regions import statement_reads
from stretto.device.tree import Check, Let
from stretto.errors import ScheduleError
from stretto.simulator.devices import Device
from stretto.simulator.result import Bound, Cause, Simulation, UnitActivity
from stretto.simulator.run_path import Choices, DefaultChoices, Visit, Walk
from stretto.simulator.work import Channel, Kept, KnownRegisters, Residency, TaskWork, Works

# ---- The loads of registers that cost a separate latency.
#
# A unit waits for a register where it is used, not where it is loaded. So consecutive loads are in
# flight together, as long as none of their addresses, and nothing that is checked, depends on an
# earlier one.


@dataclass(slots=True)
class LoadSequence:
    """A sequence of register statements. pending: the registers that are loaded or computed from
    loaded ones."""

    pending: set[Reg] = field(default_factory=set[Reg])

    def end(self) -> None:
        """End the sequence, at any other item or a control decision: the loads arrive."""
        self.pending.clear()

    def starts(self, item: Let | Check) -> bool:
        """Add the next statement; return True if it loads and must wait for the earlier loads, or
        is the first to load."""
        reads = any(True for expr in item.exprs for _ in loads(expr))
        depends = not self.pending.isdisjoint(statement_reads(item))
        starts = reads and (depends or not self.pending)
        if depends and (reads or isinstance(item, Check)):
            self.end()
        if isinstance(item, Let) and (reads or depends):
            self.pending.add(item.reg)
        return starts


# ---- The progress counters of the units: what was published when, and which units wait.


START = Cause(0.0, 0, 0)
"""The publication of everything that is known before the run."""


@dataclass(slots=True)
class _BlockedUnit:
    """A unit that waits for `left` more units. last: the latest publication of the others."""

    unit: int
    left: int
    last: Cause


class ProgressCounters:
    """One counter per unit; it begins at 0 and only increases."""

    def __init__(self, units: int) -> None:
        self._values: list[list[int]] = [[0] for _ in range(units)]
        self._causes: list[list[Cause]] = [[START] for _ in range(units)]
        self._waiting: list[dict[int, list[_BlockedUnit]]] = [
            defaultdict(list) for _ in range(units)
        ]

    def wait(self, unit: int, others: tuple[int, ...], value: int) -> Cause | None:
        """Return the last of the publications that a wait is for; None if one is still missing:
        then `publish` will return the unit."""
        last, missing = START, list[int]()
        for other in others:
            values = self._values[other]
            if values[-1] < value:
                missing.append(other)
                continue
            found = self._causes[other][bisect_left(values, value)]
            if found.time > last.time:
                last = found
        if not missing:
            return last
        waiting = _BlockedUnit(unit, len(missing), last)
        for other in missing:
            self._waiting[other][value].append(waiting)
        return None

    def publish(self, value: int, cause: Cause) -> list[tuple[int, Cause]]:
        """Record that a unit publishes a value; return the units whose waits end, with the last
        publication that each has waited for."""
        self._values[cause.unit].append(value)
        self._causes[cause.unit].append(cause)
        waiting = self._waiting[cause.unit]
        ended: list[tuple[int, Cause]] = []
        for wanted in sorted(wanted for wanted in waiting if wanted <= value):
            for item in waiting.pop(wanted):
                item.left -= 1
                if cause.time >= item.last.time:
                    item.last = cause
                if item.left == 0:
                    ended.append((item.unit, item.last))
        return ended


NOTHING_KEPT: Kept = MappingProxyType({})
MOST_TASKS = 5_000_000
"""Largest number of tasks of a simulated run."""


def simulate(
    program: DeviceProgram,
    device: Device,
    choices: Choices | None = None,
    costs: CostModel = HOST_COSTS,
    kept: Kept = NOTHING_KEPT,
) -> Simulation:
    """Simulate one run of a verified program on a device.

    choices: decide control that depends on values; by default loops run as often as `costs`
    assume. costs: the assumed sizes. kept: by kernel, the part of its loads that a unit has on
    chip from its second task of the kernel on. Raises ScheduleError for a run that is too long.
    """
    chosen = choices or DefaultChoices(costs.unknown_trips)
    return Simulator(program, device, chosen, costs, kept=kept).run()


@dataclass(slots=True)
class _Task:
    """A running task. parts: number of activities (computing, transfers) that have not ended."""

    kernel: int
    number: int
    work: TaskWork
    missing: frozenset[str]
    start: float
    ready: float = 0.0
    parts: int = 0


@dataclass(slots=True)
class _SimulatedUnit:
    """The state of a unit: its leaf of the run, and the rest of its items. begun: kernels of which
    it has had a task."""

    number: int
    visit: int = -1
    base: int = 0
    items: Iterator[Item] = field(default_factory=lambda: iter(()))
    tasks: Iterator[int] = field(default_factory=lambda: iter(()))
    run: Run | None = None
    task: _Task | None = None
    blocked_since: float = 0.0
    begun: set[str] = field(default_factory=set[str])
    lookups: LoadSequence = field(default_factory=LoadSequence)
    segments: list[UnitActivity] = field(default_factory=list[UnitActivity])


class Simulator:
    """The state of one simulated run. works: those of the program's kernels, if known."""

    def __init__(
        self,
        program: DeviceProgram,
        device: Device,
        choices: Choices,
        costs: CostModel,
        works: Works | None = None,
        kept: Kept = NOTHING_KEPT,
    ) -> None:
        self.program, self.device, self.costs = program, device, costs
        self.works = works or Works(program.kernels, device, costs)
        self.kept = kept
        self.repeated: dict[tuple[str, TaskWork], TaskWork] = {}
        self.walk = Walk(program, choices, costs, self.works.leaf_seconds)
        self.path = self.walk.visits()
        self.visits: list[Visit] = []
        self.registers: list[KnownRegisters] = []
        self.numbers = {kernel.name: n for n, kernel in enumerate(program.kernels)}
        self.memory = Channel(device.memory_bandwidth, device.unit_bandwidth)
        self.cache = Channel(device.cache_bandwidth, device.unit_bandwidth * 2)
        self.residency = Residency(device.cache_bytes, costs, program.kernels)
        self.missing: dict[tuple[int, str], frozenset[str]] = {}
        self.units = [_SimulatedUnit(number) for number in range(program.units)]
        self.progress = ProgressCounters(program.units)
        self.events: list[tuple[float, int, int]] = []
        self.order = count()
        self.tasks = 0

    # ---- events ------------------------------------------------------------------------------
    def run(self) -> Simulation:
        launch = self.device.launch_seconds
        for unit in self.units:
            self.at(launch + (self.device.wake_seconds if unit.number else 0.0), unit)
        while (now := self.next_time()) < inf:
            unit = self.units[self.next_unit(now)]
            if unit.task is None:
                self.advance(unit, now)
            elif unit.task.parts == 0:
                self.begin(unit, unit.task, now)
            else:
                self.end_part(unit, unit.task, now)
        return self.result()

    def at(self, time: float, unit: _SimulatedUnit) -> None:
        heappush(self.events, (time, next(self.order), unit.number))

    def next_time(self) -> float:
        first = self.events[0][0] if self.events else inf
        return min(first, self.memory.next_end, self.cache.next_end)

    def next_unit(self, now: float) -> int:
        """Remove the next event and return its unit."""
        if self.events and self.events[0][0] <= now:
            return heappop(self.events)[2]
        channel = self.memory if self.memory.next_end <= now else self.cache
        return channel.end(now)

    def result(self) -> Simulation:
        stuck = [unit.number for unit in self.units if unit.visit < len(self.visits)]
        if stuck:
            raise ScheduleError(f"units {stuck} wait for ever: the program was not verified")
        runs = [0] * len(self.walk.titles)
        for visit in self.visits:
            runs[visit.leaf] += 1
        ends = (unit.segments[-1].end for unit in self.units if unit.segments)
        return Simulation(
            self.device.name,
            max(ends, default=self.device.launch_seconds),
            tuple(tuple(unit.segments) for unit in self.units),
            tuple(runs),
            tuple(self.walk.titles),
            tuple(kernel.name for kernel in self.program.kernels),
        )

    # ---- a unit ------------------------------------------------------------------------------
    def advance(self, unit: _SimulatedUnit, now: float) -> None:
        """Continue until an item takes time, or the program ends."""
        while True:
            number = next(unit.tasks, None)
            if number is not None:
                self.start(unit, number, now)
                return
            item = next(unit.items, None)
            if item is None:
                if not self.enter(unit, now):
                    return
            elif self.item(unit, item, now):
                return

    def enter(self, unit: _SimulatedUnit, now: float) -> bool:
        """Enter the next leaf of the run; return False at its end. At the end of a leaf all its
        steps are published."""
        if 0 <= unit.visit < len(self.visits):
            schedule = self.visits[unit.visit].schedule
            if schedule.steps:
                unit.base += schedule.steps
                self.publish(unit, unit.base, now)
        unit.visit += 1
        unit.lookups.end()
        if unit.visit == len(self.visits):
            found = next(self.path, None)
            if found is None:
                return False
            self.visits.append(found)
            self.registers.append(KnownRegisters(found.registers, self.costs.unknown_trips))
        visit = self.visits[unit.visit]
        is_own = visit.owner is None or visit.owner == unit.number
        unit.items = iter(visit.schedule.units[unit.number] if is_own else ())
        return True

    def item(self, unit: _SimulatedUnit, item: Item, now: float) -> bool:
        """Begin an item; return True if it takes time."""
        if isinstance(item, Run | Wait | Signal):
            unit.lookups.end()
        match item:
            case Run():
                unit.run = item
                unit.tasks = iter(self.task_numbers(unit, item))
                return False
            case Wait():
                return self.wait(unit, item, now)
            case Signal():
                return self.signal(unit, item, now)
            case _:
                starts = unit.lookups.starts(item)
                return self.overhead(unit, self.device.latency_seconds if starts else 0.0, now)

    def overhead(self, unit: _SimulatedUnit, seconds: float, now: float) -> bool:
        if seconds <= 0:
            return False
        unit.segments.append(
            UnitActivity(Bound.OVERHEAD, now, now, now + seconds, self.visits[unit.visit].leaf)
        )
        self.at(now + seconds, unit)
        return True

    # ---- tasks -------------------------------------------------------------------------------
    def task_numbers(self, unit: _SimulatedUnit, run: Run) -> range:
        total = task_count(self.works.kernel(run.kernel), self.registers[unit.visit])
        found = range(run.first, total, run.stride)
        return found if run.count is None else found[: run.count]

    def start(self, unit: _SimulatedUnit, number: int, now: float) -> None:
        self.tasks += 1
        if self.tasks > MOST_TASKS:
            raise ScheduleError(
                f"the run has more than {MOST_TASKS:,} tasks",
                remedy="simulate it with fewer trips of its loops, or smaller inputs",
            )
        assert unit.run is not None
        kernel = self.works.kernel(unit.run.kernel)
        work = self.works.task(kernel, number, self.registers[unit.visit])
        if kernel.name in self.kept:
            work = self.work_with_kept(unit, kernel.name, work)
        missing = self.missing_of(unit, kernel, work)
        unit.task = _Task(self.numbers[kernel.name], number, work, missing, now)
        self.at(now + work.overhead, unit)

    def work_with_kept(self, unit: _SimulatedUnit, kernel: str, work: TaskWork) -> TaskWork:
        """Return the work of a task of a kernel of which the unit keeps constants on chip: less
        from the second task on."""
        if kernel not in unit.begun:
            unit.begun.add(kernel)
            return work
        key = kernel, work
        if key not in self.repeated:
            self.repeated[key] = work.keeping(self.kept[kernel], self.device)
        return self.repeated[key]

    def missing_of(self, unit: _SimulatedUnit, kernel: Kernel, work: TaskWork) -> frozenset[str]:
        """Return the buffers that a kernel in this leaf of the run finds in memory, not in the
        cache."""
        key = unit.visit, kernel.name
        if key not in self.missing:
            tasks = task_count(kernel, self.registers[unit.visit])
            self.missing[key] = self.residency.touch(work.moved, tasks)
        return self.missing[key]

    def begin(self, unit: _SimulatedUnit, task: _Task, now: float) -> None:
        """Begin the computation and the transfers of a task, after its overhead."""
        task.ready = now
        far = sum(nbytes for name, nbytes in task.work.moved if name in task.missing)
        near = task.work.nbytes - far
        task.parts = 1
        self.at(now + task.work.compute, unit)
        for channel, nbytes in ((self.memory, far), (self.cache, near)):
            if nbytes > 0 and channel.total < inf:
                task.parts += 1
                channel.begin(now, unit.number, nbytes)

    def end_part(self, unit: _SimulatedUnit, task: _Task, now: float) -> None:
        task.parts -= 1
        if task.parts:
            return
        computed = task.ready + task.work.compute >= now
        unit.segments.append(
            UnitActivity(
                Bound.COMPUTE if computed else Bound.BANDWIDTH,
                task.start,
                task.ready,
                now,
                self.visits[unit.visit].leaf,
                task.kernel,
                task.number,
            )
        )
        unit.task = None
        self.advance(unit, now)

    # ---- waits and signals -------------------------------------------------------------------
    def signal(self, unit: _SimulatedUnit, signal: Signal, now: float) -> bool:
        """Publish the step after the barrier of the unit's threads. Return True if that takes
        time."""
        later = now + self.device.stage_seconds
        took = self.overhead(unit, self.device.stage_seconds, now)
        self.publish(unit, unit.base + signal.step, later)
        return took

    def publish(self, unit: _SimulatedUnit, value: int, time: float) -> None:
        cause = Cause(time, unit.number, len(unit.segments))
        for number, last in self.progress.publish(value, cause):
            self.resume(self.units[number], last)

    def wait(self, unit: _SimulatedUnit, wait: Wait, now: float) -> bool:
        """Return True if the unit must wait."""
        unit.blocked_since = now
        value = unit.base + wait.step
        last = self.progress.wait(unit.number, wait.others(unit.number), value)
        if last is None:
            return True
        if last is START or last.time + self.device.wait_seconds <= now:
            return False
        self.resume(unit, last)
        return True

    def resume(self, unit: _SimulatedUnit, last: Cause) -> None:
        """Continue a unit when it sees the publication `last`."""
        since = unit.blocked_since
        end = max(since, last.time + self.device.wait_seconds)
        leaf = self.visits[unit.visit].leaf
        unit.segments.append(UnitActivity(Bound.WAIT, since, since, end, leaf, cause=last))
        self.at(end, unit)
