"""Splits a kernel into the loads of constants that may come early, and the rest of a task.

Which constants a task reads often depends on nothing but its number. Registers may hold all of
these loads, or some, and shared memory others; a task makes those that are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import prod

from stretto.device.expr import Buffer
from stretto.machines import statements as code
from stretto.machines.cuda.printer.kernel import WARPS, TritonKernel
from stretto.machines.cuda.printer.load_order import loads_first
from stretto.machines.cuda.printer.scalar import TASK
from stretto.machines.cuda.printer.shared_blocks import (
    Places,
    filling,
    read_bytes,
    shared_bytes,
    with_kept,
)
from stretto.machines.terms import Term

LEAST_BYTES = 2048
"""Less than this of a unit is not worth a function of its own."""
LANES = 32
"""Of a warp."""


@dataclass(frozen=True, slots=True)
class EarlyKernel:
    """A kernel in two functions.

    early: (constants ..., task), returns `values`. body: the rest, (buffers ..., registers ...,
    control, task, values ...). constants: the arguments of `early`, as places in the kernel's
    buffers. sizes: the bytes of each value in the registers of a unit. reads: what each value is
    loaded from. rest: the constants that `body` still loads from. fill: (constants ..., task),
    stores what shared memory keeps; those constants are `filled`. shared: what that is loaded from,
    with the bytes that it would take in registers. task_bytes: what a task reads from shared
    memory. sharable: by value, what it takes there, if it can be there.
    """

    early: code.Function
    body: code.Function
    constants: tuple[int, ...]
    values: tuple[Term, ...]
    sizes: tuple[int, ...]
    reads: tuple[Buffer, ...] = ()
    rest: frozenset[Buffer] = frozenset()
    fill: code.Function | None = None
    filled: tuple[int, ...] = ()
    shared: tuple[tuple[Buffer, int], ...] = ()
    task_bytes: int = 0
    sharable: Mapping[Term, int] = field(default_factory=dict[Term, int])

    @property
    def nbytes(self) -> int:
        return sum(self.sizes)

    def bytes_of(self, buffer: Buffer) -> int:
        """What registers and shared memory hold of a constant, as bytes of registers."""
        held = (*zip(self.reads, self.sizes, strict=True), *self.shared)
        return sum(size for read, size in held if read == buffer)

    @property
    def shared_nbytes(self) -> int:
        """What shared memory keeps, as bytes of registers."""
        return sum(size for _, size in self.shared)


def split_early(
    kernel: TritonKernel,
    warps: int = WARPS,
    taken: Collection[Term] | None = None,
    places: Places | None = None,
) -> EarlyKernel | None:
    """The two functions of a kernel; None where it has little or nothing to load early.

    warps: of a unit. taken: the values that registers hold, where those are not all that may be
    loaded early. places: of values that shared memory keeps.
    """
    parameters, body = kernel.function.parameters, kernel.function.body
    constants = {b: place for place, b in enumerate(kernel.buffers) if b.kind == "constant"}
    addresses, found = _constant_loads(kernel, constants)
    places = places or {}
    loads = [load for load in found if taken is None or load.target in taken]
    shared = [load for load in found if load.target in places]
    held = tuple(_held_bytes(load, warps) for load in (*loads, *shared))
    if sum(held) < LEAST_BYTES:
        return None
    values = tuple(load.target for load in loads)
    first = (*_needed(addresses, loads), *loads, code.Return(values))
    rest = tuple(statement for statement in body if statement not in loads)
    rest = loads_first(with_kept(rest, shared, places))
    used, filled = (
        tuple(sorted({constants[load.value.reads[0]] for load in some})) for some in (loads, shared)
    )
    arguments = (*(parameters[place] for place in filled), TASK)
    return EarlyKernel(
        code.Function((*(parameters[place] for place in used), TASK), first),
        code.Function((*parameters, *values), rest),
        used,
        values,
        held[: len(loads)],
        tuple(load.value.reads[0] for load in loads),
        frozenset(b for s in code.walk(rest) for b in code.reads(s) if b.kind == "constant"),
        filling(arguments, _needed(addresses, shared), shared, places) if shared else None,
        filled,
        tuple((s.value.reads[0], size) for s, size in zip(shared, held[len(loads) :], strict=True)),
        read_bytes(shared),
        {load.target: size for load in found if (size := shared_bytes(load))},
    )


def _constant_loads(
    kernel: TritonKernel, constants: Collection[Buffer]
) -> tuple[list[code.Assign], list[code.Assign]]:
    """What may be a part of the addresses of constants that depend on the task alone, and the loads
    of a kernel from such addresses."""
    parameters, body = kernel.function.parameters, kernel.function.body
    assignments = Counter(name for statement in code.walk(body) for name in code.defines(statement))
    pointers = (parameters[place] for place, b in enumerate(kernel.buffers) if b in constants)
    computable = {*TASK.names, *(name for pointer in pointers for name in pointer.names)}
    addresses: list[code.Assign] = []
    loads: list[code.Assign] = []
    for statement in body:
        if not isinstance(statement, code.Assign) or not computable.issuperset(
            statement.value.names
        ):
            continue
        if assignments[statement.target.text] > 1 or statement.value.effect:
            continue
        if not statement.value.reads:
            computable.add(statement.target.text)
            addresses.append(statement)
        elif statement.value.reads[0] in constants:
            loads.append(statement)
    return addresses, loads


def _needed(addresses: list[code.Assign], loads: list[code.Assign]) -> list[code.Assign]:
    """The parts of addresses that loads need."""
    needed = {name for load in loads for name in load.value.names}
    for address in reversed(addresses):
        if address.target.text in needed:
            needed.update(address.value.names)
    return [address for address in addresses if address.target.text in needed]


def _held_bytes(load: code.Assign, warps: int) -> int:
    """What a loaded block takes in the registers of a unit, of which every thread has as many."""
    itemsize = max(load.value.reads[0].dtype.itemsize, 4)
    if len(load.shape) == 3:  # (lanes, warps, rows of a warp): warps without a row have it, too
        lanes, _, each = load.shape
        return max(lanes, LANES) * warps * each * itemsize
    return max(prod(load.shape), warps * LANES) * itemsize


def shares(split: EarlyKernel, whole: EarlyKernel) -> dict[str, float]:
    """The parts of constants that a split holds, of those that it could hold all of."""
    return {
        buffer.name: split.bytes_of(buffer) / whole.bytes_of(buffer)
        for buffer in dict.fromkeys((*split.reads, *(read for read, _ in split.shared)))
        if buffer not in whole.rest
    }
