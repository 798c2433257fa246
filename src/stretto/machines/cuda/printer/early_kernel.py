"""Split a kernel into loads of constants that may come early, and the rest of a task.

Registers hold some or all of these loads, shared memory others; a task makes the remaining ones.

    before                               early            body
      def k(x, w, y, task):                def e(w, task):  def k(x, w, y, task, v):
          a = load x                           v = load w       a = load x
          v = load w[task]                     return v         store y, a * v
          store y, a * v
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from stretto.device.expr import Buffer
from stretto.ir.types import DType
from stretto.machines import statements as code
from stretto.machines.cuda.costs import WARP
from stretto.machines.cuda.printer.kernel import WARPS, TritonKernel
from stretto.machines.cuda.printer.load_order import loads_first
from stretto.machines.cuda.printer.outline import sink_assignments
from stretto.machines.cuda.printer.scalar import TASK, VALUE_TYPES
from stretto.machines.terms import Term, call, variable

LEAST_BYTES = 2048
"""Bytes per unit below which early loads are not worth a separate function."""
Places = Mapping[Term, int]
"""By the variable of a load, the place of its block in bytes from the end of shared memory."""


@dataclass(frozen=True, slots=True)
class EarlyKernel:
    """A kernel split into early loads and the remaining task.

    early: (`constants` ..., task), makes `loads` and returns their values. fill: (`filled` ...,
    task), stores the `shared` loads in shared memory. body: the rest, (buffers ..., registers ...,
    control, task, values ...). movable: all loads that may come early. rest: the constants that
    `body` still loads from. warps: of a unit.
    """

    early: code.FunctionDefinition
    fill: code.FunctionDefinition
    body: code.FunctionDefinition
    constants: tuple[Buffer, ...]
    filled: tuple[Buffer, ...]
    loads: tuple[code.Assign, ...]
    shared: tuple[code.Assign, ...]
    movable: tuple[code.Assign, ...]
    rest: frozenset[Buffer]
    warps: int

    @property
    def sizes(self) -> dict[Term, int]:
        """The bytes that each value takes in the registers of a unit."""
        return {load.target: _held_bytes(load, self.warps) for load in self.loads}

    @property
    def nbytes(self) -> int:
        """Bytes of registers of a unit that the values take."""
        return sum(self.sizes.values())

    @property
    def held(self) -> Counter[Buffer]:
        """By constant, the bytes that registers and shared memory hold, counted as bytes of
        registers."""
        held = Counter[Buffer]()
        for load in (*self.loads, *self.shared):
            held[load.value.reads[0]] += _held_bytes(load, self.warps)
        return held


def split_early(
    kernel: TritonKernel,
    warps: int = WARPS,
    taken: Collection[Term] | None = None,
    places: Places | None = None,
) -> EarlyKernel | None:
    """Split a kernel into its early loads and the rest; None if it has less than LEAST_BYTES to
    load early.

    warps: of a unit. taken: the values that registers hold, if not all that may be loaded
    early. places: for values that shared memory holds, their distance in bytes from its end.
    """
    parameters, body = kernel.function.parameters, kernel.function.body
    named = zip(kernel.buffers, parameters, strict=False)
    pointers = {buffer: name for buffer, name in named if buffer.kind == "constant"}
    addresses, movable = _constant_loads(body, pointers)
    places = places or {}
    loads = tuple(load for load in movable if taken is None or load.target in taken)
    shared = tuple(load for load in movable if load.target in places)
    if sum(_held_bytes(load, warps) for load in (*loads, *shared)) < LEAST_BYTES:
        return None
    values = tuple(load.target for load in loads)
    first = (*_needed(addresses, loads), *loads, code.Return(values))
    rest = tuple(statement for statement in body if statement not in loads)
    rest = loads_first(with_shared_loads(rest, shared, places))
    constants, filled = _read(loads, pointers), _read(shared, pointers)
    arguments, own = ((*map(pointers.__getitem__, b), TASK) for b in (constants, filled))
    return EarlyKernel(
        code.FunctionDefinition(arguments, first),
        fill_function(own, _needed(addresses, shared), shared, places),
        code.FunctionDefinition((*parameters, *values), rest),
        constants,
        filled,
        loads,
        shared,
        tuple(movable),
        frozenset(b for s in code.walk(rest) for b in code.reads(s) if b.kind == "constant"),
        warps,
    )


def _read(loads: Iterable[code.Assign], pointers: Iterable[Buffer]) -> tuple[Buffer, ...]:
    """Return the constants that the loads read, in the order of `pointers`."""
    found = {load.value.reads[0] for load in loads}
    return tuple(buffer for buffer in pointers if buffer in found)


def _constant_loads(
    body: code.Statements, pointers: Mapping[Buffer, Term]
) -> tuple[list[code.Assign], list[code.Assign]]:
    """Return the assignments that compute addresses from constant pointers and the task number
    alone, and the loads of constants from such addresses."""
    assignments = code.assignments(body)
    computable = {*TASK.names, *(name for p in pointers.values() for name in p.names)}
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
        elif statement.value.reads[0] in pointers:
            loads.append(statement)
    return addresses, loads


def _needed(addresses: list[code.Assign], loads: Iterable[code.Assign]) -> list[code.Assign]:
    """Return the address computations that the loads need."""
    needed = {name for load in loads for name in load.value.names}
    for address in reversed(addresses):
        if address.target.text in needed:
            needed.update(address.value.names)
    return [address for address in addresses if address.target.text in needed]


def _held_bytes(load: code.Assign, warps: int) -> int:
    """Return the bytes that a loaded block takes in the registers of a unit, where every thread
    has the same number of them."""
    itemsize = max(load.value.reads[0].dtype.itemsize, 4)
    if len(load.shape) == 3:  # (lanes, warps, rows of a warp): warps without a row hold it, too
        lanes, _, each = load.shape
        return max(lanes, WARP) * warps * each * itemsize
    return max(prod(load.shape), warps * WARP) * itemsize


def shares(split: EarlyKernel, whole: EarlyKernel) -> dict[str, float]:
    """Return, for each constant that `whole` could hold all of, the fraction that `split` holds."""
    return {
        buffer.name: size / whole.held[buffer]
        for buffer, size in split.held.items()
        if buffer not in whole.rest
    }


# ---- Constants that loops hold in shared memory, for lack of registers.
#
# Such a block is one statement of a task, a load of a constant. Before the loop, a function makes
# the load and stores the whole block, masked lanes included; in the loop the task loads from shared
# memory instead, just before the first use. If all lanes are alike, as for numbers per row, one
# lane is stored. Places are counted in bytes back from the end of the unit's shared memory
# (library/shared.py).


UNIT_BYTES = 16
"""Alignment of places in bytes, for vectors of four."""
END = variable("end")
"""Address of the end of a unit's shared memory."""
_DTYPES = frozenset((DType.F32, DType.F64, DType.F16, DType.BF16, DType.I64, DType.I32))
"""Dtypes that are loaded as values of 32 or 64 bits."""
_MOST_AXES = 3


