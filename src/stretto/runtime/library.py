"""Runs the library calls of a program: ATen operators on memory named by address."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from stretto.kernels.expr import Buffer, Reg
from stretto.kernels.operator import LibraryCall
from stretto.ops.infer import resolve


def tensor_at(address: int, buffer: Buffer) -> torch.Tensor:
    """A tensor over memory that somebody else owns; [] and zero-size shapes included."""
    shape = tuple(dim for dim in buffer.shape if isinstance(dim, int))
    if buffer.elements == 0 or not address:
        return torch.empty(shape, dtype=buffer.dtype.torch)
    memory = (ctypes.c_char * buffer.nbytes).from_address(address)
    return torch.frombuffer(memory, dtype=buffer.dtype.torch).view(shape)


def run_call(call: LibraryCall, operands: Sequence[torch.Tensor | int]) -> None:
    """Runs one call; `operands` are in the order of `library_operands`, results last and written in
    place.
    """
    rest = list(operands)

    def bind(argument: object) -> object:
        if isinstance(argument, Buffer | Reg):
            return rest.pop(0)
        if isinstance(argument, tuple):
            return [bind(item) for item in argument]  # pyright: ignore[reportUnknownVariableType]
        return argument

    args = [bind(item) for item in call.args]
    kwargs = {key: bind(item) for key, item in call.kwargs}
    with torch.no_grad():
        found = resolve(call.target)(*args, **kwargs)
    results = found if isinstance(found, tuple | list) else (found,)
    for out, result in zip(rest, results, strict=True):
        assert isinstance(out, torch.Tensor)
        out.copy_(result)


class LibraryTable:
    """The callback of a program: `table(number, address of operand pointers)`.

    `runs` counts how often the program called back.
    """

    def __init__(self, calls: Sequence[tuple[LibraryCall, Sequence[Buffer | Reg]]]) -> None:
        self.calls = calls
        self.runs = 0

    def __call__(self, number: int, address: int) -> None:
        self.runs += 1
        call, kinds = self.calls[number]
        pointers = (ctypes.c_void_p * len(kinds)).from_address(address)
        operands: list[torch.Tensor | int] = []
        for kind, pointer in zip(kinds, pointers, strict=True):
            if isinstance(kind, Buffer):
                operands.append(tensor_at(pointer or 0, kind))
            else:
                operands.append(ctypes.c_int64.from_address(pointer).value)
        run_call(call, operands)
