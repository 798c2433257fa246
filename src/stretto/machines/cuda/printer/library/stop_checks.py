"""Checks that stop a program; embedded into every printed module."""

import triton
import triton.language as tl


@triton.jit
def packed_detail(number, value):
    """Pack the number of a check and the value that its message shows, clamped to 48 bits."""
    largest = tl.full([], (1 << 47) - 1, tl.int64)
    value = tl.minimum(tl.maximum(tl.cast(value, tl.int64), -largest - 1), largest)
    return value * 65536 + number


@triton.jit
def require(control, ok, condition, code: tl.constexpr, detail):
    """Return `ok`, or False after recording an error if the condition does not hold."""
    if ok & (condition == 0):
        fail(control, code, detail)
    return ok & (condition != 0)
