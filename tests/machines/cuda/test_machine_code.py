"""What the compiler makes of waits and signals: readers of PTX and SASS, rules, the zoo."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from stretto.machines.cuda import compile as triton_compile
from stretto.machines.cuda.compile import compile_source
from stretto.machines.cuda.machine_code import VERIFIED, Checked, check, check_cubin, check_ptx
from stretto.machines.cuda.machine_code import ptx as ptx_text
from stretto.machines.cuda.machine_code import sass as sass_text
from stretto.machines.cuda.machine_code.flow import Effect, Function, Instruction
from stretto.machines.cuda.machine_code.rules import is_poll
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.cuda.toolchain import SUPPORTED
from stretto.options import Options
from stretto.tools.models import find_model
from stretto.tools.targets import compile_model, target_machine
from tests.machines.cuda.triton_text import CONTROL, PRELUDE, number, pointer, program
from tests.sampling import sampled

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

# ---- the rules, on what instructions do ----------------------------------------------------------
LOOK, ACQUIRE, LOAD, STORE = Effect.LOOK, Effect.ACQUIRE, Effect.LOAD, Effect.STORE
FENCE, INVALIDATE, BARRIER = Effect.FENCE, Effect.INVALIDATE, Effect.BARRIER
PUBLISH, FAIL, CALL, RETURN = Effect.PUBLISH, Effect.FAIL, Effect.CALL, Effect.RETURN
COPY, COMMIT, COPIED = Effect.COPY, Effect.COMMIT, Effect.COPIED
MAIN, POLL = "stretto_run", "triton_program_$_poll__Pi64_i32"


def straight(*effects: Effect, name: str = MAIN) -> Function:
    return Function(name, tuple(Instruction(f"{n}", "", (e,)) for n, e in enumerate(effects)))


def reasons(*functions: Function) -> list[tuple[str, str]]:
    return [(one.rule, one.why) for one in check(functions).violations]


@pytest.mark.parametrize(
    "effects",
    [
        (LOOK, FENCE, INVALIDATE, BARRIER, LOAD),
        (LOOK, BARRIER, BARRIER, FENCE, INVALIDATE, BARRIER, STORE),
        (ACQUIRE, BARRIER, LOAD),
        (LOOK, INVALIDATE, BARRIER, LOAD),  # an acquire load, as SASS has it
        (LOOK, INVALIDATE, LOOK, INVALIDATE, BARRIER, LOAD),
        (STORE, BARRIER, FENCE, PUBLISH),
        (COPY, COMMIT, COPY, COMMIT, COPIED, LOAD, RETURN),
        (LOAD, FAIL, STORE, LOAD, RETURN),
    ],
)
@pytest.mark.rotating(1)
def test_what_is_right(effects: tuple[Effect, ...]) -> None:
    assert reasons(straight(*effects)) == []


@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        ((LOOK, LOAD), ("wait", "no fence since the look")),
        ((LOOK, STORE), ("wait", "no fence since the look")),
        ((LOOK, RETURN), ("wait", "no fence since the look")),
        ((LOOK, BARRIER, CALL), ("wait", "no fence since the look")),
        # The cache is emptied, but nothing orders that behind the look.
        ((LOOK, BARRIER, INVALIDATE, BARRIER, LOAD), ("wait", "no fence since the look")),
        ((LOOK, FENCE, BARRIER, LOAD), ("wait", "no fence since the look")),
        ((ACQUIRE, LOOK, BARRIER, LOAD), ("wait", "no fence since the look")),
        ((LOOK, ACQUIRE, BARRIER, LOAD), ("wait", "no fence since the look")),
        ((LOOK, FENCE, INVALIDATE, LOAD), ("wait", "no barrier since the fence")),
        ((LOOK, BARRIER, FENCE, INVALIDATE, RETURN), ("wait", "no barrier since the fence")),
        ((ACQUIRE, RETURN), ("wait", "no barrier since the fence")),
        ((STORE, FENCE, PUBLISH), ("signal", "no barrier since the unit has read or written")),
        ((BARRIER, LOAD, FENCE, PUBLISH), ("signal", "no barrier since the unit has read or")),
        ((BARRIER, FENCE, CALL, PUBLISH), ("signal", "no barrier since the unit has read or")),
        ((STORE, BARRIER, PUBLISH), ("signal", "no fence since the barrier")),
        ((STORE, FENCE, BARRIER, PUBLISH), ("signal", "no fence since the barrier")),
        ((COPY, COMMIT, BARRIER, RETURN), ("copies", "a copy of global memory may not have")),
        ((COPY, COPIED, RETURN), ("copies", "a copy of global memory may not have ended")),
        ((COPY, COMMIT, CALL), ("copies", "a copy of global memory may not have ended")),
        ((Effect.NON_COHERENT,), ("coherence", "may give what memory held before a wait")),
        ((Effect.ASYNC_PROXY,), ("coherence", "is not ordered by the fences of waits and")),
    ],
)
@pytest.mark.rotating(1)
def test_what_is_wrong(effects: tuple[Effect, ...], expected: tuple[str, str]) -> None:
    (found,) = reasons(straight(*effects))
    assert found[0] == expected[0] and found[1].startswith(expected[1])


def test_a_poll_looks_by_strong_loads_and_may_fail() -> None:
    end = (FENCE, INVALIDATE, BARRIER, RETURN)
    assert reasons(straight(LOOK, FAIL, LOAD, STORE, *end, name=POLL)) == []
    weak = ("wait", "a poll looks by strong loads only")
    nothing = ("wait", "no counter is looked at by a strong load")
    assert reasons(straight(LOAD, *end, name=POLL)) == [weak, nothing]
    assert reasons(straight(LOAD, LOOK, *end, name=POLL)) == [weak]
    assert check([straight(LOOK, *end, name=POLL), straight(BARRIER, FENCE, PUBLISH)]) == Checked(
        (), polls=1, releases=1
    )


def test_every_path_counts() -> None:
    def function(barrier: Instruction) -> Function:
        return Function(
            MAIN,
            (
                Instruction("0", "loop", (LOOK,)),
                Instruction("1", "again", (), conditional=True, targets=("loop",)),
                Instruction("2", "fence", (FENCE, INVALIDATE)),
                Instruction("3", "skip", (), conditional=True, targets=("end",)),
                barrier,
                Instruction("5", "load", (LOAD,)),
            ),
            {"loop": 0, "end": 5},
        )

    assert reasons(function(Instruction("4", "", (BARRIER,)))) == [
        ("wait", "no barrier since the fence")
    ]
    elsewhere = Instruction("4", "", (BARRIER,), targets=("loop",), falls_through=False)
    assert [one.place for one in check([function(elsewhere)]).violations] == ["5"]
    wait = straight(LOOK, BARRIER, FENCE, INVALIDATE, BARRIER, LOAD)
    for n, is_needed in enumerate((False, False, True, True, True)):
        changed = list(wait.instructions)
        changed[n] = replace(changed[n], conditional=True)
        assert bool(reasons(Function(MAIN, tuple(changed)))) == is_needed


# ---- reading SASS --------------------------------------------------------------------------------
SASS = """
        .section        .text.stretto_run,"ax",@progbits
        .type           stretto_run,@function
