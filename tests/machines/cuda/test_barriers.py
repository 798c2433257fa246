"""Barriers of the block that programs are printed with: enough of them, and none too many."""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.device.evaluate import task_count
from stretto.device.expr import Access, Buffer, Const, Index, Position, Reg, Var
from stretto.device.operator import Combine, Kernel, Operator, Span, Stage, TileDim
from stretto.device.program import Item, Run, Schedule, Signal, Wait
from stretto.device.tree import Check, CheckCode, For, If, Leaf, Let, Node, Seq
from stretto.errors import RunError
from stretto.machines.cuda.device import emulated_cuda_executable
from stretto.machines.cuda.interpreter import InterpretedKernel
from stretto.machines.cuda.printer.kernel import TritonKernel, print_kernel
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.cuda.printer.triton_module import print_program
from stretto.options import Debug, Options
from tests.e2e.language import ROWS
from tests.e2e.machines import CUDA, spread
from tests.e2e.test_language import FUNCTIONS
from tests.e2e.test_zoo import made
from tests.machines.cuda.barriers import BARRIER, Removed, barriers, removals, without
from tests.machines.cuda.missing_barriers import Printed
from tests.machines.cuda.test_triton_module import PROGRAMS, X
from tests.machines.cuda.triton_runner import source_of
from tests.machines.cuda.triton_text import control_block
from tests.sampling import sampled
from tests.schedule.programs import NEXT, NOW, OUT, A, device, kernel, leaf
from tests.schedule.programs import X as INPUT
from tests.schedule.trees import F32, buffer, condition, load, number

pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("greenlet", reason="greenlet is not installed")

N, T, GO, P, Q = (Reg(name) for name in ("n", "t", "go", "p", "q"))
KERNELS = (
    kernel("first", A, INPUT),
    kernel("again", A, INPUT, mirrored=False),
    kernel("end", OUT, A),
    kernel("start", NOW, INPUT),
    kernel("step", NEXT, NOW),
    kernel("back", NOW, NEXT),
)
FIRST, AGAIN, END, START, STEP, BACK = (Run(k.name, 0, 2) for k in KERNELS)
BELOW = condition("lt", load(A, 0), Const(1e9, F32))
LOADS = Let(GO, BELOW)


def one(*items: Item, steps: int = 1) -> Leaf[Schedule]:
    return leaf(steps, items)


def looped(*items: Item) -> Node[Schedule]:
    """Iterations of a unit by itself, without a signal behind each."""
    return For(N, number(0), number(2), 1, one(*items, steps=0), parallel=True)


ALONE = one(FIRST, steps=0)
BOUND = For(N, number(0), load(A, 0), 1, one(AGAIN, steps=0))


def part(name: str, out: Buffer, source: Buffer, first: int | Reg, count: int = 4) -> Kernel:
    """Writes `count` elements from `first` on."""
    index = Index.of(first) + Index.of(Var(0))
    value = load(source, Index.of(Var(0)))
    operator = Operator(name, (count,), (), Combine.NONE, value, Access(out, out.shape, (index,)))
    return Kernel(name, (TileDim(count, count),), (Stage(operator, (Span(count, grid=0),)),))


def two_stages(name: str, out: Buffer, between: Buffer, source: Buffer) -> Kernel:
    """The second stage reads what other threads have stored in the first."""
    stages = (one.stages[0] for one in (kernel("", between, source), kernel("", out, between)))
    return Kernel(name, (TileDim(8, 8),), tuple(stages))


def overwriting(name: str, out: Buffer, source: Buffer) -> Kernel:
    """The second stage overwrites, in place, what other threads have read in the first."""
    first, second = kernel("", out, source), kernel("", source, source, mirrored=False)
    return Kernel(name, (TileDim(8, 8),), (*first.stages, *second.stages))


PARTS = (
    part("low", A, INPUT, 0),
    part("high", A, INPUT, 4),
    part("at_t", A, INPUT, T),
    part("at_p", A, INPUT, P),
    part("at_q", A, INPUT, Q),
    part("item_0", A, INPUT, 0, 1),
    part("item_p", A, INPUT, P, 1),
    two_stages("by_now", A, NOW, INPUT),
    two_stages("by_next", NOW, NEXT, INPUT),
    overwriting("in_place", NOW, A),
)
LOW, HIGH, AT_T, AT_P, AT_Q, ITEM_0, ITEM_P, BY_NOW, BY_NEXT, IN_PLACE = (
    Run(k.name, 0) for k in PARTS
)


