"""The passes that restructure loops, in the order in which they help each other."""

from __future__ import annotations

from stretto.passes.batch_loops import BatchLoops
from stretto.passes.cse import EliminateCommonSubexpressions
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.distribute import Distribute
from stretto.passes.fold_tables import FoldTables
from stretto.passes.forward_lists import ForwardLists
from stretto.passes.hoist import HoistInvariants
from stretto.passes.horizontal import Horizontal
from stretto.passes.manager import Pass
from stretto.passes.split_concat import SplitConcat


def loop_passes() -> tuple[Pass, ...]:
    """Wants calls inlined, constants folded, invariants hoisted, small inner loops unrolled.

    A product that is looked up is none any more, so tables are folded first. Products are split
    before loops are, so that a part can leave its recurrence, and joined while they still stand
    side by side in the loop, so that one batched result is read there. Batching comes first once,
    for what depends on the index alone, so that distribution need not hand it over; and again for
    what distribution made independent.
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
        ForwardLists(),
        EliminateCommonSubexpressions(),
        EliminateDeadCode(),
    )
