"""One list of steps for all units of a leaf.

A `Schedule` lists the items of each unit separately; 132 such lists cannot all be printed. On a GPU
every unit runs the same text and looks up its own part. `merge` turns the lists into steps that all
units go through in one order; each step records what the participating units do. The order within
every unit is preserved exactly: signals and waits do not move past anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stretto.device.expr import Reg
from stretto.device.flow import Backward, Loop
from stretto.device.operator import Kernel
from stretto.device.program import Item, Run, Schedule, Signal, Wait, assigned_registers
from stretto.device.regions import kernel_reads, statement_reads
from stretto.device.tree import Call, Check, For, If, Let, Node, reads
from stretto.errors import ScheduleError


@dataclass(frozen=True, slots=True)
class RunStep:
    """Unit u runs the tasks runs[u] of one kernel; units that are not in `runs` do nothing."""

    kernel: str
    runs: Mapping[int, tuple[Run, ...]]

    def items(self, units: int) -> Iterator[tuple[int, tuple[Item, ...]]]:
        """Yield the items of each unit, as in a Schedule."""
        yield from self.runs.items()


@dataclass(frozen=True, slots=True)
class WaitStep:
    """Waits of the participating units."""

    waits: Mapping[int, tuple[Wait, ...]]

    def items(self, units: int) -> Iterator[tuple[int, tuple[Item, ...]]]:
        yield from self.waits.items()


@dataclass(frozen=True, slots=True)
class SignalStep:
    """Signals: the step that each participating unit publishes."""

    steps: Mapping[int, int]

    def items(self, units: int) -> Iterator[tuple[int, tuple[Item, ...]]]:
        yield from ((unit, (Signal(step),)) for unit, step in self.steps.items())


@dataclass(frozen=True, slots=True)
class StatementStep:
    """A statement that every unit executes."""

    item: Let | Check

    def items(self, units: int) -> Iterator[tuple[int, tuple[Item, ...]]]:
        yield from ((unit, (self.item,)) for unit in range(units))


Step = RunStep | WaitStep | SignalStep | StatementStep

Key = tuple[str, object]
Piece = tuple[Key, tuple[Item, ...]]


def merge(schedule: Schedule) -> tuple[Step, ...]:
    """Return the steps of a leaf. Every wait comes after the signals it waits for, so the units
    could run one after the other within each step."""
    lists = [_grouped(items) for items in schedule.units]
    places = [0] * len(lists)
    ahead = [Counter(key for key, _ in pieces) for pieces in lists]
    published = [0 if pieces else schedule.steps for pieces in lists]
    steps: list[Step] = []
    while True:
        heads = {
            unit: pieces[places[unit]]
            for unit, pieces in enumerate(lists)
            if places[unit] < len(pieces)
        }
        if not heads:
            return tuple(steps)
        ready = {u: head for u, head in heads.items() if _is_ready(u, head[1], published)}
        if not ready:
            raise ScheduleError("the waits of a leaf never end")
        key = _next_key(ready, ahead)
        taking = {unit: items for unit, (head, items) in ready.items() if head == key}
        for unit, items in taking.items():
            places[unit] += 1
            ahead[unit][key] -= 1
            for item in items:
                if isinstance(item, Signal):
                    published[unit] = item.step
            if places[unit] == len(lists[unit]):
                published[unit] = schedule.steps  # The end of the leaf publishes every step.
        steps.append(_step(taking))


def _is_ready(unit: int, items: tuple[Item, ...], published: Sequence[int]) -> bool:
    """True if the waits among the items are satisfied by what units have published."""
    return all(
        other == unit or published[other] >= item.step
        for item in items
        if isinstance(item, Wait)
        for other in range(item.unit, item.unit + item.count)
    )


def _next_key(ready: Mapping[int, Piece], ahead: Sequence[Counter[Key]]) -> Key:
    """Return a key that every unit which still has it ahead can take now; else the key that most
    units can take."""
    able = Counter(key for key, _ in ready.values())
    for key in able:
        if all(
            counts[key] == 0 or (unit in ready and ready[unit][0] == key)
            for unit, counts in enumerate(ahead)
        ):
            return key
    return able.most_common(1)[0][0]


def _grouped(items: tuple[Item, ...]) -> list[Piece]:
    """Group the items of one unit: consecutive runs of one kernel, consecutive waits. Groups of
    different units with equal keys can become one step."""
    pieces: list[tuple[Key, list[Item]]] = []
    statements = 0
    for item in items:
        match item:
            case Run(kernel=name):
                key: Key = "run", name
            case Wait():
                key = "wait", None
            case Signal():
                key = "signal", None
            case _:
                key = "statement", statements
                statements += 1
        if pieces and pieces[-1][0] == key and key[0] in ("run", "wait"):
            pieces[-1][1].append(item)
        else:
            pieces.append((key, [item]))
    keyed: list[Piece] = []
    following: Key = "end", None
    for key, found in reversed(pieces):  # A wait belongs to the item that follows it.
        if key[0] == "wait":
            key = "wait", following
        elif key[0] != "signal":
            following = key
        keyed.append((key, tuple(found)))
    keyed.reverse()
    before: Key = "start", None
    for place, (key, found) in enumerate(keyed):  # A signal belongs to the item before it.
        if key[0] == "signal":
            keyed[place] = (("signal", before), found)
        elif key[0] != "wait":
            before = key
    return keyed


def _step(taking: Mapping[int, tuple[Item, ...]]) -> Step:
    """Return the step of items that units take together."""
    first = next(iter(taking.values()))[0]
    match first:
        case Run(kernel=name):
            runs = {u: tuple(i for i in items if isinstance(i, Run)) for u, items in taking.items()}
            return RunStep(name, runs)
        case Wait():
            return WaitStep(
                {u: tuple(i for i in items if isinstance(i, Wait)) for u, items in taking.items()}
            )
        case Signal():
            return SignalStep(
                {u: i.step for u, items in taking.items() for i in items if isinstance(i, Signal)}
            )
        case Let() | Check():
            return StatementStep(first)


def dealt_from(step: RunStep, kernel: Kernel, units: int) -> int | None:
    """Return the unit of task 0 if the tasks are dealt round-robin over all units, else None."""
    if not kernel.is_static:
        plain = all(step.runs.get(u) == (Run(step.kernel, u, None, units),) for u in range(units))
        return 0 if plain else None
    tasks = kernel.tasks
    owners = {run.first: u for u, runs in step.runs.items() for run in runs}
    start = owners.get(0)
    if start is None:
        return None
    for unit in range(units):
        first = (unit - start) % units
        runs = step.runs.get(unit, ())
        count = len(range(first, tasks, units))
        if count == 0 and not runs:
            continue
        if len(runs) != 1 or not _covers(runs[0], first, count, units):
            return None
    return start


def _covers(run: Run, first: int, count: int, stride: int) -> bool:
    """True if the run has exactly these tasks."""
    same_stride = run.stride == stride or count == 1
    return run.first == first and run.count == count and same_stride


# ---- Pieces that a plan cuts a program into: the waits they need, and their registers.


def piece(steps: Iterable[Step], schedule: Schedule, begins: bool) -> Schedule:
    """Return a leaf with some of the steps of `schedule`.

    A wait for something before the piece becomes a wait for the beginning of the piece. If a launch
    `begins` with the piece, that wait is dropped: everything earlier has ended.
    """
    lists: list[list[Item]] = [[] for _ in schedule.units]
    for step in steps:
        for unit, items in step.items(len(lists)):
            lists[unit] += items
    here, anywhere = _signalled(lists), _signalled(schedule.units)

    def is_here(unit: int, step: int) -> bool:
        """True if the piece publishes this step. The end of a piece publishes a unit's last step
        without a signal."""
        return (unit, step) in here or bool(
            step > 0 and lists[unit] and (unit, step) not in anywhere
        )

    def needed(wait: Wait, own: int) -> Iterator[Wait]:
        others = wait.others(own)
        units = [unit for unit in others if is_here(unit, wait.step)]
        if len(units) == len(others):
            yield wait
            return
        if not begins:
            yield Wait(wait.unit, 0, wait.count)
        yield from (Wait(unit, wait.step) for unit in units)

    def kept(own: int, items: list[Item]) -> Iterator[Item]:
        for item in items:
            if isinstance(item, Wait):
                yield from needed(item, own)
            else:
                yield item

    return Schedule(
        tuple(tuple(kept(own, items)) for own, items in enumerate(lists)), schedule.steps
    )


def _signalled(units: Sequence[Sequence[Item]]) -> set[tuple[int, int]]:
    """Return the (unit, step) pairs that are signalled."""
    return {
        (unit, item.step)
        for unit, items in enumerate(units)
        for item in items
        if isinstance(item, Signal)
    }


def piece_registers(
    body: Node[Schedule], kernels: Mapping[str, Kernel]
) -> tuple[frozenset[Reg], frozenset[Reg]]:
    """Return the registers that a piece takes, and those that it assigns.

    It takes the registers that are live at its start if all that it assigns are live at its end:
    those that it may read before it assigns them, and those that it assigns on some paths only.
    """
    assigned = frozenset(assigned_registers(body))
    return _LiveRegisters(kernels).visit(body, assigned), assigned


class _LiveRegisters(Backward[Schedule, frozenset[Reg]]):
    """Backward analysis of the registers that may be read before they are assigned again."""

    def __init__(self, kernels: Mapping[str, Kernel]) -> None:
        self._kernels = kernels

    def leaf(self, body: Schedule, after: frozenset[Reg]) -> frozenset[Reg]:
        # A register is live if any unit reads it; all units make the same assignments.
        return frozenset[Reg]().union(*(self._before(items, after) for items in body.units))

    def _before(self, items: Sequence[Item], live: frozenset[Reg]) -> frozenset[Reg]:
        for item in reversed(items):
            match item:
                case Run(kernel=name):
                    live |= kernel_reads(self._kernels[name])
                case Let(reg=reg):
                    live = live - {reg} | statement_reads(item)
                case Check():
                    live |= statement_reads(item)
                case _:
                    pass
        return live

    def call(self, call: Call[Schedule], after: frozenset[Reg]) -> frozenset[Reg]:
        return after - {mine for mine, _ in call.results} | reads(call)

    def merge(self, a: frozenset[Reg], b: frozenset[Reg]) -> frozenset[Reg]:
        return a | b

    def decide(self, node: Loop[Schedule] | If[Schedule], after: frozenset[Reg]) -> frozenset[Reg]:
        return after | reads(node)

    def begin(self, node: For[Schedule], after: frozenset[Reg]) -> frozenset[Reg]:
        return after - {node.index}
