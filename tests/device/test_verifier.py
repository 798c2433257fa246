"""Each rule of the verifier, broken once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stretto.device.expr import Access, Buffer, Index, Reg, Var
from stretto.device.operator import Kernel
from stretto.device.program import (
    DeviceProgram,
    FrameLayout,
    Item,
    Placement,
    Run,
    Schedule,
    Signal,
    Wait,
)
from stretto.device.tree import Call, For, If, Leaf, Let, Seq, Tree, TreeFunction
from stretto.device.verifier import verify
from stretto.errors import VerifyError
from stretto.ir.types import DType
from tests.schedule.programs import (
    NEXT,
    NOW,
    OUT,
    A,
    B,
    T,
    X,
    chain,
    device,
    items,
    kernel,
    leaf,
    loop,
    reuse,
    with_body,
    with_items,
)
from tests.schedule.trees import F32, at, buffer, number


@pytest.mark.parametrize("make", [chain, loop, reuse])
def test_good_programs_pass(make: Callable[[], DeviceProgram]) -> None:
    verify(make())


def rejected(program: DeviceProgram, reason: str) -> None:
    with pytest.raises(VerifyError, match=reason):
        verify(program)


def edited(change: Callable[[list[list[Item]]], None], make=chain) -> DeviceProgram:  # pyright: ignore
    units = items(make())
    change(units)
    return with_items(make(), *(tuple(unit) for unit in units))


# Order


@pytest.mark.parametrize("unit", [0, 1])
def test_a_wait_is_missing(unit: int) -> None:
    rejected(edited(lambda units: units[unit].pop(2)), "race on a: nothing orders kernel")


def test_a_signal_is_missing() -> None:
    """Then only the end of the leaf publishes step 1, and the units wait for each other's end."""
    reason = "deadlock: unit 0 waits for unit 1 to publish step 1; unit 1 waits for unit 0"

    def change(units: list[list[Item]]) -> None:
        units[0].pop(1)
        units[1].pop(1)

    rejected(edited(change), reason)


def test_a_signal_comes_too_early() -> None:
    def change(units: list[list[Item]]) -> None:
        units[0][0], units[0][1] = units[0][1], units[0][0]

    rejected(edited(change), "race on a")


def test_units_wait_for_each_other_before_they_publish() -> None:
    def change(units: list[list[Item]]) -> None:
        for unit in units:
            unit[1], unit[2] = unit[2], unit[1]

    rejected(edited(change), "deadlock: unit 0 waits for unit 1 to publish step 1; unit 1")


def test_signals_must_grow() -> None:
    rejected(
        edited(lambda units: units[0].append(Signal(1))),
        "unit 0 publishes step 1 after step 1 in a leaf of 2 steps",
    )
    rejected(edited(lambda units: units[0].append(Signal(3))), "step 3 after step 1")


def test_steps_and_units_of_waits_must_exist() -> None:
    rejected(edited(lambda units: units[0].insert(0, Wait(1, 3))), "step 3, which no leaf")
    rejected(edited(lambda units: units[0].insert(0, Wait(1, -1))), "step -1, which no leaf")
    rejected(edited(lambda units: units[0].insert(0, Wait(0, 0))), "unit 0 waits for unit 0")
    rejected(edited(lambda units: units[0].insert(0, Wait(2, 0))), "unit 0 waits for unit 2")


def test_a_unit_without_items_publishes_the_end_of_the_leaf() -> None:
    program = with_body(chain(), leaf(1, (Wait(1, 1),), ()))
    verify(program)


def test_a_position_has_no_term_of_factor_0() -> None:
    program = chain()
    (stage,) = program.kernels[0].stages
    nowhere = Access(stage.operator.out.buffer, (8,), (Index(((Var(0), 0),)),))
    operator = replace(stage.operator, out=nowhere)
    broken = replace(program.kernels[0], stages=(replace(stage, operator=operator),))
    rejected(replace(program, kernels=(broken, *program.kernels[1:])), "a term of factor 0")


