"""Barriers of the block that programs are printed with: enough of them, and none too many."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.device.expr import Const, Reg
from stretto.device.program import Item, Run, Schedule, Signal, Wait
from stretto.device.tree import Check, CheckCode, For, If, Leaf, Let, Node, Seq
from stretto.machines.cuda.device import emulated_cuda_executable
from stretto.machines.cuda.interpreter import InterpretedKernel
from stretto.machines.cuda.printer.program import print_program
from stretto.machines.cuda.printer.source import TritonSource
from stretto.options import Options
from tests.e2e.machines import CUDA, spread
from tests.e2e.test_language import FUNCTIONS
from tests.e2e.test_zoo import made
from tests.machines.cuda.barriers import Removed, barriers, removals
from tests.machines.cuda.test_program import PROGRAMS, X
from tests.machines.cuda.triton_text import control_block
from tests.sampling import sampled
from tests.schedule.programs import NEXT, NOW, OUT, A, device, kernel, leaf
from tests.schedule.programs import X as INPUT
from tests.schedule.trees import F32, condition, load, number

pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("greenlet", reason="greenlet is not installed")

N, T, GO = Reg("n"), Reg("t"), Reg("go")
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
    program = device(body, *KERNELS, units=1, locals=(A, NOW, NEXT))
    source = print_program(program)
    assert len(barriers(source)) == count, source.text[-3000:]
    launch(source)
    for removed in removals((source,), lambda sources: launch(sources[0])):
        assert removed.is_noticed, (removed, source.text[-3000:])


def test_a_unit_that_waits_needs_no_other_barrier() -> None:
    """The other unit has no task behind it."""
    source = print_program(ONE_WAITS)
    assert barriers(source) == []
    launch(source)


# ---- every barrier of a program is needed --------------------------------------------------------
Program = tuple[Callable[..., Any], tuple[Any, ...]]
OTHERS = ["recursion_in_loops_in_recursion_on_a_list", "recursion_in_loops_in_recursion"]
"""Minutes each."""


def zoo(name: str) -> Program:
    model, inputs, _ = made(name)
    return model, inputs


MAKERS: dict[str, Callable[[], Program]] = {
    **{name: lambda name=name: (PROGRAMS[name], (X,)) for name in PROGRAMS},
    **{name: lambda name=name: zoo(name) for name in ("lstm", "attention", "seq2seq", "rae")},
    **{
        name: lambda name=name: (FUNCTIONS[name][0], FUNCTIONS[name][1][0])
        for name in FUNCTIONS
        if name not in OTHERS
    },
}
SUPERFLUOUS = {
    "while_with_a_flag": 1,
    "while_true": 1,
    "range_with_continue_and_break": 1,
    "rae": 8,
    "list_that_grows_in_one_arm": 2,
    "on_a_number": 1,
    "several": 4,
    "loops_inside": 2,
    "in_a_loop_in_a_branch": 2,
    "writing_in_place": 2,
    "appended_before_and_after": 3,
    "tree": 6,
    "read_and_returned": 4,
    "a_path_back_and_forth": 4,
    "a_list_between_two_functions": 3,
    "a_list_of_the_caller": 2,
    "mutual": 2,
    "loops_in_branches_in_loops": 1,
    "torch_operators_among_python": 1,
    "loops": 4,
    "conditional_expressions": 2,
    "list_of_dynamic_length": 1,
    "stack_of_dynamic_length": 1,
    "list_of_numbers": 1,
    "modules": 3,
    "in_place_writes": 2,
}
"""How many barriers of a program, at most, its run comes to although no thread waits there for what
another one does. The printer knows buffers, but not which of their elements two kernels touch
(items of a list, slices), nor which buffers a recursive call is given twice, nor that there is a
barrier inside of a kernel; and some are needed on other ways through loops and branches."""
SAMPLE = [("branches", 1), ("recursion", 3), ("lstm", 3), ("attention", 1), ("seq2seq", 1)]
CASES = [(name, units) for name in MAKERS for units in (1, 3)]


def removed_from(name: str, units: int) -> list[Removed]:
    """What becomes of a program without each of its barriers."""
    function, arguments = MAKERS[name]()
    options = Options(units=units, unroll=0, seed=units)
    compiled: Any = stretto.compile(function, backend=CUDA, options=options)
    with spread(), torch.no_grad():
        compiled(*copy.deepcopy(arguments))
    (entry,) = compiled.signatures
    product = entry.stages.product

    def run(sources: tuple[TritonSource, ...]) -> None:
        interface = entry.stages.lowered.interface
        entry.executable = emulated_cuda_executable(product.plan, sources, interface, options)
        with torch.no_grad():
            compiled(*copy.deepcopy(arguments))

    return list(removals(product.sources, run))


@pytest.mark.parametrize(("name", "units"), sampled(CASES, SAMPLE))
@pytest.mark.rotating(1)
def test_the_check_notices_each_barrier_that_is_missing(name: str, units: int) -> None:
    removed = removed_from(name, units)
    unnoticed = [each for each in removed if each.is_reached and not each.is_noticed]
    print(f"{name}, {units} units: {len(removed)} barriers, {len(unnoticed)} not noticed")
    for each in unnoticed:
        print(f"  line {each.line + 1}, {each.place}")
    assert len(unnoticed) <= SUPERFLUOUS.get(name, 0)
