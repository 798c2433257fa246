"""The forms that a program has on its way to a machine, and what all of them share.

A program is lowered to a tree of operators, its operators become kernels, its kernels a schedule,
and for machines whose kernels cannot call libraries the schedule becomes a plan of launches. What
goes in, what comes out and what a check raises is the same in every form: its ProgramInterface.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from stretto.device.expr import Buffer, Extent, Reg, input_symbols
from stretto.device.operator import LibraryCall, Operator
from stretto.device.plan import Plan
from stretto.device.program import DeviceProgram
from stretto.device.regions import Body
from stretto.device.tree import Check, Let, Tree
from stretto.ir.failure import Stop
from stretto.ir.sizes import Symbol

LeafItem = Operator | LibraryCall | Let | Check
Items = tuple[LeafItem, ...]
"""A leaf before kernels are selected: straight-line code."""


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor result. Dims that are registers are read from the scalar results of main.

    In memory a dynamic dim comes first (`memory_shape`), whatever its place in `shape`.
    """

    buffer: Buffer
    shape: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class OutputList:
    """A list result: items in `buffer`, their number in scalar result `length` of main."""

    buffer: Buffer
    length: Reg


Output = OutputTensor | OutputList


@dataclass(frozen=True, slots=True)
class Packing:
    """A constant laid out again as panels [outer ..., columns / lanes, depth / group, lanes *
    group], zero-padded: `group` elements of a column that follow each other lie side by side.

    Element (o, n, k) of the source is at `start` + sum of the strides; sizes and strides are
    outermost first. `outer` has the members of a stack of constants, then the batch.

    tile: 2 or 4 where the source, weights [out, in, 3, 3], is first transformed for the minimal
    filtering algorithm of tiles of so many pixels along a side: to [out, in, tile + 2, tile + 2]
    (`runtime/constants.py`). line: where it is not 0, the source has any taps, and groups of three
    of them along this dim, 2 or 3, are transformed: to [out, in, taps of the other dim, groups,
    tile + 2].
    """

    buffer: Buffer
    source: Buffer
    start: int
    outer: tuple[tuple[int, int], ...]
    columns: tuple[int, int]
    depth: tuple[tuple[int, int], ...]
    lanes: int
    tile: int = 0
    group: int = 1
    line: int = 0


@dataclass(frozen=True, slots=True)
class ProgramInterface:
    """inputs[i] is the buffer of main's parameter i; `constants` holds the tensor of each slot;
    `stops` what a check raises, by its number.

    made: slots of constants that passes computed, which nobody else changes. packings: constants
    that are laid out anew when the program is loaded. repeatable: whether a run that was given up
    may begin anew; where it changes inputs, only who made the program knows, and no text says it.
    """

    inputs: tuple[Buffer, ...]
    outputs: tuple[Output, ...]
    constants: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    stops: tuple[Stop, ...] = ()
    made: frozenset[int] = frozenset()
    packings: tuple[Packing, ...] = ()
    repeatable: bool = field(default=False, compare=False)

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The sizes that a call gives, in the order in which it gives them."""
        return input_symbols(self.inputs)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A tree of operators."""

    tree: Tree[Items]
    interface: ProgramInterface


@dataclass(frozen=True, slots=True)
class Selected:
    """A tree of kernels."""

    tree: Tree[Body]
    interface: ProgramInterface


@dataclass(frozen=True, slots=True)
class Scheduled:
    """What each unit does, where it waits, and where buffers lie."""

    program: DeviceProgram
    interface: ProgramInterface


@dataclass(frozen=True, slots=True)
class Planned:
    """What the host does: launches, library calls, control between them."""

    plan: Plan
    interface: ProgramInterface


Form = Lowered | Selected | Scheduled | Planned


def externals(form: Form) -> tuple[Buffer, ...]:
    """The buffers of a program's argument block."""
    match form:
        case Lowered(tree) | Selected(tree):
            return tree.externals
        case Scheduled(program):
            return program.tree.externals
        case Planned(plan):
            return plan.tree.externals