def test_a_wait_may_be_for_several_units() -> None:
    def widened(program: DeviceProgram, wait: Wait) -> DeviceProgram:
        units = [[wait if isinstance(i, Wait) else i for i in unit] for unit in items(program)]
        return with_items(program, *(tuple(unit) for unit in units))

    verify(widened(chain(), Wait(0, 1, 2)))  # each unit is one of those that it waits for
    rejected(widened(chain(), Wait(0, 1, 3)), "unit 0 waits for unit 2")
    rejected(widened(chain(), Wait(-1, 1, 2)), "unit 0 waits for unit 0")
    rejected(widened(chain(), Wait(1, 1, 0)), "unit 0 waits for unit 1")
    rejected(widened(chain(), Wait(0, 0, 2)), "race on a")
    rejected(widened(chain(), Wait(0, 2, 2)), "deadlock: unit 0 waits for unit 1 to publish step 2")


def test_a_leaf_must_publish() -> None:
    """Else a wait in the next leaf would be over before what this one has waited for."""
    body = Seq((chain().tree.main.body, leaf(0, (Wait(1, 0),), ())))
    rejected(with_body(chain(), body), "publishes nothing")


def test_a_leaf_takes_back_nothing_that_was_published() -> None:
    """The counters would go down, and a later wait would be over too early, or never."""
    body = Seq((chain().tree.main.body, leaf(-1, (), ())))
    rejected(with_body(chain(), body), "a leaf of -1 steps: what was published is taken back")


@pytest.mark.parametrize("unit", [0, 1])
def test_a_wait_between_iterations_is_missing(unit: int) -> None:
    program = loop()
    body = program.tree.main.body
    assert isinstance(body, Seq)
    start, turning, end = body.children
    assert isinstance(turning, For)
    units: list[tuple[Item, ...]] = [
        (Wait(1, 0), Run("step", 0)),
        (Wait(0, 0), Run("step", 1)),
    ]
    units[unit] = units[unit][1:]
    broken = replace(turning, body=leaf(1, *units))
    rejected(with_body(program, Seq((start, broken, end))), "race on (now|next)")


def test_a_wait_for_one_arm_of_a_branch_is_missing() -> None:
    flag = Reg("flag", DType.BOOL)
    choose = Let(flag, number(1))
    first = leaf(1, (choose, Run("first", 0)), (choose, Run("first", 1)))
    nothing = leaf(1, (Wait(1, 0),), (Wait(0, 0),))
    last = leaf(1, (Run("second", 0),), (Run("second", 1),))
    kernels = kernel("first", A, X), kernel("second", OUT, A)
    verify(device(Seq((first, If(flag, nothing, nothing), last)), *kernels))
    rejected(device(Seq((first, If(flag, nothing, Seq(())), last)), *kernels), "race on a")


def test_a_call_needs_quiet() -> None:
    callee: TreeFunction[Schedule] = TreeFunction("f", (), (), (), (), (), Seq(()))
    program = chain()
    body = Seq((program.tree.main.body, Call("f", (), ())))
    tree = Tree((replace(program.tree.main, body=body), callee), program.tree.externals)
    frames = (*program.frames, ("f", FrameLayout(0, ())))
    broken = replace(program, tree=tree, frames=frames)
    rejected(broken, "kernel second of unit 0 may still access a when function f is called")


def test_a_return_needs_quiet() -> None:
    program = chain()
    local = replace(program.tree.main, name="f")
    main: TreeFunction[Schedule] = TreeFunction("main", (), (), (), (), (), Call("f", (), ()))
    frames = (("f", program.frame("main")), ("main", FrameLayout(0, ())))
    broken = replace(program, tree=Tree((main, local), program.tree.externals), frames=frames)
    rejected(broken, "may still access .* when function f returns")


# Memory


def test_a_read_comes_before_the_write() -> None:
    rejected(
        device(chain().tree.main.body, kernel("first", B, X), kernel("second", OUT, A)),
        "kernel second reads a, of which a part may not be written",
    )


def test_a_part_is_not_written() -> None:
    half = kernel("first", buffer("a", 4), X)
    stage = half.stages[0]
    out = Access(A, A.shape, stage.operator.out.index)
    half = replace(half, stages=(replace(stage, operator=replace(stage.operator, out=out)),))
    body = leaf(1, (Run("first", 0), Run("second", 0, 2)), ())
    rejected(device(body, half, kernel("second", OUT, A)), "reads a, of which a part")


