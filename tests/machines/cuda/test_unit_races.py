"""Races between the threads of one unit, which the interpreter finds in the text."""

from __future__ import annotations

import re
from textwrap import dedent

import pytest
import torch

from stretto.errors import RunError
from stretto.machines.cuda.interpreter import InterpretedKernel
from tests.machines.cuda.barriers import without
from tests.machines.cuda.triton_text import control_block, pointer, program

pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("greenlet", reason="greenlet is not installed")

PLENTY = 1 << 40
BARRIER = "tl.debug_barrier()"
LANES = "at = tl.arange(0, 256)"
FUNCTIONS = """
    @triton.jit(noinline=True)
    def twice(p, q):
        at = tl.arange(0, 256)
        tl.store(q + at, tl.load(p + at) * 2)

    @triton.jit
    def mirror(p, q):
        at = tl.arange(0, 256)
        tl.store(q + at, tl.load(p + 255 - at))
"""


def run(body: str, warps: int = 4) -> None:
    """`body` has two buffers of 256 numbers, p and q, and one of 8, counts; two units run it, each
    on memory of its own."""
    own = "p += unit * 256\nq += unit * 256\ncounts += unit * 8"
    names = pointer("p"), pointer("q"), pointer("counts", "i32")
    source = program(f"{own}\n{dedent(body)}", *names, units=2, functions=FUNCTIONS, warps=warps)
    numbers = torch.randn(512), torch.zeros(512), torch.ones(16, dtype=torch.int32)
    InterpretedKernel(source).launch([control_block(2), *numbers, PLENTY])


RACES = {
    "a block reads what another has written": f"""
        {LANES}
        tl.store(p + at, 1.0)
        {BARRIER}
        tl.store(q + at, tl.load(p + 255 - at))
    """,
    "the same lanes, but another statement": f"""
        {LANES}
        tl.store(p + at, 1.0)
        {BARRIER}
        tl.store(q + at, tl.load(p + at))
    """,
    "a block overwrites what another has written": f"""
        {LANES}
        tl.store(p + at, 1.0)
        {BARRIER}
        tl.store(p + at, 2.0)
    """,
    "a block overwrites what another has read": f"""
        {LANES}
        x = tl.load(p + at)
        {BARRIER}
        tl.store(p + 255 - at, x)
    """,
    "a value that does not depend on what is overwritten": f"""
        {LANES}
        x = tl.load(p + at)
        tl.store(q + at, x)
        {BARRIER}
        tl.store(p + at, 0.0)
    """,
    "an update of a block with fewer lanes than threads": f"""
        at = tl.arange(0, 64)
        x = tl.load(p + at)
        {BARRIER}
        tl.store(p + at, x + 1)
        tl.store(q + at, x)
    """,
    "a scalar reads what a block has written": f"""
        {LANES}
        tl.store(p + at, 1.0)
        {BARRIER}
        tl.store(q, tl.load(p + 3))
    """,
    "a block overwrites what a scalar has read": f"""
        {LANES}
        if tl.load(p + 3) < 100:
            {BARRIER}
            tl.store(p + at, 1.0)
    """,
    "a scalar overwrites what a scalar has read": f"""
        n = tl.load(counts)
        {BARRIER}
        tl.store(counts, n + 1)
    """,
    "a scalar reads what a scalar has written": f"""
        tl.store(counts, 5)
        {BARRIER}
        n = tl.load(counts)
    """,
    "words of another width": f"""
        tl.store(counts.to(tl.pointer_type(tl.int8)) + tl.arange(0, 8), 1)
        {BARRIER}
        n = tl.load(counts + 1)
    """,
    "an atomic after a read": f"""
        n = tl.load(counts)
        {BARRIER}
        tl.atomic_add(counts, 1)
    """,
    "a read after an atomic": f"""
        tl.atomic_add(counts + tl.arange(0, 8), 1)
        {BARRIER}
        n = tl.load(counts + 2)
    """,
    "two tasks of kernels": f"""
        twice(p, q)
        {BARRIER}
        mirror(q, p)
    """,
    "across iterations": f"""
        for turn in range(3):
            {BARRIER}
            twice(p, q)
            {BARRIER}
            twice(q, p)
    """,
    "a loop's condition": f"""
        {LANES}
        n = tl.load(counts)
        while n < 4:
            {BARRIER}
            tl.store(counts + tl.arange(0, 8), n + 1)
            {BARRIER}
            n = tl.load(counts)
    """,
    "in a branch": f"""
        {LANES}
        if unit == 1:
            tl.store(p + at, 1.0)
        {BARRIER}
        x = tl.load(p + 255 - at)
    """,
    "behind a wait": f"""
        {LANES}
        ok = wait(control, unit, 0, 2, base, polls, ok, 2)
        tl.store(p + at, 1.0)
        {BARRIER}
        x = tl.load(p + 255 - at)
    """,
}


