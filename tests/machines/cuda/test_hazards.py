"""Scratch across calls: the rule on effects, and programs from which Triton leaves barriers out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stretto.errors import BuildError
from stretto.machines.cuda import compile as triton_compile
from stretto.machines.cuda import machine_code as ptx_text
from stretto.machines.cuda.compile import compile_source
from stretto.machines.cuda.hazards import Hazard, analysed
from stretto.machines.cuda.interpreter import InterpretedKernel
from stretto.machines.cuda.machine_code import Instruction, MachineFunction, MemoryEffect
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.cuda.toolchain import GpuTarget
from stretto.machines.cuda.triton_stages import (
    NO_BARRIERS,
    MissingBarriers,
    held_over_calls,
    quick_stages,
)
from stretto.options import Options
from tests.machines.cuda.triton_text import control_block, number, pointer, program

pytest.importorskip("triton", reason="triton is not installed")

READ, WRITE, BARRIER, RETURN = (
    MemoryEffect.READ,
    MemoryEffect.WRITE,
    MemoryEffect.BARRIER,
    MemoryEffect.RETURN,
)
COPY, COPIED = MemoryEffect.COPY, MemoryEffect.COPIED
MULTIPLY, MULTIPLIED = MemoryEffect.MULTIPLY, MemoryEffect.MULTIPLIED
WAR, RAW, WAW = "a write after a read", "a read after a write", "a write after a write"


# ---- the rule, on what instructions do -----------------------------------------------------------
def function(name: str, *steps: MemoryEffect | str) -> MachineFunction:
    """steps: effects, and the names of functions that are called; it returns at the end."""
    instructions = [
        Instruction(str(n), f"call.uni {step}", (MemoryEffect.CALL,))
        if isinstance(step, str)
        else Instruction(str(n), "", (step,))
        for n, step in enumerate((*steps, RETURN))
    ]
    return MachineFunction(name, tuple(instructions))


def found(*functions: MachineFunction) -> list[tuple[str, str, str]]:
    """For each hazard whose accesses they are, and the kind."""
    return [(one.first, one.second, one.kind) for one in analysed(functions).hazards]


CLEAN = function("clean", WRITE, BARRIER, READ, BARRIER)
READS = function("reads", READ, BARRIER)
LEAVES = function("leaves", BARRIER, WRITE, BARRIER, READ)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((READ, "clean"), [("", "clean", WAR)]),
        ((WRITE, "clean"), [("", "clean", WAW)]),
        ((WRITE, "reads"), [("", "reads", RAW)]),
        ((READ, "reads"), []),
        ((READ, BARRIER, "clean"), []),
        (("leaves", "clean"), [("leaves", "clean", WAR)]),
        (("leaves", BARRIER, "clean"), []),
        (("leaves", "reads"), []),
        # After a return the callee's accesses come first.
        (("leaves", WRITE), [("leaves", "", WAR)]),
        (("leaves", READ), []),
        (("leaves", BARRIER, WRITE), []),
        (("clean", WRITE, READ), []),
        # A copy has not ended before it was waited for, and others do not see it before a barrier.
        ((COPY, BARRIER, "reads"), [("", "reads", RAW)]),
        ((COPY, COPIED, "reads"), [("", "reads", RAW)]),
        ((COPY, BARRIER, COPIED, "reads"), [("", "reads", RAW)]),
        ((COPY, COPIED, BARRIER, "reads"), []),
        ((MULTIPLY, BARRIER, "clean"), [("", "clean", WAR)]),
        ((MULTIPLY, MULTIPLIED, BARRIER, "clean"), []),
        ((MemoryEffect.RECEIVE, COPIED, BARRIER, "reads"), [("", "reads", RAW)]),
        ((MemoryEffect.RECEIVE, MemoryEffect.RECEIVED, BARRIER, "reads"), []),
        ((MemoryEffect.SEND, MULTIPLIED, BARRIER, "clean"), [("", "clean", WAR)]),
        ((MemoryEffect.SEND, MemoryEffect.SENT, BARRIER, "clean"), []),
        ((MemoryEffect.KEPT, MemoryEffect.KEEP, "clean"), []),
    ],
)
def test_one_call(
    steps: tuple[MemoryEffect | str, ...], expected: list[tuple[str, str, str]]
) -> None:
    functions = (CLEAN, READS, LEAVES)
    assert found(function("main", *steps), *functions) == expected
    assert found(*functions, function("main", *steps)) == expected


def test_calls_in_calls() -> None:
    through = function("through", "clean")
    assert found(function("main", READ, "through"), through, CLEAN) == [("", "through", WAR)]
    ordered = function("through", BARRIER, "clean")
    assert found(function("main", READ, "through"), ordered, CLEAN) == []
    outer = function("outer", "leaves")
    assert found(function("main", "outer", WRITE), outer, LEAVES) == [("outer", "", WAR)]
    closed = function("outer", "leaves", BARRIER)
    assert found(function("main", "outer", WRITE), closed, LEAVES) == []


def test_a_function_that_may_have_no_barrier_is_passed() -> None:
    def passed(barrier: Instruction) -> list[tuple[str, str, str]]:
        empty = MachineFunction("empty", (barrier, Instruction("1", "ret", (RETURN,))))
        return found(function("main", READ, "empty", "clean"), empty, CLEAN)

    assert passed(Instruction("0", "bar.sync", (BARRIER,))) == []
    assert passed(Instruction("0", "@%p bar.sync", (BARRIER,), conditional=True)) == [
        ("", "clean", WAR)
    ]
    assert passed(Instruction("0", "bar.warp.sync")) == [("", "clean", WAR)]


def test_the_back_edge_of_a_loop_counts() -> None:
    def loop(*last: MemoryEffect) -> MachineFunction:
        return MachineFunction(
            "main",
            (
                Instruction("0", "call.uni clean", (MemoryEffect.CALL,)),
                Instruction("1", "", (BARRIER,)),
                Instruction("2", "", (READ,)),
                *(Instruction("3", "", (effect,)) for effect in last),
                Instruction("4", "bra", targets=("loop",), conditional=True),
                Instruction("5", "ret", (RETURN,)),
            ),
            {"loop": 0},
        )

    assert found(loop(), CLEAN) == [("", "clean", WAR)]
    assert found(loop(BARRIER), CLEAN) == []


# ---- programs ------------------------------------------------------------------------------------
FUNCTIONS = """
    @triton.jit(noinline=True)
    def red(x):
        return tl.sum(tl.load(x + tl.arange(0, 128)), 0)

    @triton.jit(noinline=True)
    def clean(x):
        tl.store(x, tl.sum(tl.load(x + tl.arange(0, 128)), 0))
        tl.debug_barrier()

    @triton.jit(noinline=True)
    def through(x):
        clean(x + 1)