def test_a_loop_may_run_zero_times() -> None:
    n = Reg("n")
    inside = leaf(1, (Run("first", 0, 2),), ())
    last = leaf(1, (Run("second", 0, 2),), ())
    let = leaf(1, (Let(n, number(2)),), (Let(n, number(2)),))
    kernels = kernel("first", A, X), kernel("second", OUT, A)
    verify(device(Seq((For(T, number(0), number(2), 1, inside), last)), *kernels))
    unknown = For(T, number(0), at(n), 1, inside)
    rejected(device(Seq((let, unknown, last)), *kernels), "reads a, of which a part")


def test_rotation_moves_what_is_written() -> None:
    program = loop()
    body = program.tree.main.body
    assert isinstance(body, Seq)
    start, turning, end = body.children
    assert isinstance(turning, For)
    still = replace(turning, rotate=((NEXT, NOW),), body=leaf(1, (), ()))
    rejected(with_body(program, Seq((start, still, end))), "reads now, of which a part")


def test_reused_memory_is_overwritten_too_early() -> None:
    program = reuse()
    overlapping = device(
        program.tree.main.body,
        *program.kernels,
        locals=program.tree.main.locals,
        offsets={"c": 64, "b": 64},
    )
    rejected(overlapping, "kernel kc accesses b and writes c, which share memory")


def test_reuse_without_a_wait_is_a_race() -> None:
    def change(units: list[list[Item]]) -> None:
        units[0].remove(Wait(1, 2))

    rejected(edited(change, reuse), "race on c and a|race on b")


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (FrameLayout(128, (("a", Placement(0, 32)),)), "b has no place"),
        (FrameLayout(128, (("a", Placement(0, 16)), ("b", Placement(64, 32)))), "only 16 bytes"),
        (FrameLayout(128, (("a", Placement(0, 32)), ("b", Placement(16, 32)))), "not aligned"),
        (FrameLayout(64, (("a", Placement(0, 32)), ("b", Placement(64, 32)))), "not in the frame"),
    ],
)
def test_frames_must_hold_their_buffers(frame: FrameLayout, reason: str) -> None:
    rejected(replace(chain(), frames=(("main", frame),)), reason)


def test_rotating_buffers_must_not_overlap() -> None:
    program = loop()
    broken = device(
        program.tree.main.body, *program.kernels, locals=(NOW, NEXT), offsets={"next": 0}
    )
    rejected(broken, "rotating buffers now and next overlap")


def test_rotating_buffers_must_be_alike() -> None:
    other = buffer("next", 4)
    program = loop()
    body = program.tree.main.body
    assert isinstance(body, Seq)
    start, turning, end = body.children
    assert isinstance(turning, For)
    turned = replace(turning, rotate=((NOW, other),))
    broken = device(Seq((start, turned, end)), *program.kernels, locals=(NOW, other))
    rejected(broken, "now and next rotate but differ in type")


# Form


def test_every_task_runs_once() -> None:
    rejected(
        edited(lambda units: units[0].insert(0, Run("first", 0))),
        "task 0 of kernel first runs 2 times",
    )
    rejected(edited(lambda units: units[1].pop(0)), "kernel first runs 1 of its 2 tasks")
    rejected(edited(lambda units: units[1].append(Run("first", 2))), "has no tasks 2 .. 2")
    rejected(edited(lambda units: units[1].append(Run("third", 0))), "there is no kernel third")


def test_all_units_have_the_same_statements() -> None:
    rejected(
        edited(lambda units: units[0].append(Let(Reg("n"), number(1)))),
        "differ in their register statements",
    )


def test_leaves_have_all_units() -> None:
    rejected(with_body(chain(), leaf(1, (Run("first", 0, 2),))), "a leaf has 1 units instead of 2")


def test_registers_are_assigned_first() -> None:
    use = Let(Reg("m"), at(Reg("n")))
    rejected(
        edited(lambda units: [unit.append(use) for unit in units] and None),
        "register n may be used before it is assigned: let m",
    )


