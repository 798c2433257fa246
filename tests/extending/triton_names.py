"""Triton functions that refer to others, and to constants, in every way that Triton takes."""

import triton
import triton.language as tl
from triton.language import constexpr
from triton.language import math as mathematics

from tests.extending import triton_helpers
from tests.extending.triton_helpers import logistic as other_logistic

WIDE = tl.float32
KIND = constexpr(tl.float32)
STEPS = tl.constexpr(3)
NOTHING = tl.constexpr(float("-inf"))


@triton.jit
def logistic(v):
    """Another one than that of triton_helpers."""
    return tl.maximum(v, NOTHING)


@triton.jit(noinline=True)
def apart(v):
    return v + 1.0


@triton.jit
def pair(v, scale: tl.constexpr = 2):
    low, high = v - scale, v + scale
    return low, high


def made(shift: float):
    """A function with a constant of its own."""
    SHIFT = tl.constexpr(shift)

    @triton.jit
    def inner(i, x: int, out) -> None:
        at = i.begin + tl.arange(0, i.block)
        inside = at < i.end
        tl.static_assert(STEPS == 3, "three steps")
        v = tl.load(x.data + at * x.stride[0], mask=inside).to(WIDE)
        low, high = pair(
            v,
            scale=triton_helpers.ONE,
        )
        v = (low + high) / 2
        for k in tl.static_range(STEPS):
            if k == 1:
                v += SHIFT
        v += apart(x.size[0] * 1.0) / x.size[0]
        v = logistic(v) * other_logistic(v) + tl.zeros((i.block,), KIND)
        v = tl.where(inside, mathematics.exp(v), 0.0)
        size = x.size[0]
        if size > 1000000:
            v = v * 0
        out_kind: tl.constexpr = out.data.dtype.element_ty
        tl.store(out.data + at * out.stride[0], v.to(out_kind), mask=inside)

    return inner
