"""The passes over a Program, in order.

All standard passes are listed here. Another pass in this folder joins the pipeline without
being listed: if its class has `after: ClassVar[str] = "hoist"`, it runs right after each
pass of that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from pkgutil import iter_modules

import stretto.passes as folder
from stretto.passes.batch_loops import BatchLoops
from stretto.passes.check_unused import CheckUnused
from stretto.passes.cse import EliminateCommonSubexpressions
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.distribute import Distribute
from stretto.passes.fold import FoldConstants
from stretto.passes.fold_tables import FoldTables
from stretto.passes.fork_calls import ForkCalls
from stretto.passes.forward_lists import ForwardLists
from stretto.passes.grow_lists import GrowLists
from stretto.passes.hoist import HoistInvariants
from stretto.passes.horizontal import Horizontal
from stretto.passes.if_convert import IfConvert
from stretto.passes.inline import InlineFunctions
from stretto.passes.look_up_early import LookUpEarly
from stretto.passes.manager import Pass, Repeat, Target
from stretto.passes.merge_branches import MergeBranches
from stretto.passes.parallel_loops import ParallelLoops
from stretto.passes.recursion_levels import RecursionLevels
from stretto.passes.rotate import Rotate
from stretto.passes.share_arms import ShareArms
from stretto.passes.simplify import Simplify
from stretto.passes.skew import Skew
from stretto.passes.speculate import Speculate
from stretto.passes.split_concat import SplitConcat
from stretto.passes.stack_layers import StackLayers
from stretto.passes.strip_mine import StripMine
from stretto.passes.unroll_recursion import UnrollRecursion


def pipeline(target: Target | None = None) -> tuple[Pass, ...]:
    """Return every pass over a Program, in order. target: the machine to compile for."""
    tidy = (FoldConstants(), Simplify(), EliminateCommonSubexpressions())
    branches = (MergeBranches(), ShareArms(), IfConvert(target))
    steps = (
        InlineFunctions(),
        Repeat((*tidy, EliminateDeadCode(keep_stopping=True))),
        CheckUnused(),
        Repeat((*tidy, *branches, EliminateDeadCode())),
        RecursionLevels(target),
        InlineFunctions(),
        Repeat((*tidy, EliminateDeadCode())),
        GrowLists(),
        HoistInvariants(),
        *loop_passes(target),
        ForkCalls(target),
        UnrollRecursion(target),
        Repeat((*tidy, EliminateDeadCode())),
        Speculate(target),
        LookUpEarly(target),
    )
    return tuple(_with_followers(steps, followers()))


def loop_passes(target: Target | None = None) -> tuple[Pass, ...]:
    """Return the passes over loops. They need calls inlined, constants folded, invariants hoisted
    and small inner loops unrolled.

    A product that becomes a table lookup is no product any more, so tables are folded first.
    Products are split before loops are, so that a part can leave its recurrence, and fused
    while they are still next to each other in the loop, so that one batched result is read
    there. Batching runs first for what depends only on the index, so that distribution need not
    pass it between loops, and again for what distribution made independent. What iterations
    then still compute independently may run on different units. Remaining loops that follow
    each other may run at the same time. Batched work is cut into blocks of iterations last,
    when no later pass analyses what a loop reads.
    """
    return (
        FoldTables(),
        SplitConcat(calls=True),
        Horizontal(),
        HoistInvariants(),
        EliminateDeadCode(),
        BatchLoops(),
        Distribute(),
        EliminateDeadCode(),
        BatchLoops(),
        ParallelLoops(target),
        ForwardLists(),
        EliminateCommonSubexpressions(),
        EliminateDeadCode(),
        Skew(target),
        EliminateDeadCode(),
        StackLayers(target),
        StripMine(target),
        Rotate(),
        EliminateDeadCode(),
    )


def passes_by_name(steps: Iterable[Pass]) -> dict[str, Pass]:
    """Return every pass among the steps, those inside a Repeat included."""
    found: dict[str, Pass] = {}
    for step in steps:
        if isinstance(step, Repeat):
            found |= passes_by_name(step.passes)
        else:
            found[step.name] = step
    return found


def followers() -> dict[str, list[Pass]]:
    """Return the passes of this folder that have an `after`, by the name of the pass that they
    follow."""
    found: dict[str, list[Pass]] = {}
    for item in iter_modules(folder.__path__):
        module = import_module(f"{folder.__name__}.{item.name}")
        for kind in vars(module).values():
            if getattr(kind, "__module__", None) == module.__name__ and hasattr(kind, "after"):
                found.setdefault(kind.after, []).append(kind())
    return found


def _with_followers(steps: Iterable[Pass], found: dict[str, list[Pass]]) -> Iterator[Pass]:
    for step in steps:
        if isinstance(step, Repeat):
            yield Repeat(tuple(_with_followers(step.passes, found)), step.limit)
        else:
            yield step
            yield from _with_followers(found.get(step.name, ()), found)
