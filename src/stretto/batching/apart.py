"""Whether what runs concurrently keeps apart: no part touches a variable that another one assigns.

Memory (lists and objects) is the matter of who makes forks (`passes/concurrent.py`, or the user by
`stretto.concurrent`); variables are checked by the verifier with the functions of this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.batching.passes.uses import all_assigned, all_used, ends
from stretto.batching.program import Body, Continue, Fork, ForkLoop, Variable, walk


@dataclass(frozen=True, slots=True)
class Touched:
    """The variables that a body assigns, and all that it reads or assigns."""

    assigned: frozenset[Variable]
    all: frozenset[Variable]

    @staticmethod
    def of(body: Body) -> Touched:
        assigned = frozenset(v for item in body for v in all_assigned(item))
        return Touched(assigned, assigned.union(*map(all_used, body)))


def why_not_apart(several: Sequence[Body]) -> str | None:
    """Why bodies cannot run concurrently, or None where they keep apart."""
    parts = [Touched.of(body) for body in several]
    for place, part in enumerate(parts):
        for other in parts[:place]:
            for variable in (part.assigned & other.all) | (other.assigned & part.all):
                return f"%{variable.name} is assigned in one of them and used in another"
    return None


def why_not_loop(loop: ForkLoop) -> str | None:
    """Why the iterations of a loop cannot run concurrently, or None where they keep apart."""
    private = frozenset(loop.private)
    head, body, tail = map(Touched.of, (loop.head, loop.body, loop.tail))
    if any(isinstance(item, Continue) for item in walk(loop.head)):
        return "an iteration may end in the head"
    if body.assigned - private:
        return "a body assigns what is not private to an iteration"
    if (head.assigned - private) & (body.all | tail.all):
        return "an iteration uses what a later head assigns"
    if (tail.assigned - private) & (head.all | body.all):
        return "an iteration uses what an earlier tail assigns"
    return None


def forked(several: Sequence[Body]) -> Body:
    """Bodies as a fork; one after the other where they do not keep apart, or one never ends."""
    several = [body for body in several if body]
    if len(several) < 2 or any(map(ends, several)) or why_not_apart(several) is not None:
        return tuple(statement for body in several for statement in body)
    return (Fork(tuple(several)),)