def shared_bytes(load: code.Assign) -> int:
    """Return the bytes that a loaded block takes in shared memory; 0 if it cannot be there."""
    dtype = load.value.reads[0].dtype
    if dtype not in _DTYPES or len(load.shape) > _MOST_AXES:
        return 0
    return -(-prod(_shape(load)) * _width(dtype) // UNIT_BYTES) * UNIT_BYTES


def read_bytes(loads: Iterable[code.Assign]) -> int:
    """Return the bytes that a task reads from shared memory for blocks held there."""
    return sum(prod(_shape(load)) * _width(load.value.reads[0].dtype) for load in loads)


def _width(dtype: DType) -> int:
    return 8 if dtype in (DType.F64, DType.I64) else 4


def fill_function(
    parameters: tuple[Term, ...],
    addresses: Collection[code.Assign],
    loads: Iterable[code.Assign],
    places: Places,
) -> code.FunctionDefinition:
    """Return a function that stores the blocks of `loads`: (parameters ...)."""
    body: list[code.Statement] = [*addresses, _end()]
    for load in loads:
        arguments = (END, places[load.target], load.target, *_sizes(load))
        body += [load, code.Do(call("stretto_keep", *arguments, effect=True))]
    return code.FunctionDefinition(parameters, (*body, code.Return()))


def with_shared_loads(
    body: code.Statements, loads: Collection[code.Assign], places: Places
) -> code.Statements:
    """Replace `loads` in a task by loads from shared memory, each before its first use."""
    if not loads:
        return body
    rest = tuple(statement for statement in body if statement not in loads)
    return (_end(), *sink_assignments([_shared_load(load, places) for load in loads], rest))


def _shared_load(load: code.Assign, places: Places) -> code.Assign:
    buffer: Buffer = load.value.reads[0]
    arguments = (END, places[load.target], VALUE_TYPES[buffer.dtype], *_sizes(load))
    value = call("stretto_kept", *arguments, effect=True).along(load.target.axes)
    return code.Assign(load.target, value, shape=_shape(load))


def _shape(load: code.Assign) -> tuple[int, ...]:
    """Return the shape of the block held; one lane if all are alike."""
    return (1, *load.shape[1:]) if load.alike else load.shape


def _sizes(load: code.Assign) -> tuple[int, ...]:
    shape = _shape(load)
    return (*shape, *(0 for _ in range(_MOST_AXES - len(shape))))


def _end() -> code.Assign:
    return code.Assign(END, call("stretto_shared_end", effect=True))
