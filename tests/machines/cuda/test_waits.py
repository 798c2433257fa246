"""Waits and signals of printed Triton programs, under random orders of the units."""

import re
from dataclasses import replace

import pytest
import torch

from stretto.machines.cuda.interpreter import InterpretedKernel
from stretto.machines.cuda.printer.function import fits_word, one_word
from stretto.machines.cuda.printer.source import DETAIL, ERROR, TritonSource
from stretto.runtime.results import DeadlockError, Status
from tests.machines.cuda.triton_text import control_block, number, pointer, program, progress

pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("greenlet", reason="greenlet is not installed")

PLENTY = 1 << 40

# Unit u adds 1 to the list in turns u, u + units, ...: each turn waits for the one before.
RING = """
    lanes = tl.arange(0, 32)
    last = (unit + units - 1) % units
    turn = tl.cast(0, tl.int64)
    while ok & (turn < 3):
        before = base + turn + (unit != 0).to(tl.int64)
        ok = wait(control, unit, last, 1, before, polls, ok, 1)
        if ok:
            seen = tl.load(x + lanes)
            tl.store(seen_by + unit * 3 + turn, tl.max(seen, axis=0))
            tl.debug_barrier()
            tl.store(x + lanes, seen + 1)
        turn += 1
        signal(control, unit, base + turn)
"""


def ring(units: int) -> TritonSource:
    body = RING.replace("units", str(units))
    return program(body, pointer("x"), pointer("seen_by"), units=units)


@pytest.mark.parametrize("units", [1, 2, 5, 16])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_turn_waits_for_the_one_before(units: int, seed: int) -> None:
    kernel = InterpretedKernel(ring(units), seed)
    control, x, seen = control_block(units), torch.zeros(32), torch.zeros(units * 3)
    for launch in range(2):
        kernel.launch([control, x, seen, PLENTY])
        first = launch * 3 * units
        expected = torch.arange(first, first + 3 * units).view(3, units).T.flatten()
        assert torch.equal(seen, expected.float())
        assert torch.equal(x, torch.full((32,), first + 3.0 * units))
        assert progress(control) == [3 * (launch + 1)] * units
    assert control[ERROR] == 0


