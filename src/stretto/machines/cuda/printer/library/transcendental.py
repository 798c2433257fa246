"""Exponential, hyperbolic and trigonometric functions of printed Triton kernels.

Embedded like scalar_functions.py. Triton's own `exp` of f32 is a multiplication and an approximate
`ex2`; its `log`, `sin`, `cos` and `erf` are accurate, as is everything of f64. Relative errors are
at most 5e-7 in f32 and 4e-15 in f64 (tests/machines/cuda/test_scalar_functions.py).
"""

import triton
import triton.language as tl

from stretto.machines.cuda.printer.library.scalar_functions import (
    stretto_copysign,
    stretto_divide,
    stretto_is_negative,
)

# ---- roots and exponentials -------------------------------------------------------------------


@triton.jit
def stretto_sqrt(x):
    if x.dtype == tl.float64:
        return tl.sqrt(x)
    else:
        return tl.sqrt_rn(x)


@triton.jit
def stretto_rsqrt(x):
    return tl.rsqrt(x)


@triton.jit
def stretto_reciprocal(x):
    return stretto_divide(tl.full([], 1.0, x.dtype), x)


@triton.jit
def stretto_exp(x):
    """Return e^x. The rounding error of x * log2(e) is compensated; for |x| = 80 it would cost
    three decimal digits."""
    if x.dtype == tl.float64:
        return tl.exp(x)
    else:
        x = tl.where(x > 89.0, 89.0, tl.where(x < -104.0, -104.0, x))
        n = tl.floor(x * 1.44269504 + 0.5)
        rest = (x - n * 0.693145751953125) - n * 1.42860677e-06
        half = tl.floor(n * 0.5)
        return tl.exp2(rest * 1.44269504) * tl.exp2(half) * tl.exp2(n - half)


@triton.jit
def stretto_exp2(x):
    return tl.exp2(x)


@triton.jit
def stretto_expm1(x):
    """After Kahan: the error of u = exp(x) cancels in (u - 1) * x / log(u)."""
    u = stretto_exp(x)
    less = u - 1.0
    value = less * stretto_divide(x, tl.log(tl.where(u > 0, u, 0.5)))
    value = tl.where(tl.abs(x) > 1.0, less, value)
    return tl.where(u == 1.0, x, value)


@triton.jit
def stretto_log(x):
    return tl.log(x)


@triton.jit
def stretto_log1p(x):
    """After Kahan: the error of u = 1 + x cancels in log(u) * x / (u - 1)."""
    u = 1.0 + x
    value = tl.log(u) * stretto_divide(x, tl.where(u == 1.0, 1.0, u - 1.0))
    return tl.where(u == 1.0, x, tl.where(u == float("inf"), u, value))


@triton.jit
def stretto_log2(x):
    return tl.log2(x)


@triton.jit
def stretto_log10(x):
    return tl.log(x) * 0.43429448190325182765


@triton.jit
def stretto_sigmoid(x):
    """Return 1 / (1 + e^-x). The divisor is from 1 to 2, where the fast division is within 2 units
    of the last place."""
    z = stretto_exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, z) / (1.0 + z)


# ---- hyperbolic functions ---------------------------------------------------------------------


@triton.jit
def stretto_tanh(x):
    t = tl.abs(x)
    if x.dtype == tl.float64:
        e = stretto_expm1(-2.0 * t)
        return stretto_copysign(-e / (e + 2.0), x)
    else:
        s = x * x
        p = ((-0.00618863897 * s + 0.0210142788) * s - 0.0538392477) * s + 0.133324713
        small = (p * s - 0.333333135) * (s * t) + t
        z = stretto_exp(-2.0 * t)
        large = 1.0 - 2.0 * z / (1.0 + z)
        return stretto_copysign(tl.where(t < 0.5625, small, large), x)


@triton.jit
def stretto_sinh(x):
    t = tl.abs(x)
    e = stretto_expm1(tl.where(t < 20.0, t, 20.0))
    small = 0.5 * (e + stretto_divide(e, e + 1.0))
    half = stretto_exp(0.5 * t)
    return stretto_copysign(tl.where(t < 20.0, small, (0.5 * half) * half), x)


@triton.jit
def stretto_cosh(x):
    half = stretto_exp(0.5 * tl.abs(x))
    return (0.5 * half) * half + stretto_divide(
        stretto_divide(tl.full([], 0.5, x.dtype), half), half
    )


@triton.jit
def stretto_asinh(x):
    t = tl.abs(x)
    s = tl.where(t < 1e8, t, 1.0) * tl.where(t < 1e8, t, 1.0)
    small = stretto_log1p(t + stretto_divide(s, 1.0 + stretto_sqrt(1.0 + s)))
    large = tl.log(t) + 0.69314718055994530942
    return stretto_copysign(tl.where(t < 1e8, small, large), x)


@triton.jit
def stretto_acosh(x):
    y = tl.where(x < 1e8, x, 1.0) - 1.0
    small = stretto_log1p(y + stretto_sqrt(y * (y + 2.0)))
    value = tl.where(x < 1e8, small, tl.log(x) + 0.69314718055994530942)
    return tl.where(x < 1.0, float("nan"), value)


@triton.jit
def stretto_atanh(x):
    t = tl.abs(x)
    value = 0.5 * stretto_log1p(stretto_divide(2.0 * t, 1.0 - t))
    return stretto_copysign(value, x)


