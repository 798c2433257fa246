"""Conditions that stop a program; embedded into every printed module."""

import triton
import triton.language as tl


@triton.jit
def require(control, ok, condition, code: tl.constexpr, detail):
    """ok, or False with an error where the condition does not hold."""
    if ok & (condition == 0):
        fail(control, code, detail)
    return ok & (condition != 0)
