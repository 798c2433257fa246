"""Argument types of users' kernels; the part after the ruled line is embedded where a program has
such kernels."""

from typing import Any, NamedTuple

# ---- kernels of users -------------------------------------------------------------------------


class stretto_Range(NamedTuple):
    """The values of an index that a call computes: begin .. end - 1, at most `block` of them, a
    power of two."""

    begin: Any
    end: Any
    block: Any


class stretto_View(NamedTuple):
    """A tensor: a pointer to its first element, and the size and stride of each dim."""

    data: Any
    size: Any
    stride: Any
