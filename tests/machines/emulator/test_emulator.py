"""The emulator runs programs right, and finds planted races and deadlocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stretto.device.expr import Access, Apply, Buffer, Const, Index, Load, Reg, Var
from stretto.device.operator import Kernel, LibraryCall, Operator, Span, Stage, TileDim
from stretto.device.program import DeviceProgram, Run, Signal, Wait
from stretto.device.tree import Call, Check, For, If, Leaf, Let, Seq, Tree, While
from stretto.errors import RunError
from stretto.ir.types import DType
from stretto.machines.emulator.memory import Clocks, RaceError, Shadow, UninitialisedRead
from stretto.machines.emulator.run import EmulatedRun, Emulator
from stretto.runtime.results import DeadlockError, ProgramStopped, Status
from stretto.schedule.scheduler import schedule
from tests.schedule.programs import OUT, A, X, chain, device, kernel, leaf, loop, reuse
from tests.schedule.trees import (
    EAGER,
    F32,
    at,
    buffer,
    call,
    condition,
    function,
    load,
    map_kernel,
    number,
    program,
)


def run(device_program: DeviceProgram, seed: int = 0, **options: int) -> tuple[Tensor, Tensor]:
    x, out = torch.randn(8), torch.zeros(8)
    Emulator(device_program, seed, **options).run({0: x, 1: out})
    return x, out


@pytest.mark.parametrize("seed", range(10))
def test_programs_give_the_same_in_every_order(seed: int) -> None:
    x, out = run(chain(), seed)
    torch.testing.assert_close(out, x)
    x, out = run(loop(), seed)
    torch.testing.assert_close(out, x.flip(0))
    x, out = run(reuse(), seed)
    torch.testing.assert_close(out, x)


@pytest.mark.parametrize("seed", range(10))
def test_a_race_is_found_in_every_order(seed: int) -> None:
    body = leaf(1, (Run("first", 0), Run("second", 0)), (Run("first", 1), Run("second", 1)))
    racing = device(body, kernel("first", A, X), kernel("second", OUT, A))
    with pytest.raises(RunError) as caught:
        run(racing, seed)
    if isinstance(caught.value, UninitialisedRead):
        assert "read at" in str(caught.value)
    else:
        assert isinstance(caught.value, RaceError)
        assert "race on a, element" in str(caught.value)
        assert "first task" in str(caught.value) and "second task" in str(caught.value)
        assert "nothing orders them" in str(caught.value)


def test_a_race_names_both_sides() -> None:
    """Both units write the same output, one after the other by chance."""
    again = map_kernel("again", OUT, load(X, Var(0)), 8)
    once = map_kernel("once", OUT, load(X, Var(0)), 8)
    racing = device(leaf(1, (Run("once", 0),), (Run("again", 0),)), once, again)
    with pytest.raises(RaceError, match=r"race on out, element 0: unit \d, \w+ task 0 and unit"):
        run(racing)


def test_a_wait_that_is_over_by_chance_does_not_hide_a_race() -> None:
    """Unit 1 waits for an early step of unit 0, and reads what unit 0 writes after it."""
    body = leaf(
        2,
        (Signal(1), Run("first", 0, 2)),
        (Wait(0, 1), Run("second", 0, 2)),
    )
    racing = device(body, kernel("first", A, X), kernel("second", OUT, A))
    for seed in range(20):
        with pytest.raises((RaceError, UninitialisedRead)):
            run(racing, seed)


def test_a_deadlock_names_who_waits() -> None:
    stuck = device(leaf(1, (Wait(1, 1),), (Wait(0, 1),)))
    text = (
        r"deadlock: unit 0 in main waits for unit 1 to reach 1 \(it has 0\); "
        r"unit 1 in main waits for unit 0 to reach 1"
    )
    with pytest.raises(DeadlockError, match=text):
        run(stuck)


def test_memory_that_nobody_wrote() -> None:
    unwritten = device(leaf(1, (Run("second", 0, 2),), ()), kernel("second", OUT, A))
    with pytest.raises(UninitialisedRead, match="the arena is read at"):
        run(unwritten)


def test_many_units() -> None:
    wide = buffer("wide", 264)
    first = map_kernel("first", wide, load(X, Index.of(Var(0)) % 8), 2)
    value = load(wide, Index.of(Var(0)) * -1 + 263)
    out = buffer("out", 264, kind="output", slot=1)
    second = map_kernel("second", out, value, 2)
    tree = program(Leaf((first, second)), (wide,), (X, out))
    made = schedule(tree, 132, EAGER)
    assert made.units == 132
    x, result = torch.randn(8), torch.zeros(264)
    Emulator(made).run({0: x, 1: result})
    torch.testing.assert_close(result, x.repeat(33).flip(0))


def test_units_must_agree() -> None:
    n = Reg("n")
    odd = device(leaf(1, (Let(n, number(1)),), (Let(n, number(2)),)))
    odd = replace(odd, tree=Tree((replace(odd.tree.main, results=(n,)),), odd.tree.externals))
    with pytest.raises(RunError, match="disagree"):
        run(odd)


# Lists, checks, recursion, library calls

ITEMS = Buffer("items", F32, (Reg("limit.0"), 2), "list", 0)


def pushes(count: int, units: int = 2) -> DeviceProgram:
    """Pushes [0, 0], [1, 1], ... with a check before each; the length is the result."""
    length = Reg("length")
    room = condition("lt", at(length), at(Reg("limit.0")))
    value = Apply("cast", (at(length),), F32)
    push = map_kernel("push", ITEMS, value, 1, index=(Index.of(length), Index.of(Var(0))))
    push = replace(push, grid=(TileDim(2, 1),))
    body = Leaf(
        (Check(room, "list_full", 0), push, Let(length, call("add", at(length), number(1))))
    )
    turning = For(Reg("i"), number(0), number(count), 1, body)
    main = function("main", Seq((Leaf((Let(length, number(0)),)), turning)), results=(length,))
    return schedule(Tree((main,), (ITEMS,)), units, EAGER)


def test_lists_grow_up_to_their_limit() -> None:
    items = torch.zeros(10)
    made = Emulator(pushes(4)).run({0: items}, {0: 5})
    assert made == EmulatedRun([4], None, 0, made.items)
    assert items.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 0, 0]


def test_a_full_list_is_told() -> None:
    made = Emulator(pushes(6)).run({0: torch.zeros(10)}, {0: 5})
    assert (made.results, made.full_list) == ([], 0)


def test_other_checks_stop_the_run() -> None:
    fails = Check(Const(False, DType.BOOL), "assertion", 7)
    with pytest.raises(ProgramStopped, match="check assertion does not hold") as caught:
        run(device(leaf(1, (fails,), (fails,))))
    assert (caught.value.status, caught.value.detail) == (Status.ASSERTION, 7)


def test_checked_positions_stop_the_run() -> None:
    from stretto.device.expr import ComputedPosition

    place = Apply("checked", (number(9), number(8), number(2)), DType.I64)
    value = Load(Access(X, X.shape, (Index.of(ComputedPosition(place)),)))
    made = map_kernel("gather", OUT, value, 8)
    with pytest.raises(ProgramStopped, match="out of range") as caught:
        run(device(leaf(1, (Run("gather", 0),), ()), made))
    assert caught.value.status is Status.INDEX


def test_an_index_out_of_range_names_the_task() -> None:
    made = map_kernel("wrong", OUT, load(X, Index.of(Var(0)) + 1), 8)
    with pytest.raises(RunError, match="index 8 of dim 0 is out of range") as caught:
        run(device(leaf(1, (Run("wrong", 0),), ()), made))
    assert caught.value.op == "wrong task 0 on unit 0"


def powers(depth: int, units: int = 2) -> DeviceProgram:
    """f(n, q): q = mirror(f(n - 1)) + x, q = x when n is 0; a frame of one buffer."""
    q, inner = buffer("q", 8, kind="param"), buffer("inner", 8)
    n, go = Reg("n"), Reg("go", DType.BOOL)
    base = map_kernel("base", q, load(X, Var(0)), 2)
    more = call("add", load(inner, Index.of(Var(0)) * -1 + 7), load(X, Var(0)))
    step = map_kernel("step", q, more, 2)
    less = call("add", at(n), number(-1))
    recurse = Call("f", ((n, less),), ((q, Access(inner, inner.shape, (Index(),))),))
    body = Seq(
        (
            Leaf((Let(go, condition("gt", at(n), number(0))),)),
            If(go, Seq((recurse, Leaf((step,)))), Leaf((base,))),
        )
    )
    f = function("f", body, (inner,), tensors=(q,), written=(q,), params=(n,))
    start = Call("f", ((n, number(depth)),), ((q, Access(OUT, OUT.shape, (Index(),))),))
    return schedule(Tree((function("main", start), f), (X, OUT)), units, EAGER)


@pytest.mark.parametrize("seed", range(3))
def test_recursion_has_a_frame_per_call(seed: int) -> None:
    x, out = run(powers(200), seed)
    expected = x
    for _ in range(200):
        expected = expected.flip(0) + x
    torch.testing.assert_close(out, expected)


def test_recursion_has_limits() -> None:
    with pytest.raises(ProgramStopped, match="deeper than 20 calls") as caught:
        run(powers(50), max_depth=20)
    assert caught.value.status is Status.TOO_DEEP
    with pytest.raises(ProgramStopped, match="the frames need 1088 bytes") as caught:
        run(powers(50), arena_limit=1024)
    assert (caught.value.status, caught.value.detail) == (Status.ARENA_FULL, 1088)


def test_library_calls_run_in_torch() -> None:
    order = Buffer("order", DType.I64, (8,))
    sort = LibraryCall("sort", "aten.sort.default", (X, 0, Reg("down")), (), (A, order), "no rule")
    made = Kernel("sort", (), (), call=sort)
    start, copy = Let(Reg("down"), number(1)), kernel("copy", OUT, A, mirrored=False)
    tree = program(Leaf((start, made, copy)), (A, order), (X, OUT))
    x, out = run(schedule(tree, 2, EAGER))
    torch.testing.assert_close(out, x.sort(descending=True).values)


def test_a_loop_that_memory_ends() -> None:
    """While the first element is below 3, add 1 to all: each unit reads what unit 0 has written."""
    now, following = buffer("now", 8), buffer("next", 8)
    go = Reg("go", DType.BOOL)
    zero = map_kernel("zero", now, Const(0.0, F32), 2)
    more = map_kernel("more", following, call("add", load(now, Var(0)), Const(1.0, F32)), 2)
    copy = map_kernel("copy", OUT, load(now, Var(0)), 2)
    head = Leaf((Let(go, condition("lt", load(now, 0), Const(3.0, F32))),))
    turning = While(head, go, Leaf((more,)), ((now, following),))
    tree = program(Seq((Leaf((zero,)), turning, Leaf((copy,)))), (now, following), (X, OUT))
    _, out = run(schedule(tree, 3, EAGER))
    assert out.tolist() == [3.0] * 8


def test_memory_must_fit_the_buffers() -> None:
    with pytest.raises(RunError, match="memory of x must be contiguous f32"):
        Emulator(chain()).run({0: torch.zeros(8, dtype=torch.float64), 1: torch.zeros(8)})
    with pytest.raises(RunError, match="no memory was given for slot 0"):
        Emulator(chain()).run({1: torch.zeros(8)})


# Vector clocks


def test_clocks_give_what_a_wait_guarantees() -> None:
    clocks = Clocks(3)
    shadow = Shadow("m", clocks, 4, written=False)
    place = torch.tensor([2]).numpy()
    assert shadow.write(0, place, 0) is None
    clocks.publish(0, 1)
    clocks.join(1, 0, 1)
    clocks.publish(1, 1)
    assert shadow.write(0, place, 1) is None
    clocks.publish(0, 2)
    clocks.join(2, 1, 1)  # unit 2 learns of the first write through unit 1, not of the second
    assert shadow.read(2, place, 2) == (2, 1)
    clocks.join(2, 0, 2)
    assert shadow.read(2, place, 3) is None
    assert shadow.write(1, place, 4) == (2, 1)


def test_operators_of_several_stages() -> None:
    middle = buffer("middle", 8)
    first = Operator("s1", (8,), (), "", load(X, Var(0)), Access(middle, (8,), (Index.of(Var(0)),)))
    second = Operator(
        "s2", (8,), (), "", load(middle, Var(0)), Access(OUT, (8,), (Index.of(Var(0)),))
    )
    spans = (Span(8, grid=0),)
    both = Kernel("both", (TileDim(8, 4),), (Stage(first, spans), Stage(second, spans)))
    x, out = run(device(leaf(1, (Run("both", 0),), (Run("both", 1),)), both, locals=(middle,)))
    torch.testing.assert_close(out, x)