"""
BODIES = {
    "red(); clean()": "tl.store(x + 2, red(x))\nclean(x)",
    "two levels": "tl.store(x + 2, red(x))\nthrough(x)",
    "back edge": "for _ in range(n):\n    clean(x)\n    tl.store(x + 2, red(x))",
    "own reduction": "tl.store(x, tl.sum(tl.load(x + tl.arange(0, 128)), 0))\nclean(x)",
    "failure": "if tl.load(x) > 2:\n    fail(control, 9, 1)\nclean(x)",
}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The PTX of each of Triton's runs in a test."""
    texts: list[str] = []
    run: Any = triton_compile._run_triton  # pyright: ignore[reportPrivateUsage]

    def recorded(*arguments: Any, **named: Any) -> Any:
        compiled = run(*arguments, **named)
        texts.append(compiled.asm["ptx"])
        return compiled

    monkeypatch.setattr(triton_compile, "_run_triton", recorded)
    return texts


def hazards(ptx: str) -> list[Hazard]:
    return list(analysed(ptx_text.functions(ptx)).hazards)


def text(name: str) -> TritonSource:
    return program(BODIES[name], pointer("x"), number("n"), functions=FUNCTIONS)


@pytest.mark.parametrize("name", ["red(); clean()", "two levels", "back edge", "own reduction"])
def test_what_triton_leaves_out_is_found_and_ordered(
    name: str, made: list[str], tmp_path: Path
) -> None:
    options = Options(cache_dir=tmp_path)
    compiled = compile_source(text(name), "sm_90", options)
    before, after = made
    assert hazards(before) and {one.kind for one in hazards(before)} == {WAR}
    assert hazards(after) == []
    assert after != before
    assert compiled.binary and compile_source(text(name), "sm_90", options).from_cache
    assert len(made) == 2


def test_a_failure_leaves_nothing_pending(made: list[str], tmp_path: Path) -> None:
    """The exchange of `fail` gives its result through scratch; `stopped` uses none."""
    compile_source(text("failure"), "sm_90", Options(cache_dir=tmp_path))
    assert [hazards(ptx) for ptx in made] == [[]]
    source = text("failure")
    ending = source.text.index("    tl.debug_barrier()", source.text.index("def fail("))
    changed = source.text[:ending] + source.text[ending:].replace("    tl.debug_barrier()", "", 1)
    compile_source(replace(source, text=changed), "sm_90", Options(cache_dir=tmp_path))
    assert len(made) == 3 and hazards(made[1]) and not hazards(made[2])


def test_stopped_meets_once_and_uses_no_scratch(made: list[str], tmp_path: Path) -> None:
    source = program("if ok:\n    tl.store(x, 1.0)", pointer("x"))
    compiled = compile_source(source, "sm_90", Options(cache_dir=tmp_path))
    assert compiled.shared_bytes == 0
    assert made[0].count("bar.red.or.pred") == 1 and "bar.sync" not in made[0]


