"""Random valid Programs: nested branches, loops, calls, recursion and lists over small tensors.

`programs()` is a hypothesis strategy, so that failures shrink. Every Program it draws ends, never
stops the run, and keeps magnitudes small, so that a compiled run can be compared with the
interpreter. Conditions compare with odd numbers, so that rounding hardly ever decides a branch.
`tests.support.random_inputs` makes inputs for it.
"""

from __future__ import annotations

from hypothesis import strategies as st

from stretto.ir.core import Program
from tests.property.choices import choices_for
from tests.property.maker import Features, ProgramMaker

__all__ = ["Features", "programs"]


@st.composite
def programs(draw: st.DrawFn, features: Features | None = None) -> Program:
    """Programs whose `main` takes one tensor of each type in `maker.TENSORS`."""
    return ProgramMaker(draw, features or Features(), choices_for).program()
