"""`tl.reduce` of the interpreted Triton language, whole blocks at a time.

Import only inside functions: it imports triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language
from triton.runtime.interpreter import ReduceOps, TensorHandle

from stretto.machines.cuda.interpreter.builder import BF16, narrow, wide
from stretto.machines.cuda.interpreter.memory import Array

tl: Any = triton.language


def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any) -> Any:
    """As `tl.reduce`: one tensor gives one, a tuple a tuple. NaN loses to a number in minimum and
    maximum, as in the instructions of a device."""
    axis, keep_dims = getattr(axis, "value", axis), bool(getattr(keep_dims, "value", keep_dims))
    standard = tl.standard
    if combine_fn in (
        standard._argmin_combine_tie_break_left,
        standard._argmax_combine_tie_break_left,
    ):
        return ReduceOps(axis, combine_fn, keep_dims).apply(input)
    operands = (input,) if isinstance(input, tl.tensor) else tuple(input)
    known: dict[Any, Callable[..., Array]] = {
        standard._sum_combine: _sum,
        standard._elementwise_max: _with(np.fmax),
        standard._elementwise_min: _with(np.fmin),
    }
    if combine_fn in known:
        handle = wide(operands[0].handle)
        data = known[combine_fn](handle.data, axis, keep_dims)
        return _tensor(data, operands[0].dtype)
    results = _fold(operands, axis, keep_dims, combine_fn)
    return results[0] if operands[0] is input else results


def _with(function: np.ufunc) -> Callable[..., Array]:
    def apply(data: Array, axis: int | None, keep: bool) -> Array:
        return np.asarray(function.reduce(data, axis=axis, keepdims=keep))

    return apply


def _sum(data: Array, axis: int | None, keep: bool) -> Array:
    """A half is summed up as a single, integers in their own width."""
    wanted = np.dtype(np.float32) if data.dtype == np.float16 else data.dtype
    return np.asarray(np.sum(data, axis=axis, keepdims=keep, dtype=wanted)).astype(data.dtype)


def _fold(operands: Any, axis: int | None, keep: bool, combine: Callable[..., Any]) -> Any:
    """Combines halves until one slice is left: Triton leaves the order open too."""
    arrays = [operand.handle.data for operand in operands]
    shape = arrays[0].shape
    if axis is None:
        arrays = [array.reshape(-1) for array in arrays]
    arrays = [np.moveaxis(array, 0 if axis is None else axis, 0) for array in arrays]
    kinds = [operand.dtype for operand in operands]
    while (size := len(arrays[0])) > 1:
        halves = [
            _tensor(array[part], kind)
            for part in (slice(0, size // 2), slice(size // 2, None))
            for array, kind in zip(arrays, kinds, strict=True)
        ]
        combined = combine(*halves)
        combined = combined if isinstance(combined, tuple | tl.tuple) else (combined,)
        arrays = [part.handle.data for part in combined]
    if not keep:
        arrays = [array[0] for array in arrays]
    elif axis is None:
        arrays = [array.reshape((1,) * len(shape)) for array in arrays]
    else:
        arrays = [np.moveaxis(array, 0, axis) for array in arrays]
    return tuple(_tensor(array, kind) for array, kind in zip(arrays, kinds, strict=True))


def _tensor(data: Array, dtype: Any) -> Any:
    if dtype.name == BF16 and data.dtype == np.float32:
        data = narrow(data).data
    if not data.shape:
        return tl.tensor(TensorHandle(data.reshape(1), dtype), dtype)
    return tl.tensor(TensorHandle(data, dtype), tl.block_type(dtype, list(data.shape)))
