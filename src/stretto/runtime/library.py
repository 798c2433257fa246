"""Library calls of a program: ATen operators that run on memory given by address."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

import torch

from stretto.device.expr import Buffer, Reg
from stretto.device.operator import DRAWS, LibraryArgument, LibraryCall, LibraryOperand
from stretto.errors import SourceLocation
from stretto.ir.failure import run_error
from stretto.ir.sizes import Size
from stretto.ir.types import DType
from stretto.ops.effects import States, generator_named, restore, states_of
from stretto.ops.infer import resolve

Number = bool | int | float
Operand = torch.Tensor | Number
POINTER_BYTES = 8


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A call with its operands. draws: the counter of random draws; None if the call draws none."""

    args: list[object]
    kwargs: dict[str, object]
    outs: list[object]
    draws: torch.Tensor | None


def bound(call: LibraryCall, operands: Sequence[Operand]) -> BoundCall:
    """Bind operands, ordered as in `LibraryCall.operands`, to the arguments of a call; tensors
    have their final dims."""
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
    draws = kwargs.pop(DRAWS, None)
    assert draws is None or isinstance(draws, torch.Tensor)
    if "generator" in kwargs:
        kwargs["generator"] = generator_named(str(kwargs["generator"]))
    return BoundCall(args, kwargs, [bind(out) for out in call.outs], draws)


def run_call(call: LibraryCall, operands: Sequence[Operand]) -> None:
    """Run one call; `operands` are as for `bound`, results are written in place.

    Raises a RunError of the class and with the message of the operator's own error.
    """
    _run(call, bound(call, operands))


def _run(
    call: LibraryCall, operands: BoundCall, begin: Callable[[int], None] | None = None
) -> None:
    """Run one call. If it draws random numbers, it counts that in its last result; before the first
    draw `begin` is called with the address of the counter."""
    draws = operands.draws
    if begin is not None and draws is not None and not draws.item():
        begin(draws.data_ptr())
    try:
        with torch.no_grad():
            found = resolve(call.target)(*operands.args, **operands.kwargs)
    except Exception as error:  # torch raises RuntimeError, IndexError, ValueError ...
        stop = run_error(type(error), str(error).strip(), _location(call.source))
        stop.op = call.target
        raise stop from error
    results = found if isinstance(found, tuple | list) else () if found is None else (found,)
    if draws is not None:
        results = (*results, draws + 1)
    for target, result in zip(operands.outs, results, strict=True):
        assert isinstance(target, torch.Tensor)
        target.copy_(result)


def _location(source: str) -> SourceLocation | None:
    file, _, line = source.rpartition(":")
    return SourceLocation(file, int(line)) if file else None


def extents(buffer: Buffer) -> tuple[Reg | Size, ...]:
    """Return the dims of a buffer that are not numbers."""
    return tuple(dim for dim in buffer.shape if not isinstance(dim, int))


def tensor_at(address: int, buffer: Buffer, dims: Sequence[int]) -> torch.Tensor:
    """Return a tensor over memory that it does not own. dims: the values of the buffer's
    `extents`."""
    rest = list(dims)
    shape = [dim if isinstance(dim, int) else rest.pop(0) for dim in buffer.shape]
    if 0 in shape or not address:
        return torch.empty(shape, dtype=buffer.dtype.torch)
    memory = (ctypes.c_char * (prod(shape) * buffer.dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=buffer.dtype.torch).view(shape)


def number_at(address: int, kind: Reg | Size) -> Number:
    """Read a number that the program passes as a double or as an int64_t."""
    dtype = kind.dtype if isinstance(kind, Reg) else DType.I64
    if dtype.is_float:
        return ctypes.c_double.from_address(address).value
    number = ctypes.c_int64.from_address(address).value
    return bool(number) if dtype is DType.BOOL else number


@dataclass(eq=False, slots=True)
class Draws:
    """The generators from which library calls draw.

    A machine may abandon a run and begin again: a list was full, or the cores are busy. Then
    the draws of the first attempt must not count. So the states of the generators are saved
    while a program runs, by the address of its counter of draws, and restored if the counter
    begins at 0 again. A run that fails has drawn nothing.
    """

    generators: tuple[str | None, ...]
    begun: dict[int, States] = field(default_factory=dict[int, States])

    @staticmethod
    def of(calls: Iterable[LibraryCall]) -> Draws:
        drawing = (dict(call.kwargs) for call in calls if DRAWS in dict(call.kwargs))
        names = (kwargs.get("generator") for kwargs in drawing)
        return Draws(tuple(dict.fromkeys(None if name is None else str(name) for name in names)))

    def states(self) -> States:
        return states_of(self.generators)

    def begin(self, counter: int) -> None:
        """Save or restore the states before the first draw of each attempt; counter: an address."""
        if counter in self.begun:
            restore(self.begun[counter])
        else:
            self.begun[counter] = self.states()

    def end(self, addresses: Sequence[int], *, undo: bool) -> None:
        """Forget the saved states of a run that has ended, and restore them if `undo`. addresses:
        the possible addresses of its counter."""
        for address in addresses if self.begun else ():
            states = self.begun.pop(address, ())
            if undo:
                restore(states)


class LibraryTable:
    """The callback of a program: `table(number, address of operand pointers)`.

    `runs` counts the callbacks. Tensors are reused as long as a call gets the same memory as
    the last time: they own none of it.
    """

    def __init__(self, calls: Sequence[LibraryCall]) -> None:
        self.calls = [(call, call.operands) for call in calls]
        self.runs = 0
        self.draws = Draws.of(calls)
        self._bound: list[tuple[bytes, BoundCall] | None] = [None] * len(calls)
        """By number of the call: the pointers of the last time, and the operands there."""

    def __call__(self, number: int, address: int) -> None:
        self.runs += 1
        call, kinds = self.calls[number]
        operands = self._operands(number, address, call, kinds)
        _run(call, operands, self.draws.begin)

    def _operands(
        self, number: int, address: int, call: LibraryCall, kinds: Sequence[LibraryOperand]
    ) -> BoundCall:
        key = ctypes.string_at(address, POINTER_BYTES * len(kinds))
        known = self._bound[number]
        if known is not None and known[0] == key:
            return known[1]
        made = bound(call, _tensors(kinds, address))
        if made.draws is None and all(isinstance(kind, Buffer) for kind in kinds):
            self._bound[number] = key, made
        return made


def _tensors(kinds: Sequence[LibraryOperand], address: int) -> list[Operand]:
    """Return the operands at the pointers that a program passes."""
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
    return operands