def test_only_the_capacities_of_lists_are_assigned_from_the_start() -> None:
    """A user may call a register `limit`: its name is numbered as `limit.3`."""
    use = Let(Reg("m"), at(Reg("limit.3")))
    program = edited(lambda units: [unit.append(use) for unit in units] and None)
    rejected(program, "register limit.3 may be used before it is assigned: let m")
    items_3 = Buffer("items", F32, (Reg("limit.3"), 2), "list", 3)
    tree = Tree(program.tree.functions, (X, OUT, items_3))
    verify(replace(program, tree=tree, lists=(items_3,)))


def test_a_branch_assigns_in_both_arms() -> None:
    flag, n = Reg("flag", DType.BOOL), Reg("n")
    start, assign = Let(flag, number(1)), Let(n, number(1))
    use = Let(Reg("m"), at(n))
    branch = If(flag, leaf(1, (assign,), (assign,)), Seq(()))
    body = Seq((leaf(1, (start,), (start,)), branch, leaf(1, (use,), (use,))))
    rejected(device(body), "register n may be used before")


def test_functions_need_frames_and_main() -> None:
    rejected(replace(chain(), frames=()), "function main has no frame")
    rejected(replace(chain(), kernels=chain().kernels * 2), "two kernels have one name")


def called(callee: TreeFunction[Schedule], call: Call[Schedule]) -> DeviceProgram:
    main: TreeFunction[Schedule] = TreeFunction("main", (), (), (), (), (A, B), Seq((fill(), call)))
    frame = FrameLayout(128, (("a", Placement(0, 32)), ("b", Placement(64, 32))))
    frames = (("main", frame), ("f", FrameLayout(0, ())))
    kernels: tuple[Kernel, ...] = (kernel("first", A, X), kernel("copy", Q, P))
    return DeviceProgram(1, Tree((main, callee), (X, OUT)), kernels, frames)


def fill() -> Leaf[Schedule]:
    return leaf(1, (Run("first", 0, 2),))


P, Q = buffer("p", 8, kind="param"), buffer("q", 8, kind="param")
ZERO = (Index(),)


def copier() -> TreeFunction[Schedule]:
    return TreeFunction("f", (), (P, Q), (Q,), (), (), leaf(1, (Run("copy", 0, 2),)))


def test_calls_bind_what_the_function_declares() -> None:
    a, b = Access(A, A.shape, ZERO), Access(B, B.shape, ZERO)
    verify(called(copier(), Call("f", (), ((P, a), (Q, b)))))
    rejected(called(copier(), Call("g", (), ((P, a), (Q, b)))), "there is no function g")
    rejected(called(copier(), Call("f", (), ((P, a),))), "does not bind its tensors")
    extra = ((Reg("n"), number(1)),)
    rejected(called(copier(), Call("f", extra, ((P, a), (Q, b)))), "does not give its registers")
    result = ((Reg("n"), Reg("m")),)
    rejected(called(copier(), Call("f", (), ((P, a), (Q, b)), result)), "is not a result")


def test_written_memory_is_passed_once() -> None:
    a = Access(A, A.shape, ZERO)
    rejected(
        called(copier(), Call("f", (), ((P, a), (Q, a)))),
        "passes a as p and as q, which is written",
    )


def test_arguments_must_be_written() -> None:
    a, b = Access(A, A.shape, ZERO), Access(B, B.shape, ZERO)
    rejected(called(copier(), Call("f", (), ((P, b), (Q, a)))), "call f reads b, of which a part")


def test_dynamic_tasks_run_once() -> None:
    n = Reg("n")
    made = kernel("first", OUT, X)
    made = replace(made, grid=(replace(made.grid[0], extent=n),))
    let = Let(n, number(8))

    def program(first: Run, second: Run) -> DeviceProgram:
        return device(leaf(1, (let, first), (let, second)), made)

    verify(program(Run("first", 0, None, 2), Run("first", 1, None, 2)))
    rejected(program(Run("first", 0, None, 2), Run("first", 0, None, 2)), "do not run once each")
    rejected(program(Run("first", 0, 1), Run("first", 1, None, 2)), "a dynamic grid but a fixed")
