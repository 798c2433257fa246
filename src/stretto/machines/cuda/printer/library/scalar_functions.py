"""Scalar functions of printed Triton kernels, with the semantics of eager PyTorch.

The text from the first ruled line on is embedded into every printed module; this file itself is
never imported. It uses only what Triton's interpreter supports: no inline assembly, no libdevice.
"""

import triton
import triton.language as tl

# ---- scalar functions -----------------------------------------------------------------------


@triton.jit
def stretto_index_div(a, b):
    """Return floor(a / b) for b > 0, whichever way `//` rounds."""
    q = a // b
    return tl.where(a - q * b < 0, q - 1, q)


@triton.jit
def stretto_index_mod(a, b):
    r = a - (a // b) * b
    return tl.where(r < 0, r + b, r)


@triton.jit
def stretto_checked(control, index, size, number, inside):
    """Return the index if it is in 0 .. size - 1; else fail the run with the check of this number,
    and return 0."""
    wrong = ((index < 0) | (index >= size)) & inside
    places = control + tl.cast(wrong, tl.int32) * 0
    tl.atomic_max(places, tl.full([], 10, tl.int64), mask=wrong, sem="relaxed")
    largest = tl.full([], (1 << 47) - 1, tl.int64)  # as `packed_detail`
    value = tl.minimum(tl.maximum(tl.cast(index, tl.int64), -largest - 1), largest)
    tl.store(places + 1, value * 65536 + number, mask=wrong)
    host = tl.load(places + 2, mask=wrong, other=0)  # as `fail` does
    host_places = host.to(tl.pointer_type(tl.int64))
    tl.store(host_places, tl.full([], 10, tl.int64), mask=wrong & (host != 0))
    return tl.where(wrong, 0, index)


@triton.jit
def stretto_bf16(x):
    return x.to(tl.bfloat16).to(tl.float32)


@triton.jit
def stretto_f16(x):
    return x.to(tl.float16).to(tl.float32)


# ---- order ------------------------------------------------------------------------------------


@triton.jit
def stretto_maximum(a, b):
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def stretto_minimum(a, b):
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def stretto_fmax(a, b):
    return tl.where((a > b) | (b != b), a, b)


@triton.jit
def stretto_fmin(a, b):
    return tl.where((a < b) | (b != b), a, b)


@triton.jit
def stretto_isnan(x):
    return x != x


@triton.jit
def stretto_isinf(x):
    return (x == float("inf")) | (x == float("-inf"))


@triton.jit
def stretto_abs(x):
    return tl.abs(x)


@triton.jit
def stretto_sign(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def stretto_copysign(x, sign):
    if x.dtype == tl.float64:
        low: tl.constexpr = 0x7FFFFFFFFFFFFFFF
        bits = x.to(tl.int64, bitcast=True) & low
        bits = bits | (sign.to(tl.int64, bitcast=True) & ~low)
        return bits.to(tl.float64, bitcast=True)
    else:
        bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        bits = bits | (sign.to(tl.int32, bitcast=True) & -2147483648)
        return bits.to(tl.float32, bitcast=True)


@triton.jit
def stretto_is_negative(x):
    """Return the sign bit."""
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True) < 0
    else:
        return x.to(tl.int32, bitcast=True) < 0


# ---- rounding ---------------------------------------------------------------------------------


@triton.jit
def stretto_floor(x):
    return tl.floor(x)


@triton.jit
def stretto_ceil(x):
    return tl.ceil(x)


@triton.jit
def stretto_trunc(x):
    return stretto_copysign(tl.floor(tl.abs(x)), x)


@triton.jit
def stretto_round(x):
    """Round half to even: adding this number leaves no fractional bits."""
    if x.dtype == tl.float64:
        size = tl.abs(x)
        return stretto_copysign(
            tl.where(
                size < 4503599627370496.0, (size + 4503599627370496.0) - 4503599627370496.0, x
            ),
            x,
        )
    else:
        size = tl.abs(x)
        return stretto_copysign(tl.where(size < 8388608.0, (size + 8388608.0) - 8388608.0, x), x)


# ---- division and powers ----------------------------------------------------------------------


@triton.jit
def stretto_divide(a, b):
    if a.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, b)