@pytest.mark.parametrize("units", [2, 5, 16])
def test_a_wait_for_all_units_is_a_barrier(units: int) -> None:
    block = 1 << (units - 1).bit_length()
    body = f"""
        tl.store(x + unit, unit + 1)
        signal(control, unit, base + 1)
        ok = wait(control, unit, 0, {units}, base + 1, polls, ok, {block})
        lanes = tl.arange(0, 16)
        total = tl.sum(tl.load(x + lanes, mask=lanes < {units}, other=0), axis=0)
        tl.store(out + unit, total)
    """
    source = program(body, pointer("x", "i32"), pointer("out", "i32"), units=units)
    for seed in range(4):
        x, out = torch.zeros(16, dtype=torch.int32), torch.zeros(16, dtype=torch.int32)
        InterpretedKernel(source, seed).launch([control_block(units), x, out, PLENTY])
        assert out[:units].tolist() == [units * (units + 1) // 2] * units


def test_orders_differ_and_are_drawn_from_the_seed() -> None:
    body = """
        tl.store(order + tl.atomic_add(count, 1), unit)
        signal(control, unit, base + 1)
    """
    source = program(body, pointer("count", "i32"), pointer("order", "i32"), units=5)

    def order_of(seed: int) -> tuple[int, ...]:
        count, order = torch.zeros(1, dtype=torch.int32), torch.zeros(5, dtype=torch.int32)
        InterpretedKernel(source, seed).launch([control_block(5), count, order, PLENTY])
        return tuple(order.tolist())

    assert order_of(3) == order_of(3)
    assert len({order_of(seed) for seed in range(8)}) > 3


def test_a_missing_wait_shows_in_some_order() -> None:
    body = """
        if unit == 0:
            tl.store(x, 7)
            signal(control, unit, base + 1)
        else:
            tl.store(x + 1, tl.load(x))
    """
    source = program(body, pointer("x", "i32"), units=2)
    seen: set[int] = set()
    for seed in range(16):
        x = torch.zeros(2, dtype=torch.int32)
        InterpretedKernel(source, seed).launch([control_block(2), x, PLENTY])
        seen.add(int(x[1]))
    assert seen == {0, 7}


def test_deadlock_names_who_waits_for_whom() -> None:
    body = """
        signal(control, unit, base + unit)
        if unit < 2:
            ok = wait(control, unit, 1 - unit, 1, base + 5, polls, ok, 1)
        else:
            ok = wait(control, unit, 0, 2, base + 1, polls, ok, 2)
    """
    kernel = InterpretedKernel(program(body, units=3))
    expected = (
        "deadlock: unit 0 waits for unit 1 (at 1) to reach 5; "
        "unit 1 waits for unit 0 (at 0) to reach 5; "
        "unit 2 waits for unit 0 (at 0) to reach 1"
    )
    with pytest.raises(DeadlockError, match=f"^{re.escape(expected)}$"):
        kernel.launch([control_block(3), PLENTY])


def test_deadlock_tells_of_a_unit_that_has_ended() -> None:
    body = """
        if unit == 1:
            ok = wait(control, unit, 0, 1, base + 2, polls, ok, 1)
        signal(control, unit, base + 1)
    """
    kernel = InterpretedKernel(program(body, units=2))
    expected = "deadlock: unit 1 waits for unit 0 (at 1, ended) to reach 2"
    with pytest.raises(DeadlockError, match=f"^{re.escape(expected)}$"):
        kernel.launch([control_block(2), PLENTY])


def test_the_device_gives_up_by_itself() -> None:
    """With the emulator's switch taken out, a unit polls as it does on a device."""
    body = """
        if unit == 1:
            ok = wait(control, unit, 0, 1, base + 9, polls, ok, 1)
        tl.store(out + unit, ok.to(tl.int32))
    """
    source = program(body, pointer("out", "i32"), units=2)
    switch = "                pause(control, first, count, target)\n"
    assert switch in source.text
    text = source.text.replace(switch, "                left += 0\n")
    control, out = control_block(2), torch.full((2,), 5, dtype=torch.int32)
    InterpretedKernel(replace(source, text=text)).launch([control, out, 6])
    assert out[1] == 0
    assert (control[ERROR], control[DETAIL]) == (Status.STUCK, 9)


def test_a_failure_ends_every_wait() -> None:
    body = """
        if unit == 0:
            fail(control, 5, 77)
            fail(control, 6, 78)
        else:
            ok = wait(control, unit, 0, 1, base + 1, polls, ok, 1)
        ok = wait(control, unit, 0, 1, base + 1, polls, ok, 1)
        tl.store(out + unit, ok.to(tl.int32))
    """
    source = program(body, pointer("out", "i32"), units=5)
    for seed in range(4):
        control, out = control_block(5), torch.full((5,), 5, dtype=torch.int32)
        InterpretedKernel(source, seed).launch([control, out, PLENTY])
        assert out.tolist() == [0] * 5
        assert control[:2].tolist() == [5, 77]


def test_a_launch_sees_the_error_of_an_earlier_one() -> None:
    source = program("tl.store(out + unit, ok.to(tl.int32))", pointer("out", "i32"), units=2)
    control, out = control_block(2), torch.full((2,), 5, dtype=torch.int32)
    control[ERROR] = Status.INDEX
    InterpretedKernel(source).launch([control, out, PLENTY])
    assert out.tolist() == [0, 0]


def test_what_is_waited_for_may_be_known_only_at_run_time() -> None:
    body = """
        first = tl.cast(n, tl.int32)
        if unit == 0:
            ok = wait(control, unit, first, first + 1, base + n, polls, ok, 4)
            tl.store(out, ok.to(tl.int32))
        else:
            signal(control, unit, base + n)
    """
    source = program(body, number("n"), pointer("out", "i32"), units=3)
    out = torch.zeros(1, dtype=torch.int32)
    InterpretedKernel(source).launch([control_block(3), 1, out, PLENTY])
    assert out.item() == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_table_says_whom_each_unit_waits_for(seed: int) -> None:
    """Unit 0 waits for units 1, 2 and 4, unit 1 for 3, and the others for nobody."""
    body = """
        if unit > 1:
            tl.store(x + unit, 1.0)
        signal_by(control, unit, base + 1, 2, 4)
        ok = wait_for_each(control, unit, tables, 1, base, polls, ok, 8)
        if ok & (unit == 1):
            tl.store(x + 1, tl.load(x + 3) + 1)
        signal_by(control, unit, base + 2, 1, 1)
        ok = wait_for_each(control, unit, tables, 10, base, polls, ok, 8)
        if ok & (unit == 0):
            tl.store(x, tl.load(x + 1) + tl.load(x + 2) + tl.load(x + 4))
    """
    first = [7, 7, 10, 10, 10, 10, 3, 1, 1]  # where the rows of each unit begin, and the rows
    second = [16, 25, 25, 25, 25, 25, 1, 1, 2, 2, 1, 1, 4, 1, 1]
    tables = [-1, *first, *second]
    table = torch.tensor(tables, dtype=torch.int32)
    units = 5
    source = program(body, pointer("x"), pointer("tables", "i32"), units=units)
    control, x = control_block(units), torch.zeros(units)
    InterpretedKernel(source, seed).launch([control, x, table, PLENTY])
    assert x.tolist() == [4.0, 2.0, 1.0, 1.0, 1.0]
    assert progress(control) == [0, 2, 1, 1, 1] and control[ERROR] == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_word_says_whom_a_unit_waits_for(seed: int) -> None:
    """Unit 0 waits for units 1 to 3 at step 2, unit 1 for unit 3 at step 1, the others do not."""
    body = """
        row = tl.load(tables + unit)
        if unit > 1:
            tl.store(x + unit, 1.0)
        signal_by(control, unit, base + 2, 2, 3)
        ok = wait_by(control, unit, row * (unit == 1).to(tl.int32), base, polls, ok, 4)
        if ok & (unit == 1):
            tl.store(x + 1, tl.load(x + 3) + 1)
        signal_by(control, unit, base + 2, 1, 1)
        ok = wait_by(control, unit, row * (unit == 0).to(tl.int32), base, polls, ok, 4)
        if ok & (unit == 0):
            tl.store(x, tl.load(x + 1) + tl.load(x + 2) + tl.load(x + 3))
    """
    units = 4
    table = torch.tensor([one_word(1, 3, 2), one_word(3, 1, 1), 0, 0], dtype=torch.int32)
    source = program(body, pointer("x"), pointer("tables", "i32"), units=units)
    control, x = control_block(units), torch.zeros(units)
    InterpretedKernel(source, seed).launch([control, x, table, PLENTY])
    assert x.tolist() == [4.0, 2.0, 1.0, 1.0]
    assert progress(control) == [0, 2, 2, 2] and control[ERROR] == 0


def test_a_word_names_the_first_unit_the_number_of_units_and_the_step() -> None:
    """A wait that never ends names all three, in whatever order the units run."""
    body = """
        signal(control, unit, base + 1)
        ok = wait_by(control, unit, tl.load(tables + unit), base + 4, polls, ok, 4)
    """
    table = torch.tensor([one_word(1, 2, 3), 0, 0, 0], dtype=torch.int32)
    kernel = InterpretedKernel(program(body, pointer("tables", "i32"), units=4))
    expected = "deadlock: unit 0 waits for unit 1 (at 1, ended), unit 2 (at 1, ended) to reach 7"
    with pytest.raises(DeadlockError, match=f"^{re.escape(expected)}$"):
        kernel.launch([control_block(4), table, PLENTY])


def test_what_fits_into_the_word_of_a_wait() -> None:
    assert fits_word((1023, 1023, 2047)) and one_word(1023, 1023, 2047) == (1 << 31) - 1
    assert not fits_word((1024, 1, 0)) and not fits_word((0, 1024, 0))
    assert not fits_word((0, 1, 2048))