def test_barriers_are_placed_where_they_are_asked_for() -> None:
    before = _functions(NO_BARRIERS)
    wanted = ("clean", "through", "stretto_run")
    clean, through, main = (name for one in wanted for name in before if one in name)

    def barriers(functions: dict[str, MachineFunction], name: str) -> int:
        return sum(BARRIER in one.effects for one in functions[name].instructions)

    pair = frozenset(((through, clean),))
    for asked in (MissingBarriers(before=pair), MissingBarriers(after=pair)):
        after = _functions(asked)
        for name, more in ((clean, 0), (through, 1), (main, 0)):
            assert barriers(after, name) == barriers(before, name) + more
        effects = [e for one in after[through].instructions for e in one.effects]
        step = 1 if asked.after else -1
        assert effects.index(BARRIER) == effects.index(MemoryEffect.CALL) + step


def _ptx(barriers: MissingBarriers) -> str:
    with quick_stages() as assembled:
        assembled.barriers = barriers
        run: Any = triton_compile._run_triton  # pyright: ignore[reportPrivateUsage]
        return run(text("two levels"), GpuTarget.parse("sm_90")).asm["ptx"]


def _functions(barriers: MissingBarriers) -> dict[str, MachineFunction]:
    return {one.name: one for one in ptx_text.functions(_ptx(barriers))}


def test_a_hazard_that_a_barrier_does_not_help_is_an_error() -> None:
    hazards = [
        Hazard("main", "", "clean", WAR, "line 7"),
        Hazard("main", "leaves", "", WAR, "line 8"),
        Hazard("main", "reads", "clean", WAR, "line 9"),
    ]
    barriers = NO_BARRIERS.against(hazards)
    left = frozenset((("main", "leaves"), ("main", "reads")))
    assert barriers == MissingBarriers(frozenset((("main", "clean"),)), left)
    for one in hazards:
        with pytest.raises(BuildError, match=f"barriers do not order .*main line .: {WAR}"):
            barriers.against([one])


def test_the_emulator_runs_the_prelude_as_before() -> None:
    source = program("if ok:\n    tl.store(x, 1.0)\nfail(control, 9, 1)", pointer("x"))
    x, control = torch.zeros(1), control_block(1)
    InterpretedKernel(source).launch([control, x, 1 << 40])
    assert x.tolist() == [1.0] and control[:2].tolist() == [9, 1]
    InterpretedKernel(source).launch([control, x.zero_(), 1 << 40])
    assert x.tolist() == [0.0]


# ---- what a caller holds in shared memory --------------------------------------------------------
PRODUCTS = """
    at = x + tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    b = tl.load(at).to(tl.float16)
    d = tl.zeros((64, 64), tl.float32)
    for i in range(n):
        d = tl.dot(tl.load(at + i * 8192).to(tl.float16), b, d)
        clean(x)
    tl.store(at, d)
"""


def test_a_block_that_is_held_over_a_call_is_an_error(tmp_path: Path) -> None:
    """The loop multiplies by `b`, which lies in shared memory before the loop, and calls."""
    source = program(PRODUCTS, pointer("x"), number("n"), functions=FUNCTIONS)
    with pytest.raises(BuildError, match=r"clean.* overwrites shared memory that its caller str"):
        compile_source(source, "sm_90", Options(cache_dir=tmp_path))
    without = PRODUCTS.replace("    clean(x)\n", "") + "    clean(x)\n"
    source = program(without, pointer("x"), number("n"), functions=FUNCTIONS)
    assert compile_source(source, "sm_90", Options(cache_dir=tmp_path)).binary


LAYOUT = "sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]"
MODULE = """
#shared = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#blocked = #ttg.blocked<{LAYOUT}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
  tt.func private @callee() attributes {noinline = true} { tt.return }
  tt.func public @main(%x: tensor<128xf32, #blocked>, %n: i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
BODY
    tt.return
  }
}
"""
TYPE = "!ttg.memdesc<128xf32, #shared, #smem>"
MAKE = f"%b = ttg.local_alloc %x : (tensor<128xf32, #blocked>) -> {TYPE}"
USE = f"%y = ttg.local_load %b : {TYPE} -> tensor<128xf32, #blocked>"
CALL = "tt.call @callee() : () -> ()"
LOOP, END = "scf.for %i = %c0 to %n step %c1 : i32 {", "}"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((MAKE, CALL, USE), True),
        ((MAKE, USE, CALL), False),
        ((CALL, MAKE, USE), False),
        ((MAKE, LOOP, USE, CALL, END), True),
        ((MAKE, LOOP, CALL, END, USE), True),
        ((LOOP, MAKE, USE, CALL, END), False),
        ((LOOP, CALL, MAKE, USE, END), False),
        ((MAKE, LOOP, USE, END, CALL), False),
    ],
)
def test_where_a_block_is_held(lines: tuple[str, ...], expected: bool, tmp_path: Path) -> None:
    from triton._C.libtriton import ir, nvidia

    file = tmp_path / "module.ttgir"
    file.write_text(MODULE.replace("LAYOUT", LAYOUT).replace("BODY", "\n".join(lines)))
    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    module: Any = ir.parse_mlir_module(str(file), context)
    assert list(held_over_calls(module)) == ([("main", "callee")] if expected else [])