stretto_run:
.text.stretto_run:
        /*0000*/                   LDC.64 R4, c[0x0][0x210] ;
        /*0010*/                   LDG.E.64.STRONG.SYS R4, desc[UR14][R4.64] ;
        /*0020*/               @P0 EXIT ;
        /*0030*/                   CALL.REL.NOINC `($stretto_run$triton_program_$_poll__Pi64_) ;
.L_x_0:
        /*0040*/              @!P1 BRA !P0, `(.L_x_0) ;
        /*0050*/                   BRA `(.L_x_1) ;
        /*0060*/                   ERRBAR;
.L_x_1:
        /*0070*/                   BRX R2 -0x1 (*"BRANCH_TARGETS .L_x_0,.L_x_1"*);
        .type           $stretto_run$triton_program_$_poll__Pi64_,@function
$stretto_run$triton_program_$_poll__Pi64_:
        /*0080*/                   IMAD.U32 R12, RZ, RZ, UR16 ;
        /*0090*/                   IADD3 R4, P0, P3, R7, UR16, R4 ;
.L_x_2:
        /*00a0*/               @P2 LDG.E.64.STRONG.SYS R6, desc[UR16][R4.64+0x80] ;
        /*00b0*/                   LDG.E.64.STRONG.SYS R14, desc[UR16][R12.64] ;
        /*00c0*/                   LDG.E.64.STRONG.SYS R14, desc[UR16][R4.64] ;
        /*00d0*/               @P6 BRA `(.L_x_2) ;
        /*00e0*/              @!P3 BRA `(.L_x_3) ;
        /*00f0*/                   ATOMG.E.CAS.64.STRONG.GPU PT, R4, [R12], R4, R6 ;
.L_x_3:
        /*0100*/                   CCTL.IVALL                           &req={0} ?trans1 ;
        /*0110*/                   RET.REL.NODEC R18 `(stretto_run) ;
