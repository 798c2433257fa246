"""Programs in corners of the language on the emulated GPU, against the interpreter.

Plans are also made for launches of very few kernels: every program gives the same results when it
is cut into several launches with control on the host in between.
"""

from __future__ import annotations

import pytest
import torch

from stretto.errors import RunError
from stretto.machines.cuda.host import PlanExecutable
from stretto.runtime.results import ProgramStopped, Status
from tests.backends import assert_close, built_cuda
from tests.e2e.cases.case import Case, expected, why_stopped
from tests.e2e.test_programs import CASES, DEEP
from tests.sampling import every
from tests.support import program_of


@pytest.mark.whole
@pytest.mark.parametrize("case", every(2, CASES), ids=repr)
def test_program(case: Case) -> None:
    check(case, built_cuda(case.program(), 5).cuda(seed=5))


@pytest.mark.parametrize("case", every(2, CASES[1::3]), ids=repr)
def test_not_fused(case: Case) -> None:
    check(case, built_cuda(case.program(), 2, fuse=False).cuda())


@pytest.mark.parametrize("case", every(2, CASES[1::6]), ids=repr)
def test_as_for_a_device(case: Case) -> None:
    """Cut as the costs of a GPU say: mostly one task for everything."""
    check(case, built_cuda(case.program(), 3, spread=False).cuda())


CUT = [
    "checked reg",
    "steps",
    "while",
    "three trade places",
    "for in while in if in for",
    "control reads what the loop writes",
    "carried scalars of other dtypes",
    "in nested",
    "stack of known length",
    "pop",
    "lists trade places",
    "loop over",
    "loop in branch in recursion in loop",
    "a stack machine",
]


@pytest.mark.parametrize("case", every(2, [c for c in CASES if c.name in CUT]), ids=repr)
def test_cut_into_launches_of_one_kernel(case: Case) -> None:
    built = built_cuda(case.program(), 3)
    executable = built.cuda(most_kernels=1)
    assert not executable.is_single
    check(case, executable)
    assert executable.launches > len(case.runs)


def check(case: Case, executable: PlanExecutable) -> None:
    program = case.program()
    for number, data in enumerate(case.inputs(program)):
        wanted = expected(program, data)
        if wanted is None:
            with pytest.raises(RunError, match=why_stopped(case, number)):
                executable(data)
        else:
            assert_close(executable(data), wanted, case.scale)


@pytest.mark.parametrize("units", [1, 2])
def test_recursion_is_deep_but_not_endless(units: int) -> None:
    """Arena and stack grow; what a recursion without end got is given back."""
    executable = built_cuda(program_of(DEEP), units).cuda(max_depth=150)
    x = torch.rand(8, dtype=torch.float64)
    before = executable.sizes
    assert_close(executable([x, torch.tensor(3)]), [x * sum(0.75**n for n in range(4))])
    assert executable.launches == 1
    assert_close(executable([x, torch.tensor(120)]), [4 * x])
    grown, launches = executable.sizes, executable.launches
    assert grown.arena > before.arena
    assert launches > 2
    assert_close(executable([x, torch.tensor(100)]), [4 * x])
    assert executable.launches == launches + 1
    with pytest.raises(ProgramStopped, match="deeper than") as caught:
        executable([x, torch.tensor(10**9)])
    assert caught.value.status is Status.TOO_DEEP
    assert executable.sizes == grown
    assert_close(executable([x, torch.tensor(0)]), [x])
