"""Frames: who shares bytes with whom."""

from __future__ import annotations

import random

import pytest

from stretto.device.expr import Access, Buffer, Index, Reg, Var
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, FrameLayout
from stretto.device.regions import Body
from stretto.device.tree import Call, For, If, Leaf, Let, Node, Seq
from stretto.device.verifier import verify
from stretto.errors import ScheduleError
from stretto.ir.types import DType
from stretto.schedule.frame_layout import MemoryBlock, place
from stretto.schedule.liveness import AccessEvent, LiveRange
from stretto.schedule.scheduler import schedule, schedule_with_report
from tests.schedule.programs import OUT, X
from tests.schedule.trees import (
    EAGER,
    F32,
    at,
    buffer,
    call,
    condition,
    load,
    map_kernel,
    number,
    program,
)

WIDE = 64
I = Reg("i")  # noqa: E741


def wide(name: str, rows: int = 1) -> Buffer:
    return buffer(name, rows * WIDE)


def step(name: str, out: Buffer, *sources: Buffer, mirrored: bool = True) -> Kernel:
    """Each task reads its own elements, and mirrored ones, which another unit may have written."""
    value = load(X, Index.of(Var(0)) % 8)
    for source in sources:
        last = source.shape[0]
        assert isinstance(last, int)
        index = Index.of(Var(0)) % last
        value = call("add", value, load(source, index))
        if mirrored:
            value = call("add", value, load(source, index * -1 + (last - 1)))
    return map_kernel(name, out, value, 16)


def planned(
    body: Node[Body], *locals: Buffer, units: int = 2, share_bytes: int = 0
) -> tuple[FrameLayout, DeviceProgram]:
    from dataclasses import replace

    costs = replace(EAGER, share_bytes=share_bytes)
    made = schedule(program(body, locals, (X, OUT)), units, costs)
    verify(made)
    return made.frame("main"), made


def shared(frame: FrameLayout, a: Buffer, b: Buffer) -> bool:
    x, y = frame[a.name], frame[b.name]
    return x.offset < y.offset + y.nbytes and y.offset < x.offset + x.nbytes


A, B, C, D = wide("a"), wide("b"), wide("c"), wide("d")
CHAIN = Leaf(
    (step("ka", A), step("kb", B, A), step("kc", C, B), step("kd", D, C), step("ko", OUT, D))
)


@pytest.mark.parametrize("units", [1, 2])
def test_a_chain_takes_two_buffers(units: int) -> None:
    frame, _ = planned(CHAIN, A, B, C, D, units=units)
    assert frame.nbytes == 2 * WIDE * 4
    assert shared(frame, A, C) and shared(frame, B, D)
    assert not shared(frame, A, B) and not shared(frame, C, D)


def test_small_buffers_share_nothing_in_a_leaf() -> None:
    frame, _ = planned(CHAIN, A, B, C, D, share_bytes=WIDE * 4 + 1)
    assert frame.nbytes == 4 * WIDE * 4


def test_small_buffers_share_with_those_of_later_loops() -> None:
    """What the leaf between the loops makes is too near to both."""

    def use(name: str, made: Buffer) -> Leaf[Body]:
        return Leaf((step(name, made), step(f"o{name}", OUT, made)))

    first, second = (
        For(I, number(0), number(3), 1, use(name, made)) for name, made in (("ka", A), ("kc", C))
    )
    body = Seq((first, use("kb", B), second))
    for share_bytes, near in ((0, True), (WIDE * 4 + 1, False)):
        frame, _ = planned(body, A, B, C, share_bytes=share_bytes)
        assert shared(frame, A, C)
        assert shared(frame, A, B) == shared(frame, B, C) == near


def test_the_report_tells_what_was_saved() -> None:
    _, report = schedule_with_report(program(CHAIN, (A, B, C, D), (X, OUT)), 2, EAGER)
    assert (report.frame_bytes, report.separate_bytes) == (2 * WIDE * 4, 4 * WIDE * 4)


def test_on_several_units_a_wave_must_lie_between() -> None:
    """Without mirrors all is in one wave: each unit goes on alone, so nothing can be shared."""
    steps = (step("ka", A), step("kb", B, A, mirrored=False), step("kc", C, B, mirrored=False))
    last = step("ko", OUT, C, mirrored=False)
    frame, made = planned(Leaf((*steps, last)), A, B, C)
    assert not shared(frame, A, C)
    frame, _ = planned(Leaf((*steps, last)), A, B, C, units=1)
    assert shared(frame, A, C)
    assert made.units == 2


def test_offsets_are_aligned_and_large_buffers_go_first() -> None:
    odd = buffer("odd", 17)
    frame, _ = planned(Leaf((step("ka", odd), step("kb", A, odd), step("ko", OUT, A))), odd, A)
    assert frame["a"].offset == 0
    assert frame["odd"].offset == 256
    assert frame.nbytes == 256 + 128


def test_what_a_loop_reads_lives_all_the_time() -> None:
    """`a` is read in every iteration: nothing that comes after that read may take its place."""
    body = Leaf((step("kb", B, A), step("kc", C, B), step("kd", D, C), step("ko", OUT, D)))
    loop = For(I, number(0), number(3), 1, body)
    frame, _ = planned(Seq((Leaf((step("ka", A),)), loop)), A, B, C, D)
    assert not any(shared(frame, A, other) for other in (B, C, D))
    assert shared(frame, B, D)


