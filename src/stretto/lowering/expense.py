"""How dear an expression is: what decides whether a tensor is stored or computed at every use."""

from __future__ import annotations

from stretto.device.expr import Apply, Expr

MAX_FUSED_APPLIES = 48
"""A lazy expression with more function applications than this is stored."""

CHEAP_APPLIES = 2
"""At most so many applications, none of them transcendental, may be computed again per use."""

TRANSCENDENTAL = frozenset(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "log2",
        "log10",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
        "tanh",
        "sigmoid",
        "erf",
        "erfc",
        "pow",
        "sqrt",
        "rsqrt",
        "div",
        "atan2",
        "fmod",
        "remainder",
        "floordiv",
        "truncdiv",
    ]
)
"""Functions too dear to compute twice."""

_ENOUGH = 1000


def count_applies(expr: Expr) -> int:
    """Function applications, shared ones counted each time; stops counting at about 1000."""
    if not isinstance(expr, Apply):
        return 0
    total = 1
    for arg in expr.args:
        total += count_applies(arg)
        if total > _ENOUGH:
            break
    return total


def is_cheap(expr: Expr) -> bool:
    """Cheap enough to compute at every use."""
    return count_applies(expr) <= CHEAP_APPLIES and not _has_transcendental(expr)


def _has_transcendental(expr: Expr) -> bool:
    if not isinstance(expr, Apply):
        return False
    return expr.function in TRANSCENDENTAL or any(_has_transcendental(arg) for arg in expr.args)


SELECTED = 8
"""Up to an eighth of the elements of a dim are selected; where more are wanted, all are sorted."""


def sort_steps(length: int, keep: int) -> int:
    """Scalar operations that finding the first `keep` of `length` takes for each of them."""
    return min(length // 4, 64) if keep * SELECTED > length else min(length // 4, 4)
