"""A plan of launches: device programs and library calls in order, with control on the host.

All launches of one activation of a function share its frame, and a block of words for what passes
between them: registers, and the addresses of buffers that have no fixed place (rotating ones, and
the parameters of functions that the host calls).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

from stretto.device.awaited import has_waits
from stretto.device.expr import Buffer, Index, Reg
from stretto.device.operator import LibraryCall
from stretto.device.program import DeviceProgram, Run
from stretto.device.tree import Call, Leaf, Tree, is_parallel, reads, walk


@dataclass(frozen=True, slots=True)
class Launch:
    """A device program: `main` takes registers as params, buffers by address as tensors, and hands
    registers back as results; `main`'s frame is that of the function it was cut from.

    rotated: the tensors that its own loops let trade places.
    """

    program: DeviceProgram
    rotated: tuple[Buffer, ...] = ()

    @property
    def units_wait(self) -> bool:
        """As the function of that name."""
        return units_wait(self.program, self.rotated)


@dataclass(frozen=True, slots=True)
class Library:
    """A library call on the launch's stream: that of the program's `kernel`."""

    call: LibraryCall
    kernel: str


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
            any(isinstance(n, Call) or reads(n) for n in nodes)
            or any(isinstance(o, Reg) for library in libraries for o in library.call.operands)
            # It asks where a loop has left a buffer.
            or (bool(libraries) and any(launch.rotated for _, launch in self.launches))
        )


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