def test_what_an_iteration_makes_for_itself_is_shared() -> None:
    body = Leaf((step("ka", A), step("kb", B, A), step("kc", C, B), step("ko", OUT, C)))
    frame, _ = planned(For(I, number(0), number(3), 1, body), A, B, C)
    assert shared(frame, A, C)


def test_a_list_keeps_the_items_of_earlier_iterations() -> None:
    items = buffer("items", 3, WIDE)
    push = map_kernel("push", items, load(A, Var(0)), 16, index=(Index.of(I), Index.of(Var(0))))
    final = map_kernel("ko", OUT, load(items, 2, Index.of(Var(0))), 4)
    body = Leaf((step("ka", A), push, step("kb", B), step("kc", C, B)))
    loop = For(I, number(0), number(3), 1, body)
    frame, _ = planned(Seq((loop, Leaf((final,)))), items, A, B, C)
    assert not any(shared(frame, items, other) for other in (A, B, C))


def test_what_one_arm_writes_in_part_lives_all_the_time() -> None:
    """The arm that comes first in the text writes all of `items`, the other one a part."""
    items = buffer("items", 3, WIDE)
    row = (Index.of(I), Index.of(Var(0)))
    every = map_kernel("every", items, load(D, Var(1)), 16)
    one = map_kernel("one", items, load(D, Var(0)), 16, index=row)
    flag = Reg("flag", DType.BOOL)
    head = Leaf((step("kb", B), step("kd", D, B), Let(flag, condition("lt", at(I), number(1)))))
    last = map_kernel("ko", OUT, load(items, 0, Index.of(Var(0))), 4)
    body = Seq((head, If(flag, Leaf((every,)), Leaf((one,))), Leaf((last,))))
    loop = For(I, number(0), number(3), 1, body)
    frame, _ = planned(loop, items, B, D)
    assert not shared(frame, items, B)


def test_rotating_buffers_share_nothing_with_each_other() -> None:
    now, following = wide("now"), wide("next")
    before, after = step("ka", A), step("ko", OUT, D)
    start = Leaf((before, step("start", now, A)))
    turn = For(
        I, number(0), number(3), 1, Leaf((step("turn", following, now),)), ((now, following),)
    )
    end = Leaf((step("kd", D, now), after))
    frame, _ = planned(Seq((start, turn, end)), A, D, now, following)
    assert not shared(frame, now, following)
    assert not shared(frame, A, now) and not shared(frame, D, now)
    assert shared(frame, A, D) or frame.nbytes == 4 * WIDE * 4


def test_the_arms_of_a_branch_share() -> None:
    flag = Reg("flag", DType.BOOL)
    test = Leaf((Let(flag, condition("lt", at(I), number(1))),))
    start = Leaf((Let(I, number(0)),))
    arms = [Leaf((step(f"k{m.name}", m), step(f"o{m.name}", OUT, m))) for m in (A, B)]
    frame, _ = planned(Seq((start, test, If(flag, arms[0], arms[1]))), A, B)
    assert shared(frame, A, B)


def test_arguments_of_calls_live() -> None:
    from dataclasses import replace

    from stretto.device.tree import Tree
    from tests.schedule.trees import function

    p = buffer("p", WIDE, kind="param")
    f = function("f", Leaf((step("fill", p),)), tensors=(p,), written=(p,))
    bind = Call("f", (), ((p, Access(A, A.shape, (Index(),))),))
    rest = Leaf((step("kb", B), step("kc", C, B, A), step("ko", OUT, C)))
    tree = program(Seq((bind, rest)), (A, B, C), (X, OUT))
    made = schedule(Tree((*tree.functions, f), tree.externals), 2, replace(EAGER))
    verify(made)
    assert not shared(made.frame("main"), A, B)


def test_dynamic_locals_are_refused() -> None:
    dynamic = Buffer("dynamic", F32, (Reg("n"),))
    with pytest.raises(ScheduleError, match="the size of local buffer dynamic is not static"):
        schedule(program(Leaf(()), (dynamic,), (X,)), 2)


@pytest.mark.parametrize("seed", range(4))
def test_arrays_say_of_blocks_what_their_live_ranges_say(seed: int) -> None:
    """And each block lies in the smallest gap that fits beside those that live with it."""
    rng = random.Random(seed)
    blocks = [_drawn(rng, number) for number in range(60)]
    placed = place(blocks)
    before: list[tuple[int, MemoryBlock]] = []
    for offset, block in placed:
        taken = sorted((o, o + one.nbytes) for o, one in before if not block.may_share(one))
        end, gaps = 0, list[tuple[int, int]]()
        for first, last in taken:
            gaps.append((first - end, end))
            end = max(end, last)
        fitting = [gap for gap in gaps if gap[0] >= block.nbytes]
        assert offset == (min(fitting, key=lambda gap: gap[0])[1] if fitting else end)
        before.append((offset, block))


def _drawn(rng: random.Random, number: int) -> MemoryBlock:
    """A block of some accesses; of units from none to several."""
    events = tuple(
        AccessEvent(place, place // 6, rng.randrange(3), rng.choice([0, 1, 2, 3, 1 << 131]), True)
        for place in (rng.randrange(30) for _ in range(rng.randint(1, 3)))
    )
    live = LiveRange.of(events) if rng.random() < 0.9 else None
    nbytes = rng.choice([0, 64, 64, 128, 4096])
    small, alone = rng.random() < 0.3, rng.random() < 0.1
    return MemoryBlock((buffer(f"b{number}", 8),), nbytes, live, small, alone)
