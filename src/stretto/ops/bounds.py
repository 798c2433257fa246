"""What eager PyTorch raises for a position that is out of range, by operator.

A size is an int where it is known, or whatever stands for it in a stage.
"""

from __future__ import annotations

from stretto.ir.failure import Failure

_NO_VALUE = frozenset(("embedding", "index_select"))
_RUNTIME_ERROR = frozenset(("gather", "scatter", "scatter_add", "scatter_reduce", "index_add"))


def out_of_range(target: str, dim: int, size: object, wraps: bool = False) -> Failure:
    """The failure of operator `target` for a position in a dim of `size`.

    wraps: the position that is checked is one to which `size` was added where it was negative.
    """
    name = target.split(".")[1]
    added = size if wraps and isinstance(size, int) else 0
    if name == "index_select" and dim > 0:
        bounds = f", id={{}} axis_dim={size}" if isinstance(size, int) else ""
        return Failure("RuntimeError", f"INDICES element is out of DATA bounds{bounds}")
    if name in _NO_VALUE:
        return Failure("IndexError", "index out of range in self")
    known = f" with size {size}" if isinstance(size, int) else ""
    if name == "take":
        return Failure(
            "IndexError",
            f"out of range: tried to access index {{}} on a tensor of {size} elements.",
            added=added,
        )
    message = f"index {{}} is out of bounds for dimension {dim}{known}"
    if name == "index_copy":
        message = f"index_copy_(): {message}"
    error = "RuntimeError" if name in _RUNTIME_ERROR else "IndexError"
    return Failure(error, message, added=added)


def window_out_of_range(size: object, length: object) -> Failure:
    """The failure of a slice of static length at a position known at run time."""
    if not isinstance(size, int) or not isinstance(length, int):
        return Failure("RuntimeError", "start ({}) + length exceeds dimension size")
    message = f"start ({{}}) + length ({length}) exceeds dimension size ({size})."
    return Failure("RuntimeError", message)


def position_failure(operator: str, size: int, length: int, dim: int) -> Failure:
    """The failure of `stretto.check_positions`."""
    if operator.startswith("stretto.narrow") and length != 1:
        return window_out_of_range(size, length)
    return out_of_range(operator, dim, size)