def steps(start: int, stop: int, step: int, *items: Item) -> Node[Schedule]:
    return For(T, number(start), number(stop), step, one(*items, steps=0))


def let(register: Reg, base: Reg | int, more: int = 0) -> Let:
    return Let(register, Position(Index.of(base) + more))


SMALL = Let(GO, condition("lt", load(INPUT, 0), Const(1e9, F32)))
LARGE = Let(GO, condition("gt", load(INPUT, 0), Const(1e9, F32)))
ARMS = If(GO, one(ITEM_0, let(P, 1), steps=0), one(let(P, 0), steps=0))
BY_HAND: dict[str, tuple[Node[Schedule], int]] = {
    "a load, and a task that overwrites": (one(FIRST, LOADS, AGAIN), 2),
    "a check, and a task that overwrites": (
        one(FIRST, Check(BELOW, CheckCode.ASSERTION), AGAIN),
        2,
    ),
    "a bound of a loop, and a task that overwrites": (
        Seq((one(FIRST), For(N, number(0), load(A, 0), 1, one(AGAIN, steps=0), parallel=True))),
        2,
    ),
    "a bound that a task has written": (
        For(T, number(0), number(2), 1, Seq((ALONE, BOUND)), parallel=True),
        3,
    ),
    "a load between tasks of other memory": (one(FIRST, LOADS, START, STEP), 2),
    "two readers of what a task wrote": (one(FIRST, LOADS, END), 1),
    "nothing in common": (one(FIRST, START), 0),
    "across iterations": (looped(START, STEP), 2),
    "across iterations, and within": (looped(FIRST, LOADS, AGAIN), 3),
    "behind a branch": (
        Seq((one(FIRST, LOADS), If(GO, looped(START, STEP), Seq(())), one(BACK))),
        4,
    ),
    "other elements": (one(LOW, HIGH), 0),
    "the same elements": (one(LOW, HIGH, LOW), 1),
    "other elements in each iteration": (steps(0, 5, 4, AT_T), 0),
    "backwards": (steps(4, -1, -4, AT_T), 0),
    "elements that overlap": (steps(0, 4, 2, AT_T), 1),
    "elements that are read before they are written": (steps(0, 5, 4, AT_T, END), 2),
    "a position that follows from another one": (
        one(let(P, 0), AT_P, let(Q, P, 4), AT_Q, let(P, Q, -4), AT_P),
        1,
    ),
    "a position that is loaded": (one(let(P, 0), AT_P, Let(P, load(INPUT, 0)), AT_P), 1),
    "positions of two ways": (Seq((one(SMALL), ARMS, one(ITEM_P))), 0),
    "a position that both ways may have": (Seq((one(SMALL), ARMS, one(ITEM_P, ITEM_0))), 1),
    "what a kernel touches before its barrier": (one(FIRST, BY_NOW), 1),
    "what a kernel touches behind its barrier": (one(BY_NOW, FIRST), 2),
    "a barrier inside of a kernel": (one(FIRST, BY_NEXT, AGAIN), 1),
    "a stage that overwrites what an earlier one has read": (one(IN_PLACE), 1),
    "a loop that has iterations": (Seq((one(FIRST), steps(0, 2, 1, BY_NEXT), one(AGAIN))), 2),
    "a branch that may not be taken": (
        Seq((one(FIRST, LARGE), If(GO, one(BY_NEXT, steps=0), Seq(())), one(AGAIN))),
        2,
    ),
    "ends of leaves that nobody waits for": (Seq((one(FIRST), one(LOADS, END), one(AGAIN))), 2),
}
ONE_WAITS = device(
    leaf(
        2,
        (Run("first", 0, 1), Wait(1, 1), Run("end", 0, 2)),
        (Run("first", 1, 1), Signal(1)),
    ),
    *KERNELS,
    locals=(A, NOW, NEXT),
)


