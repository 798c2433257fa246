"""The passes on InstancePrograms, in order, and a switch for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

from stretto.batching.instance_program import InstanceProgram
from stretto.batching.passes.coarsen import Coarsen
from stretto.batching.passes.concurrent import Concurrent
from stretto.batching.passes.gathered import GatherParameters
from stretto.batching.passes.ghosts import AlignArms
from stretto.batching.passes.phases import FindPhases
from stretto.batching.passes.tails import MoveAroundBranches
from stretto.batching.passes.tidy import Tidy
from stretto.batching.verifier import verify


class InstancePass(Protocol):
    name: ClassVar[str]

    def apply(self, program: InstanceProgram) -> None: ...


@dataclass(frozen=True, slots=True)
class BatchPasses:
    """The optimisations of programs for one instance that are on; each can be turned off to
    measure what it is worth.

    tidy: compute equal operators once, and find tensors that all instances share. reuse: read
    such tensors, parameters among them, once per batch; if off, they are gathered per row.
    branches: move operators into the arms of branches. phases: run stages of the main function
    one after the other for the whole batch. concurrent: calls and iterations that do not depend
    on each other wait for values at the same time. coarsen: join operators between decisions
    into one block. horizontal: join products of a block that share an operand. ghosts: run the
    code after a branch at one depth, whichever arm was taken. tuned: choose kernels as
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


def passes(options: BatchPasses) -> Iterator[InstancePass]:
    """Yield the passes that are on, in order. Blocks are formed in any case."""
    if options.tidy:
        yield Tidy(shares=options.reuse)
    if options.branches:
        yield MoveAroundBranches()
        if options.tidy:
            yield Tidy(shares=options.reuse)
    # Concurrent runs before FindPhases: a phase between two calls would make them sequential.
    yield Concurrent(finds=options.concurrent)
    yield FindPhases(finds=options.phases)
    if not options.reuse:
        yield GatherParameters()
    yield Coarsen(joins=options.coarsen)
    if options.ghosts:
        yield AlignArms()


def run_passes(program: InstanceProgram, options: BatchPasses | None = None) -> None:
    """Run the passes on a program in place, which forms its blocks; verify it after each pass."""
    options = options or BatchPasses()
    program.joins = options.horizontal
    verify(program)
    for item in passes(options):
        item.apply(program)
        verify(program)