@triton.jit
def stretto_whole_divisor(b):
    """Return a safe integer divisor: 1 for 0 and for -1, whose quotients the callers handle."""
    if b.dtype.is_int_signed():
        return tl.where((b == 0) | (b == -1), 1, b).to(b.dtype)
    else:
        return tl.where(b == 0, 1, b).to(b.dtype)


@triton.jit
def stretto_truncdiv(a, b):
    if a.dtype.is_floating():
        return stretto_trunc(stretto_divide(a, b))
    else:
        quotient = a // stretto_whole_divisor(b)
        if b.dtype.is_int_signed():
            quotient = tl.where(b == -1, 0 - a, quotient)
        return tl.where(b == 0, 0, quotient).to(a.dtype)


@triton.jit
def stretto_fmod(a, b):
    if a.dtype == tl.float32:
        value = stretto_fmod(a.to(tl.float64), b.to(tl.float64)).to(tl.float32)
        return value
    elif a.dtype == tl.float64:
        size = tl.abs(b)
        rest = tl.abs(a) % size
        # The quotient may have been rounded up.
        rest = tl.where(rest < 0, rest + size, rest)
        rest = tl.where(size == float("inf"), tl.abs(a), rest)
        wrong = (tl.abs(a) == float("inf")) | (b == 0) | (b != b)
        return tl.where(wrong, float("nan"), stretto_copysign(rest, a))
    else:
        rest = a % stretto_whole_divisor(b)
        if b.dtype.is_int_signed():
            rest = tl.where(b == -1, 0, rest)
        return tl.where(b == 0, 0, rest).to(a.dtype)


@triton.jit
def stretto_remainder(a, b):
    rest = stretto_fmod(a, b)
    turned = (rest != 0) & ((rest < 0) != (b < 0))
    return tl.where(turned, rest + b, rest)


@triton.jit
def stretto_floordiv(a, b):
    rest = stretto_fmod(a, b)
    turned = (rest != 0) & ((rest < 0) != (b < 0))
    if a.dtype.is_floating():
        quotient = stretto_divide(a - rest, b) - turned.to(a.dtype)
        down = tl.floor(quotient)
        value = tl.where(quotient - down > 0.5, down + 1.0, down)
        plain = stretto_divide(a, b)
        value = tl.where(quotient == 0, stretto_copysign(quotient * 0.0, plain), value)
        return tl.where(b == 0, plain, value)
    else:
        return stretto_truncdiv(a, b) - turned.to(a.dtype)


@triton.jit
def stretto_shl(a, b):
    """Shift left; 0 for a shift by less than 0, or by the width or more."""
    wrong = (b < 0) | (b >= a.dtype.primitive_bitwidth)
    return tl.where(wrong, 0, a << tl.where(wrong, 0, b)).to(a.dtype)


@triton.jit
def stretto_shr(a, b):
    """Shift right; only the sign remains for a shift by less than 0, or by the width or more."""
    wrong = (b < 0) | (b >= a.dtype.primitive_bitwidth)
    half = a.dtype.primitive_bitwidth // 2
    far = (a >> half) >> half
    return tl.where(wrong, far, a >> tl.where(wrong, 0, b)).to(a.dtype)


@triton.jit
def stretto_pow(a, b):
    if a.dtype == tl.float32:
        return stretto_pow(a.to(tl.float64), b.to(tl.float64)).to(tl.float32)
    elif a.dtype == tl.float64:
        size = tl.abs(a)
        value = tl.exp2(b * tl.log2(size))
        whole = tl.floor(b) == b
        odd = whole & (tl.floor(b * 0.5) != b * 0.5)
        value = tl.where(odd & stretto_is_negative(a), -value, value)
        value = tl.where((a < 0) & (a != float("-inf")) & (whole == 0), float("nan"), value)
        value = tl.where((a != a) | (b != b), float("nan"), value)
        one = (a == 1.0) | (b == 0) | ((a == -1.0) & (tl.abs(b) == float("inf")))
        return tl.where(one, 1.0, value)
    else:
        rest = b
        base = a
        value = a * 0 + 1
        for _ in range(a.dtype.primitive_bitwidth):
            value = tl.where((rest & 1) != 0, value * base, value)
            base = base * base
            rest = rest >> 1
        if b.dtype.is_int_signed():
            unit = (a == 1) | (a == -1)
            inverse = tl.where(unit, tl.where((b & 1) != 0, a, 1), 0)
            value = tl.where(b < 0, inverse, value)
        return value.to(a.dtype)
