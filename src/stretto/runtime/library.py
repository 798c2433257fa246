"""Runs the library calls of a program: ATen operators on memory named by address."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod

import torch

from stretto.device.expr import Buffer, Reg
from stretto.device.operator import LibraryArgument, LibraryCall
from stretto.errors import SourceLocation
from stretto.ir.failure import run_error
from stretto.ir.sizes import Size
from stretto.ir.types import DType
from stretto.ops.infer import resolve

Number = bool | int | float
Operand = torch.Tensor | Number


def run_call(call: LibraryCall, operands: Sequence[Operand]) -> None:
    """Runs one call; `operands` are as `LibraryCall.operands` says, results are written in place.

    Tensors have their dims already. Raises a RunError of the class and with the message that the
    operator raises.
    """
    rest = list(operands)

    def bind(argument: LibraryArgument) -> object:
        match argument:
            case Buffer():
                tensor = rest.pop(0)
                del rest[: len(extents(argument))]
                return tensor
            case Reg():
                return rest.pop(0)
            case tuple():
                return [bind(item) for item in argument]
            case _:
                return argument

    args = [bind(item) for item in call.args]
    kwargs = {key: bind(item) for key, item in call.kwargs}
    try:
        with torch.no_grad():
            found = resolve(call.target)(*args, **kwargs)
    except Exception as error:  # torch raises RuntimeError, IndexError, ValueError ...
        stop = run_error(type(error), str(error).strip(), _location(call.source))
        stop.op = call.target
        raise stop from error
    results = found if isinstance(found, tuple | list) else (found,) if call.outs else ()
    for out, result in zip(call.outs, results, strict=True):
        target = bind(out)
        assert isinstance(target, torch.Tensor)
        target.copy_(result)


def _location(source: str) -> SourceLocation | None:
    file, _, line = source.rpartition(":")
    return SourceLocation(file, int(line)) if file else None


def extents(buffer: Buffer) -> tuple[Reg | Size, ...]:
    """The dims of a buffer that are no numbers."""
    return tuple(dim for dim in buffer.shape if not isinstance(dim, int))


def tensor_at(address: int, buffer: Buffer, dims: Sequence[int]) -> torch.Tensor:
    """A tensor over memory that somebody else owns. `dims`: what its `extents` are."""
    rest = list(dims)
    shape = [dim if isinstance(dim, int) else rest.pop(0) for dim in buffer.shape]
    if 0 in shape or not address:
        return torch.empty(shape, dtype=buffer.dtype.torch)
    memory = (ctypes.c_char * (prod(shape) * buffer.dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=buffer.dtype.torch).view(shape)


def number_at(address: int, kind: Reg | Size) -> Number:
    """A number that the program passes as a double or as an int64_t."""
    dtype = kind.dtype if isinstance(kind, Reg) else DType.I64
    if dtype.is_float:
        return ctypes.c_double.from_address(address).value
    number = ctypes.c_int64.from_address(address).value
    return bool(number) if dtype is DType.BOOL else number


class LibraryTable:
    """The callback of a program: `table(number, address of operand pointers)`.

    `runs` counts how often the program called back.
    """

    def __init__(self, calls: Sequence[LibraryCall]) -> None:
        self.calls = [(call, call.operands) for call in calls]
        self.runs = 0

    def __call__(self, number: int, address: int) -> None:
        self.runs += 1
        call, kinds = self.calls[number]
        pointers = (ctypes.c_void_p * len(kinds)).from_address(address)
        numbers = {
            kind: number_at(p, kind)
            for kind, p in zip(kinds, pointers, strict=True)
            if not isinstance(kind, Buffer)
        }
        operands: list[Operand] = []
        for kind, pointer in zip(kinds, pointers, strict=True):
            if isinstance(kind, Buffer):
                dims = [int(numbers[dim]) for dim in extents(kind)]
                operands.append(tensor_at(pointer or 0, kind, dims))
            else:
                operands.append(numbers[kind])
        run_call(call, operands)
