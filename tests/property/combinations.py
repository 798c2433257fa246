"""Programs under a combination of passes, policy and units, against the interpreter.

Each of the passes that change which work waits for which other is left out, decides by the costs
of a machine, or changes everything that it may. The schedule is verified, and then executed by the
emulator in a random order, which finds races.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

from stretto.device.costs import HOST_COSTS
from stretto.device.verifier import verify
from stretto.interp.interpreter import run
from stretto.ir.core import Program
from stretto.ir.text import print_program
from stretto.lowering.lower_program import lower
from stretto.machines.cpu.select import select
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.machines.cuda.select import select as select_cuda
from stretto.machines.emulator.machine import EmulatedExecutable
from stretto.options import Debug, Options
from stretto.passes.fork_calls import ForkCalls
from stretto.passes.manager import Pass, Repeat, Target, run_passes
from stretto.passes.parallel_loops import ParallelLoops
from stretto.passes.pipeline import pipeline
from stretto.passes.recursion_levels import RecursionLevels
from stretto.passes.skew import Skew
from stretto.passes.speculate import Speculate
from stretto.passes.strip_mine import StripMine
from stretto.passes.unroll_recursion import UnrollRecursion
from stretto.schedule.scheduler import schedule
from tests.backends import SPREAD, assert_close
from tests.property.recurrences import recurrences
from tests.schedule.policies import POLICIES
from tests.support import random_inputs

Use = Literal["never", "by cost", "always"]
UNITS = (2, 7, 3, 132, 1)
"""Those that are drawn more often come first."""
CHANGING = (
    "skew",
    "speculate",
    "recursion_levels",
    "unroll_recursion",
    "parallel_loops",
    "fork_calls",
    "strip_mine",
)
"""Passes that can be made to change all that they may; the others have no choice."""
PLAIN = ("rotate", "distribute", "batch_loops", "if_convert", "merge_branches", "share_arms")

EAGER = replace(HOST_COSTS, wait_seconds=1e-15, wake_seconds=0.0, small_waits=1e12, level_bytes=0)
"""Costs by which a chain of operators leaves the units idle, and waits cost nothing."""


@dataclass(frozen=True, slots=True)
class Combination:
    """uses: of the passes that are not used by cost. rows:
    activations of a recursion at a time, and iterations of a block. uniform: as on a GPU. order:
    draws the interleaving."""

    policy: str = "auto"
    units: int = 2
    uniform: bool = False
    fuse: bool = True
    uses: tuple[tuple[str, Use], ...] = ()
    rows: int = 2
    order: int = 0

    def __post_init__(self) -> None:
        assert self.policy in ("auto", *POLICIES)

    def passes(self) -> tuple[Pass, ...]:
        costs = CUDA_COSTS if self.uniform else HOST_COSTS
        levels = replace(EAGER, level_rows=self.rows)
        always: dict[str, Pass] = {
            "skew": Skew(always=True),
            "speculate": Speculate(Target(EAGER, self.units)),
            "recursion_levels": RecursionLevels(Target(levels, self.units)),
            "unroll_recursion": UnrollRecursion(depth=1 + self.order % 2),
            "parallel_loops": ParallelLoops(always=True),
            "fork_calls": ForkCalls(always=True),
            "strip_mine": StripMine(rows=self.rows),
        }
        used = {name: always[name] for name, use in self.uses if use == "always"}
        return tuple(_replaced(pipeline(Target(costs, self.units)), used))

    @property
    def skipped(self) -> tuple[str, ...]:
        return tuple(name for name, use in self.uses if use == "never")


def _replaced(steps: Iterable[Pass], others: dict[str, Pass]) -> Iterable[Pass]:
    for step in steps:
        if isinstance(step, Repeat):
            yield Repeat(tuple(_replaced(step.passes, others)), step.limit)
        else:
            yield others.get(step.name, step)


@st.composite
def combinations(draw: st.DrawFn, units: tuple[int, ...] = UNITS) -> Combination:
    uses: list[tuple[str, Use]] = []
    for name in CHANGING:
        use = draw(st.sampled_from(("always", "always", "by cost", "never")))
        if use != "by cost":
            uses.append((name, use))
    for name in PLAIN:
        if draw(st.integers(0, 3)) == 0:
            uses.append((name, "never"))
    return Combination(
        draw(st.sampled_from(("auto", *POLICIES))),
        draw(st.sampled_from(units)),
        draw(st.booleans()),
        draw(st.booleans()),
        tuple(uses),
        draw(st.integers(1, 4)),
        draw(st.integers(0, 9)),
    )


def check(program: Program, how: Combination) -> None:
    """Raises AssertionError where the combination gives other results than the interpreter, and
    what the stages, the verifier and the emulator raise; with the text of the program."""
    try:
        _check(program, how)
    except Exception as error:
        error.add_note(f"{how}\n{print_program(program)}")
        raise


def _check(program: Program, how: Combination) -> None:
    after = run_passes(program, how.passes(), skip=how.skipped)
    lowered = lower(after)
    if how.uniform:
        costs, selected = CUDA_COSTS, select_cuda(lowered, how.units, how.fuse, CUDA_COSTS.spread())
    else:
        costs, selected = SPREAD, select(lowered, how.units, how.fuse, SPREAD)
    device = schedule(selected.tree, how.units, costs, POLICIES.get(how.policy))
    verify(device, selected.tree)
    options = Options(threads=how.units, debug=Debug(seed=how.order))
    executable = EmulatedExecutable(device, selected.interface, options)
    for number, most in ((0, 3), (1, 3), (2, 13)):
        inputs = random_inputs(program, number, most)
        assert_close(
            executable([tensor for tensor in inputs if isinstance(tensor, Tensor)]),
            run(program, inputs),
        )


def check_drawn(first: int, count: int) -> None:
    """So many drawn programs, each under a drawn combination, which depend on `first` alone. Raises
    what the smallest program raises that fails."""

    @seed(first)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(program=recurrences(), how=combinations())
    def drawn(program: Program, how: Combination) -> None:
        check(program, how)

    drawn()
