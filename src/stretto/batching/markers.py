"""What a function for one instance may say to the batcher. In eager Python these do nothing."""

from __future__ import annotations

from typing import TypeVarTuple

_Values = TypeVarTuple("_Values")


def concurrent(*values: *_Values) -> tuple[*_Values]:
    """The values, as a tuple.

        left, right = stretto.concurrent(self.grow(a), self.grow(b))

    says that the arguments may be evaluated in any order and at the same time, where the batcher
    cannot prove it: none changes a list or an object that another one uses. Where one waits for the
    value of a tensor, the others go on (ACRoBat, section 4.2). Which value or exception comes of
    arguments that do depend on each other is not said.
    """
    return values


def phase() -> None:
    """Begins a phase: what an instance needs of here on runs when all instances of the batch have
    run what they need before it, as far as no decision on a tensor forces it to run earlier. A
    function that says it has no other phases than those it says (ACRoBat, section B.3)."""
