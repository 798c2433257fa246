"""What a Triton function of another module refers to."""

import triton
import triton.language as language

ONE = language.constexpr(1.0)


@triton.jit
def logistic(v, one: language.constexpr = ONE):
    """For positive and negative numbers."""
    return one / (one + language.exp(-v))
