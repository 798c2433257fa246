"""Which units are waited for at the ends of leaves.

The end of a leaf counts as a step of every unit, but costs a release only where somebody waits for
it: in the same leaf, for a step behind the last signal of the unit; or in a later leaf, for step 0,
before the unit publishes anything else. Whatever a unit does
in a leaf that nobody waits for is published with what it publishes next, since counters only grow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from stretto.device.flow import Backward
from stretto.device.program import DeviceProgram, Item, Schedule, Signal, Wait
from stretto.device.regions import statement_regions
from stretto.device.tree import Call, leaves

Units = frozenset[int]


def has_end(schedule: Schedule) -> bool:
    """Does the end of a leaf count as a step? In one that only computes registers from registers
    nothing happens that others could wait for."""
    if not schedule.steps:
        return False
    statements = schedule.statements
    others = any(len(items) > len(statements) for items in schedule.units)
    return others or any(statement_regions(item) for item in statements)


def awaited_ends(program: DeviceProgram) -> Mapping[int, Units]:
    """By the identity of a leaf's schedule, the units that others wait for at its end. Of the last
    leaf of `main` that are all, unless it `ends_in_call`: the next run begins with what they have
    published. In a program without waits nobody publishes anything: not all units may run, and
    other programs may run beside it."""
    return _Ends(program).found if has_waits(program) else defaultdict(frozenset)


def has_waits(program: DeviceProgram) -> bool:
    """Whether a unit waits for another one."""
    schedules = (s for function in program.tree.functions for s in leaves(function.body))
    return any(isinstance(item, Wait) for s in schedules for items in s.units for item in items)


def ends_in_call(program: DeviceProgram) -> bool:
    """Whether on some way through `main` a call comes behind the last leaf that has an end: then
    units publish behind it, where any unit waits for another one."""
    if not has_waits(program):
        return False
    last = _LastCall()
    last.visit(program.tree.main.body, True)
    return last.found


class _LastCall(Backward[Schedule, bool]):
    """The state is whether the program may end before a leaf does."""

    def __init__(self) -> None:
        self.found = False

    def leaf(self, body: Schedule, after: bool) -> bool:
        return after and not has_end(body)

    def call(self, call: Call[Schedule], after: bool) -> bool:
        self.found |= after
        return False

    def merge(self, a: bool, b: bool) -> bool:
        return a or b


class _Ends(Backward[Schedule, Units]):
    """The state is the units that are waited for before they publish anything else."""

    def __init__(self, program: DeviceProgram) -> None:
        self.found: dict[int, Units] = defaultdict(frozenset)
        self._begins: dict[str, Units] = defaultdict(frozenset)
        self._returns: dict[str, Units] = defaultdict(frozenset)
        everyone = frozenset(range(program.units))
        self._returns["main"] = frozenset() if ends_in_call(program) else everyone
        before = None
        while before != (self._begins, self._returns):
            before = dict(self._begins), dict(self._returns)
            for function in program.tree.functions:
                after = self._returns[function.name]
                self._begins[function.name] |= self.visit(function.body, after)

    def leaf(self, body: Schedule, after: Units) -> Units:
        asked = {
            (other, item.step)
            for unit, items in enumerate(body.units)
            for item in items
            if isinstance(item, Wait)
            for other in item.others(unit)
        }
        at_start = frozenset(unit for unit, step in asked if step == 0)
        if not has_end(body):
            return at_start | after
        published = [_last_signal(items) for items in body.units]
        at_end = frozenset(unit for unit, step in asked if step > published[unit])
        self.found[id(body)] |= after | at_end
        return at_start

    def call(self, call: Call[Schedule], after: Units) -> Units:
        self._returns[call.function] |= after
        return self._begins[call.function]

    def merge(self, a: Units, b: Units) -> Units:
        return a | b


def _last_signal(items: tuple[Item, ...]) -> int:
    return max((item.step for item in items if isinstance(item, Signal)), default=0)
