"""Functions by which code for one instance gives hints to the batcher. Without batching they do
nothing."""

from __future__ import annotations

from typing import TypeVarTuple

_Values = TypeVarTuple("_Values")


def concurrent(*values: *_Values) -> tuple[*_Values]:
    """Return the values as a tuple, and declare the arguments independent of each other.

        left, right = stretto.concurrent(self.grow(a), self.grow(b))

    states, where the batcher cannot prove it, that the arguments may be evaluated in any order
    and at the same time: none changes a list or an object that another one uses. While one
    waits for the value of a tensor, the others continue (ACRoBat, section 4.2). If the
    arguments do depend on each other, the value or exception is unspecified.
    """
    return values


def phase() -> None:
    """Begin a phase: whatever an instance needs from here on runs after all instances of the batch
    have run what they need before it, unless a decision on a tensor forces it to run earlier. A
    function that calls it has only the phases it declares (ACRoBat, section B.3)."""
