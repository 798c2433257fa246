"""What printed Triton kernels do with whole blocks: products, and the lanes of a row combined.

Embedded like functions.py.
"""

import triton
import triton.language as tl

PORTABLE = tl.constexpr(False)  # of prelude.py

# ---- products of blocks -----------------------------------------------------------------------


@triton.jit
def stretto_dot(a, b, total):
    """f32 with the accuracy of f32: as three products of TF32, or in f32 itself."""
    if a.dtype == tl.float32 and not PORTABLE:
        return tl.dot(a, b, total, input_precision="tf32x3")
    else:
        return tl.dot(a, b, total, input_precision="ieee")


# ---- rows of a block --------------------------------------------------------------------------


@triton.jit
def stretto_row_sum(x):
    return tl.sum(x, 1, keep_dims=True).to(x.dtype)


@triton.jit
def stretto_multiply(a, b):
    return a * b


@triton.jit
def stretto_row_prod(x):
    return tl.reduce(x, 1, stretto_multiply, keep_dims=True)


@triton.jit
def stretto_row_any(x):
    return tl.max(x.to(tl.int32), 1, keep_dims=True) != 0


@triton.jit
def stretto_row_all(x):
    return tl.min(x.to(tl.int32), 1, keep_dims=True) != 0


@triton.jit
def stretto_key(x):
    """An integer in the order of x; NaN is the largest. Only it survives Triton's `max` of NaN."""
    if x.dtype == tl.float64:
        bits = x.to(tl.int64, bitcast=True)
        key = bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)
        return tl.where(x == x, key, 0x7FFFFFFFFFFFFFFF)
    elif x.dtype == tl.float32:
        bits = x.to(tl.int32, bitcast=True)
        key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        return tl.where(x == x, key, 0x7FFFFFFF)
    elif x.dtype == tl.int64:
        return x
    else:
        return x.to(tl.int32)


@triton.jit
def stretto_row_max(x):
    best = tl.max(stretto_key(x), 1, keep_dims=True)
    if x.dtype == tl.float64:
        return (best ^ ((best >> 63) & 0x7FFFFFFFFFFFFFFF)).to(tl.float64, bitcast=True)
    elif x.dtype == tl.float32:
        return (best ^ ((best >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    else:
        return best.to(x.dtype)


@triton.jit
def stretto_row_min(x):
    if x.dtype.is_floating():
        return -stretto_row_max(-x)
    else:
        return tl.min(stretto_key(x), 1, keep_dims=True).to(x.dtype)


@triton.jit
def stretto_argmax_key(x):
    if x.dtype.is_floating():
        return stretto_key(tl.where(x == 0, 0.0, x))
    else:
        return stretto_key(x)


@triton.jit
def stretto_argmin_key(x):
    if x.dtype.is_floating():
        return stretto_key(tl.where(x == 0, 0.0, -x))
    else:
        return ~stretto_key(x)


@triton.jit
def stretto_first_position(keys, positions):
    """The smallest position among those of the largest key; 0 where there is none.

    Lanes that have seen nothing have the largest position.
    """
    if keys.dtype == tl.int64:
        lowest: tl.constexpr = -9223372036854775808
    else:
        lowest: tl.constexpr = -2147483648
    best = tl.max(tl.where(positions == 2147483647, lowest, keys), 1, keep_dims=True)
    found = tl.min(tl.where(keys == best, positions, 2147483647), 1, keep_dims=True)
    return tl.where(found == 2147483647, 0, found).to(tl.int64)
