"""A plan of launches: device programs and library calls in order, with control flow on the host.

All launches of one activation of a function share its frame and a block of words. The words pass
registers between launches, and the addresses of buffers without a fixed place (rotating ones, and
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
    Tree,
    flattened,
    is_parallel,
    is_predicated,
    reads,
    walk,
)


@dataclass(frozen=True, slots=True)
class Guard:
    """A register that must be true (false if `negated`) for a launch to have any effect."""

    register: Reg
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """A device program: `main` takes registers as params and buffers by address as tensors, and
    returns registers as results; `main`'s frame is that of the function it was cut from.

    rotated: the tensors that its own loops swap. guards: conditions of the predicated branches that
    contain it, outermost first. Every unit checks them before anything else, and does nothing
    unless all hold; so no progress counter changes in a launch of an arm that is not taken.
    """

    program: DeviceProgram
    rotated: tuple[Buffer, ...] = ()
    guards: tuple[Guard, ...] = ()

    @property
    def units_wait(self) -> bool:
        """True if units of the launch wait for each other (see the function `units_wait`)."""
        return units_wait(self.program, self.rotated)


@dataclass(frozen=True, slots=True)
class Library:
    """A library call on the stream of the launches; `kernel` is the program's kernel with the
    call."""

    call: LibraryCall
    kernel: str


def needs_host(call: LibraryCall) -> bool:
    """Return True if no captured graph can contain a call: it draws random numbers, which differ
    each time, or it needs a number that only the device knows."""
    return DRAWS in dict(call.kwargs) or any(isinstance(one, Reg) for one in call.operands)


Action = Launch | Library


@dataclass(frozen=True, slots=True)
class Plan:
    """The program that the host executes. `words` maps each function to the position of each
    register, by name, and of each address, by `address_name`, in its block of words.

    `tree` has the functions that the host executes; bounds of its `For`s and arguments of
    its `Call`s are numbers or registers.
    """

    program: DeviceProgram
    tree: Tree[Action]
    words: dict[str, dict[str, int]]

    @property
    def launches(self) -> tuple[tuple[str, Launch], ...]:
        """All launches, each with the name of the function that it was cut from."""
        return tuple(
            (function.name, node.body)
            for function in self.tree.functions
            for node in walk(function.body)
            if isinstance(node, Leaf) and isinstance(node.body, Launch)
        )

    @property
    def is_whole(self) -> bool:
        """True if the plan is a single launch of its whole program."""
        body = self.tree.main.body
        return (
            isinstance(body, Leaf)
            and isinstance(body.body, Launch)
            and body.body.program.tree == self.program.tree
            and body.body.program.frames == self.program.frames
        )

    @property
    def decides_on_host(self) -> bool:
        """True if the host reads a value from the device between two launches."""
        nodes = list(self.tree.walk())
        libraries = [n.body for n in nodes if isinstance(n, Leaf) and isinstance(n.body, Library)]
        return (
            any(isinstance(n, Call) or (reads(n) and not is_predicated(n)) for n in nodes)
            or any(isinstance(o, Reg) for library in libraries for o in library.call.operands)
            # The library call needs the address at which a loop left a buffer.
            or (bool(libraries) and any(launch.rotated for _, launch in self.launches))
        )


def excludes(one: Collection[Guard], other: Collection[Guard]) -> bool:
    """Return True if at most one of two launches with these guards has any effect."""
    opposite = {Guard(guard.register, not guard.negated) for guard in one}
    return not opposite.isdisjoint(other)


def arms(branch: If[Action]) -> tuple[tuple[Guard, Node[Action]], ...]:
    """Return the arms of a branch, each with its guard."""
    condition = branch.condition
    return (Guard(condition), branch.then), (Guard(condition, True), branch.orelse)


def is_unlikely(node: Node[Action]) -> TypeGuard[If[Action]]:
    """Return True if the node is a branch with an arm that is rarely taken."""
    unlikely = (Branching.UNLIKELY_THEN, Branching.UNLIKELY_ELSE)
    return isinstance(node, If) and node.branching in unlikely


def unlikely_guard(branch: If[Action]) -> Guard:
    """Return the guard of the rarely taken arm."""
    return Guard(branch.condition, branch.branching is Branching.UNLIKELY_ELSE)


def enqueued_nodes(body: Node[Action]) -> tuple[Node[Action], ...]:
    """Return the nodes that are enqueued for a node, in plan order: the parts of a sequence, and
    for a predicated branch those of both arms."""
    return tuple(flattened(body, is_predicated))


def units_wait(program: DeviceProgram, rotated: Collection[Buffer]) -> bool:
    """Return True if units of a launch wait for each other: then all of them must be resident
    at once, and no other such launch may run concurrently. rotated: as in `Launch`.

    They do if the schedule has waits, or if the words that units start from are changed by
    the end of the launch.
    """
    main = program.tree.main
    if program.units == 1:
        return False
    return bool(rotated or {*main.results} & {*main.params}) or has_waits(program)


def busy_units(program: DeviceProgram) -> int:
    """Return the number of leading units that have tasks; in a launch without waits the others do
    nothing."""
    nodes = list(program.tree.walk())
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
    """Return the name of the word that holds a number computed from the sizes of a call, such as a
    loop bound."""
    digest = hashlib.sha256(str(index).encode()).hexdigest()
    return f"formula.{digest[:16]}"


def address_name(buffer: Buffer) -> str:
    """Return the name of the word that holds a buffer's address."""
    return f"&{buffer.name}"
