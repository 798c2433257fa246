"""Break DevicePrograms at random, to test the verifier.

`mutate` makes one change somewhere in a program: to items of leaves, to control nodes, to
frames, to numbers and buffers inside of kernels. A change of a kernel or of a declared
buffer may be made to the source tree too: then the schedule is right for its source, but
the source itself has changed.
"""

from __future__ import annotations

import random

from checks.mutation import control, items, memory
from checks.mutation.parts import Mutant, NotApplicable
from stretto.device.program import DeviceProgram
from stretto.device.regions import Body
from stretto.device.tree import Tree

__all__ = ["KINDS", "Mutant", "NotApplicable", "mutate"]

KINDS = (*items.CHANGES, *control.CHANGES, *memory.CHANGES)


def mutate(program: DeviceProgram, source: Tree[Body], rng: random.Random) -> Mutant:
    """Return the program with one change, drawn from `rng`; it always differs from the program."""
    while True:
        kind = rng.choice(KINDS)
        try:
            mutant = kind(program, source, rng)
        except NotApplicable:
            continue
        if mutant.program != program:
            return mutant
