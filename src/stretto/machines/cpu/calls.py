"""Library calls without Python: their tables for calls.cpp, and the results that torch keeps.

A call is passed to torch's dispatcher through the stable C interface of libtorch, so the GIL is not
taken. Calls that this interface has no form for run in Python (`runtime/library.py`), and so does a
call that fails, so that it raises what eager raises.

A buffer is *held* if only library calls write and read it: its readers get the tensor that torch
has made, and nothing is copied to the program's memory. The schedule stays valid for such a buffer:
its writers and readers wait as before.
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch

from stretto.device.analyses import control_buffers
from stretto.device.expr import Buffer
from stretto.device.operator import DRAWS, Kernel, LibraryArgument, LibraryCall
from stretto.device.program import DeviceProgram, Run, Schedule, has_parallel
from stretto.device.regions import kernel_regions
from stretto.device.tree import Leaf, walk
from stretto.ops.infer import resolve
from stretto.options import Options
from stretto.runtime.compiler import NativeLibrary

_WORD, _TENSOR, _LIST, _SOME = range(4)
"""calls.cpp: Code."""
_ADD = "aten.add.Tensor"
"""This operator has a separate function, for floating tensors and the factor 1: its factor is a
number of any type, which words cannot encode."""
NOT_KNOWN = -1

# The order must be that of `struct Torch` in calls.cpp.
_FUNCTIONS = (
    "aoti_torch_call_dispatcher",
    "aoti_torch_cpu_add_Tensor",
    "aoti_torch_create_tensor_from_blob",
    "aoti_torch_delete_tensor_object",
    "aoti_torch_new_tensor_handle",
    "aoti_torch_get_data_ptr",
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
    "aoti_torch_get_dtype",
    "aoti_torch_copy_",
    "torch_new_list_reserve_size",
    "torch_list_push_back",
    "torch_delete_list",
    "aoti_torch_grad_mode_is_enabled",
    "aoti_torch_grad_mode_set_enabled",
)


@cache
def _libtorch() -> ctypes.CDLL | None:
    """Return libtorch, or None if it lacks a function that calls.cpp needs."""
    for path in sorted(Path(torch.__file__).with_name("lib").glob("libtorch_cpu.*")):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        if all(hasattr(library, name) for name in _FUNCTIONS):
            return library
    return None


def _functions(library: ctypes.CDLL) -> ctypes.Array[ctypes.c_void_p]:
    """Return the function table for calls.cpp."""
    names = [getattr(library, name) for name in _FUNCTIONS]
    words = [ctypes.cast(function, ctypes.c_void_p) for function in names]
    return (ctypes.c_void_p * len(words))(*words)


def _prepare(library: ctypes.PyDLL) -> None:
    known = _libtorch()
    assert known is not None
    library.stretto_calls_configure(_functions(known))
    library.stretto_calls_table.restype = ctypes.c_void_p
    library.stretto_calls_state.restype = ctypes.c_void_p


SUPPORT = NativeLibrary(Path(__file__).with_name("calls.cpp"), _prepare)


class Unsupported(Exception):
    """A call that torch's C interface has no form for. The message says why."""


# ---- Arguments as words --------------------------------------------------------------------------
def _number(kind: str, value: object) -> int:
    """Encode a number of one of torch's schema types in 64 bits. Raise Unsupported for other
    types."""
    if kind == "FloatType" and isinstance(value, int | float):
        return int(struct.unpack("q", struct.pack("d", float(value)))[0])
    if kind in ("IntType", "SymIntType") and isinstance(value, int):
        return int(value)
    if kind == "BoolType" and isinstance(value, bool):
        return int(value)
    raise Unsupported(f"an argument of type {kind} with the value {value!r}")


def _words(kind: Any, value: object) -> list[int]:
    """Return the words of an argument of a type of torch's schemas; an `_Operand` replaces each
    Buffer."""
    name = kind.kind()
    if name == "TensorType" and isinstance(value, _Operand):
        return [_TENSOR, value.number]
    if name == "OptionalType":
        return [_WORD, 0] if value is None else [_SOME, *_words(kind.getElementType(), value)]
    if name == "ListType" and isinstance(value, tuple | list):
        items = [_words(kind.getElementType(), item) for item in value]
        return [_LIST, len(items), *(word for item in items for word in item)]
    return [_WORD, _number(name, value)]


