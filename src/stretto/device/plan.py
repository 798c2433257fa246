"""A plan of launches: device programs and library calls in order, with control on the host.

All launches of one activation of a function share its frame, and a block of words for what passes
between them: registers, and the addresses of buffers that have no fixed place (rotating ones, and
the parameters of functions that the host calls).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeGuard

from stretto.device.analyses import has_waits
from stretto.device.expr import Buffer, Index, Reg
from stretto.device.operator import DRAWS, LibraryCall
from stretto.device.program import DeviceProgram, Run
from stretto.device.tree import (
    Branching,
    Call,
    If,
    Leaf,
    Node,
    Seq,
    Tree,
    is_parallel,
    is_predicated,
    reads,
    walk,
)


@dataclass(frozen=True, slots=True)
class Guard:
    """A register that has to be true, or false where `negated`, for a launch to do anything."""

    register: Reg
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """A device program: `main` takes registers as params, buffers by address as tensors, and hands
    registers back as results; `main`'s frame is that of the function it was cut from.

    rotated: the tensors that its own loops let trade places. guards: of the predicated branches
    that it is in, the outermost one first. Every unit looks at them before anything else, and does
    nothing unless all hold; so no progress counter changes in a launch of an arm that is not taken.
    """

    program: DeviceProgram
    rotated: tuple[Buffer, ...] = ()
    guards: tuple[Guard, ...] = ()

    @property
    def units_wait(self) -> bool:
        """As the function of that name."""
        return units_wait(self.program, self.rotated)


@dataclass(frozen=True, slots=True)
class Library:
    """A library call on the launch's stream: that of the program's `kernel`."""

    call: LibraryCall
    kernel: str


def needs_host(call: LibraryCall) -> bool:
    """Whether no graph can have a call: it draws random numbers, whose place in their sequence is
    another one each time, or it needs a number that only the device knows."""
    return DRAWS in dict(call.kwargs) or any(isinstance(one, Reg) for one in call.operands)


Action = Launch | Library


@dataclass(frozen=True, slots=True)
class Plan:
    """What the host does. `words`: where each register of a function lies in its block of words, by
    name, and each address, by `address_name`.

    `tree` has the functions that the host executes; bounds of its `For`s and arguments of its
    `Call`s are numbers or registers.
    """

    program: DeviceProgram
    tree: Tree[Action]
    words: dict[str, dict[str, int]]

    @property
    def launches(self) -> tuple[tuple[str, Launch], ...]:
        """All launches, each with the function that it was cut from."""
        return tuple(
            (function.name, node.body)
            for function in self.tree.functions
            for node in walk(function.body)
            if isinstance(node, Leaf) and isinstance(node.body, Launch)
        )

    @property
    def is_whole(self) -> bool:
        """True for a plan that is one launch of its whole program."""
        body = self.tree.main.body
        return (
            isinstance(body, Leaf)
            and isinstance(body.body, Launch)
            and body.body.program.tree == self.program.tree
            and body.body.program.frames == self.program.frames
        )

    @property
    def decides_on_host(self) -> bool:
        """True when the host reads a value from the device between two launches."""
        nodes = [node for function in self.tree.functions for node in walk(function.body)]
        libraries = [n.body for n in nodes if isinstance(n, Leaf) and isinstance(n.body, Library)]
        return (
            any(isinstance(n, Call) or (reads(n) and not is_predicated(n)) for n in nodes)
            or any(isinstance(o, Reg) for library in libraries for o in library.call.operands)
            # It asks where a loop has left a buffer.
            or (bool(libraries) and any(launch.rotated for _, launch in self.launches))
        )


def excludes(one: Collection[Guard], other: Collection[Guard]) -> bool:
    """Whether never both of two launches with these guards do anything."""
    opposite = {Guard(guard.register, not guard.negated) for guard in one}
    return not opposite.isdisjoint(other)


def arms(branch: If[Action]) -> tuple[tuple[Guard, Node[Action]], ...]:
    """The arms of a branch, each with what has to hold for it."""
    condition = branch.condition
    return (Guard(condition), branch.then), (Guard(condition, True), branch.orelse)


def is_unlikely(node: Node[Action]) -> TypeGuard[If[Action]]:
    """Whether the node is a branch with an arm that is hardly ever taken."""
    unlikely = (Branching.UNLIKELY_THEN, Branching.UNLIKELY_ELSE)
    return isinstance(node, If) and node.branching in unlikely


def unlikely_guard(branch: If[Action]) -> Guard:
    """What holds for the arm that is hardly ever taken."""
    return Guard(branch.condition, branch.branching is Branching.UNLIKELY_ELSE)


def stretch(body: Node[Action]) -> tuple[Node[Action], ...]:
    """The nodes that are enqueued for a node, in the plan's order: the parts of a sequence, and for
    a predicated branch those of both arms."""
    match body:
        case Seq(items):
            return tuple(node for item in items for node in stretch(item))
        case If() if is_predicated(body):
            return stretch(body.then) + stretch(body.orelse)
        case _:
            return (body,)


def units_wait(program: DeviceProgram, rotated: Collection[Buffer]) -> bool:
    """Whether units of a launch wait for each other: then all of them must be resident at once, and
    no other such launch may run beside it. rotated: as in `Launch`.

    They do where the schedule says so, and where the words that units begin with change in the end.
    """
    main = program.tree.main
    if program.units == 1:
        return False
    return bool(rotated or {*main.results} & {*main.params}) or has_waits(program)


def busy_units(program: DeviceProgram) -> int:
    """How many units, the first ones, have tasks; in a launch without waits others do nothing."""
    nodes = [node for function in program.tree.functions for node in walk(function.body)]
    if any(map(is_parallel, nodes)):
        return program.units
    schedules = [node.body for node in nodes if isinstance(node, Leaf)]
    busy = (
        unit
        for schedule in schedules
        for unit, items in enumerate(schedule.units)
        if any(isinstance(item, Run) for item in items)
    )
    return 1 + max(busy, default=0)


def formula_name(index: Index) -> str:
    """The word with a number that follows from the sizes of a call, such as a bound of a loop."""
    digest = hashlib.sha256(str(index).encode()).hexdigest()
    return f"formula.{digest[:16]}"


def address_name(buffer: Buffer) -> str:
    """What the word with a buffer's address is called."""
    return f"&{buffer.name}"
