"""Sizes that are known at the call: who may use which, and what calls make of them.

A symbol of main is a dim of an input. Another function has the symbols that its parameters give
values to, under their `size_name`, and sees those of main as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stretto.device.expr import (
    SIZE,
    Buffer,
    Expr,
    Extent,
    Index,
    Position,
    Reg,
    expr_atoms,
    known_size,
)
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, Schedule
from stretto.device.tree import Call, For, Leaf, TreeFunction, walk
from stretto.errors import VerifyError
from stretto.ir.size_bounds import at_most, in_range, substitute_symbols
from stretto.ir.sizes import Atom, Size, Symbol


def check_symbols(program: DeviceProgram) -> None:
    """Raises VerifyError for a symbol that has no value where it is used, for a call that gives one
    a value out of its range, and for a buffer whose size may be negative."""
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
        for node in walk(function.body):
            if isinstance(node, Call):
                _check_call(node, functions[node.function], kernels)


def call_sizes(call: Call[Schedule]) -> dict[str, Index]:
    """What a call gives the symbols of the function, by their names."""
    return {
        reg.name.removeprefix(SIZE): value.index
        for reg, value in call.registers
        if reg.name.startswith(SIZE) and isinstance(value, Position)
    }


def seen_size(call: Call[Schedule], param: Buffer) -> int | Size:
    """The number of elements of a param, in the sizes of the caller."""
    size = known_size(param.shape)
    if isinstance(size, int):
        return size
    given = call_sizes(call)
    known = {symbol: given[symbol.name] for symbol in size.symbols if symbol.name in given}
    return substitute_symbols(size, known).dim


def is_decided(size: int | Size) -> bool:
    """Whether a size depends on symbols alone."""
    return isinstance(size, int) or not any(isinstance(atom, Reg) for atom in size.atoms())


def kernel_symbols(kernel: Kernel) -> Iterator[Symbol]:
    """The symbols in the sizes and positions of a kernel."""
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
    """All symbols that the nodes and the buffers of a function name."""
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
