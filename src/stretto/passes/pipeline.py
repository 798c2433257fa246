"""Every pass over a Program, in order."""

from __future__ import annotations

from stretto.passes.check_unused import CheckUnused
from stretto.passes.cse import EliminateCommonSubexpressions
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.fold import FoldConstants
from stretto.passes.hoist import HoistInvariants
from stretto.passes.inline import InlineFunctions
from stretto.passes.loop_pipeline import loop_passes
from stretto.passes.manager import Pass, Repeat
from stretto.passes.simplify import Simplify


def pipeline() -> tuple[Pass, ...]:
    """The passes that `build` runs."""
    tidy = (FoldConstants(), Simplify(), EliminateCommonSubexpressions())
    return (
        InlineFunctions(),
        Repeat((*tidy, EliminateDeadCode(keep_positions=True))),
        CheckUnused(),
        Repeat((*tidy, EliminateDeadCode())),
        HoistInvariants(),
        *loop_passes(),
        Repeat((*tidy, EliminateDeadCode())),
    )