"""


def test_sass_is_read() -> None:
    main, poll = sass_text.functions(SASS)
    assert (main.name, is_poll(main), is_poll(poll)) == ("stretto_run", False, True)
    assert [one.place for one in main.instructions] == [f"{n * 16:#x}" for n in range(8)]
    assert [main.successors(n) for n in range(8)] == [
        (1,), (2,), (3,), (4,), (4, 5), (7,), (7,), (4, 7),
    ]  # fmt: skip
    # A look at the error word, whose address is an argument, has no effect.
    assert [one.effects for one in main.instructions] == [
        (), (), (RETURN,), (CALL,), (), (), (), (),
    ]  # fmt: skip
    assert [one.effects for one in poll.instructions] == [
        (), (), (LOOK,), (), (LOOK,), (), (FAIL,), (FAIL,), (INVALIDATE,), (RETURN,),
    ]  # fmt: skip
    assert poll.instructions[2].conditional and not poll.instructions[3].conditional


@pytest.mark.parametrize(
    ("text", "effects"),
    [
        ("LDG.E.128 R4, desc[UR4][R2.64]", (LOAD,)),
        ("LD.E R4, [R2.64]", (LOAD,)),
        ("LDG.E.64.STRONG.SM R4, desc[UR4][R2.64]", (LOAD,)),
        ("LDG.E.64.STRONG.GPU R4, desc[UR4][R2.64+0x80]", (LOOK,)),
        ("LDG.E.64.CONSTANT R4, desc[UR4][R2.64]", (Effect.NON_COHERENT,)),
        ("LDNEW.E R4, desc[UR4][R2.64]", (LOAD,)),
        ("LDS R4, [R2]", ()),
        ("LDC R1, c[0x0][0x28]", ()),
        ("LDGSTS.E.BYPASS.128 [R2], desc[UR4][R4.64]", (COPY,)),
        ("LDGDEPBAR", (COMMIT,)),
        ("DEPBAR.LE SB0, 0x1", ()),
        ("DEPBAR.LE SB0, 0x0", (COPIED,)),
        ("STG.E desc[UR4][R2.64], R4", (STORE,)),
        ("STG.E.64.STRONG.GPU desc[UR4][R2.64], R4", (PUBLISH,)),
        ("STL [R1], R4", ()),
        ("ATOMG.E.EXCH.64.STRONG.GPU PT, RZ, desc[UR4][R2.64+0x80], R4", (PUBLISH,)),
        ("ATOMG.E.ADD.F32.FTZ.RN.STRONG.GPU PT, R1, desc[UR4][R2.64], R4", (Effect.UPDATE,)),
        ("REDG.E.ADD.64.STRONG.GPU desc[UR4][R4.64], R6", (Effect.UPDATE,)),
        ("REDUX.MAX.S32 UR6, R0", ()),
        ("MEMBAR.ALL.GPU", (FENCE,)),
        ("MEMBAR.SC.SYS", (FENCE,)),
        ("MEMBAR.ALL.CTA", ()),
        ("CCTL.IVALL", (INVALIDATE,)),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", (BARRIER,)),
        ("BAR.RED.OR.DEFER_BLOCKING 0x0, P1", (BARRIER,)),
        ("BAR.SYNC.DEFER_BLOCKING 0x1, 0x40", ()),
        ("BAR.ARV 0x0", ()),
        ("UTMALDG.2D [UR4], [UR6]", (Effect.ASYNC_PROXY,)),
        ("TEX.LL R0, R2, R4, 0x0", (Effect.NON_COHERENT,)),
        ("CALL.REL.NOINC `($__internal_0_$__cuda_sm3x_div_rn_noftz_f32_slowpath)", ()),
    ],
)
@pytest.mark.rotating(1)
def test_effects_of_sass(text: str, effects: tuple[Effect, ...]) -> None:
    lines = f".type f,@function\nf:\n        /*0000*/    {text} ;\n"
    (function,) = sass_text.functions(lines)
    assert [one.effects for one in function.instructions] == [effects]


def test_sass_that_goes_nobody_knows_where_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0x10: nothing is known of where 'BRX R2 -0x1' goes"):
        sass_text.functions(".type f,@function\nf:\n        /*0010*/    BRX R2 -0x1 ;\n")


# ---- reading PTX ---------------------------------------------------------------------------------
PTX = """
.version 8.7
.func  (.param .b32 func_retval0) triton_program_$_poll__Pi64_
(
    .param .b64 triton_program_$_poll__Pi64__param_0
)
;
.visible .entry stretto_run(
    .param .u64 .ptr .global .align 1 stretto_run_param_0
)
.reqntid 128
{
    .reg .b64     %rd<15>;
    ld.param.b64     %rd7, [stretto_run_param_0];
    .loc    1 10 3
    ld.volatile.global.b64 { %rd6 }, [ %rd7 + 0 ];
    ld.global.b64 { %rd6 }, [ %rd7 + 0 ];
    ld.volatile.global.b64 { %rd6 }, [ %rd7 + 128 ];
    { // callseq 2, 0
    .param .b64     param0;
    call.uni (retval0),
      triton_program_$_poll__Pi64_, (param0);
    }
    brx.idx %r1, $L_table;
$L_table: .branchtargets
    $L__BB0_1,
    $L__BB0_2;
$L__BB0_1:  fence.acq_rel.gpu; mov.b32 %r24, 0;
    {
    .reg .pred p;
again:    @p bra again;
    }
    {
again:    @p bra again;
    bra.uni $L__BB0_1;
    }
$L__BB0_2:
    @%p9 bra     $L__BB0_1;
    ret;
}
.section .debug_abbrev
{
.b8 1
}
"""


def test_ptx_is_read() -> None:
    (main,) = ptx_text.functions(PTX)
    assert main.name == "stretto_run"
    effects = [one.effects for one in main.instructions]
    assert effects[:7] == [(), (), (LOAD,), (LOOK,), (CALL,), (), (FENCE, INVALIDATE)]
    assert [one.place for one in main.instructions[2:5]] == ["line 17", "line 18", "line 22"]
    assert [main.successors(n) for n in range(5, 13)] == [
        (6, 11), (7,), (8,), (8, 9), (9, 10), (6,), (6, 12), (),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "effects"),
    [
        ("ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [ %rd1 + 0 ]", (LOAD,)),
        ("ld.global.L1::evict_last.b32 %r1, [%rd1]", (LOAD,)),
        ("ld.b32 %r1, [%rd1]", (LOAD,)),
        ("ld.relaxed.cta.global.b64 %rd1, [%rd2]", (LOAD,)),
        ("@%p1 ld.relaxed.gpu.global.b64 %rd1, [%rd2]", (LOOK,)),
        ("ld.volatile.global.b64 { %rd1 }, [ %rd2 + 128 ]", (LOOK,)),
        ("ld.acquire.gpu.global.b64 %rd1, [%rd2]", (ACQUIRE,)),
        ("ld.acquire.cta.global.b64 %rd1, [%rd2]", (LOAD,)),
        ("ld.global.nc.b64 %rd1, [%rd2]", (Effect.NON_COHERENT,)),
        ("ld.shared.b32 %r1, [global_smem]", ()),
        ("ld.param.b64 %rd1, [f_param_1]", ()),
        ("st.global.b32 [ %rd1 + 0 ], { %r1 }", (STORE,)),
        ("st.shared::cta.b32 [%r1], %r2", ()),
        ("st.release.gpu.global.b64 [%rd1], %rd2", (FENCE, PUBLISH)),
        ("st.relaxed.gpu.global.b64 [%rd1], %rd2", (PUBLISH,)),
        ("atom.global.gpu.release.exch.b64 %rd1, [ %rd2 + 0 ], %rd3", (FENCE, PUBLISH)),
        ("atom.global.relaxed.gpu.exch.b64 %rd1, [%rd2], %rd3", (PUBLISH,)),
        ("atom.global.release.cta.exch.b64 %rd1, [%rd2], %rd3", (PUBLISH,)),
        ("atom.global.relaxed.gpu.cas.b64 %rd1, [%rd2], %rd3, %rd4", (FAIL,)),
        ("atom.global.gpu.acq_rel.add.u64 %rd1, [%rd2], 0", (FENCE, Effect.UPDATE, ACQUIRE)),
        ("atom.shared.add.u32 %r1, [%r2], 1", ()),
        ("red.global.relaxed.gpu.add.f32 [%rd1], %r1", (Effect.UPDATE,)),
        ("redux.sync.max.s32 %r1, %r2, %r3", ()),
        ("cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2", (COPY,)),
        ("cp.async.commit_group", (COMMIT,)),
        ("cp.async.wait_group 1", ()),
        ("cp.async.wait_group 0", (COPIED,)),
        ("cp.async.bulk.tensor.2d.shared::cluster.global [%r1], [%rd1]", (Effect.ASYNC_PROXY,)),
        ("fence.acq_rel.gpu", (FENCE, INVALIDATE)),
        ("fence.acq_rel.cta", ()),
        ("fence.proxy.async.shared::cta", ()),
        ("membar.gl", (FENCE, INVALIDATE)),
        ("bar.sync 0", (BARRIER,)),
        ("bar.sync 1, 64", ()),
        ("bar.sync 0, 64", ()),
        ("barrier.cta.red.or.pred %p1, 0, %p2", (BARRIER,)),
        ("bar.warp.sync -1", ()),
        ("call.uni k_linear, (param0, param1)", (CALL,)),
        ("ret", (RETURN,)),
    ],
)
@pytest.mark.rotating(1)
def test_effects_of_ptx(text: str, effects: tuple[Effect, ...]) -> None:
    lines = f".func f()\n{{\n{text};\n}}\n"
    (function,) = ptx_text.functions(lines)
    assert [one.effects for one in function.instructions] == [effects]


# ---- programs that are compiled ------------------------------------------------------------------
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

    def recorded(source: TritonSource, target: Any) -> Any:
        compiled = run(source, target)
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
    """Of one place in the code of the prelude, in the text of `function` or anywhere. rule, why:
    what is found, and how the reason begins."""

    before: str
    after: str
    rule: str
    why: str
    function: str = ""

    def places(self) -> list[int]:
        begin = PRELUDE.index(f"def {self.function}") if self.function else CODE
        end = PRELUDE.find("\n\n\n", begin) if self.function else -1
        found = re.finditer(self.before, PRELUDE, re.MULTILINE)
        return [m.start() for m in found if begin <= m.start() < (end if end > 0 else len(PRELUDE))]

    def made(self, place: int) -> TritonSource:
        assert SOURCE.text.startswith(PRELUDE)
        rest = re.sub(self.before, self.after, SOURCE.text[place:], count=1, flags=re.MULTILINE)
        return replace(SOURCE, text=SOURCE.text[:place] + rest)


CODE = PRELUDE.index("import triton")
UNSEALED, UNFENCED = "no fence since the barrier", "no fence since the look"
CHANGES = (
    Change(r"^ +tl\.debug_barrier\(\)$", "", "signal", "no barrier since the unit has", "signal"),
    Change(r'sem="release"', 'sem="relaxed"', "signal", UNSEALED, "signal"),
    Change(r'scope="gpu"', 'scope="cta"', "signal", UNSEALED, "signal"),
    Change(r"^ +tl\.debug_barrier\(\)$", "", "wait", "no barrier since the fence", "poll"),
    Change(r"^ +fence\(control\)$", "", "wait", UNFENCED, "poll"),
    Change(r"fence\.acq_rel\.gpu;", "fence.acq_rel.cta;", "wait", UNFENCED),
    Change(r"ld\.acquire\.gpu", "ld.relaxed.gpu", "wait", UNFENCED),
    Change(r", volatile=True", "", "wait", "", "poll"),
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


@needs_triton
@pytest.mark.parametrize("target", sampled(["sm_80", "sm_90", "sm_100", "sm_120"], ["sm_90"]))
def test_waits_and_signals_arrive(
    target: str, assemblies: list[Assembly], options: Options
) -> None:
    for found in compiled(SOURCE, assemblies, options, target):
        assert found == Checked((), polls=1, releases=1)


@needs_triton
@pytest.mark.whole
def test_acquire_loads_are_a_fence_too(assemblies: list[Assembly], options: Options) -> None:
    source = replace(SOURCE, text=dedent(ACQUIRES), parameters=(CONTROL, pointer("x")))
    for found in compiled(source, assemblies, options):
        assert found == Checked((), polls=1, releases=0)


@needs_triton
@pytest.mark.parametrize(("change", "place"), PLACES)
@pytest.mark.rotating(4)
def test_what_is_missing_is_found(
    change: Change, place: int, assemblies: list[Assembly], options: Options
) -> None:
    """A barrier or a fence of the prelude is taken out or weakened, each of them once."""
    for found in compiled(change.made(place), assemblies, options):
        assert any(
            one.rule == change.rule and one.why.startswith(change.why) for one in found.violations
        )


def test_changes_of_waits_and_of_signals_are_tried() -> None:
    tried = {param.values[0].function for param in PLACES}
    assert {"signal", "poll"} <= tried


def test_the_supported_versions_were_verified() -> None:
    (major, first), (_, end) = SUPPORTED
    minors = [tuple(map(int, version.split(".")[:2])) for version in VERIFIED]
    assert minors == [(major, minor) for minor in range(first, end)]


# ---- the zoo -------------------------------------------------------------------------------------
SMALL = ("nasrnn", "attention", "seq2seq", "rae")
CORE = (
    "lstm", "lstm100", "nasrnn", "attention", "seq2seq", "blockdrop", "blockdrop_policy",
    "skipnet", "rae", "deepspeech2",
)  # fmt: skip
CASES = [(name, "small") for name in SMALL] + [(name, "full") for name in CORE]


@needs_triton
@pytest.mark.parametrize(("name", "size"), sampled(CASES, CASES[: len(SMALL)]))
@pytest.mark.rotating(4)
def test_zoo(name: str, size: str, assemblies: list[Assembly], options: Options) -> None:
    compile_model(find_model(name, small=size == "small"), target_machine("sm_90"), options)
    assert assemblies
    for one in assemblies:
        in_ptx = ptx_text.functions(one.ptx)
        in_sass = sass_text.functions(sass_text.disassemble(one.cubin, _nvdisasm()))
        ptx, sass = check(in_ptx), check(in_sass)
        assert [str(violation) for violation in (*ptx.violations, *sass.violations)] == []
        assert ptx.polls == sass.polls and bool(ptx.polls) == ("= wait(control" in one.source.text)
        assert ptx.releases > 0 and sass.releases > 0
        for function in (*in_ptx, *in_sass):
            for removed in without_one(function):
                assert check([removed]).violations, "nobody misses a barrier or a fence"


def _nvdisasm() -> str:
    from triton import knobs

    return knobs.nvidia.nvdisasm.path


def without_one(function: Function) -> Iterator[Function]:
    """The function without a barrier or a fence of a signal, for each; and, if it polls, without
    what follows its last look."""
    effects = [one.effects for one in function.instructions]

    def without(wanted: Callable[[int], bool]) -> Function:
        instructions = tuple(
            replace(one, effects=()) if wanted(n) else one
            for n, one in enumerate(function.instructions)
        )
        return replace(function, instructions=instructions)

    for place, at in enumerate(effects):
        if PUBLISH in at:
            for effect in {BARRIER, FENCE} - {*at}:  # in PTX the exchange is a fence
                last = max(n for n in range(place) if effect in effects[n])
                yield without(lambda n, last=last: n == last)
    if is_poll(function):
        last = max(n for n, at in enumerate(effects) if LOOK in at or ACQUIRE in at)
        yield without(lambda n: n >= last and INVALIDATE in effects[n])
        yield without(lambda n: n > last and BARRIER in effects[n])
