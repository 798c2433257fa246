"""What the kernels of users are called with; embedded where a program has some, as is what follows
the ruled line."""

from typing import Any, NamedTuple

# ---- kernels of users -------------------------------------------------------------------------


class stretto_Range(NamedTuple):
    """The values of an index that a call computes: begin .. end - 1, of which there are at most
    `block`, a power of two."""

    begin: Any
    end: Any
    block: Any


class stretto_View(NamedTuple):
    """A tensor: a pointer to its first element, and for each dim the size and the stride."""

    data: Any
    size: Any
    stride: Any
