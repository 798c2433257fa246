"""The path of one run through a control tree: its leaves, in the order in which units reach them.

All units take the same path, so it is computed once. Registers that depend only on numbers and
sizes are computed; values read from memory are not known, so `Choices` decide instead.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NoReturn, Protocol

from torch import Tensor

from stretto.components import reachable
from stretto.device.costs import CostModel
from stretto.device.evaluate import Number, evaluate
from stretto.device.expr import Buffer, Expr, Reg, expr_atoms, loads, size_name
from stretto.device.program import DeviceProgram, Schedule
from stretto.device.runs import Estimator, call_graph, called
from stretto.device.tree import (
    Call,
    Conditional,
    Execution,
    For,
    If,
    Leaf,
    Let,
    Loop,
    Node,
    Seq,
    While,
    children,
    title,
)
from stretto.errors import ScheduleError
from stretto.ir.sizes import Size, Symbol, usual_value

MOST_VISITS = 200_000
"""Largest number of leaves that a simulated run reaches."""
MOST_DEPTH = 64
"""Largest number of nested activations of a function, if registers decide its recursion."""


class Choices(Protocol):
    """Decides branches and loops that depend on values read from memory."""

    depth: int
    """Largest number of nested activations of a recursive function."""

    def arm(self, node: If[Schedule], seconds: tuple[float, float], ends: tuple[bool, bool]) -> int:
        """Return the arm to take: 0 for `then`, 1 for `orelse`. seconds: estimates of both. ends:
        True for an arm that must not be taken, since the recursion would not end."""
        ...

    def goes_on(self, node: Loop[Schedule], done: int) -> bool:
        """True if a loop has another iteration after `done` of them."""
        ...

    def decided(self, node: If[Schedule] | Loop[Schedule], decision: int) -> None:
        """Called when registers and sizes decide: `decision` is the arm, or 1 if the loop continues
        and 0 if not."""

    def enter_iteration(self, iteration: int | None) -> None:
        """Called when an iteration of a parallel loop begins, to which the next decisions belong;
        None: after the loop."""


@dataclass(frozen=True, slots=True)
class DefaultChoices(Choices):
    """Loops run `loop_trips` times, a branch takes the longer arm, recursion is `depth` deep."""

    loop_trips: int = 16
    depth: int = 4

    def arm(self, node: If[Schedule], seconds: tuple[float, float], ends: tuple[bool, bool]) -> int:
        if ends[0] != ends[1]:
            return int(ends[0])
        return int(seconds[1] > seconds[0])

    def goes_on(self, node: Loop[Schedule], done: int) -> bool:
        return done < self.loop_trips


@dataclass(slots=True)
class CountingChoices(Choices):
    """Delegates the decisions, and counts them; the bounds of a `for` count once."""

    choices: Choices
    count: int = 0
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        self.depth = self.choices.depth

    def arm(self, node: If[Schedule], seconds: tuple[float, float], ends: tuple[bool, bool]) -> int:
        self.count += 1
        return self.choices.arm(node, seconds, ends)

    def goes_on(self, node: Loop[Schedule], done: int) -> bool:
        self.count += not isinstance(node, For) or done == 0
        return self.choices.goes_on(node, done)

    def decided(self, node: If[Schedule] | Loop[Schedule], decision: int) -> None:
        self.choices.decided(node, decision)

    def enter_iteration(self, iteration: int | None) -> None:
        self.choices.enter_iteration(iteration)


@dataclass(frozen=True, slots=True)
class Visit:
    """A run of the leaf `schedule`, which has the number `leaf` in the program's text. registers:
    those whose values are known, after the leaf's own statements. owner: the unit whose
    iteration of a parallel loop it belongs to; None if all units run it."""

    leaf: int
    schedule: Schedule
    registers: Mapping[str, Number]
    owner: int | None = None


class _NoMemory:
    """A memory that cannot be read, for expressions without loads."""

    def elements(self, buffer: Buffer) -> int:
        return self._refuse()

    def read(self, buffer: Buffer, offsets: Tensor) -> Tensor:
        return self._refuse()

    def write(self, buffer: Buffer, offsets: Tensor, values: Tensor) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise AssertionError("expressions with loads are not evaluated")


_NO_MEMORY = _NoMemory()


def leaf_numbers(program: DeviceProgram) -> tuple[dict[int, int], list[str]]:
    """Return the number of each leaf, by its node's identity, and the titles of leaves: the
    control around them, and the number."""
    numbers: dict[int, int] = {}
    titles: list[str] = []

    def visit(node: Node[Schedule], path: tuple[str, ...]) -> None:
        match node:
            case Leaf():
                if id(node) not in numbers:
                    numbers[id(node)] = len(titles)
                    titles.append(", ".join((*path, f"leaf {len(titles)}")))
            case While(head=head, condition=condition, body=body):
                visit(head, (*path, f"test of {condition.name}"))
                visit(body, (*path, title(node)))
            case If(condition=condition, then=then, orelse=orelse):
                visit(then, (*path, title(node)))
                visit(orelse, (*path, f"else of {condition.name}"))
            case _:
                inner = path if isinstance(node, Seq) else (*path, title(node))
                for child in children(node):
                    visit(child, inner)

    for function in program.tree.functions:
        visit(function.body, () if function.name == "main" else (function.name,))
    return numbers, titles


_Registers = dict[str, Number]
"""The known values of an activation, by name."""


class Walk(Execution[Schedule, _Registers]):
    """The path through a program; `visits` yields its leaves. leaf: estimates a leaf's seconds."""

    def __init__(
        self,
        program: DeviceProgram,
        choices: Choices,
        costs: CostModel,
        leaf: Callable[[Schedule], float],
    ) -> None:
        functions = program.tree.functions
        self._program = program
        self._choices = choices
        self._functions = {function.name: function for function in functions}
        self._graph = call_graph(functions)
        self._numbers, self.titles = leaf_numbers(program)
        bodies = {function.name: function.body for function in functions}
        self._estimator = Estimator(bodies, leaf, costs)
        self._active = ["main"]
        self._owner: int | None = None
        self._count = 0
        taken = dict(costs.taken)
        self._sizes: dict[str, Number] = {
            size_name(symbol.name): usual_value(Size.of(symbol), taken)
            for symbol in program.symbols
        }

    def visits(self) -> Iterator[Visit]:
        """Yield the leaves. Raises ScheduleError for a run that reaches too many, or whose
        recursion does not end."""
        for leaf, registers in self.leaves(self._functions["main"].body, dict(self._sizes)):
            yield self._visit(leaf, registers)

    def _visit(self, node: Leaf[Schedule], registers: _Registers) -> Visit:
        self._count += 1
        if self._count > MOST_VISITS:
            raise ScheduleError(
                f"the run reaches more than {MOST_VISITS:,} leaves of the program",
                remedy="simulate it with fewer trips of its loops, or smaller inputs",
            )
        for statement in node.body.statements:
            if isinstance(statement, Let):
                value = self._value(statement.value, registers)
                self._assign(statement.reg.name, value, registers)
        return Visit(self._numbers[id(node)], node.body, dict(registers), self._owner)

    def call(
        self, node: Call[Schedule], state: _Registers
    ) -> Iterator[tuple[Node[Schedule], _Registers]]:
        arguments = dict(self._sizes)
        for register, value in node.registers:
            if (number := self._value(value, state)) is not None:
                arguments[register.name] = number
        name = node.function
        if self._active.count(name) > MOST_DEPTH:
            raise ScheduleError(
                f"the recursion of {name} does not end on the path that the simulator takes",
                remedy="simulate it with a depth of 1, or a part of it",
            )
        self._active.append(name)
        yield self._functions[name].body, arguments
        self._active.pop()
        for mine, theirs in node.results:
            self._assign(mine.name, arguments.get(theirs.name), state)

    def trips(self, node: For[Schedule], state: _Registers) -> Iterator[None]:
        start, stop = self._value(node.start, state), self._value(node.stop, state)
        if start is not None and stop is not None:
            for done, position in enumerate(range(int(start), int(stop), node.step)):
                if not node.parallel:  # else a unit has recorded only its own iterations
                    self._choices.decided(node, 1)
                state[node.index.name] = position
                yield from self._iteration(node, done)
            if not node.parallel:
                self._choices.decided(node, 0)
            return
        done = 0
        while self._goes_on(node, done):
            position = None if start is None else int(start) + done * node.step
            self._assign(node.index.name, position, state)
            yield from self._iteration(node, done)
            done += 1

    def _iteration(self, node: For[Schedule], done: int) -> Iterator[None]:
        """Yield for iteration number `done`, from 0, of a loop."""
        if not node.parallel:
            yield
            return
        self._owner = done % self._program.units
        self._choices.enter_iteration(done)
        yield
        self._choices.enter_iteration(None)
        self._owner = None

    def holds(self, node: Conditional[Schedule], state: _Registers, done: int) -> bool:
        known = state.get(node.condition.name)
        if known is not None:
            self._choices.decided(node, int(bool(known) is not isinstance(node, If)))
            return bool(known)
        if not isinstance(node, If):
            return self._goes_on(node, done)
        seconds = self._estimator.node(node.then), self._estimator.node(node.orelse)
        ends = self._is_too_deep(node.then), self._is_too_deep(node.orelse)
        return self._choices.arm(node, seconds, ends) == 0

    def _goes_on(self, node: Loop[Schedule], done: int) -> bool:
        return not self._is_too_deep(node.body) and self._choices.goes_on(node, done)

    def _is_too_deep(self, node: Node[Schedule]) -> bool:
        """True if a node calls, directly or not, a function that has reached its largest depth."""
        found = reachable(called(node), self._graph)
        return any(self._active.count(name) >= self._choices.depth for name in found)

    def _value(self, expr: Expr, registers: Mapping[str, Number]) -> Number | None:
        """Return the value of an expression; None if it depends on unknown values."""
        needed = _needed(expr)
        if needed is None or not needed <= registers.keys():
            return None
        return evaluate(expr, registers, _NO_MEMORY)

    def _assign(self, name: str, value: Number | None, registers: dict[str, Number]) -> None:
        if value is None:
            registers.pop(name, None)
        else:
            registers[name] = value


