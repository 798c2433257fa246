"""Checks of symbols, sizes that are known at the call: where each may be used, and its
value in calls.

A symbol of main is a dim of an input. Another function has the symbols whose values its
parameters give, under their `size_name`, and can use those of main as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stretto.device.expr import (
    SIZE,
    Apply,
    Buffer,
    Const,
    Expr,
    Extent,
    Index,
    Position,
    Reg,
    expr_atoms,
    known_size,
    parts,
)
from stretto.device.forms import OutputList, OutputTensor, Packing, ProgramInterface
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, Schedule
from stretto.device.tree import Call, Check, CheckCode, For, Leaf, TreeFunction, calls, walk
from stretto.errors import VerifyError
from stretto.ir.size_bounds import at_most, in_range, substitute_symbols
from stretto.ir.sizes import Atom, Size, Symbol


def check_symbols(program: DeviceProgram) -> None:
    """Raise VerifyError for a symbol without a value where it is used, for a call that passes a
    value out of its range, and for a buffer whose size may be negative."""
    inputs = (buffer for buffer in program.tree.externals if buffer.is_input)
    given = {symbol for b in inputs for dim in b.shape if (symbol := _symbol(dim)) is not None}
    for buffer in program.tree.externals:
        _check_buffer(buffer, given)
    if program.small is not None:
        _require(set(program.small.work.symbols), given, "the estimate of a call")
    kernels = {kernel.name: tuple(kernel_symbols(kernel)) for kernel in program.kernels}
    functions = {function.name: function for function in program.tree.functions}
    for function in functions.values():
        names = {reg.name.removeprefix(SIZE) for reg in function.params if reg.name[:5] == SIZE}
        own = {symbol for symbol in _symbols_of(function, kernels) if symbol.name in names}
        for buffer in (*function.locals, *function.tensors):
            _check_buffer(buffer, given | own)
        _require(_symbols_of(function, kernels), given | own, f"function {function.name}")
        for call in calls(function.body):
            _check_call(call, functions[call.function], kernels)


def call_sizes(call: Call[Schedule]) -> dict[str, Index]:
    """Return the values that a call gives to the symbols of the function, by name."""
    return {
        reg.name.removeprefix(SIZE): value.index
        for reg, value in call.registers
        if reg.name.startswith(SIZE) and isinstance(value, Position)
    }


def seen_size(call: Call[Schedule], param: Buffer) -> int | Size:
    """Return the number of elements of a param, in the sizes of the caller."""
    size = known_size(param.shape)
    if isinstance(size, int):
        return size
    given = call_sizes(call)
    known = {symbol: given[symbol.name] for symbol in size.symbols if symbol.name in given}
    return substitute_symbols(size, known).dim


def is_decided(size: int | Size) -> bool:
    """Return True if a size does not depend on registers."""
    return isinstance(size, int) or not any(isinstance(atom, Reg) for atom in size.atoms())


def kernel_symbols(kernel: Kernel) -> Iterator[Symbol]:
    """Yield the symbols in the sizes and positions of a kernel."""
    extents: list[Extent] = [dim.extent for dim in kernel.grid]
    for stage in kernel.stages:
        operator = stage.operator
        extents += [*operator.dims, *operator.reduce, *(span.extent for span in stage.box)]
        for access in (operator.out, *(load.access for load in operator.reads())):
            extents += access.shape
        yield from _symbols_in(expr_atoms(operator.value))
        yield from _symbols_in(atom for index in operator.out.index for atom in index.atoms())
    for extent in extents:
        if isinstance(extent, Size):
            yield from extent.symbols


def _symbols_in(atoms: Iterable[Atom]) -> Iterator[Symbol]:
    return (atom for atom in atoms if isinstance(atom, Symbol))


def _symbol(extent: Extent) -> Symbol | None:
    return extent.symbol if isinstance(extent, Size) else None


def _symbols_of(
    function: TreeFunction[Schedule], kernels: dict[str, tuple[Symbol, ...]]
) -> set[Symbol]:
    """Return all symbols that the nodes and the buffers of a function use."""
    found: set[Symbol] = set()
    exprs: list[Expr] = []
    for buffer in (*function.locals, *function.tensors):
        found.update(s for dim in buffer.shape if isinstance(dim, Size) for s in dim.symbols)
    for node in walk(function.body):
        match node:
            case Leaf(schedule):
                for name in schedule.kernels:
                    found.update(kernels[name])
                for item in schedule.statements:
                    exprs += item.exprs
            case For(start=start, stop=stop):
                exprs += [start, stop]
            case Call(registers=registers, tensors=tensors):
                exprs += [value for _, value in registers]
                exprs += [Position(access.offset) for _, access in tensors]
            case _:
                pass
    return found | {symbol for expr in exprs for symbol in _symbols_in(expr_atoms(expr))}


def _check_buffer(buffer: Buffer, given: set[Symbol]) -> None:
    for dim in buffer.shape:
        if isinstance(dim, Size):
            _require(set(dim.symbols), given, f"buffer {buffer.name}")
            if not is_decided(dim) or not at_most(0, dim):
                raise VerifyError(f"the size {dim} of buffer {buffer.name} may be negative")


def _require(used: set[Symbol], given: set[Symbol], what: str) -> None:
    for symbol in sorted(used - given, key=str):
        raise VerifyError(f"{what} uses the size {symbol.declaration}, which nothing gives it")


def _check_call(
    call: Call[Schedule],
    callee: TreeFunction[Schedule],
    kernels: dict[str, tuple[Symbol, ...]],
) -> None:
    given = call_sizes(call)
    for symbol in sorted(_symbols_of(callee, kernels), key=str):
        size = given.get(symbol.name)
        if size is None or not is_decided(size):
            continue
        if not in_range(size, symbol):
            raise VerifyError(
                f"a call of {call.function} with {symbol.name} = {size}, which may be out of "
                f"{symbol.declaration}"
            )


# ---- Inputs, outputs and failures of checks fit the program.


NUMBERED = (CheckCode.ASSERTION, CheckCode.INDEX)
"""The codes of checks whose subject is the number of a failure."""


def check_interface(interface: ProgramInterface, program: DeviceProgram) -> None:
    """Raise VerifyError for inputs, outputs, constants and failures that the program lacks."""
    externals = set(program.tree.externals)
    results = set(program.tree.main.results)
    for buffer in interface.inputs:
        if buffer not in externals or not buffer.is_input:
            raise VerifyError(f"input {buffer.name} is no input buffer of the program")
    for output in interface.outputs:
        _check_output(output, externals, results)
    slots = {buffer.slot: buffer for buffer in externals}
    for slot, tensor in interface.constants.items():
        buffer = slots.get(slot)
        if buffer is None or buffer.kind != "constant":
            raise VerifyError(f"there is no constant in slot {slot}")
        if tuple(tensor.shape) != buffer.shape or tensor.dtype is not buffer.dtype.torch:
            raise VerifyError(f"constant {buffer.name} is not of the type of its buffer")
    for packing in interface.packings:
        if not {packing.buffer, packing.source} <= externals or packing.source.kind != "constant":
            raise VerifyError(f"{packing.buffer.name} is packed from no constant of the program")
        if packing.group < 1 or packing.buffer.shape[-1] != packing.lanes * packing.group:
            raise VerifyError(f"{packing.buffer.name} has panels of another width")
        if not _can_be_transformed(packing):
            raise VerifyError(f"{packing.source.name} cannot be transformed for tiles of pixels")
    for subject in sorted(set(_subjects(program))):
        if not 0 <= subject < len(interface.stops):
            raise VerifyError(f"a check raises failure {subject}, which is missing")


def _can_be_transformed(packing: Packing) -> bool:
    if packing.line:
        return packing.tile in (2, 4) and packing.line in (2, 3) and len(packing.source.shape) == 4
    return packing.tile == 0 or (packing.tile in (2, 4) and packing.source.shape[2:] == (3, 3))


def _subjects(program: DeviceProgram) -> Iterator[int]:
    """Yield the numbers of the failures that register checks and kernels raise."""
    exprs = [stage.operator.value for kernel in program.kernels for stage in kernel.stages]
    for schedule in program.tree.leaves():
        for item in schedule.statements:
            exprs += item.exprs
            if isinstance(item, Check) and item.code in NUMBERED:
                yield item.subject
    for expr in exprs:
        for part in parts(expr):
            match part:
                case Apply("checked", (_, _, Const(number)), _):
                    yield int(number)
                case _:
                    pass


def _check_output(
    output: OutputTensor | OutputList, externals: set[Buffer], results: set[Reg]
) -> None:
    main = output.buffer
    if main not in externals:
        raise VerifyError(f"output {main.name} is no external buffer of the program")
    match output:
        case OutputTensor(shape=shape):
            needed = {dim for dim in shape if isinstance(dim, Reg)}
        case OutputList(length=length):
            needed = {length}
    for register in needed - results:
        raise VerifyError(
            f"the size of output {main.name} is in {register.name}, no result of main"
        )
