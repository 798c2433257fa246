"""Functions of printed Triton kernels on whole blocks: products, and combining the lanes of a row.

Embedded like scalar_functions.py.
"""

import triton
import triton.language as tl

PORTABLE = tl.constexpr(False)  # of prelude.py

# ---- products of blocks -----------------------------------------------------------------------


@triton.jit
def stretto_dot(a, b, total):
    """Multiply blocks; f32 with full f32 accuracy, as three products of TF32 or directly in f32."""
    if a.dtype == tl.float32 and not PORTABLE:
        return tl.dot(a, b, total, input_precision="tf32x3")
    else:
        return tl.dot(a, b, total, input_precision="ieee")


# ---- rows of a block --------------------------------------------------------------------------
#
# A block with rows and a depth is either (rows, depth), and Triton decides which threads hold which
# elements; or (lanes, warps, rows of a warp): each row belongs to one warp, whose lanes read along
# the depth. They combine their elements by shuffles, without barriers or memory shared with other
# warps, and then all of them compute the remaining work for their rows. Triton lays threads out
# first along the axis whose addresses are known to be contiguous, else along the first one; so the
# compiler must not know that the row numbers are contiguous.


@triton.jit
def stretto_opaque(x):
    """Return the same numbers, but hide from the compiler what is known of them."""
    if PORTABLE:
        return x
    else:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1
        )


@triton.jit
def stretto_again(x):
    """Return the same number, which the compiler takes for a new one each time: computations from
    it are not moved out of a loop, where they would occupy registers."""
    if PORTABLE:
        return x
    else:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def stretto_rows(WARPS: tl.constexpr, EACH: tl.constexpr):
    """Return the row numbers, `EACH` of each warp."""
    rows = tl.arange(0, EACH)[None, None, :] * WARPS + tl.arange(0, WARPS)[None, :, None]
    return stretto_opaque(rows)


@triton.jit
def stretto_each_warp(WARPS: tl.constexpr):
    """Return zeros that make each warp read for itself what it reads along the depth."""
    return stretto_opaque(tl.arange(0, WARPS)[None, :, None]) * 0


@triton.jit
def stretto_filled(WARPS: tl.constexpr, EACH: tl.constexpr):
    """Return the row numbers, the same in all lanes of a warp."""
    return stretto_rows(WARPS, EACH) + stretto_opaque(tl.arange(0, 32)[:, None, None] * 0)


@triton.jit
def stretto_row_sum(x):
    DEPTH: tl.constexpr = 0 if len(x.shape) == 3 else 1
    return tl.sum(x, DEPTH, keep_dims=True).to(x.dtype)


@triton.jit
def stretto_multiply(a, b):
    return a * b


@triton.jit
def stretto_row_prod(x):
    DEPTH: tl.constexpr = 0 if len(x.shape) == 3 else 1
    return tl.reduce(x, DEPTH, stretto_multiply, keep_dims=True)


@triton.jit
def stretto_row_any(x):
    DEPTH: tl.constexpr = 0 if len(x.shape) == 3 else 1
    return tl.max(x.to(tl.int32), DEPTH, keep_dims=True) != 0


@triton.jit
def stretto_row_all(x):
    DEPTH: tl.constexpr = 0 if len(x.shape) == 3 else 1
    return tl.min(x.to(tl.int32), DEPTH, keep_dims=True) != 0


@triton.jit
def stretto_key(x):
    """Return an integer in the order of x; NaN is the largest, since Triton's `max` of floats
    loses NaN."""
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
    DEPTH: tl.constexpr = 0 if len(x.shape) == 3 else 1
    best = tl.max(stretto_key(x), DEPTH, keep_dims=True)
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
        DEPTH: tl.constexpr = 0 if len(x.shape) == 3 else 1
        return tl.min(stretto_key(x), DEPTH, keep_dims=True).to(x.dtype)


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
    """Return the smallest position among those of the largest key; 0 if there is none.

    Lanes that have seen no element hold the largest position.
    """
    if keys.dtype == tl.int64:
        lowest: tl.constexpr = -9223372036854775808
    else:
        lowest: tl.constexpr = -2147483648
    if positions.dtype == tl.int64:
        far: tl.constexpr = 9223372036854775807
    else:
        far: tl.constexpr = 2147483647
    DEPTH: tl.constexpr = 0 if len(keys.shape) == 3 else 1
    best = tl.max(tl.where(positions == far, lowest, keys), DEPTH, keep_dims=True)
    found = tl.min(tl.where(keys == best, positions, far), DEPTH, keep_dims=True)
    return tl.where(found == far, 0, found).to(tl.int64)
