"""Constants that loops keep in shared memory, since registers have no room for them.

A kept block is one statement of a task, a load of a constant. Before the loop a function makes the
load and stores the block, whole, whatever lanes its mask leaves out; in the loop the task has a
load of shared memory in its place, just before the first use. Of lanes that are alike, as those of
numbers per row, one is stored. Places are bytes before the end of the unit's shared memory
(parts/shared.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import prod

from stretto.device.expr import Buffer
from stretto.ir.types import DType
from stretto.machines import statements as code
from stretto.machines.cuda.printer.scalar import VALUE_TYPES
from stretto.machines.terms import Term, call, variable

UNIT_BYTES = 16
"""Places are multiples of it, for vectors of four."""
END = variable("end")
"""The address behind the shared memory of a unit."""
_DTYPES = frozenset((DType.F32, DType.F64, DType.F16, DType.BF16, DType.I64, DType.I32))
"""What is loaded as values of 32 or 64 bits."""
_MOST_AXES = 3

Places = Mapping[Term, int]
"""By the variable of a load, where shared memory has its block."""


def shared_bytes(load: code.Assign) -> int:
    """What a loaded block takes in shared memory; 0 where it cannot be there."""
    dtype = load.value.reads[0].dtype
    if dtype not in _DTYPES or len(load.shape) > _MOST_AXES:
        return 0
    return -(-prod(_shape(load)) * _width(dtype) // UNIT_BYTES) * UNIT_BYTES


def read_bytes(loads: Iterable[code.Assign]) -> int:
    """What a task reads from shared memory of blocks that are kept there."""
    return sum(prod(_shape(load)) * _width(load.value.reads[0].dtype) for load in loads)


def _width(dtype: DType) -> int:
    return 8 if dtype in (DType.F64, DType.I64) else 4


def filling(
    parameters: tuple[Term, ...],
    addresses: Collection[code.Assign],
    loads: Iterable[code.Assign],
    places: Places,
) -> code.Function:
    """A function that stores the blocks of `loads`: (parameters ...)."""
    body: list[code.Statement] = [*addresses, _end()]
    for load in loads:
        arguments = (END, places[load.target], load.target, *_sizes(load))
        body += [load, code.Do(call("stretto_keep", *arguments, effect=True))]
    return code.Function(parameters, (*body, code.Return()))


def with_kept(body: code.Block, loads: Collection[code.Assign], places: Places) -> code.Block:
    """A task with loads of shared memory in the places of `loads`, each before its first use."""
    if not loads:
        return body
    found: list[code.Statement] = [_end()]
    waiting = {load.target.text: load for load in loads}
    for statement in body:
        if statement in loads:
            continue
        used = {name for inner in code.walk((statement,)) for name in code.uses(inner)}
        for name in [name for name in waiting if name in used]:
            found.append(_kept(waiting.pop(name), places))
        found.append(statement)
    return tuple(found)


def _kept(load: code.Assign, places: Places) -> code.Assign:
    buffer: Buffer = load.value.reads[0]
    arguments = (END, places[load.target], VALUE_TYPES[buffer.dtype], *_sizes(load))
    value = call("stretto_kept", *arguments, effect=True).along(load.target.axes)
    return code.Assign(load.target, value, shape=_shape(load))


def _shape(load: code.Assign) -> tuple[int, ...]:
    """That of the kept block: of lanes that are alike there is one."""
    return (1, *load.shape[1:]) if load.alike else load.shape


def _sizes(load: code.Assign) -> tuple[int, ...]:
    shape = _shape(load)
    return (*shape, *(0 for _ in range(_MOST_AXES - len(shape))))


def _end() -> code.Assign:
    return code.Assign(END, call("stretto_shared_end", effect=True))