@dataclass(frozen=True, slots=True)
class _Operand:
    """Number of a buffer among the operands of a call."""

    number: int


def _numbered(argument: LibraryArgument, numbers: Iterator[int]) -> object:
    match argument:
        case Buffer():
            return _Operand(next(numbers))
        case tuple():
            return tuple(_numbered(item, numbers) for item in argument)
        case _:
            return argument


def encoded(call: LibraryCall) -> tuple[int, list[int]]:
    """Return the number of arguments of a call, and their words. Raise Unsupported if the C
    interface has no form for it."""
    if not call.target.startswith("aten.") or any(key == DRAWS for key, _ in call.kwargs):
        raise Unsupported("it is not an ATen operator, or it draws random numbers")
    operands = call.operands
    buffers = [item for item in operands if isinstance(item, Buffer)]
    if len(buffers) < len(operands):
        raise Unsupported("it takes a number that the run computes")
    schema = resolve(call.target)._schema
    results = [result.type.kind() for result in schema.returns]
    if schema.is_mutable or results != ["TensorType"] * len(call.outs):
        raise Unsupported("it changes an argument, or its results are no tensors")
    numbers = count()
    given: dict[str | int, object] = dict(
        enumerate(_numbered(argument, numbers) for argument in call.args)
    )
    given |= {key: _numbered(argument, numbers) for key, argument in call.kwargs}
    if call.target == _ADD and all(buffer.dtype.is_float for buffer in buffers):
        first, second, alpha = given[0], given[1], given.get("alpha", given.get(2, 1))
        if isinstance(first, _Operand) and isinstance(second, _Operand) and alpha == 1:
            return 2, [_TENSOR, first.number, _TENSOR, second.number]
    words: list[int] = []
    for place, argument in enumerate(schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        words += _words(argument.type, given.get(place, given.get(argument.name, default)))
    return len(schema.arguments), words


# ---- Buffers that torch keeps --------------------------------------------------------------------
def held_buffers(program: DeviceProgram) -> dict[str, int]:
    """Return the buffers of main that only library calls write and read, with the number of calls
    that read each after it is written; `NOT_KNOWN` if that depends on the run."""
    main = program.tree.main
    if has_parallel(program) or program.frame("main").copies > 1:
        return {}
    calls = {kernel.name: kernel for kernel in program.kernels if kernel.call is not None}
    others = _touched_otherwise(program)
    held = {
        buffer.name
        for buffer in main.locals
        if buffer.kind == "local"
        and buffer.name not in others
        and all(isinstance(dim, int) for dim in buffer.shape)
    }
    runs = Counter[str]()
    leaf_of: dict[str, int] = {}
    for number, node in enumerate(walk(main.body)):
        if isinstance(node, Leaf):
            for run in _runs(node.body):
                runs[run.kernel] += 1
                leaf_of[run.kernel] = number
    return {
        name: _readers(name, calls, runs, leaf_of)
        for name in held
        if any(_reads(kernel, name) or _writes(kernel, name) for kernel in calls.values())
    }


def _runs(schedule: Schedule) -> Iterator[Run]:
    return (item for items in schedule.units for item in items if isinstance(item, Run))


def _reads(kernel: Kernel, name: str) -> bool:
    assert kernel.call is not None
    return any(isinstance(item, Buffer) and item.name == name for item in kernel.call.inputs)


def _writes(kernel: Kernel, name: str) -> bool:
    assert kernel.call is not None
    return any(buffer.name == name for buffer in kernel.call.outs)


def _readers(
    name: str, calls: Mapping[str, Kernel], runs: Counter[str], leaf_of: Mapping[str, int]
) -> int:
    """Return the number of calls that read a buffer, if these and its only writer are in one leaf,
    once each: then they all run whenever the writer does. Else NOT_KNOWN."""
    writers = [kernel.name for kernel in calls.values() if _writes(kernel, name)]
    readers = [kernel.name for kernel in calls.values() if _reads(kernel, name)]
    involved = {*writers, *readers}
    once = all(runs[kernel] == 1 for kernel in involved)
    if len(writers) != 1 or not once or len({leaf_of[kernel] for kernel in involved}) != 1:
        return NOT_KNOWN
    return len(readers)


def _touched_otherwise(program: DeviceProgram) -> set[str]:
    """Return the names of the buffers that kernels, register statements or control touch, or that
    are rotated."""
    found = {
        region.buffer.name
        for kernel in program.kernels
        if kernel.call is None
        for region in kernel_regions(kernel)
    }
    for function in program.tree.functions:
        touched = control_buffers(function.body, lambda schedule: schedule.statements)
        found |= {buffer.name for buffer in touched}
    return found


# ---- The table of a program ----------------------------------------------------------------------
class NativeCalls:
    """The library calls of a program, for calls.cpp.

    without_python: the numbers of those that run without Python. held: the buffers that torch
    keeps, as `held_buffers` returns them.
    """

    def __init__(
        self, calls: Sequence[LibraryCall], held: Mapping[str, int], options: Options
    ) -> None:
        self._library = SUPPORT.load(options)
        self._texts: list[ctypes.Array[ctypes.c_char]] = []
        self.held = dict(held)
        self.without_python: set[int] = set()
        slots = {name: slot for slot, name in enumerate(self.held)}
        words = [len(slots), *self.held.values(), len(calls)]
        for number, call in enumerate(calls):
            words += self._call(number, call, slots)
        table = self._library.stretto_calls_table((ctypes.c_int64 * len(words))(*words))
        self._table = ctypes.c_void_p(table)
        weakref.finalize(self, self._library.stretto_calls_remove_table, self._table)

    @staticmethod
    def made(
        calls: Sequence[LibraryCall], program: DeviceProgram, options: Options
    ) -> NativeCalls | None:
        """Return the calls of a program; None if it has none, or torch lacks the C interface."""
        if not calls or _libtorch() is None:
            return None
        return NativeCalls(calls, held_buffers(program), options)

    def _call(self, number: int, call: LibraryCall, slots: Mapping[str, int]) -> list[int]:
        """Return the words of a call for the table of calls.cpp."""
        buffers = [item for item in call.operands if isinstance(item, Buffer)]
        arguments, code = 0, list[int]()
        try:
            arguments, code = encoded(call)
            self.without_python.add(number)
        except Unsupported:
            pass
        _, name, overload = call.target.split(".") if call.target.count(".") == 2 else ("", "", "")
        text = self._text(f"aten::{name}")
        kind = self._text("" if overload == "default" else overload)
        is_add = bool(code) and call.target == _ADD and arguments == 2
        native = number in self.without_python
        inputs = sum(isinstance(item, Buffer) for item in call.inputs)
        head = [native, is_add, text, kind, inputs, arguments, len(buffers)]
        operands = [word for item in buffers for word in _operand(item, slots)]
        return [*map(int, head), *operands, len(code), *code]

    def _text(self, text: str) -> int:
        self._texts.append(ctypes.create_string_buffer(text.encode()))
        return ctypes.addressof(self._texts[-1])

    def state(self) -> CallState:
        """Return a new state for the calls of one frame."""
        return CallState(self, self._library, self._library.stretto_calls_state(self._table))


class CallState:
    """State of the calls of one frame: tensors over its memory, and those that torch has made."""

    def __init__(self, calls: NativeCalls, library: ctypes.PyDLL, address: int) -> None:
        self.calls = calls  # Keeps the table alive.
        self.address = address
        self.run = _address(library.stretto_calls_run)
        self.release = _address(library.stretto_calls_release)
        self.clear = _address(library.stretto_calls_clear)
        weakref.finalize(self, library.stretto_calls_remove_state, ctypes.c_void_p(address))


def _address(function: object) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value  # pyright: ignore[reportArgumentType]


def _operand(buffer: Buffer, slots: Mapping[str, int]) -> list[int]:
    """Return the words of an operand: its held slot or -1, dtype, bytes, rank and dims."""
    dims = [dim if isinstance(dim, int) else 0 for dim in buffer.shape]
    slot = slots.get(buffer.name, -1) if buffer.kind == "local" else -1
    return [slot, _dtype(buffer.dtype.torch), buffer.nbytes, len(dims), *dims]


@cache
def _dtype(dtype: torch.dtype) -> int:
    """Return the number of a dtype in torch's C interface."""
    library = _libtorch()
    assert library is not None
    return int(getattr(library, f"aoti_torch_dtype_{str(dtype).removeprefix('torch.')}")())
