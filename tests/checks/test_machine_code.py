"""Rules on machine code, and the readers of PTX and SASS; nothing is compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks.machine_code import Checked, check
from checks.machine_code import sass as sass_text
from checks.machine_code.rules import is_poll
from stretto.machines.cuda import machine_code as ptx_text
from stretto.machines.cuda.machine_code import Instruction, MachineFunction, MemoryEffect

# ---- the rules, on what instructions do ----------------------------------------------------------
LOOK, ACQUIRE, LOAD, STORE = (
    MemoryEffect.LOOK,
    MemoryEffect.ACQUIRE,
    MemoryEffect.LOAD,
    MemoryEffect.STORE,
)
FENCE, INVALIDATE, BARRIER = MemoryEffect.FENCE, MemoryEffect.INVALIDATE, MemoryEffect.BARRIER
PUBLISH, FAIL, CALL, RETURN = (
    MemoryEffect.PUBLISH,
    MemoryEffect.FAIL,
    MemoryEffect.CALL,
    MemoryEffect.RETURN,
)
READ, WRITE, MULTIPLY, PROXY = (
    MemoryEffect.READ,
    MemoryEffect.WRITE,
    MemoryEffect.MULTIPLY,
    MemoryEffect.ASYNC_PROXY,
)
COPY, COMMIT, COPIED = MemoryEffect.COPY, MemoryEffect.COMMIT, MemoryEffect.COPIED
MAIN, POLL = "stretto_run", "triton_program_$_poll__Pi64_i32"


def straight(*effects: MemoryEffect, name: str = MAIN) -> MachineFunction:
    return MachineFunction(
        name, tuple(Instruction(f"{n}", "", (e,)) for n, e in enumerate(effects))
    )


def reasons(*functions: MachineFunction) -> list[tuple[str, str]]:
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
        (
            MemoryEffect.KEEP,
            MemoryEffect.KEEP,
            BARRIER,
            MemoryEffect.KEPT,
            MemoryEffect.KEPT,
            RETURN,
        ),
        (MemoryEffect.KEPT, BARRIER, MemoryEffect.KEEP, BARRIER, RETURN),
        (LOAD, FAIL, STORE, LOAD, RETURN),
    ],
)
def test_what_is_right(effects: tuple[MemoryEffect, ...]) -> None:
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
        (
            (MemoryEffect.KEEP, MemoryEffect.KEPT, BARRIER),
            ("kept", "no barrier since constants were"),
        ),
        ((MemoryEffect.KEEP, RETURN), ("kept", "no barrier since constants were stored")),
        ((MemoryEffect.KEEP, CALL, BARRIER), ("kept", "no barrier since constants were stored")),
        (
            (MemoryEffect.KEPT, MemoryEffect.KEEP, BARRIER),
            ("kept", "another thread may still read"),
        ),
        ((MemoryEffect.NON_COHERENT,), ("coherence", "may give what memory held before a wait")),
        ((MemoryEffect.ASYNC_PROXY,), ("coherence", "is not ordered by the fences of waits and")),
    ],
)
def test_what_is_wrong(effects: tuple[MemoryEffect, ...], expected: tuple[str, str]) -> None:
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
    def function(barrier: Instruction) -> MachineFunction:
        return MachineFunction(
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
        assert bool(reasons(MachineFunction(MAIN, tuple(changed)))) == is_needed


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


SWAPPED = """
        .type           $stretto_run$triton_program_$_poll__Pi64_,@function
$stretto_run$triton_program_$_poll__Pi64_:
        /*0000*/                   LOP3.LUT R39, R39, R38, RZ, 0x3c, !PT ;
        /*0010*/                   LOP3.LUT R38, R39, R38, RZ, 0x3c, !PT ;
        /*0020*/                   LOP3.LUT R39, R39, R38, RZ, 0x3c, !PT ;
        /*0030*/                   LDG.E.64.STRONG.GPU R48, desc[UR4][R38.64] ;
