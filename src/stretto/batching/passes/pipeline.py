"""The passes on InstancePrograms, in order, and a switch for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

from stretto.batching.passes.coarsen import Coarsen
from stretto.batching.passes.concurrent import Concurrent
from stretto.batching.passes.gathered import GatherParameters
from stretto.batching.passes.ghosts import AlignArms
from stretto.batching.passes.phases import FindPhases
from stretto.batching.passes.tails import MoveAroundBranches
from stretto.batching.passes.tidy import Tidy
from stretto.batching.program import InstanceProgram
from stretto.batching.verifier import verify


class Pass(Protocol):
    name: ClassVar[str]

    def apply(self, program: InstanceProgram) -> None: ...


@dataclass(frozen=True, slots=True)
class BatchPasses:
    """Which optimisations of programs for one instance are on; each can be turned off to see what
    it is worth.

    tidy: equal operators are computed once, tensors that all instances share are found. reuse:
    such tensors, parameters among them, are read once per batch; otherwise they are gathered per
    row. branches: operators move into the arms of branches. phases: stages of the main function
    run one after the other for the whole batch. concurrent: calls and iterations that do
    not depend on each other wait for values at the same time. coarsen: operators between decisions
    are one block. horizontal: products of a block that share their operand are one. ghosts: what
    follows a branch runs at one depth, whichever arm was taken. tuned: kernels are chosen as
    `Batched.tune` has found to be best.
    """

    tidy: bool = True
    reuse: bool = True
    branches: bool = True
    phases: bool = True
    concurrent: bool = True
    coarsen: bool = True
    horizontal: bool = True
    ghosts: bool = True
    tuned: bool = True


def passes(options: BatchPasses) -> Iterator[Pass]:
    """The passes that are on, in order. Blocks are formed in any case."""
    if options.tidy:
        yield Tidy(shares=options.reuse)
    if options.branches:
        yield MoveAroundBranches()
        if options.tidy:
            yield Tidy(shares=options.reuse)
    # Before phases are found: one that begins between two calls would keep them apart.
    yield Concurrent(finds=options.concurrent)
    yield FindPhases(finds=options.phases)
    if not options.reuse:
        yield GatherParameters()
    yield Coarsen(joins=options.coarsen)
    if options.ghosts:
        yield AlignArms()


def run_passes(program: InstanceProgram, options: BatchPasses | None = None) -> None:
    """Forms the blocks of a program, in place."""
    options = options or BatchPasses()
    program.joins = options.horizontal
    verify(program)
    for item in passes(options):
        item.apply(program)
        verify(program)
