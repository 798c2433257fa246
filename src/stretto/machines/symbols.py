"""What the machines say that print code for fixed sizes."""

from __future__ import annotations

from stretto.device.expr import Extent, Reg
from stretto.device.program import DeviceProgram
from stretto.errors import CodegenError
from stretto.ir.sizes import Atom, Size


def require_numbers(program: DeviceProgram) -> None:
    """CodegenError for a program with sizes that are known at the call only."""
    buffers = list(program.tree.externals)
    for function in program.tree.functions:
        buffers += (*function.locals, *function.tensors)
    for dim in (dim for buffer in buffers for dim in buffer.shape):
        fixed(dim)


def fixed(extent: Extent) -> int | Reg:
    """An extent that code can be printed for."""
    if isinstance(extent, Size):
        raise no_symbols(extent)
    return extent


def no_symbols(what: Atom | Extent) -> CodegenError:
    return CodegenError(
        f"this machine does not run programs with symbolic sizes yet: {what}",
        remedy="compile for the sizes at hand, or run the program on the emulator",
    )