"""


@pytest.mark.parametrize(
    ("before", "effects"),
    [
        ("NOP", ()),  # two halves of an argument trade places by three exclusive ors
        ("S2R R38, SR_TID.X", (LOOK,)),
        ("IADD3 R39, R39, 0x10, RZ", (LOOK,)),
    ],
)
def test_the_error_word_by_registers_that_trade_places(
    before: str, effects: tuple[MemoryEffect, ...]
) -> None:
    body = SWAPPED.replace("Pi64_:\n", f"Pi64_:\n        /*fff0*/                   {before} ;\n")
    (poll,) = sass_text.functions(body)
    assert poll.instructions[-1].effects == effects


@pytest.mark.parametrize(
    ("text", "effects"),
    [
        ("LDG.E.128 R4, desc[UR4][R2.64]", (LOAD,)),
        ("LD.E R4, [R2.64]", (LOAD,)),
        ("LDG.E.64.STRONG.SM R4, desc[UR4][R2.64]", (LOAD,)),
        ("LDG.E.64.STRONG.GPU R4, desc[UR4][R2.64+0x80]", (LOOK,)),
        ("LDG.E.64.CONSTANT R4, desc[UR4][R2.64]", (MemoryEffect.NON_COHERENT,)),
        ("LDNEW.E R4, desc[UR4][R2.64]", (LOAD,)),
        ("LDS R4, [R2]", ()),
        ("LDS.128 R4, [R2+UR4+0x10]", ()),
        ("LDS.128 R4, [R2+-0x1000]", (MemoryEffect.KEPT,)),
        ("LDS R4, [R2+UR4+-0x1000]", (MemoryEffect.KEPT,)),
        ("STS.128 [R2+-0x10], R4", (MemoryEffect.KEEP,)),
        ("STS [R2+0x10], R4", ()),
        ("LDC R1, c[0x0][0x28]", ()),
        ("LDGSTS.E.BYPASS.128 [R2], desc[UR4][R4.64]", (COPY,)),
        ("LDGDEPBAR", (COMMIT,)),
        ("DEPBAR.LE SB0, 0x1", ()),
        ("DEPBAR.LE SB0, 0x0", (COPIED,)),
        ("STG.E desc[UR4][R2.64], R4", (STORE,)),
        ("STG.E.64.STRONG.GPU desc[UR4][R2.64], R4", (PUBLISH,)),
        ("STL [R1], R4", ()),
        ("ATOMG.E.EXCH.64.STRONG.GPU PT, RZ, desc[UR4][R2.64+0x80], R4", (PUBLISH,)),
        ("ATOMG.E.ADD.F32.FTZ.RN.STRONG.GPU PT, R1, desc[UR4][R2.64], R4", (MemoryEffect.UPDATE,)),
        ("REDG.E.ADD.64.STRONG.GPU desc[UR4][R4.64], R6", (MemoryEffect.UPDATE,)),
        ("REDUX.MAX.S32 UR6, R0", ()),
        ("MEMBAR.ALL.GPU", (FENCE,)),
        ("MEMBAR.SC.SYS", (FENCE,)),
        ("MEMBAR.ALL.CTA", ()),
        ("CCTL.IVALL", (INVALIDATE,)),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", (BARRIER,)),
        ("BAR.RED.OR.DEFER_BLOCKING 0x0, P1", (BARRIER,)),
        ("BAR.SYNC.DEFER_BLOCKING 0x1, 0x40", ()),
        ("BAR.ARV 0x0", ()),
        ("UTMALDG.2D [UR4], [UR6]", (MemoryEffect.ASYNC_PROXY,)),
        ("TEX.LL R0, R2, R4, 0x0", (MemoryEffect.NON_COHERENT,)),
        ("CALL.REL.NOINC `($__internal_0_$__cuda_sm3x_div_rn_noftz_f32_slowpath)", ()),
    ],
)
def test_effects_of_sass(text: str, effects: tuple[MemoryEffect, ...]) -> None:
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
        ("ld.global.nc.b64 %rd1, [%rd2]", (MemoryEffect.NON_COHERENT,)),
        ("ld.shared.b32 %r1, [global_smem]", (READ,)),
        ("@%p1 ld.volatile.shared.b32 %r1, [%r2]", (READ,)),
        ("ld.local.b32 %r1, [%r2]", ()),
        ("ld.param.b64 %rd1, [f_param_1]", ()),
        ("st.global.b32 [ %rd1 + 0 ], { %r1 }", (STORE,)),
        ("st.shared.v4.b32 [%r1], {%r2, %r3, %r4, %r5}", (WRITE,)),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r5]", (READ,)),
        ("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r1], {%r2, %r3, %r4, %r5}", (WRITE,)),
        ("wgmma.fence.sync.aligned", ()),
        ("wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%r1}, %rd1, %rd2", (MULTIPLY,)),
        ("wgmma.wait_group.sync.aligned 1", ()),
        ("wgmma.wait_group.sync.aligned 0", (MemoryEffect.MULTIPLIED,)),
        ("mbarrier.init.shared::cta.b64 [%r1], 1", (READ, WRITE)),
        ("mbarrier.inval.shared::cta.b64 [%r1]", (MemoryEffect.RECEIVED, READ, WRITE)),
        ("st.shared::cta.b32 [%r1], %r2", (MemoryEffect.KEEP,)),
        ("ld.shared::cta.v4.b32 {%r1, %r2, %r3, %r4}, [%r5]", (MemoryEffect.KEPT,)),
        ("st.release.gpu.global.b64 [%rd1], %rd2", (FENCE, PUBLISH)),
        ("st.relaxed.gpu.global.b64 [%rd1], %rd2", (PUBLISH,)),
        ("atom.global.gpu.release.exch.b64 %rd1, [ %rd2 + 0 ], %rd3", (FENCE, PUBLISH)),
        ("atom.global.relaxed.gpu.exch.b64 %rd1, [%rd2], %rd3", (PUBLISH,)),
        ("atom.global.release.cta.exch.b64 %rd1, [%rd2], %rd3", (PUBLISH,)),
        ("atom.global.relaxed.gpu.cas.b64 %rd1, [%rd2], %rd3, %rd4", (FAIL,)),
        ("atom.global.gpu.acq_rel.add.u64 %rd1, [%rd2], 0", (FENCE, MemoryEffect.UPDATE, ACQUIRE)),
        ("atom.shared.add.u32 %r1, [%r2], 1", (READ, WRITE)),
        ("red.global.relaxed.gpu.add.f32 [%rd1], %r1", (MemoryEffect.UPDATE,)),
        ("redux.sync.max.s32 %r1, %r2, %r3", ()),
        ("cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2", (COPY,)),
        ("cp.async.commit_group", (COMMIT,)),
        ("cp.async.wait_group 1", ()),
        ("cp.async.wait_group 0", (COPIED,)),
        ("cp.async.mbarrier.arrive.noinc.shared.b64 [%r1]", (READ, WRITE)),
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global [%r1], [%rd1]",
            (PROXY, MemoryEffect.RECEIVE),
        ),
        ("cp.async.bulk.tensor.2d.global.shared::cta [%rd1], [%r1]", (PROXY, MemoryEffect.SEND)),
        ("cp.async.bulk.commit_group", (PROXY,)),
        ("cp.async.bulk.wait_group.read 1", (PROXY,)),
        ("cp.async.bulk.wait_group.read 0", (PROXY, MemoryEffect.SENT)),
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
def test_effects_of_ptx(text: str, effects: tuple[MemoryEffect, ...]) -> None:
    lines = f".func f()\n{{\n{text};\n}}\n"
    (function,) = ptx_text.functions(lines)
    assert [one.effects for one in function.instructions] == [effects]