def launch(source: TritonSource) -> None:
    arena = torch.zeros(1024, dtype=torch.int8)
    values: dict[str, Tensor | int] = {
        "control": control_block(source.units),
        "polls": 1 << 40,
        "tables": torch.tensor([*source.tables, 0], dtype=torch.int32),
        "arena": arena.view(torch.float32),
    }
    buffers = [torch.full((8,), 2.0), torch.zeros(8)]
    arguments = [
        buffers[parameter.place] if parameter.kind == "buffer" else values[parameter.kind]
        for parameter in source.parameters
    ]
    InterpretedKernel(source).launch(arguments)


@pytest.mark.parametrize("name", BY_HAND)
def test_barriers_where_threads_may_meet(name: str) -> None:
    body, count = BY_HAND[name]
    program = device(body, *KERNELS, *PARTS, units=1, locals=(A, NOW, NEXT))
    source = print_program(program)
    assert len(barriers(source)) == count, source.text[-3000:]
    launch(source)
    for removed in removals((source,), lambda sources: launch(sources[0])):
        assert removed.is_noticed or not removed.is_reached, (removed, source.text[-3000:])


@pytest.mark.parametrize("trips", [1, 2])
def test_what_lies_where_a_traded_buffer_may_lie(trips: int) -> None:
    """Behind a loop `now` may be where `next` was, and another buffer may get that place."""
    other = buffer("other", 8)
    added = kernel("now", OUT, NOW), kernel("fill", other, INPUT), kernel("other", OUT, other)
    loop = For(T, number(0), number(trips), 1, one(STEP, steps=0), ((NOW, NEXT),))
    end = one(*(Run(each.name, 0, 2) for each in added))
    body = Seq((one(START), loop, end))
    locals = (NOW, NEXT, other)
    program = device(body, *KERNELS, *added, units=1, locals=locals, offsets={"other": 64})
    source = print_program(program)
    launch(source)
    assert len(barriers(source)) == 4, source.text[-3000:]
    _, before_fill, _, _ = removals((source,), lambda made: launch(made[0]))
    assert before_fill.is_noticed is (trips == 1), before_fill


def test_a_unit_that_waits_needs_no_other_barrier() -> None:
    """The other unit has no task behind it."""
    source = print_program(ONE_WAITS)
    assert barriers(source) == []
    launch(source)


# ---- every barrier of a program is needed --------------------------------------------------------
Program = tuple[Callable[..., Any], tuple[tuple[Any, ...], ...]]
"""A function, and the arguments of some calls."""
OTHERS = ["recursion_in_loops_in_recursion_on_a_list", "recursion_in_loops_in_recursion"]
"""Minutes each."""


def zoo(name: str) -> Program:
    model, inputs, _ = made(name)
    calls = [inputs]
    if name == "rae":  # a tree whose inner nodes are the others' left children
        leaves, left, right, *others = inputs
        calls.append((leaves, right, left, *others))
    return model, tuple(calls)


ENDS_WITH_CONTINUE = ROWS.abs() * 0.01
ENDS_WITH_CONTINUE[-1] = -1.0
MORE_CALLS = {
    "range_with_continue_and_break": ((ENDS_WITH_CONTINUE,),),
}
"""Calls that go other ways than those of `language.py`."""
MAKERS: dict[str, Callable[[], Program]] = {
    **{name: lambda name=name: (PROGRAMS[name], ((X,), (-X,))) for name in PROGRAMS},
    **{name: lambda name=name: zoo(name) for name in ("lstm", "attention", "seq2seq", "rae")},
    **{
        name: lambda name=name: (
            FUNCTIONS[name][0],
            (*FUNCTIONS[name][1], *MORE_CALLS.get(name, ())),
        )
        for name in FUNCTIONS
        if name not in OTHERS
    },
}
SUPERFLUOUS: dict[str, int] = {
    "rae": 1,
    "tree": 1,
    "membership_in_a_tensor": 1,
    "return_from_nested_loops": 1,
}
"""How many barriers of a program, at most, its runs come to although no thread waits there for what
another one does. Such a barrier is needed on ways that no call of the test takes."""
APART: dict[str, int] = {"rae": 1, "tree": 1}
"""The same for kernels that run alone: one that computes a level of a recursion reads rows before
those that it writes, in one tensor; where barriers are placed that is not known."""
SAMPLE = [("branches", 1), ("recursion", 3), ("lstm", 3), ("attention", 1), ("seq2seq", 1)]
CASES = [(name, units) for name in MAKERS for units in (1, 3)]