@pytest.mark.parametrize("name", RACES)
def test_each_barrier_is_needed(name: str) -> None:
    body = RACES[name]
    run(body)
    parts = body.split(BARRIER)
    for place in range(1, len(parts)):
        mutant = BARRIER.join(parts[:place]) + "pass" + BARRIER.join(parts[place:])
        with pytest.raises(RunError, match="with no barrier of the block in between"):
            run(mutant)


SAFE = {
    "reads": f"{LANES}\nx = tl.load(p + at)\ny = tl.load(p + 255 - at)",
    "other elements": f"""
        {LANES}
        x = tl.load(p + at, mask=at < 128)
        tl.store(p + at, x, mask=at > 127)
    """,
    "an update of each lane": f"{LANES}\nx = tl.load(p + at)\ny = x * 2\ntl.store(p + at, y + 1)",
    "an update in one statement": "tl.store(counts, tl.load(counts) + 1)",
    "one statement that stores again": f"""
        {LANES}
        for turn in range(3):
            tl.store(q + at, turn * 1.0)
    """,
    "atomics": "tl.atomic_add(counts, 1)\ntl.atomic_add(counts + tl.arange(0, 8), 1)",
    "a signal": f"""
        {LANES}
        tl.store(p + at, 1.0)
        signal(control, unit, base + 1)
        x = tl.load(p + 255 - at)
    """,
    "a wait": f"""
        {LANES}
        tl.store(p + at, 1.0)
        ok = wait(control, unit, 0, 2, base, polls, ok, 2)
        x = tl.load(p + 255 - at)
    """,
}


@pytest.mark.parametrize("name", SAFE)
def test_what_one_thread_does_is_no_race(name: str) -> None:
    run(SAFE[name])


def test_an_update_wants_a_lane_for_every_thread() -> None:
    body = "at = tl.arange(0, 128)\nx = tl.load(p + at)\ntl.store(p + at, x * 2)"
    run(body, warps=4)
    with pytest.raises(RunError, match="written here, and was read by the same unit"):
        run(body, warps=8)


def test_an_update_of_other_lanes_is_a_race() -> None:
    body = f"{LANES}\nx = tl.load(p + at)\ntl.store(p + (at + 1) % 256, x)"
    with pytest.raises(RunError, match="was read by the same unit"):
        run(body)


def test_the_check_can_be_left_out() -> None:
    source = program("n = tl.load(counts)\ntl.store(counts, n + 1)", pointer("counts", "i32"))
    counts = torch.ones(1, dtype=torch.int32)
    InterpretedKernel(source, races=False).launch([control_block(1), counts, PLENTY])
    assert counts.item() == 2
    with pytest.raises(RunError, match="byte 0 of counts is written here"):
        InterpretedKernel(source).launch([control_block(1), counts, PLENTY])


def test_the_error_names_both_lines_and_the_buffer() -> None:
    with pytest.raises(RunError) as caught:
        run("mirror(p, q)\ntwice(q, p)")
    expected = (
        r"in twice: unit \d: byte \d+ of q is read here, and was written by the same unit with no "
        r"barrier of the block in between, maybe by another thread, at line \d+ in mirror: "
        r"tl\.store\(q \+ at, tl\.load\(p \+ 255 - at\)\)\n"
        r".*tl\.store\(q \+ at, tl\.load\(p \+ at\) \* 2\)"
    )
    assert re.search(expected, str(caught.value), re.DOTALL), str(caught.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("signal", "publishes its progress, with no barrier of the block since memory was written"),
        ("looked", "is written after a wait, with no barrier of the block in between"),
    ],
)
def test_signals_and_waits_need_theirs(function: str, message: str) -> None:
    body = f"""
        {LANES}
        tl.store(p + at, 1.0)
        signal(control, unit, base + 1)
        ok = wait(control, unit, 0, 1, base + 1, polls, ok, 1)
        tl.store(q + at, 2.0)
        signal(control, unit, base + 2)
    """
    source = program(body, pointer("p"), pointer("q"))
    arguments = [control_block(1), torch.zeros(256), torch.zeros(256), PLENTY]
    InterpretedKernel(source).launch(arguments)
    start = source.text.index(f"def {function}(")
    # The last one: where there are several, each of the others protects something else.
    end = source.text.index("@triton.jit", start)
    place = source.text.rindex(BARRIER, start, end)
    mutant = without(source, source.text[:place].count("\n"))
    with pytest.raises(RunError, match=message):
        InterpretedKernel(mutant).launch([control_block(1), *arguments[1:]])
