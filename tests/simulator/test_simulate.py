"""Simulated runs: times computed by hand, and the order that the emulator finds in random ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.scheduling.programs import summed, tree
from stretto.device.expr import Reg, Var
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, FrameLayout, Run, Schedule, Signal, Wait
from stretto.device.tree import Call, For, If, Leaf, Let, Seq, Tree, TreeFunction, While
from stretto.errors import ScheduleError
from stretto.ir.types import DType
from stretto.options import Options
from stretto.schedule.scheduler import schedule
from stretto.simulator.devices import CPU, GPUS, Device, find_device
from stretto.simulator.result import Bound, Simulation
from stretto.simulator.run_path import DefaultChoices, RecordedChoices
from stretto.simulator.simulate import Simulator, simulate
from stretto.simulator.work import KeptPart
from stretto.tools.models import Model
from stretto.tools.simulate import simulate_model
from tests.schedule.programs import (
    OUT,
    A,
    B,
    X,
    chain,
    device,
    items,
    kernel,
    leaf,
    loop,
    mixing,
    with_items,
)
from tests.schedule.random_trees import random_tree
from tests.schedule.trees import EAGER, at, call, condition, load, map_kernel, number
from tests.simulator.observed import Done, Observed, observe

US = 1e-6
BARE = replace(
    CPU, memory_bandwidth=inf, unit_bandwidth=inf, start_seconds=0, wait_seconds=0, wake_seconds=0
)
"""Tasks take what kernels estimate, and nothing else takes any time."""
seeds = st.integers(0, 100_000)
units = st.sampled_from([1, 2, 3, 5])


def microseconds(
    program: DeviceProgram, target: Device = BARE, choices: DefaultChoices | None = None
) -> float:
    return simulate(program, target, choices, EAGER).seconds / US


# ---- by hand ---------------------------------------------------------------------------------
def test_a_chain_waits_once() -> None:
    assert microseconds(chain()) == pytest.approx(2)
    assert microseconds(chain(), replace(BARE, wait_seconds=0.25 * US)) == pytest.approx(2.25)


def test_a_unit_that_is_woken_late_holds_up_those_that_wait_for_it() -> None:
    late = replace(BARE, wake_seconds=3 * US, wait_seconds=0.25 * US)
    assert microseconds(chain(), late) == pytest.approx(3 + 1 + 0.25 + 1)


def test_the_start_of_each_task_counts() -> None:
    assert microseconds(chain(), replace(BARE, start_seconds=0.5 * US)) == pytest.approx(3)


def test_a_loop_waits_in_every_iteration() -> None:
    assert microseconds(loop()) == pytest.approx(5)
    assert microseconds(loop(), replace(BARE, wait_seconds=0.25 * US)) == pytest.approx(
        5 + 4 * 0.25
    )


def test_a_fan_takes_its_longest_arm_and_the_ends() -> None:
    """Unit 0 makes what the others read, one of them for longer, and reads what these make."""
    others = [(Wait(0, 1), *(Run(f"arm{n}", 0),), Signal(1)) for n in (1, 2, 3)]
    body = leaf(2, (Run("first", 0), Signal(1), Wait(1, 1, 3), Run("last", 0)), *others)
    arms = [replace(kernel(f"arm{n}", B, A), seconds=n * US) for n in (1, 2, 3)]
    program = device(body, kernel("first", A, X), *arms, kernel("last", OUT, B), units=4)
    found = simulate(program, replace(BARE, wait_seconds=0.5 * US), costs=EAGER)
    assert found.seconds / US == pytest.approx(1 + 0.5 + 3 + 0.5 + 1)
    path = [(link.unit, link.bound, round(link.seconds / US, 3)) for link in found.critical_path]
    assert path == [
        (0, Bound.COMPUTE, 1),
        (3, Bound.WAIT, 0.5),
        (3, Bound.COMPUTE, 3),
        (0, Bound.WAIT, 0.5),
        (0, Bound.COMPUTE, 1),
    ]
    assert found.utilisation(3) == pytest.approx(3 / 6)
    unit, gap = found.gaps(1)[0]
    assert (unit, gap.cause.unit if gap.cause else None) == (0, 3)
    assert (gap.start / US, gap.end / US) == (pytest.approx(1), pytest.approx(5))


def test_the_units_of_a_range_wait_for_all_others_but_not_for_themselves() -> None:
    ways = [(Run("a", n), Signal(1), Wait(0, 1, 2), Run("b", n)) for n in (0, 1)]
    program = device(leaf(2, *ways), kernel("a", A, X), mixing("b", OUT, A))
    assert microseconds(program, replace(BARE, wait_seconds=US)) == pytest.approx(3)


def branching(*, is_known: bool) -> DeviceProgram:
    """Five microseconds if go, else one."""
    go = Reg("go", DType.BOOL)
    element = load(X, 0)
    value = condition("gt", number(0), number(1)) if is_known else condition("gt", element, element)
    long, short = replace(kernel("long", OUT, X), seconds=5 * US), kernel("short", OUT, X)
    arms = [leaf(1, (Run(name, 0, 1),)) for name in ("long", "short")]
    test = Leaf(Schedule(((Let(go, value),),), 1))
    return device(Seq((test, If(go, arms[0], arms[1]))), long, short, units=1)


def test_a_branch_goes_where_its_condition_says_and_else_the_longer_way() -> None:
    assert microseconds(branching(is_known=True)) == pytest.approx(1)
    assert microseconds(branching(is_known=False)) == pytest.approx(5)


@pytest.mark.parametrize("trips", [0, 1, 7])
def test_a_loop_that_values_end_has_the_trips_that_are_assumed(trips: int) -> None:
    go = Reg("go", DType.BOOL)
    test = Leaf(Schedule(((Let(go, condition("gt", load(X, 0), load(X, 1))),),), 1))
    node = While(test, go, leaf(1, (Run("k", 0, 2),)))
    program = device(node, kernel("k", OUT, X), units=1)
    found = simulate(program, BARE, DefaultChoices(trips), EAGER)
    assert found.seconds / US == pytest.approx(2 * trips)
    assert found.runs == (trips + 1, trips)


def test_an_inner_loop_runs_as_often_as_the_outer_index_says() -> None:
    i, j = Reg("i"), Reg("j")
    inner = For(j, number(0), at(i), 1, leaf(1, (Run("k", 0),)))
    program = device(For(i, number(0), number(5), 1, inner), kernel("k", OUT, X), units=1)
    assert microseconds(program) == pytest.approx(0 + 1 + 2 + 3 + 4)


def test_an_empty_program_takes_no_time() -> None:
    found = simulate(device(Seq(()), units=3), BARE, costs=EAGER)
    assert (found.seconds, found.tasks, found.critical_path) == (0, 0, ())


def test_recursion_that_values_end_is_as_deep_as_assumed() -> None:
    """f: k; if go then f, f."""
    go = Reg("go", DType.BOOL)
    test = Let(go, condition("gt", load(X, 0), load(X, 1)))
    head = Leaf(Schedule(((Run("k", 0), test),), 1))
    twice = Seq((Call("f", (), ()), Call("f", (), ())))
    body = Seq((head, If(go, twice, Seq(()))))
    program = device(Call("f", (), ()), kernel("k", OUT, X), units=1, locals=())
    recursive = TreeFunction("f", (), (), (), (), (), body)
    tree = Tree((program.tree.main, recursive), program.tree.externals)
    program = replace(program, tree=tree, frames=(*program.frames, ("f", FrameLayout(0, ()))))
    assert microseconds(program, choices=DefaultChoices(depth=1)) == pytest.approx(1)
    assert microseconds(program, choices=DefaultChoices(depth=3)) == pytest.approx(1 + 2 + 4)


def test_a_run_that_is_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.simulator.run_path.MOST_VISITS", 4)
    with pytest.raises(ScheduleError, match="fewer trips"):
        simulate(loop(), BARE, costs=EAGER)


def test_units_that_wait_for_each_other_are_an_error() -> None:
    first, second = items(chain())
    program = with_items(chain(), (Wait(1, 1), *first[:2]), (Wait(0, 1), *second[:2]))
    with pytest.raises(ScheduleError, match="wait for ever"):
        simulate(program, BARE, costs=EAGER)


# ---- bandwidth -------------------------------------------------------------------------------
def moving(units: int) -> DeviceProgram:
    """Each of two tasks moves 16 bytes to its unit and 16 away from it."""
    ways = [(Run("k", n, 2 // units, units),) for n in range(units)]
    return device(leaf(1, *ways), kernel("k", OUT, X), units=units, locals=())


@pytest.mark.parametrize(("total", "each", "alone", "both"), [(32, 32, 2, 2), (64, 32, 2, 1)])
def test_units_share_what_the_memory_gives(total: int, each: int, alone: int, both: int) -> None:
    slow = replace(BARE, memory_bandwidth=total, unit_bandwidth=each, cache_bytes=0)
    assert simulate(moving(1), slow, costs=EAGER).seconds == pytest.approx(alone)
    found = simulate(moving(2), slow, costs=EAGER)
    assert found.seconds == pytest.approx(both)
    assert found.critical[Bound.BANDWIDTH] == pytest.approx(both)


def test_what_a_unit_keeps_on_chip_moves_once() -> None:
    """16 bytes of the input, of which a part stays, and 16 of the result, in each of two tasks."""
    slow = replace(BARE, memory_bandwidth=32, unit_bandwidth=32, cache_bytes=0)
    for share, seconds in ((0.0, 2.0), (0.5, 1.75), (1.0, 1.5)):
        kept = {"k": KeptPart({"x": share}), "other": KeptPart({"x": 1.0})}
        found = simulate(moving(1), slow, costs=EAGER, kept=kept)
        assert found.seconds == pytest.approx(seconds)
    each = simulate(moving(2), slow, costs=EAGER, kept={"k": KeptPart({"x": 1.0})})
    assert each.seconds == pytest.approx(2)  # both units read theirs


def test_shared_memory_has_a_bandwidth_too() -> None:
    """The second task reads 16 bytes of its input from shared memory, 8 a second; meanwhile its
    result is stored."""
    slow = replace(BARE, memory_bandwidth=32, unit_bandwidth=32, cache_bytes=0)
    kept = {"k": KeptPart({"x": 1.0}, shared_bytes=16)}
    assert simulate(moving(1), slow, costs=EAGER, kept=kept).seconds == pytest.approx(1.5)
    found = simulate(moving(1), replace(slow, on_chip_bandwidth=8), costs=EAGER, kept=kept)
    assert found.seconds == pytest.approx(1 + 2)


def test_what_fits_into_the_cache_goes_at_its_rate() -> None:
    near = replace(BARE, memory_bandwidth=1, unit_bandwidth=64, cache_bandwidth=64)
    assert simulate(moving(1), near, costs=EAGER).seconds == pytest.approx(1)


def test_arithmetic_of_a_device_that_estimates_say_nothing_of() -> None:
    """A product of 8 x 8 with a vector: 16 operations for each of 8 results, 4 in each task."""
    matrix = replace(X, name="m", shape=(8, 8))
    value = call("mul", load(matrix, Var(0), Var(1)), load(X, Var(1)))
    product = map_kernel("k", OUT, value, 4, reduce=(8,), combine="sum")
    program = device(leaf(1, (Run("k", 0, 2),)), product, units=1, locals=())
    counted = replace(BARE, trusts_estimates=False, units=2, flops=2.0)
    assert simulate(program, counted, costs=EAGER).seconds == pytest.approx(128)


# ---- random programs -------------------------------------------------------------------------
@given(seeds)
@settings(max_examples=10)
def test_one_unit_takes_the_sum_of_its_tasks(seed: int) -> None:
    program = schedule(random_tree(seed), 1, EAGER)
    found = simulate(program, BARE, costs=EAGER)
    seconds = [program.kernels[s.kernel].seconds for s in found.segments[0] if s.is_task]
    most = [found.segments[0][n] for n in range(len(seconds))]
    assert found.seconds <= sum(seconds) + 1e-15  # the last task of a kernel may be a smaller one
    assert found.seconds == pytest.approx(sum(s.end - s.start for s in most))


@given(seeds, units)
@settings(max_examples=20)
def test_a_run_takes_the_longest_way_through_what_the_emulator_orders(
    seed: int, count: int
) -> None:
    """Tasks come as early as program order and the waits that the emulator sees let them, and not
    earlier."""
    program, observed = specimen(seed, count)
    found = simulate(program, BARE, observed, EAGER)
    assert found.seconds == pytest.approx(longest_way(found, observed.done), abs=1e-12)


@given(seeds, units)
@settings(max_examples=10)
def test_what_is_waited_for_ends_before(seed: int, count: int) -> None:
    program, observed = specimen(seed, count)
    slow = replace(CPU, wait_seconds=0.3 * US, memory_bandwidth=2e8, unit_bandwidth=1e8)
    slow = replace(slow, cache_bytes=0)
    found = simulate(program, slow, observed, EAGER)
    assert violations(found, observed.done, slow.wait_seconds) == 0
    assert sum(found.critical.values()) == pytest.approx(found.seconds)
    assert sum(s.seconds for s in found.stretches) <= found.seconds + 1e-12


def test_a_run_is_followed_as_far_as_it_fits() -> None:
    program = branching(is_known=False)

    def microseconds_of(*decisions: tuple[str, int, int]) -> float:
        return simulate(program, BARE, RecordedChoices(decisions), EAGER).seconds / US

    assert microseconds_of(("if go", 0, 0)) == pytest.approx(5)
    assert microseconds_of(("if go", 1, 0)) == pytest.approx(1)
    with pytest.raises(ScheduleError, match="it never reached if go"):
        microseconds_of()
    with pytest.raises(ScheduleError, match="it never reached if go"):
        microseconds_of(("while x", 1, 0))


def test_a_run_that_went_on_does_not_fit() -> None:
    recorded = RecordedChoices([("if go", 0, 0), ("if go", 1, 0)])
    simulate(branching(is_known=False), BARE, recorded, EAGER)
    with pytest.raises(ScheduleError, match="it reached if go more often"):
        recorded.require_end()
    RecordedChoices([("while x", 1, 0)]).require_end()  # a loop that this program does not have
    recorded = RecordedChoices(
        [("if go", 0, 0), ("if go", 0, 1)]
    )  # of two units, which decide alike
    simulate(branching(is_known=False), BARE, recorded, EAGER)
    recorded.require_end()


@pytest.mark.whole
def test_each_activation_of_a_recursion_is_followed() -> None:
    """That it is unrolled on the CPU changes nothing for a GPU."""

    def tasks(leaves: int) -> int:
        model = Model("summed", summed, tree(leaves))
        return simulate_model(model, "h200", followed=True).result.tasks

    few, more, most = map(tasks, (4, 8, 16))
    assert few < more
    assert most - more == 2 * (more - few)


def test_decisions_that_registers_make_are_compared() -> None:
    program = branching(is_known=True)
    found = simulate(program, BARE, RecordedChoices([("if go", 1, 0)]), EAGER)
    assert found.seconds / US == pytest.approx(1)
    with pytest.raises(ScheduleError, match="if go is decided differently here"):
        simulate(program, BARE, RecordedChoices([("if go", 0, 0)]), EAGER)


def converging(x: Tensor, w: Tensor) -> Tensor:
    out = []
    for t in range(x.shape[0]):
        h = x[t]
        while h.norm() > 0.5:
            h = torch.tanh(h @ w) * 0.8
        out.append(h)
    return torch.stack(out)


@pytest.mark.whole
def test_parallel_iterations_are_followed_and_share_the_units() -> None:
    """A run on two units is followed on others: each took its own iterations."""
    torch.manual_seed(0)
    model = Model("converging", converging, (torch.randn(64, 64) * 3, torch.randn(64, 64) / 10))
    options = Options(threads=2)

    def seconds(device: str, options: Options) -> float:
        return simulate_model(model, device, followed=True, options=options).result.seconds

    apart = [seconds(f"cpu:{units}", options) for units in (1, 2, 4)]
    assert apart[0] > 1.6 * apart[1] > 1.6 * 1.5 * apart[2]
    together = seconds(
        "cpu:2", replace(options, debug=replace(options.debug, skip=("parallel_loops",)))
    )
    assert together > 1.5 * apart[1]


@pytest.mark.whole
def test_a_simulator_that_ignores_waits_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulator, "wait", lambda self, unit, wait, now: False)
    wrong, shorter = 0, 0
    for seed in range(6):
        program, observed = specimen(seed, 3)
        found = simulate(program, BARE, observed, EAGER)
        wrong += violations(found, observed.done, 0.0)
        shorter += found.seconds < longest_way(found, observed.done) - 1e-12
    assert wrong > 10
    assert shorter > 0


@given(seeds, units, st.randoms(use_true_random=False))
@settings(max_examples=10)
def test_faster_tasks_make_no_run_longer(seed: int, count: int, rng) -> None:  # pyright: ignore
    program = schedule(random_tree(seed), count, EAGER)

    def faster(item: Kernel) -> Kernel:
        return replace(item, seconds=item.seconds * rng.uniform(0.2, 1))

    quick = replace(program, kernels=tuple(map(faster, program.kernels)))
    # Which arm is longer may change with the kernels, so both take the same way.
    choices = DefaultChoices(2, 2)
    before = simulate(program, BARE, _First(choices), EAGER).seconds
    assert simulate(quick, BARE, _First(choices), EAGER).seconds <= before + 1e-15


class _First(DefaultChoices):
    """Takes the first arm of every branch."""

    def __init__(self, like: DefaultChoices) -> None:
        super().__init__(like.loop_trips, like.depth)

    def arm(self, node: If[Schedule], seconds: object, ends: tuple[bool, bool]) -> int:
        return int(ends[0] and not ends[1])


@given(seeds, units)
@settings(max_examples=8)
def test_every_device_runs_every_program(seed: int, count: int) -> None:
    program = schedule(random_tree(seed), count, EAGER)
    for target in (*GPUS.values(), find_device("cpu:4")):
        found = simulate(program, target, DefaultChoices(2, 2), EAGER)
        assert sum(found.critical.values()) == pytest.approx(found.seconds)
        for unit in found.segments:
            assert all(a.end == b.start for a, b in pairwise(unit))


def test_a_device_that_is_not_known() -> None:
    with pytest.raises(ValueError, match="unknown device 'cpu:0'"):
        find_device("cpu:0")


def specimen(seed: int, count: int) -> tuple[DeviceProgram, Observed]:
    program = schedule(random_tree(seed), count, EAGER)
    return program, observe(program, seed)


def times(found: Simulation, done: list[Done]) -> list[tuple[float, float]]:
    """Start and end of each task that the emulator has run, in its order."""
    tasks = [iter([s for s in unit if s.is_task]) for unit in found.segments]
    matched = [(next(tasks[item.unit]), item) for item in done]
    assert all(found.names[segment.kernel] == item.kernel for segment, item in matched)
    assert all(next(rest, None) is None for rest in tasks)
    return [(segment.start, segment.end) for segment, _ in matched]


def violations(found: Simulation, done: list[Done], wait: float) -> int:
    """Pairs of tasks that stand in the wrong order."""
    when = times(found, done)
    pairs = ((a, b) for b in range(len(done)) for a in range(b) if done[a].is_before(done[b]))
    return sum(when[a][1] + wait > when[b][0] + 1e-12 for a, b in pairs)


def longest_way(found: Simulation, done: list[Done]) -> float:
    """The longest chain of tasks of which each comes before the next."""
    when = times(found, done)
    ends: list[float] = []
    for b, item in enumerate(done):
        before = (ends[a] for a in range(b) if done[a].unit == item.unit or done[a].is_before(item))
        ends.append(max(before, default=0.0) + when[b][1] - when[b][0])
    return max(ends, default=0.0)