@lru_cache(maxsize=4096)
def _needed(expr: Expr) -> frozenset[str] | None:
    """Return the registers and sizes that an expression needs; None if it reads memory."""
    if any(True for _ in loads(expr)):
        return None
    atoms = list(expr_atoms(expr))
    registers = {atom.name for atom in atoms if isinstance(atom, Reg)}
    return frozenset(registers | {size_name(a.name) for a in atoms if isinstance(a, Symbol)})


# ---- The path of a recorded run: the decisions of its branches and loops.
#
# The decisions are valid for programs of the same model with other units and on other machines, if
# these have the same branches and loops; those that a program decides by its own registers may
# differ.


ANY_DEPTH = 1_000_000


class RecordedChoices(Choices):
    """Repeats the recorded decisions of each branch and loop, in their order; each has its node's
    title, the decision, and the unit that made it. All units decide alike, except in iterations
    of parallel loops, of which each unit runs its own, in turn."""

    depth = ANY_DEPTH

    def __init__(self, decisions: Iterable[tuple[str, int, int]]) -> None:
        self._decisions = defaultdict[tuple[str, int], deque[int]](deque)
        for name, decision, unit in decisions:
            self._decisions[name, unit].append(decision)
        self._units = 1 + max((unit for _, unit in self._decisions), default=0)
        self._unit = 0
        self._reached_nodes = set[tuple[str, int]]()

    def arm(self, node: If[Schedule], seconds: tuple[float, float], ends: tuple[bool, bool]) -> int:
        return self._next(node)

    def goes_on(self, node: Loop[Schedule], done: int) -> bool:
        return bool(self._next(node))

    def decided(self, node: If[Schedule] | Loop[Schedule], decision: int) -> None:
        if (title(node), self._unit) in self._decisions and self._next(node) != decision:
            raise _mismatch(f"{title(node)} is decided differently here")

    def enter_iteration(self, iteration: int | None) -> None:
        self._unit = 0 if iteration is None else iteration % self._units

    def require_end(self) -> None:
        """Raise ScheduleError if the recorded run has more decisions of a branch or loop that was
        reached."""
        for name, unit in self._reached_nodes:  # the unused decisions of other units are the same
            if self._decisions[name, unit]:
                raise _mismatch(f"it reached {name} more often")

    def _next(self, node: If[Schedule] | Loop[Schedule]) -> int:
        name = title(node)
        self._reached_nodes.add((name, self._unit))
        if (name, self._unit) not in self._decisions:
            raise _mismatch(f"it never reached {name}")
        if not self._decisions[name, self._unit]:
            raise _mismatch(f"it reached {name} less often")
        return self._decisions[name, self._unit].popleft()


def _mismatch(reason: str) -> ScheduleError:
    return ScheduleError(
        f"the recorded run does not fit this program: {reason}",
        remedy="simulate it without a recorded run, with a number of trips",
    )
