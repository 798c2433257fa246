"""Operators of the interpreted Triton language, on numpy arrays.

Extends Triton's own with bfloat16, stored in arrays of uint16; the NaN rules of minimum and
maximum; and pointers that carry their buffers, so that every address is checked and whole tiles are
copied at once. Masked lanes of a load, undefined on a device, are NaN here, or an unlikely number.

Import only inside functions: it imports triton.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import triton.language
import triton.runtime.interpreter
from torch import Tensor
from triton._C.libtriton.ir import MEM_SEMANTIC
from triton.runtime.interpreter import InterpreterBuilder, InterpreterOptions, TensorHandle

from stretto.machines.cuda.interpreter.memory import (
    Array,
    InterpretedBuffer,
    Kind,
    LaunchMemory,
    OutOfBounds,
)

# Arguments that Triton only passes by position are renamed in overrides.
# pyright: reportIncompatibleMethodOverride=false


tl: Any = triton.language

BF16 = "bf16"
_ATOMIC: Kind = "changed atomically"
_UNDEFINED = 0x5555555555555555
_TRITON_NUMPY_TYPE: Any = vars(triton.runtime.interpreter)["_get_np_dtype"]
_NUMPY_TYPES: dict[str, np.dtype[Any]] = {}


class NumpyBuilder(InterpreterBuilder):
    """Takes and returns handles (array and type). `memory` is that of the launch; `grid_idx` is
    the current unit."""

    def __init__(self) -> None:
        super().__init__()
        self.options = InterpreterOptions(sanitize_overflow=False)
        self.memory = LaunchMemory(())
        self.grid_dim: tuple[int, int, int] = (1, 1, 1)
        self.grid_idx: tuple[int, int, int] = (0, 0, 0)

    # ---- memory ------------------------------------------------------------------------------
    def create_load(self, ptr: Any, cache: Any, eviction: Any, is_volatile: bool) -> Any:
        dtype, access = _pointee(ptr), _loading(is_volatile)
        data = self.memory.load(ptr.data, numpy_type(dtype), _buffer(ptr), None, access)
        return TensorHandle(data, dtype)

    def create_masked_load(
        self, ptrs: Any, mask: Any, other: Any, cache: Any, eviction: Any, is_volatile: bool
    ) -> Any:
        if mask.data.all():
            return self.create_load(ptrs, cache, eviction, is_volatile)
        dtype = _pointee(ptrs)
        kind = numpy_type(dtype)
        if other is not None:
            result = np.array(np.broadcast_to(other.data, ptrs.data.shape), kind)
        elif ptrs.data.size == 1:  # triton also drops `other` if it is a single 0
            result = np.zeros(ptrs.data.shape, kind)
        else:
            result = np.full(ptrs.data.shape, _undefined(kind), kind)
        active = np.broadcast_to(mask.data, ptrs.data.shape)
        if active.any():
            found = ptrs.data[active]
            access = _loading(is_volatile)
            result[active] = self.memory.load(found, kind, _buffer(ptrs), active, access)
        return TensorHandle(result, dtype)

    def create_store(self, ptr: Any, val: Any, *_: Any) -> None:
        self.memory.store(ptr.data, val.data, _buffer(ptr))

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *_: Any) -> None:
        if mask.data.all():
            self.memory.store(ptrs.data, value.data, _buffer(ptrs))
        elif mask.data.any():
            active = np.broadcast_to(mask.data, ptrs.data.shape)
            values = np.broadcast_to(value.data, ptrs.data.shape)[active]
            self.memory.store(ptrs.data[active], values, _buffer(ptrs), active)

    def create_barrier(self) -> None:
        if self.memory.watch is not None:
            self.memory.watch.barrier()

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        self.memory.load(ptr.data, val.data.dtype, _buffer(ptr), None, _ATOMIC)
        return super().create_atomic_cas(ptr, cmp, val, sem, scope)

    def create_atomic_rmw(
        self, op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any
    ) -> Any:
        active = np.broadcast_to(mask.data, ptr.data.shape)
        if self.memory.watch is not None and sem == MEM_SEMANTIC.RELEASE:
            self.memory.watch.publish()
        if active.any():
            kind = val.data.dtype
            self.memory.load(ptr.data[active], kind, _buffer(ptr), active, _ATOMIC)
        # Triton walks the memory of these arrays directly, and a broadcast one has too little.
        ptr, val, mask = (
            TensorHandle(np.array(np.broadcast_to(item.data, ptr.data.shape)), item.dtype)
            for item in (ptr, val, mask)
        )
        return super().create_atomic_rmw(op, ptr, val, mask, sem, scope)

    # ---- pointers carry their buffer ---------------------------------------------------------
    def create_addptr(self, ptr: Any, offset: Any) -> Any:
        size = max(1, ptr.get_element_ty().primitive_bitwidth // 8)
        step = offset.data.astype(np.uint64) * np.uint64(size)
        return TensorHandle(ptr.data + step, ptr.dtype, ptr.attr)

    def create_splat(self, ret_ty: Any, arg: Any) -> Any:
        shape = [int(size) for size in ret_ty.shape]
        return TensorHandle(np.broadcast_to(arg.data.reshape(()), shape), arg.dtype, arg.attr)

    def create_broadcast(self, arg: Any, shape: Any) -> Any:
        return TensorHandle(np.broadcast_to(arg.data, shape), arg.dtype.scalar, arg.attr)

    def create_expand_dims(self, arg: Any, axis: int) -> Any:
        return TensorHandle(np.expand_dims(arg.data, axis), arg.dtype.scalar, arg.attr)

    # ---- arithmetic --------------------------------------------------------------------------
    def binary_op(self, lhs: Any, rhs: Any, op: Callable[..., Any]) -> Any:
        dtype = lhs.dtype
        if dtype.name == BF16:
            result = op(wide(lhs).data, wide(rhs).data)
            return TensorHandle(result, dtype) if result.dtype == bool else narrow(result)
        result = op(lhs.data, rhs.data)
        if result.itemsize > lhs.data.itemsize:  # shifts of mixed widths
            result = result.astype(numpy_type(dtype))
        return TensorHandle(result, dtype)

    def create_maxnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmax)

    def create_minnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmin)

    def create_clampf(self, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        return self.create_minnumf(self.create_maxnumf(arg, lo), hi)

    def unary_op(self, arg: Any, op: Callable[..., Any]) -> Any:
        if arg.dtype.name == BF16:
            return narrow(op(wide(arg).data))
        return TensorHandle(op(arg.data), arg.dtype)

    def create_erf(self, arg: Any) -> Any:
        return self.unary_op(arg, lambda data: _torch(torch.erf, data))

    def create_rsqrt(self, arg: Any) -> Any:
        return self.unary_op(arg, lambda data: np.reciprocal(np.sqrt(data)))

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        """Multiply and add with one rounding, as on a device."""
        if x.dtype.name == "fp32":
            exact = x.data.astype(np.float64) * y.data + z.data
            return TensorHandle(exact.astype(np.float32), z.dtype)
        return self.create_fadd(self.create_fmul(x, y), z)

    def create_dot(self, a: Any, b: Any, d: Any, input_precision: Any, imprecise: Any) -> Any:
        product = np.matmul(wide(a).data, wide(b).data, dtype=d.data.dtype)
        return TensorHandle(product + d.data, d.dtype)

    # ---- conversions -------------------------------------------------------------------------
    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        target = dst_type.scalar
        src = wide(src)
        if target.name == BF16:
            return narrow(src.data.astype(np.float32))
        return TensorHandle(src.data.astype(numpy_type(target)), target)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        if BF16 in (src.dtype.name, dst_type.scalar.name) and src.dtype.primitive_bitwidth > 8:
            return self.cast_impl(src, dst_type)
        return super().create_fp_to_fp(src, dst_type, rounding_mode)

    def get_bf16(self, value: float) -> Any:
        return narrow(np.array([value], np.float32))


def numpy_type(dtype: Any) -> np.dtype[Any]:
    """Return the numpy type of arrays that hold values of a Triton type."""
    scalar = dtype.scalar
    if (found := _NUMPY_TYPES.get(scalar.name)) is None:
        found = _TRITON_NUMPY_TYPE(scalar)
        _NUMPY_TYPES[scalar.name] = found
    return found


def wide(handle: Any) -> Any:
    """Convert a bfloat16 handle to float32; return others unchanged."""
    if handle.dtype.name != BF16:
        return handle
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def narrow(data: Array) -> Any:
    """Convert float32 to bfloat16, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(data, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return TensorHandle(np.where(np.isnan(data), np.uint16(0x7FC0), rounded), tl.bfloat16)


def _pointee(pointer: Any) -> Any:
    return pointer.dtype.scalar.element_ty


def _buffer(pointer: Any) -> InterpretedBuffer | None:
    return pointer.attr.get("buffer")


def _loading(is_volatile: bool) -> Kind:
    """Return the kind of a load: a volatile one reads words that other units may change."""
    return _ATOMIC if is_volatile else "read"


def _undefined(kind: np.dtype[Any]) -> Any:
    if kind.kind == "f":
        return np.nan
    return kind.type(_UNDEFINED & np.iinfo(kind).max) if kind.kind in "iu" else True


def _torch(function: Callable[[Tensor], Tensor], data: Array) -> Array:
    return function(torch.from_numpy(np.array(data))).numpy()


# ---- The part of a unit's shared memory that a printed program addresses itself.
#
# It holds only constants: printed functions store blocks before a loop, and load them inside of it.
# A place is an address from 0 on, as within the shared memory of a device. Loads of unwritten bytes
# are errors, and threads of the unit are checked against each other (races.py).


NAME = "the unit's shared memory"


class Unwritten(OutOfBounds):
    """A load of bytes that no thread has stored."""


class SharedMemory:
    """Shared memory of one unit, of `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._bytes = np.full(-(-size // 8) * 8, 0xFF, np.uint8)
        self._written = np.zeros(size, np.bool_)
        self._buffer = InterpretedBuffer(NAME, self._bytes.ctypes.data, size)

    def store(self, builder: NumpyBuilder, places: Array, values: Array) -> None:
        """Store values to places of the same shape. Lanes with the same place must store the same
        value, since their order is not defined."""
        pointers = self._pointers(places)
        builder.memory.store(pointers, values, self._buffer)
        width = values.itemsize
        words = self._buffer.words[width][self._buffer.index(pointers, width)]
        if (words != np.ascontiguousarray(values).view(words.dtype)).any():
            raise OutOfBounds(f"lanes store different values in one place of {NAME}")
        self._written[self._bytes_of(places, width)] = True

    def load(self, builder: NumpyBuilder, places: Array, kind: np.dtype[Any]) -> Array:
        found = builder.memory.load(self._pointers(places), kind, self._buffer)
        where = self._bytes_of(places, kind.itemsize)
        if not self._written[where].all():
            first = int(where[~self._written[where]][0])
            raise Unwritten(f"byte {first} of {NAME} is read, but was never written")
        return found

    def _pointers(self, places: Array) -> Array:
        address = np.uint64(self._buffer.address)
        return places.astype(np.int64).astype(np.uint64) + address

    @staticmethod
    def _bytes_of(places: Array, width: int) -> Array:
        return (places.reshape(-1, 1).astype(np.int64) + np.arange(width)).reshape(-1)


class SharedLanguage:
    """Replacements of the functions in printer/library/shared.py that are assembly. memories: by
    unit. unit: the one that is running."""

    def __init__(self, builder: NumpyBuilder, memories: Sequence[SharedMemory]) -> None:
        self.builder = builder
        self.memories = memories
        self.unit = 0

    @property
    def memory(self) -> SharedMemory:
        return self.memories[self.unit]

    def put(self, module: dict[str, Any]) -> None:
        module["stretto_shared_end"] = self.end
        module["stretto_to_shared"] = self.store
        module["stretto_from_shared"] = self.load

    def end(self) -> Any:
        return tl.tensor(TensorHandle(np.array([self.memory.size], np.int32), tl.int32), tl.int32)

    def store(self, places: Any, values: Any, _: Any) -> None:
        data = values.handle.data
        shape = np.broadcast_shapes(places.handle.data.shape, data.shape)
        where = np.broadcast_to(places.handle.data, shape)
        self.memory.store(self.builder, where, np.broadcast_to(data, shape))

    def load(self, places: Any, kind: Any, _: Any) -> Any:
        found = self.memory.load(self.builder, places.handle.data, numpy_type(kind))
        block = places.type.with_element_ty(kind) if places.type.is_block() else kind
        return tl.tensor(TensorHandle(found, kind), block)
