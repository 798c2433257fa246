"""The machine code of waits and signals: of small programs, of changed preludes, of the zoo."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from benchmarks.models import CORE
from checks.machine_code import VERIFIED, Checked, check, check_cubin, check_ptx
from checks.machine_code import sass as sass_text
from checks.machine_code.rules import is_poll
from stretto.machines.cuda import compile as triton_compile
from stretto.machines.cuda import machine_code as ptx_text
from stretto.machines.cuda.compile import compile_source
from stretto.machines.cuda.hazards import analysed
from stretto.machines.cuda.machine import gpu_program
from stretto.machines.cuda.machine_code import MachineFunction, MemoryEffect
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.cuda.toolchain import SUPPORTED
from stretto.options import Options
from stretto.tools.models import find_model
from stretto.tools.simulate import compile_model, target_machine
from tests.e2e.test_cuda_compiled import require_good
from tests.machines.cuda.triton_text import CONTROL, PRELUDE, number, pointer, program
from tests.sampling import sampled

pytest.importorskip("triton", reason="triton is not installed")


@dataclass(frozen=True, slots=True)
class Assembly:
    source: TritonSource
    ptx: str
    cubin: bytes


@pytest.fixture
def assemblies(monkeypatch: pytest.MonkeyPatch) -> list[Assembly]:
    """What Triton compiles in a test."""
    found: list[Assembly] = []
    run = triton_compile._run_triton

    def recorded(source: TritonSource, target: Any, **named: Any) -> Any:
        compiled = run(source, target, **named)
        if compiled.asm["cubin"]:  # else barriers are missing, and Triton runs again
            found.append(Assembly(source, compiled.asm["ptx"], compiled.asm["cubin"]))
        return compiled

    monkeypatch.setattr(triton_compile, "_run_triton", recorded)
    return found


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(cache_dir=tmp_path)


SOURCE = program(
    """
    turn = tl.cast(0, tl.int64)
    while ok & (turn < 3):
        ok = wait(control, unit, 0, 3, base + turn, polls, ok, 4)
        if ok:
            at = x + tl.arange(0, 128)
            tl.store(at, tl.load(at, mask=tl.arange(0, 128) < n) + 1)
        turn += 1
        signal(control, unit, base + turn)
    """,
    pointer("x"),
    number("n"),
    units=3,
)
ACQUIRES = """
    import triton
    import triton.language as tl


    @triton.jit(noinline=True)
    def poll(control, target, LANES: tl.constexpr):
        lanes = tl.arange(0, LANES)
        state = 1
        while state == 1:
            seen = tl.inline_asm_elementwise(
                "ld.acquire.gpu.global.b64 $0, [$1];", "=l,l", [control + 16 + lanes],
                dtype=tl.int64, is_pure=False, pack=1
            )
            error = tl.load(control + lanes * 0, volatile=True)
            state = tl.where(error != 0, 2, tl.max((seen < target).to(tl.int32), axis=0))
            state = tl.max(state, axis=0)
        tl.debug_barrier()
        return state == 0


    @triton.jit
    def stretto_run(control, x):
        if poll(control, tl.cast(1, tl.int64), 64):
            tl.store(x, tl.load(x) + 1)