def compiled_program(name: str, units: int) -> tuple[Any, tuple[tuple[Any, ...], ...], Options]:
    """A compiled program of one signature, the arguments of its calls, and its options."""
    function, calls = MAKERS[name]()
    options = Options(units=units, debug=Debug(unroll=0, seed=units))
    compiled: Any = stretto.compile(function, backend=CUDA, options=options)
    with spread(), torch.no_grad():
        compiled(*copy.deepcopy(calls[0]))
    assert len(compiled.signatures) == 1
    return compiled, calls, options


def removed_from(name: str, units: int) -> list[Removed]:
    """What becomes of a program without each of its barriers."""
    compiled, calls, options = compiled_program(name, units)
    (entry,) = compiled.signatures
    product = entry.stages.product

    def run(sources: tuple[TritonSource, ...]) -> None:
        interface = entry.stages.lowered.interface
        entry.executable = emulated_cuda_executable(product.plan, sources, interface, options)
        with torch.no_grad():
            for arguments in calls:
                compiled(*copy.deepcopy(arguments))

    return list(removals(product.sources, run))


@pytest.mark.parametrize(("name", "units"), sampled(CASES, SAMPLE))
def test_each_barrier_is_needed_on_some_way(name: str, units: int) -> None:
    """Whether a run takes that way or not."""
    (entry,) = compiled_program(name, units)[0].signatures
    for _, launch in entry.stages.product.plan.launches:
        printed = Printed(launch.program)
        assert printed.missing(printed.functions) == []
        superfluous = [at for at, changed in printed.removals() if not printed.missing(changed)]
        assert superfluous == []


def _different(text: TritonKernel) -> dict[str, int]:
    """Small numbers for the registers of a kernel, all different, as an item that is appended is
    another one than those that are read."""
    return {reg.name: 2 + place for place, reg in enumerate(text.regs)}


def run_alone(one: Kernel, source: TritonSource) -> None:
    """The tasks of a kernel, on numbers of which positions and lengths are in range."""
    text = print_kernel(one)
    buffers = [
        torch.zeros(
            prod(dim if isinstance(dim, int) else 64 for dim in b.shape), dtype=b.dtype.torch
        )
        for b in text.buffers
    ]
    flat = [b.view(torch.int8) if b.dtype is torch.bool else b for b in buffers]
    InterpretedKernel(source).launch([*flat, *_different(text).values(), control_block(1)])


@pytest.mark.parametrize(("name", "units"), sampled(CASES, SAMPLE))
def test_each_barrier_of_a_kernel_is_needed(name: str, units: int) -> None:
    """Whether a run comes to the kernel or not."""
    (entry,) = compiled_program(name, units)[0].signatures
    launches = [launch for _, launch in entry.stages.product.plan.launches]
    unnoticed = 0
    for one in (one for launch in launches for one in launch.program.kernels):
        source = source_of(one, task_count(one, _different(print_kernel(one))))
        run_alone(one, source)
        lines = [n for n, line in enumerate(source.text.split("\n")) if line.strip() == BARRIER]
        for line in lines:
            try:
                run_alone(one, without(source, line))
                unnoticed += 1
            except RunError as error:
                assert "no barrier of the block" in str(error)
    assert unnoticed <= APART.get(name, 0)


@pytest.mark.parametrize(("name", "units"), sampled(CASES, SAMPLE))
def test_the_check_notices_each_barrier_that_is_missing(name: str, units: int) -> None:
    removed = removed_from(name, units)
    unnoticed = [each for each in removed if each.is_reached and not each.is_noticed]
    print(f"{name}, {units} units: {len(removed)} barriers, {len(unnoticed)} not noticed")
    for each in unnoticed:
        print(f"  line {each.line + 1}, {each.place}")
    assert len(unnoticed) <= SUPERFLUOUS.get(name, 0)
