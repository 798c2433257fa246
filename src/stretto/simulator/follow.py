"""The way that a real run took: what its branches and loops decided, read from what ran.

On one unit the tasks of a run stand in program order. So the kernel that comes next says which way
was taken, as the next word of a text tells a parser: a branch went into the arm, and a loop went
on into the body, that can begin with it. Where both arms can, as in recursion that does its work
behind its calls, the way cannot be read. The decisions hold for programs of the same model with
other units and on other machines, whose control is the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stretto.device.costs import CostModel
from stretto.device.evaluate import task_count
from stretto.device.program import DeviceProgram, Run, Schedule
from stretto.device.tree import Call, If, Leaf, Loop, Node, Seq, While, children, title
from stretto.errors import ScheduleError
from stretto.simulator.control import Visit, Walk
from stretto.simulator.work import Known

ANY_DEPTH = 1_000_000


@dataclass(slots=True)
class Recorded:
    """Repeats decisions, one after the other; each with what its node is called."""

    decisions: deque[tuple[str, int]]
    depth: int = ANY_DEPTH

    def arm(self, node: If[Schedule], seconds: tuple[float, float], ends: tuple[bool, bool]) -> int:
        return self._next(title(node))

    def goes_on(self, node: Loop[Schedule], done: int) -> bool:
        return bool(self._next(title(node)))

    def _next(self, name: str) -> int:
        if not self.decisions or self.decisions[0][0] != name:
            raise ScheduleError(
                f"the run that is followed decided something else than {name} here",
                remedy="simulate it without following a run, with a number of trips",
            )
        return self.decisions.popleft()[1]


def follow(program: DeviceProgram, ran: Iterable[str], costs: CostModel) -> Recorded:
    """The decisions of a run of a program of one unit. ran: the kernel of each task, in order.

    Raises ScheduleError where the tasks do not fit to the program.
    """
    follower = _Follower(program, deque(ran), costs)
    walk = Walk(program, follower, costs, lambda schedule: 0.0)
    for visit in walk.visits():
        follower.consume(visit)
    if follower.ran:
        raise _misfit(f"{follower.ran[0]} runs behind its end")
    return Recorded(deque(follower.decisions))


def _misfit(reason: str) -> ScheduleError:
    return ScheduleError(
        f"the way of a run cannot be read from its tasks: {reason}",
        remedy="simulate it without following a run, with a number of trips",
    )


@dataclass(frozen=True, slots=True)
class _First:
    """The kernels that a node can begin with; whether it may run none at all."""

    kernels: frozenset[str]
    may_be_empty: bool


_ITSELF = _First(frozenset(), False)
"""A call of a function within itself: it adds nothing to what the function begins with."""


@dataclass
class _Follower:
    """Decides by what comes next in `ran`, and keeps what it has decided."""

    program: DeviceProgram
    ran: deque[str]
    costs: CostModel
    decisions: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    depth: int = ANY_DEPTH

    def __post_init__(self) -> None:
        self._kernels = {kernel.name: kernel for kernel in self.program.kernels}
        self._first: dict[str, _First] = {}

    def arm(self, node: If[Schedule], seconds: tuple[float, float], ends: tuple[bool, bool]) -> int:
        then, orelse = self._begins(node.then), self._begins(node.orelse)
        fits = [bool(self.ran) and self.ran[0] in arm.kernels for arm in (then, orelse)]
        if all(fits):
            raise _misfit(f"both arms of {title(node)} can begin with {self.ran[0]}")
        taken = fits.index(True) if any(fits) else int(not then.may_be_empty)
        return self._decided(node, taken)

    def goes_on(self, node: Loop[Schedule], done: int) -> bool:
        parts = (node.body, node.head) if isinstance(node, While) else (node.body,)
        first = self._sequence(parts)
        return bool(self._decided(node, int(bool(self.ran) and self.ran[0] in first.kernels)))

    def _decided(self, node: If[Schedule] | Loop[Schedule], decision: int) -> int:
        self.decisions.append((title(node), decision))
        return decision

    def consume(self, visit: Visit) -> None:
        """Takes away the tasks of a leaf."""
        registers = Known(visit.registers, 0)
        for item in visit.schedule.units[0]:
            if isinstance(item, Run):
                self._consume(item, registers)

    def _consume(self, run: Run, registers: Known) -> None:
        kernel = self._kernels[run.kernel]
        if not kernel.is_static:  # the number may be a register that only the run knows
            while self.ran and self.ran[0] == run.kernel:
                self.ran.popleft()
            return
        found = range(run.first, task_count(kernel, registers), run.stride)
        for _ in found if run.count is None else found[: run.count]:
            if not self.ran or self.ran[0] != run.kernel:
                raise _misfit(f"{run.kernel} should run, not {self.ran[0] if self.ran else 'end'}")
            self.ran.popleft()

    # ---- what nodes begin with -----------------------------------------------------------------
    def _begins(self, node: Node[Schedule]) -> _First:
        match node:
            case Leaf(schedule):
                names = [item.kernel for item in schedule.units[0] if isinstance(item, Run)]
                return self._leaf(names)
            case Seq():
                return self._sequence(children(node))
            case If(then=then, orelse=orelse):
                one, other = self._begins(then), self._begins(orelse)
                empty = one.may_be_empty or other.may_be_empty
                return _First(one.kernels | other.kernels, empty)
            case While(head=head, body=body):
                first = self._sequence((head, body))
                return _First(first.kernels, self._begins(head).may_be_empty)
            case Call(function=name):
                return self._function(name)
            case _:
                return _First(self._begins(node.body).kernels, True)

    def _leaf(self, names: Sequence[str]) -> _First:
        """Kernels may have no tasks; then the next one is first."""
        found: set[str] = set()
        for name in names:
            found.add(name)
            if self._kernels[name].is_static and self._kernels[name].tasks:
                return _First(frozenset(found), False)
        return _First(frozenset(found), True)

    def _sequence(self, nodes: Sequence[Node[Schedule]]) -> _First:
        found: frozenset[str] = frozenset()
        for node in nodes:
            first = self._begins(node)
            found |= first.kernels
            if not first.may_be_empty:
                return _First(found, False)
        return _First(found, True)

    def _function(self, name: str) -> _First:
        if name not in self._first:
            self._first[name] = _ITSELF
            self._first[name] = self._begins(self.program.tree.function(name).body)
        return self._first[name]