"""
"""A poll by acquire loads: no other fence."""


@dataclass(frozen=True, slots=True)
class Change:
    """Of one place in the code of the prelude, in the text of `function` or in what waits do.
    rule, why: what is found, and how the reason begins."""

    before: str
    after: str
    rule: str
    why: str
    function: str = ""

    def places(self) -> list[int]:
        begin = PRELUDE.index(f"def {self.function}" if self.function else "LOOKS = ")
        end = PRELUDE.find("\n\n\n", begin) if self.function else -1
        found = re.finditer(self.before, PRELUDE, re.MULTILINE)
        return [m.start() for m in found if begin <= m.start() < (end if end > 0 else len(PRELUDE))]

    def made(self, place: int) -> TritonSource:
        assert SOURCE.text.startswith(PRELUDE)
        rest = re.sub(self.before, self.after, SOURCE.text[place:], count=1, flags=re.MULTILINE)
        return replace(SOURCE, text=SOURCE.text[:place] + rest)


UNSEALED, UNFENCED = "no fence since the barrier", "no fence since the look"
UNMET = "no barrier since the fence"
MEETING = r"bar\.red\.or\.pred %stop, 0, %stop"
CHANGES = (
    Change(r"^ +tl\.debug_barrier\(\)$", "", "signal", "no barrier since the unit has", "signal"),
    Change(r'sem="release"', 'sem="relaxed"', "signal", UNSEALED, "signal"),
    Change(r'scope="gpu"', 'scope="cta"', "signal", UNSEALED, "signal"),
    Change(MEETING, "or.pred %stop, %stop, %stop", "wait", UNMET),
    Change(MEETING, "bar.red.or.pred %stop, 0, 64, %stop", "wait", UNMET),
    Change(r"ld\.acquire\.gpu", "ld.relaxed.gpu", "wait", UNFENCED),
    Change(r"ld\.acquire\.gpu", "ld.acquire.cta", "wait", ""),
    Change(r"ld\.acquire\.gpu", "ld", "wait", ""),
    Change(r"ld\.relaxed\.gpu", "ld", "wait", ""),
)
PLACES = [
    pytest.param(
        change, place, id=f"{change.before} at line {PRELUDE.count(chr(10), 0, place) + 1}"
    )
    for change in CHANGES
    for place in change.places()
]


def compiled(
    source: TritonSource, assemblies: list[Assembly], options: Options, target: str = "sm_90"
) -> tuple[Checked, Checked]:
    """What is found in PTX and in SASS."""
    compile_source(source, target, options)
    return check_ptx(assemblies[-1].ptx), check_cubin(assemblies[-1].cubin)


@pytest.mark.parametrize("target", sampled(["sm_80", "sm_90", "sm_100", "sm_120"], ["sm_90"]))
def test_waits_and_signals_arrive(
    target: str, assemblies: list[Assembly], options: Options
) -> None:
    for found in compiled(SOURCE, assemblies, options, target):
        assert found == Checked((), polls=1, releases=1)


@pytest.mark.whole
def test_acquire_loads_are_a_fence_too(assemblies: list[Assembly], options: Options) -> None:
    source = replace(SOURCE, text=dedent(ACQUIRES), parameters=(CONTROL, pointer("x")))
    for found in compiled(source, assemblies, options):
        assert found == Checked((), polls=1, releases=0)
    for function in ptx_text.functions(assemblies[-1].ptx):
        assert all(check([removed]).violations for removed in without_one(function))


@pytest.mark.parametrize(("change", "place"), PLACES)
def test_what_is_missing_is_found(
    change: Change, place: int, assemblies: list[Assembly], options: Options
) -> None:
    """A barrier or a fence of the prelude is taken out or weakened, each of them once."""
    for found in compiled(change.made(place), assemblies, options):
        assert any(
            one.rule == change.rule and one.why.startswith(change.why) for one in found.violations
        )


def test_changes_of_waits_and_of_signals_are_tried() -> None:
    assert [change for change in CHANGES if not change.places()] == []


def test_the_supported_versions_were_verified() -> None:
    (major, first), (_, end) = SUPPORTED
    minors = [tuple(map(int, version.split(".")[:2])) for version in VERIFIED]
    assert minors == [(major, minor) for minor in range(first, end)]


# ---- the zoo -------------------------------------------------------------------------------------
SMALL = ("nasrnn", "attention", "seq2seq", "rae", "skipnet")
LONG = ("skipnet",)
"""Triton takes minutes for it in the size of the paper."""
FULL = [name for name in CORE if name not in LONG]
CASES = [(name, "small") for name in SMALL] + [(name, "full") for name in FULL]


@pytest.mark.parametrize(
    ("name", "size"), sampled(CASES, [case for case in CASES[: len(SMALL)] if case[0] not in LONG])
)
def test_zoo(name: str, size: str, assemblies: list[Assembly], options: Options) -> None:
    model = find_model(name, small=size == "small")
    _, stages = compile_model(model, target_machine("sm_90"), options)
    (kernel,) = gpu_program(stages).compiled
    require_good(kernel)
    assert assemblies
    for one in assemblies:
        in_ptx = ptx_text.functions(one.ptx)
        in_sass = sass_text.functions(sass_text.disassemble(one.cubin, _nvdisasm()))
        ptx, sass = check(in_ptx), check(in_sass)
        assert not analysed(in_ptx).hazards
        assert [str(violation) for violation in (*ptx.violations, *sass.violations)] == []
        assert ptx.polls == sass.polls and bool(ptx.polls) == waits(one.source)
        assert ptx.releases > 0 and sass.releases > 0
        for function in (*in_ptx, *in_sass):
            for removed in without_one(function):
                assert check([removed]).violations, f"nothing is missing in {function.name}"


def waits(source: TritonSource) -> bool:
    return re.search(r"= wait(_for_each)?\(control", source.text) is not None


def _nvdisasm() -> str:
    from triton import knobs

    return knobs.nvidia.nvdisasm.path


def without_one(function: MachineFunction) -> Iterator[MachineFunction]:
    """The function without a barrier or a fence of a signal, for each of them; and, if it polls,
    without the fence, or without the barriers, that follow its last look."""
    effects = [one.effects for one in function.instructions]
    for place, at in enumerate(effects):
        if MemoryEffect.PUBLISH in at:
            # In PTX the exchange is a fence.
            for effect in {MemoryEffect.BARRIER, MemoryEffect.FENCE} - {*at}:
                last = max(n for n in range(place) if effect in effects[n])
                yield without(function, effect, last, last)
    if is_poll(function):
        last = max(
            n for n, at in enumerate(effects) if {MemoryEffect.LOOK, MemoryEffect.ACQUIRE} & {*at}
        )
        fence = (
            MemoryEffect.ACQUIRE
            if MemoryEffect.ACQUIRE in effects[last]
            else MemoryEffect.INVALIDATE
        )
        for effect in (fence, MemoryEffect.BARRIER):
            yield without(function, effect, last, len(effects))


def without(
    function: MachineFunction, effect: MemoryEffect, first: int, last: int
) -> MachineFunction:
    """The function where some instructions have not this effect; an acquire load is a look then."""
    left = (MemoryEffect.LOOK,) if effect is MemoryEffect.ACQUIRE else ()
    instructions = tuple(
        replace(one, effects=left) if first <= n <= last and effect in one.effects else one
        for n, one in enumerate(function.instructions)
    )
    return replace(function, instructions=instructions)
