"""Failures that eager PyTorch raises for positions out of range, by operator.

A size is an int if it is known, else whatever object represents it in the calling stage.
"""

from __future__ import annotations

from stretto.ir.failure import Failure
from stretto.ops.table import PositionArgument, Reach, entry

_PLAIN = PositionArgument(Reach.DIM)


def out_of_range(target: str, dim: int, size: object, wraps: bool = False) -> Failure:
    """Return the failure of operator `target` for a position in a dim of `size`.

    wraps: `size` was added to negative positions before the check.
    """
    positions = entry(target).positions or _PLAIN
    error, text = positions.error, positions.message
    if dim > 0 and positions.inner is not None:
        error, text = positions.inner
    message, _, with_size = text.partition("|")
    message += with_size if isinstance(size, int) else ""
    message = message.replace("{dim}", str(dim)).replace("{size}", str(size))
    return Failure(error, message, added=size if wraps and isinstance(size, int) else 0)


def window_out_of_range(size: object, length: object) -> Failure:
    """Return the failure of a slice of static length at a position known only at run time."""
    if not isinstance(size, int) or not isinstance(length, int):
        return Failure("RuntimeError", "start ({}) + length exceeds dimension size")
    message = f"start ({{}}) + length ({length}) exceeds dimension size ({size})."
    return Failure("RuntimeError", message)


def position_failure(operator: str, size: object, length: object, dim: int) -> Failure:
    """Return the failure of `stretto.check_positions`."""
    positions = entry(operator).positions or _PLAIN
    if positions.reach is Reach.WINDOW and length != 1:
        return window_out_of_range(size, length)
    return out_of_range(operator, dim, size)