# ---- trigonometric functions ------------------------------------------------------------------


@triton.jit
def stretto_sin(x):
    return tl.sin(x)


@triton.jit
def stretto_cos(x):
    return tl.cos(x)


@triton.jit
def stretto_tan(x):
    return stretto_divide(tl.sin(x), tl.cos(x))


@triton.jit
def stretto_atan(x):
    """After Cephes, atan.c and atanf.c."""
    t = tl.abs(x)
    huge = t > 2.41421356237309504880
    big = t > 0.4142135623730950488
    over = stretto_divide(tl.full([], -1.0, x.dtype), tl.where(huge, t, 1.0))
    middle = stretto_divide(t - 1.0, t + 1.0)
    z = tl.where(huge, over, tl.where(big, middle, t))
    quarter = tl.full([], 0.78539816339744830962, x.dtype)
    start = tl.where(huge, quarter + quarter, tl.where(big, quarter, 0.0))
    s = z * z
    if x.dtype == tl.float64:
        p = -8.750608600031904122785e-1 * s - 1.615753718733365076637e1
        p = (p * s - 7.500855792314704667340e1) * s - 1.228866684490136173410e2
        p = p * s - 6.485021904942025371773e1
        q = (s + 2.485846490142306297962e1) * s + 1.650270098316988542046e2
        q = ((q * s + 4.328810604912902668951e2) * s + 4.853903996359136964868e2) * s
        value = z * (s * (p / (q + 1.945506571482613964425e2))) + z
        value = tl.where(huge, value + 6.123233995736765886130e-17, value)
    else:
        p = ((8.05374449538e-2 * s - 1.38776856032e-1) * s + 1.99777106478e-1) * s
        value = (p - 3.33329491539e-1) * s * z + z
    return stretto_copysign(start + value, x)


@triton.jit
def stretto_asin(x):
    return stretto_atan(stretto_divide(x, stretto_sqrt((1.0 - x) * (1.0 + x))))


@triton.jit
def stretto_acos(x):
    return 2.0 * stretto_atan(stretto_sqrt(stretto_divide(1.0 - x, 1.0 + x)))


@triton.jit
def stretto_atan2(y, x):
    a = tl.abs(y)
    b = tl.abs(x)
    high = tl.where(a > b, a, b)
    low = tl.where(a > b, b, a)
    same = (a == b) & (a == float("inf"))
    ratio = stretto_divide(low, tl.where(high == 0, 1.0, high))
    value = stretto_atan(tl.where(same, 1.0, ratio))
    value = tl.where(a > b, 1.57079632679489661923 - value, value)
    value = tl.where(stretto_is_negative(x), 3.14159265358979323846 - value, value)
    return tl.where((x != x) | (y != y), float("nan"), stretto_copysign(value, y))


# ---- error function ---------------------------------------------------------------------------


@triton.jit
def stretto_erf(x):
    return tl.erf(x)


@triton.jit
def stretto_erfc(x):
    """erfc(z) = t exp(-z^2 + p(u)) with t = 2 / (2 + z), u = 2 t - 1; p is a Chebyshev fit."""
    z = tl.minimum(tl.abs(x), 40.0)
    t = stretto_divide(tl.full([], 2.0, x.dtype), 2.0 + z)
    u = 2.0 * t - 1.0
    if x.dtype == tl.float64:
        p = 4.059203416871319e-09 * u - 1.6257634004200004e-09
        p = (p * u - 3.9153823681150644e-08) * u + 3.996584549064402e-08
        p = (p * u + 1.532694522477242e-07) * u - 3.175036568175422e-07
        p = (p * u - 1.6833321758830403e-07) * u + 1.3278447814608566e-06
        p = (p * u - 1.2725384918465064e-06) * u - 3.0087258428155394e-06
        p = (p * u + 8.562827807038024e-06) * u + 1.7065643682608049e-07
        p = (p * u - 3.0188008635174027e-05) * u + 3.1732769210255435e-05
        p = (p * u + 7.140106496969276e-05) * u - 0.00017429974539128116
        p = (p * u - 9.373504499208804e-05) * u + 0.0006736782487619259
        p = (p * u - 0.00014624686098279685) * u - 0.002345812442194841
        p = (p * u + 0.0017589335575530585) * u + 0.008824938553557172
        p = (p * u - 0.009872689366376865) * u - 0.04689561023107716
        p = (p * u + 0.04734330684190415) * u + 0.6726432239776559
        p = p * u - 0.6717940840566923
        top = (z.to(tl.int64, bitcast=True) & -134217728).to(tl.float64, bitcast=True)
    else:
        p = -9.246457795633103e-05 * u + 8.508316609820583e-06
        p = (p * u + 0.0005880716887598385) * u - 0.00022919226001198893
        p = (p * u - 0.0023031434654053823) * u + 0.0017952014937328141
        p = (p * u + 0.008815156956125787) * u - 0.009880431637582687
        p = (p * u - 0.046894781015071704) * u + 0.04734394039462034
        p = (p * u + 0.6726432124855481) * u - 0.671794092775805
        top = (z.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)
    # z^2 is split into two parts; the first is exact.
    value = t * stretto_exp(-top * top) * stretto_exp((top - z) * (top + z) + p)
    value = tl.where(x < 0, 2.0 - value, value)
    return tl.where(x != x, x, value)
