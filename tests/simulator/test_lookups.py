"""What the numbers cost that each unit loads for itself."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from stretto.device.expr import Access, Apply, Buffer, Const, Index, Load, Position, Reg
from stretto.device.program import DeviceProgram, Run, Schedule
from stretto.device.tree import Check, CheckCode, Leaf, Let
from stretto.ir.types import DType
from stretto.simulator.devices import CPU
from stretto.simulator.simulate import simulate
from tests.schedule.programs import A, X, device, kernel, leaf

US = 1e-6
SLOW = replace(
    CPU,
    memory_bandwidth=inf,
    unit_bandwidth=inf,
    start_seconds=0,
    wait_seconds=0,
    wake_seconds=0,
    latency_seconds=1 * US,
)
"""Loads take a microsecond, and kernels what they estimate."""
NUMBERS = Buffer("numbers", DType.I64, (16,), "input", 2)
ONE, TWO, THREE, MADE = (Reg(name) for name in ("one", "two", "three", "made"))


def microseconds(program: DeviceProgram) -> float:
    return simulate(program, SLOW).seconds / US


def latencies(*statements: Let | Check) -> float:
    """The latencies that a unit spends on these statements."""
    return microseconds(device(Leaf(Schedule((statements,), 1)), units=1))


def looked_up(name: str, index: Reg | int = 0) -> Let:
    return Let(Reg(name), Load(Access(NUMBERS, (16,), (Index.of(index),))))


def test_loads_that_need_nothing_of_each_other_take_one_latency() -> None:
    assert latencies(looked_up("one")) == pytest.approx(1)
    assert latencies(looked_up("one"), looked_up("two"), looked_up("three")) == pytest.approx(1)
    assert latencies() == 0


def test_a_load_at_a_position_that_was_loaded_takes_another() -> None:
    chain = looked_up("one"), looked_up("two", ONE), looked_up("three", TWO)
    assert latencies(*chain) == pytest.approx(3)
    beside = looked_up("one"), looked_up("two"), looked_up("three", ONE)
    assert latencies(*beside) == pytest.approx(2)
    made = Let(MADE, Position(Index.of(ONE) + 1))
    assert latencies(looked_up("one"), made, looked_up("two", MADE)) == pytest.approx(2)


def test_a_check_of_what_was_loaded_waits_for_it() -> None:
    holds = Apply("ge", (Position(Index.of(ONE)), Const(0, DType.I64)), DType.BOOL)
    check = Check(holds, CheckCode.INDEX)
    assert latencies(looked_up("one"), check, looked_up("two")) == pytest.approx(2)
    assert latencies(looked_up("two"), check, looked_up("three")) == pytest.approx(1)


def test_a_task_between_loads_ends_what_is_under_way() -> None:
    """A task has a latency, too, where it begins."""
    run = Run("one", 0)

    def took(*before: Let) -> float:
        rows = [leaf(1, (*before, run, looked_up("two"))), leaf(1, (*before, run))]
        found = [microseconds(device(body, kernel("one", A, X), units=1)) for body in rows]
        return found[0] - found[1]

    assert took() == pytest.approx(1)
    assert took(looked_up("one")) == pytest.approx(1)
