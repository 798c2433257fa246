"""Which units are waited for at the ends of leaves.

Units go through random runs, and publish at the ends of leaves only where that is said to be
awaited.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from stretto.device.analyses import Units, awaited_ends, ends_in_call, has_end, has_waits
from stretto.device.expr import Reg
from stretto.device.program import DeviceProgram, Run, Schedule, Signal, Wait
from stretto.device.tree import (
    Call,
    Conditional,
    Execution,
    For,
    If,
    Node,
    Seq,
    Tree,
    children,
    trip_count,
    walk,
)
from stretto.ir.types import DType
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.schedule.scheduler import schedule
from tests.sampling import every
from tests.schedule.programs import A, X, device, kernel, leaf
from tests.schedule.random_trees import random_tree

Awaited = Mapping[int, Units]
DEPTH = 3


@dataclass(frozen=True)
class ByChance(Execution[Schedule, int]):
    """A run in which chance decides; the state is the depth of calls."""

    program: DeviceProgram
    rng: random.Random

    def arms(self, node: If[Schedule], state: int) -> tuple[Node[Schedule]]:
        arms = [arm for arm in children(node) if state < DEPTH or not calls(arm)]
        return (self.rng.choice(arms),)

    def trips(self, node: For[Schedule], state: int) -> Iterator[None]:
        trips = trip_count(node)
        for _ in range(self.rng.randrange(4) if trips is None else trips):
            yield

    def holds(self, node: Conditional[Schedule], state: int, done: int) -> bool:
        return self.rng.randrange(4) > 0

    def call(self, node: Call[Schedule], state: int) -> Iterator[tuple[Node[Schedule], int]]:
        yield self.program.tree.function(node.function).body, state + 1


def run_of(program: DeviceProgram, node: Node[Schedule], rng: random.Random) -> Iterator[Schedule]:
    return (leaf.body for leaf, _ in ByChance(program, rng).leaves(node, 0))


def calls(node: Node[Schedule]) -> bool:
    return any(isinstance(item, Call) for item in walk(node))


def ends(run: list[Schedule], units: int, awaited: Awaited, closes: bool = False) -> bool:
    """Does each unit come to the end of the run, and has it published that? closes: units publish
    at the end of the program, too."""
    published = [0] * units

    def unit(number: int) -> Iterator[tuple[Wait, int]]:
        base = 0
        for body in run:
            for item in body.units[number]:
                if isinstance(item, Wait):
                    yield item, base
                elif isinstance(item, Signal):
                    published[number] = base + item.step
            if has_end(body):
                base += body.steps
                if number in awaited[id(body)]:
                    published[number] = base
        if closes:
            published[number] = base
        yield Wait(number, 0), base  # of which it is the only unit: what it has published counts

    def is_over(number: int, wait: Wait, base: int) -> bool:
        others = wait.others(number) or (number,)
        return all(published[other] >= base + wait.step for other in others)

    units_left = {number: unit(number) for number in range(units)}
    waiting = {number: next(steps) for number, steps in units_left.items()}
    while waiting:
        ready = [number for number, (wait, base) in waiting.items() if is_over(number, wait, base)]
        if not ready:
            return False
        for number in ready:
            following = next(units_left[number], None)
            if following is None:
                del waiting[number]
            else:
                waiting[number] = following
    return True


def runs(program: DeviceProgram, count: int) -> list[list[Schedule]]:
    body = program.tree.main.body
    return [[*run_of(program, body, random.Random(seed))] for seed in range(count)]


@pytest.mark.parametrize(("seed", "units"), every(7, range(20), (2, 5)))
def test_units_come_to_the_end(seed: int, units: int) -> None:
    program = schedule(random_tree(seed), units, CUDA_COSTS)
    awaited = awaited_ends(program)
    for run in runs(program, 20):
        assert ends(run, units, awaited, ends_in_call(program))


def test_what_is_awaited_is_needed() -> None:
    """Without half of it some run does not end; without the rest units wait for what comes next."""
    said = needed = 0
    for seed in range(8):
        program = schedule(random_tree(seed), 3, CUDA_COSTS)
        awaited = dict(awaited_ends(program))
        tried = runs(program, 60)
        for leaf_id, units in awaited.items():
            for unit in units:
                fewer = awaited | {leaf_id: units - {unit}}
                said += 1
                closes = ends_in_call(program)
                needed += not all(ends(run, 3, fewer, closes) for run in tried)
    assert said > 40
    assert needed > 0.4 * said


def test_a_leaf_that_nobody_waits_for() -> None:
    """Unit 0 goes on by itself; in the last leaf unit 1 waits for what it did in the second."""
    one = kernel("one", A, X)
    alone = leaf(1, (Run("one", 0, 2, 1),), ())
    last = leaf(1, (), (Wait(0, 0),))
    read = leaf(2, (Run("one", 0, 2, 1),), ())
    awaited = awaited_ends(device(Seq((alone, read, last)), one))
    assert awaited[id(alone.body)] == frozenset()
    assert awaited[id(read.body)] == {0}
    assert awaited[id(last.body)] == {0, 1}


def ending_in_call(seed: int, units: int) -> DeviceProgram | None:
    """A random program at whose end a function is called once more; None where it has none."""
    tree = random_tree(seed)
    found = [node for node in walk(tree.main.body) if isinstance(node, Call)]
    if not found:
        return None
    main = tree.main.with_body(Seq((tree.main.body, found[0])))
    others = [function for function in tree.functions if function.name != "main"]
    return schedule(Tree((main, *others), tree.externals), units, CUDA_COSTS)


def test_programs_that_end_in_a_call() -> None:
    """The ends of a function's leaves are not published for the end of the program: its units do
    that, once, behind the call."""
    tried = fewer = 0
    for seed in range(40):
        program = ending_in_call(seed, 3)
        if program is None or not has_waits(program):
            continue
        assert ends_in_call(program)
        awaited = awaited_ends(program)
        for run in runs(program, 20):
            assert ends(run, 3, awaited, closes=True)
            fewer += not ends(run, 3, awaited)
        tried += 1
    assert tried > 5
    assert fewer > 20


def test_a_leaf_behind_the_last_call_publishes_for_the_end() -> None:
    one = kernel("one", A, X)
    last = leaf(1, (Run("one", 0, 2, 1),), (Wait(0, 0),))
    program = device(Seq((If(Reg("if", DType.BOOL), last, Seq(())), last)), one)
    assert not ends_in_call(program)
    assert awaited_ends(program)[id(last.body)] == {0, 1}
