"""The forms that a program has on its way to a machine, and the interface that they share.

A program is lowered to a tree of operators, its operators become kernels, its kernels a schedule,
and for machines whose kernels cannot call libraries the schedule becomes a plan of launches.
Inputs, outputs and the errors of checks are the same in every form: its ProgramInterface.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, fields

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

    In memory a dynamic dim comes first (`memory_shape`), whatever its position in `shape`.
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
    group], zero-padded: `group` consecutive elements of a column are adjacent.

    Element (o, n, k) of the source is at `start` + sum of the strides; sizes and strides
    are outermost first. `outer` has the members of a stack of constants, then the batch.

    tile: 2 or 4 if the source, weights [out, in, 3, 3], is first transformed for the
    minimal filtering algorithm with tiles of that many pixels per side: to [out, in, tile +
    2, tile + 2] (`runtime/constants.py`). line: if it is not 0, the source has any number
    of taps, and groups of three of them along this dim, 2 or 3, are transformed: to [out,
    in, taps of the other dim, groups, tile + 2].
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

    @property
    def layout(self) -> Hashable:
        """Equal for two packings of one tensor only if their contents are equal: all fields, but
        for the buffers only the dims of the packed one."""
        others = (f.name for f in fields(self) if f.name not in ("buffer", "source"))
        return (self.buffer.shape, *(getattr(self, name) for name in others))


@dataclass(frozen=True, slots=True)
class ProgramInterface:
    """Inputs, outputs, constants and failures of a program. inputs[i] is the buffer of main's
    parameter i; `constants` holds the tensor of each slot; `stops` the failure of a check,
    by its number.

    made: slots of constants that passes computed, which nothing outside the program
    changes. packings: constants that are laid out again when the program is loaded.
    repeatable: True if an aborted run may start again; for programs that change inputs only
    the creator of the program can tell, and no text shows it.
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
        """The symbols whose values a call passes, in that order."""
        return input_symbols(self.inputs)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A tree of operators, after lowering."""

    tree: Tree[Items]
    interface: ProgramInterface


@dataclass(frozen=True, slots=True)
class Selected:
    """A tree of kernels, after selection."""

    tree: Tree[Body]
    interface: ProgramInterface


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The items and waits of each unit, and the placement of buffers."""

    program: DeviceProgram
    interface: ProgramInterface


@dataclass(frozen=True, slots=True)
class Planned:
    """The launches, library calls and control flow that the host executes."""

    plan: Plan
    interface: ProgramInterface


Form = Lowered | Selected | Scheduled | Planned


def externals(form: Form) -> tuple[Buffer, ...]:
    """Return the buffers of a program's argument block."""
    match form:
        case Lowered(tree) | Selected(tree):
            return tree.externals
        case Scheduled(program):
            return program.tree.externals
        case Planned(plan):
            return plan.tree.externals
