"""Rules of the verifier about form, memory and ranges, each broken once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.device.expr import (
    Access,
    Apply,
    Buffer,
    Const,
    Expr,
    Index,
    Load,
    Position,
    Reg,
    Var,
)
from stretto.device.operator import Kernel, Operator, Span, Stage, TileDim
from stretto.device.program import (
    DeviceProgram,
    FrameLayout,
    Placement,
    Run,
    Schedule,
    Signal,
    SizedPlacement,
    Wait,
)
from stretto.device.tree import Call, For, Leaf, Let, Node, Seq, Tree, TreeFunction
from stretto.device.verifier import verify
from stretto.device.verifier.touched import check_coverage
from stretto.errors import VerifyError
from stretto.ir.sizes import Size, Symbol
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
    kernel,
    leaf,
    loop,
    with_body,
)
from tests.schedule.trees import F32, buffer, load, map_kernel, number

V = Var(0)


def rejected(program: DeviceProgram, reason: str) -> None:
    with pytest.raises(VerifyError, match=reason):
        verify(program)


def alone(*kernels: Kernel, **options: object) -> DeviceProgram:
    """Each kernel after the other on one unit."""
    body = leaf(1, tuple(Run(k.name, 0, k.tasks) for k in kernels))
    return device(body, *kernels, units=1, **options)  # pyright: ignore[reportArgumentType]


def with_index(out: Buffer, source: Buffer, index: Index) -> Kernel:
    return map_kernel("k", out, load(source, index), 4)


# Order


def test_the_last_step_is_the_end_of_the_leaf() -> None:
    """Unit 1 waits for all that unit 0 did in the first leaf: more than the signal says."""
    first = leaf(1, (Signal(1), Run("first", 0, 2)), ())
    second = leaf(1, (), (Wait(0, 0), Run("second", 0, 2)))
    kernels = kernel("first", A, X), kernel("second", OUT, A)
    rejected(device(Seq((first, second)), *kernels), "publishes step 1 after step 0 in a leaf of 1")
    later = leaf(1, (Run("first", 0, 2),), ())
    verify(device(Seq((later, second)), *kernels))


def test_tasks_of_one_kernel_are_independent() -> None:
    """Both tasks write the first half."""
    value = load(X, V)
    both = map_kernel("k", A, value, 4)
    operator = both.stages[0].operator
    out = Access(A, (8,), (Index.of(V) % 4,))
    both = replace(both, stages=(replace(both.stages[0], operator=replace(operator, out=out)),))
    rejected(device(leaf(1, (Run("k", 0),), (Run("k", 1),)), both), "race on a: nothing orders")


# Form


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (
            FrameLayout(100, (("a", Placement(0, 32)), ("b", Placement(64, 32)))),
            "no multiple of 64",
        ),
        (
            FrameLayout(128, (("a", Placement(0, 32)), ("out", Placement(64, 32)))),
            "places what is not",
        ),
        (
            FrameLayout(128, (("a", Placement(0, 32)), ("a", Placement(64, 32)))),
            "places what is not",
        ),
    ],
)
def test_frames_place_local_buffers_only(frame: FrameLayout, reason: str) -> None:
    rejected(replace(chain(), frames=(("main", frame),)), reason)


def test_frames_belong_to_functions() -> None:
    program = chain()
    rejected(
        replace(program, frames=(*program.frames, ("f", FrameLayout(0, ())))), "of no function"
    )


def test_buffers_are_declared() -> None:
    program = chain()
    rejected(replace(program, tree=Tree(program.tree.functions, (X,))), "does not declare buffer")
    other = buffer("a", 9)
    rejected(alone(kernel("first", other, X)), "function main does not declare buffer a")


def test_external_buffers_have_slots_of_their_own() -> None:
    twice = buffer("twice", 8, kind="input", slot=0)
    program = chain()
    rejected(replace(program, tree=Tree(program.tree.functions, (X, OUT, twice))), "one slot")
    inside = buffer("inside", 8, kind="local", slot=7)
    rejected(replace(program, tree=Tree(program.tree.functions, (X, OUT, inside))), "of kind local")


def test_a_program_has_a_unit() -> None:
    rejected(replace(chain(), units=0), "needs a unit")


@pytest.mark.parametrize("pairs", [((NOW, NEXT), (NOW, NEXT)), ((NOW, NOW),)])
def test_a_buffer_rotates_once(pairs: tuple[tuple[Buffer, Buffer], ...]) -> None:
    program = loop()
    body = program.tree.main.body
    assert isinstance(body, Seq)
    start, turning, end = body.children
    assert isinstance(turning, For)
    broken = replace(turning, rotate=pairs)
    rejected(with_body(program, Seq((start, broken, end))), "a buffer rotates twice")


def test_control_reads_no_memory_and_moves() -> None:
    inside = leaf(1, (), ())
    reading = For(T, number(0), Apply("cast", (load(X, 0),), DType.I64), 1, inside)
    rejected(device(reading), "a For node reads memory")
    rejected(device(For(T, number(0), number(3), 0, inside)), "a loop has step 0")


def changed(made: Kernel, **fields: object) -> Kernel:
    """With other fields of its operator."""
    stage = made.stages[0]
    operator = replace(stage.operator, **fields)  # pyright: ignore[reportArgumentType]
    return replace(made, stages=(replace(stage, operator=operator),))


GOOD = kernel("first", A, X)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (changed(GOOD, value=load(X, Var(1))), "uses variable 1 of 1"),
        (changed(GOOD, value=load(X, Index.of(V) % -2)), "divides an index by -2"),
        (changed(GOOD, value=load(buffer("x", 8), 0, 0)), "accesses x with 2 indices"),
        (
            changed(GOOD, out=Access(A, (9,), (Index.of(V),))),
            "sees a as larger than it is",
        ),
        (changed(GOOD, dims=(4,)), "computes more than its operator has"),
        (replace(GOOD, grid=(TileDim(8, 0),)), "a dim of no tiles"),
        (replace(GOOD, grid=(TileDim(1 << 30, 1),)), "tasks, too many"),
        (
            replace(GOOD, stages=(replace(GOOD.stages[0], box=(Span(8, grid=3),)),)),
            "has no grid dim 3",
        ),
        (replace(GOOD, stages=(replace(GOOD.stages[0], box=()),)), "a stage of other dims"),
    ],
)
def test_kernels_are_well_formed(broken: Kernel, reason: str) -> None:
    rejected(device(leaf(1, (Run("first", 0, 2),)), broken, units=1), reason)


def test_constants_are_not_written() -> None:
    constant = buffer("w", 8, kind="constant", slot=5)
    rejected(alone(kernel("first", constant, X)), "kernel first writes the constant w")


# Ranges


def test_affine_accesses_are_in_range() -> None:
    verify(alone(with_index(A, X, Index.of(V) * -1 + 7)))
    rejected(alone(with_index(A, X, Index.of(V) + 1)), "accesses x out of range: 1 .. 8 in a dim")
    rejected(alone(with_index(A, X, Index.of(V) * -1 + 6)), "out of range: -1 .. 6 in a dim of 8")
    rejected(alone(with_index(A, X, Index.of(V) * 2)), "out of range: 0 .. 14")


def test_quotients_are_looked_at_point_by_point() -> None:
    verify(alone(with_index(A, X, Index.of(V) // 2 + (Index.of(V) % 2) * 4)))
    rejected(alone(with_index(A, X, Index.of(V) // 2 + (Index.of(V) % 2) * 5)), "out of range")


def guarded(comparison: str, limit: int, index: Index) -> DeviceProgram:
    inside = Apply(comparison, (Position(Index.of(V)), Const(limit, DType.I64)), DType.BOOL)
    value: Expr = Apply("where", (inside, load(X, index), Const(0.0, F32)), F32)
    return alone(map_kernel("k", A, value, 4))


def test_conditions_narrow_positions() -> None:
    """As in padding: outside of the condition nothing is read."""
    verify(guarded("ge", 1, Index.of(V) + -1))
    rejected(guarded("ge", 0, Index.of(V) + -1), "accesses x out of range")
    verify(guarded("lt", 6, Index.of(V) + 2))
    rejected(guarded("lt", 7, Index.of(V) + 2), "accesses x out of range")
    verify(guarded("ne", 0, Index.of(V) + -1))
    rejected(guarded("ne", 1, Index.of(V) + -1), "accesses x out of range")


def test_the_index_of_a_loop_has_a_range() -> None:
    def program(trips: int) -> DeviceProgram:
        made = map_kernel("k", A, load(X, Index.of(T)), 4)
        return device(
            For(T, number(0), number(trips), 1, leaf(1, (Run("k", 0, 2),))), made, units=1
        )

    verify(program(8))
    rejected(program(9), "kernel k accesses x out of range: 0 .. 8 in a dim of 8")


P, Q = buffer("p", 8, kind="param"), buffer("q", 8, kind="param")
COPY: TreeFunction[Schedule] = TreeFunction(
    "f", (), (P, Q), (Q,), (), (), leaf(1, (Run("copy", 0, 2),))
)


def calling(
    bound: tuple[Access, Access],
    *,
    callee: TreeFunction[Schedule] = COPY,
    offsets: tuple[int, int] = (0, 64),
    locals: tuple[Buffer, ...] = (A, B),
) -> DeviceProgram:
    fill = leaf(1, tuple(Run(f"fill {b.name}", 0, 2) for b in locals[:1]))
    body: Node[Schedule] = Seq((fill, Call("f", (), tuple(zip((P, Q), bound, strict=True)))))
    main: TreeFunction[Schedule] = TreeFunction("main", (), (), (), (), locals, body)
    places = tuple((b.name, Placement(o, b.nbytes)) for b, o in zip(locals, offsets, strict=True))
    frames = (("main", FrameLayout(256, places)), ("f", FrameLayout(0, ())))
    kernels = (*(kernel(f"fill {b.name}", b, X) for b in locals[:1]), kernel("copy", Q, P))
    return DeviceProgram(1, Tree((main, callee), (X, OUT)), kernels, frames)


def place(of: Buffer, offset: int = 0) -> Access:
    return Access(of, (of.elements,), (Index(const=offset),))


def test_calls_bind_memory_that_is_there() -> None:
    verify(calling((place(A), place(B))))
    rejected(calling((place(A, 1), place(B))), "binds p to memory beyond the end of a")


# Names


def test_params_share_no_memory() -> None:
    """`a` and `b` lie at the same place."""
    rejected(calling((place(A), place(B)), offsets=(0, 0)), "passes b as p and as q|passes . as")


def test_a_param_is_not_known_by_another_name() -> None:
    both = leaf(1, (Run("copy", 0, 2), Run("both", 0, 2)))
    callee = replace(COPY, body=both)
    program = calling((place(A), place(OUT)), callee=callee)
    program = replace(program, kernels=(*program.kernels, kernel("both", OUT, P)))
    rejected(program, "function f accesses out by its name and as q, and writes it")


def test_a_kernel_shares_no_memory_with_itself() -> None:
    made = kernel("first", A, X), kernel("second", B, A), kernel("third", OUT, B)
    verify(alone(*made))
    rejected(alone(*made, offsets={"b": 0}), "kernel second accesses a and writes b, which share")


# Lists, and what is written at run time

LIST = buffer("list", 4, 8, kind="items")
N = Reg("n")


def push(name: str = "push") -> Kernel:
    dims = (8,)
    made = map_kernel(name, buffer("row", *dims), load(X, V), 4)
    out = Access(LIST, LIST.shape, (Index.of(N), Index.of(V)))
    return changed(made, out=out)


def listed(*between: str, offsets: dict[str, int]) -> DeviceProgram:
    """Pushes an item, runs the kernels between, and reads the item."""
    last = map_kernel("last", OUT, load(LIST, Index.of(N), Index.of(V)), 4)
    kernels = push(), last, kernel("first", A, X)
    runs = tuple(Run(name, 0, 2) for name in ("push", *between, "last"))
    body = leaf(1, (Let(N, number(0)), *runs))
    offsets = {"a": 0, "list": 64} | offsets
    frame = FrameLayout(
        256, tuple((b.name, Placement(offsets[b.name], b.nbytes)) for b in (A, LIST))
    )
    program = device(body, *kernels, units=1, locals=(A, LIST))
    return replace(program, frames=(("main", frame),))


def test_lists_are_not_overwritten() -> None:
    verify(listed("first", offsets={}))
    verify(listed(offsets={"list": 0}))
    rejected(
        listed("first", offsets={"list": 0}),
        "kernel last reads list, of which a part may be overwritten before",
    )


def test_what_was_there_before_a_list_does_not_matter() -> None:
    program = listed(offsets={"list": 0})
    body = leaf(1, (Let(N, number(0)), *(Run(n, 0, 2) for n in ("first", "push", "last"))))
    verify(with_body(program, body))


def test_a_store_at_an_unknown_place_writes_nothing_for_sure() -> None:
    """The callee writes one row of a list; what the caller reads of it is for the source to know,
    but a store to every second element leaves the others unwritten."""
    sparse = kernel("first", A, X)
    sparse = changed(
        replace(sparse, grid=(TileDim(4, 2),), stages=(sparse.stages[0],)),
        dims=(4,),
        value=load(X, V),
        out=Access(A, (4, 2), (Index.of(V), Index())),
    )
    sparse = replace(sparse, stages=(replace(sparse.stages[0], box=(Span(4, grid=0),)),))
    rejected(alone(sparse, kernel("second", OUT, A)), "kernel second reads a, of which a part")


def test_outputs_are_written_before_they_are_read() -> None:
    rejected(alone(kernel("first", A, OUT)), "kernel first reads out, of which a part may not be")
    verify(alone(kernel("first", OUT, X), kernel("second", A, OUT)))


def seen(kernel: Kernel, view: int, source: int) -> Kernel:
    """A copy of so many elements, from a view that has no more, to one that has no more."""
    (stage,) = kernel.stages
    (read,) = stage.operator.reads()
    access = replace(read.access, shape=(source,), index=(Index.of(V),))
    out = Access(stage.operator.out.buffer, (view,), (Index.of(V),))
    operator = replace(stage.operator, dims=(view,), value=Load(access), out=out)
    return Kernel(kernel.name, (), (Stage(operator, (Span(view),)),))


def in_turn(one: Kernel, other: Kernel, together: bool) -> tuple[Kernel, ...]:
    return (replace(one, stages=(*one.stages, *other.stages)),) if together else (one, other)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("written", "read"), [(4, 8), (7, 8), (1, 2), (8, 8), (8, 4), (4, 4)])
def test_what_a_smaller_view_leaves_unwritten_is_not_read(
    written: int, read: int, together: bool
) -> None:
    first = seen(map_kernel("first", A, load(X, V), 8), written, 8)
    second = seen(map_kernel("second", OUT, load(A, V), 8), read, read)
    program = alone(*in_turn(first, second, together))
    if written >= read:
        verify(program)
    else:
        rejected(program, "reads a, of which a part may not be written before")


S = Size.of(Symbol("s", 8, 64))


@pytest.mark.parametrize(("written", "read"), [(4, 8), (4, S), (8, S), (S, 8), (S, S)])
def test_a_view_of_fixed_size_of_a_buffer_of_symbolic_size_is_not_the_whole(
    written: int | Size, read: int | Size
) -> None:
    x, out = Buffer("x", F32, (S,), "input", 0), Buffer("out", F32, (S,), "output", 1)
    own = Buffer("own", F32, (S,))

    def copied(name: str, target: Buffer, source: Buffer, size: int | Size) -> Kernel:
        value = Load(Access(source, (size,), (Index.of(V),)))
        place = Access(target, (size,), (Index.of(V),))
        operator = Operator(name, (size,), (), "", value, place)
        return Kernel(name, (), (Stage(operator, (Span(size),)),))

    kernels = copied("first", own, x, written), copied("second", out, own, read)
    frame = FrameLayout(0, (), (S * 64,), (("own", SizedPlacement(0, 0, S * 64)),))
    body = leaf(1, tuple(Run(kernel.name, 0, 1) for kernel in kernels))
    main = TreeFunction("main", (), (), (), (), (own,), body)
    program = DeviceProgram(1, Tree((main,), (x, out)), kernels, (("main", frame),))
    if written == S:
        verify(program)
    else:
        rejected(program, "second reads own, of which a part may not be written before")


@pytest.mark.parametrize(
    ("firsts", "is_even"),
    [
        ((0, 4), True),
        ((0, 4, 0, 4), True),
        ((0, 2, 4), False),  # 12 elements
        ((0, 0), False),
        ((0, 0, 0, 0), False),
        ((0, 4, 0, 0), False),
        ((2, 2, 4, 0), False),
    ],
)
def test_all_parts_of_an_operator_are_computed_as_often(
    firsts: tuple[int, ...], is_even: bool
) -> None:
    """Each stage computes 4 of the 8 elements."""
    operator = map_kernel("k", A, load(X, V), 8).stages[0].operator
    stages = (Stage(operator, (Span(4, offset=first),)) for first in firsts)
    kernels = tuple(Kernel(f"k{n}", (), (stage,)) for n, stage in enumerate(stages))
    tree = Tree((TreeFunction("main", (), (), (), (), (), Leaf(kernels)),), ())
    if is_even:
        check_coverage(tree)
        return
    with pytest.raises(VerifyError, match="operator k"):
        check_coverage(tree)


# Parallel loops


def parallel_loop(*kernels: Kernel, copies: int = 2, units: int = 2) -> DeviceProgram:
    """Two units run the kernels in iterations of their own: `a` is private, `out` has rows."""
    items = tuple(Run(k.name, 0, k.tasks) for k in kernels)
    body = leaf(0, *(items,) * units)
    node = For(TURN, number(0), number(4), 1, body, parallel=True)
    barrier = leaf(2, *((Signal(1), Wait(0, 1, units)),) * units)
    made = device(Seq((node, barrier)), *kernels, units=units)
    (name, frame), *others = made.frames
    placed = tuple(
        (b, replace(place, copies=copies if b == "a" else 1, offset=1024 * n))
        for n, (b, place) in enumerate(frame.placements)
    )
    frame = replace(frame, placements=placed, nbytes=1024 * (len(placed) + 1))
    return replace(made, frames=((name, frame), *others))


TURN = Reg("i", DType.I64)
ROW = Access(OUT, (4, 2), (Index.of(TURN), Index.of(Var(0))))


def row_kernel(name: str, out: Access, value: Expr) -> Kernel:
    made = map_kernel(name, out.buffer, value, 2)
    (stage,) = made.stages
    operator = replace(stage.operator, out=out, dims=(2,))
    return Kernel(name, (), (replace(stage, operator=operator, box=(Span(2),)),))


FILL = row_kernel("fill", Access(A, (8,), (Index.of(Var(0)),)), load(X, V))
STORE = row_kernel("store", ROW, load(A, V))


def test_iterations_have_memory_of_their_own() -> None:
    verify(parallel_loop(FILL, STORE))
    rejected(parallel_loop(FILL, STORE, copies=1), "may access what others write to a")
    rejected(parallel_loop(FILL, STORE, copies=3), "has 3 copies for 2 units")


def test_iterations_write_rows_of_their_own() -> None:
    same = replace(ROW, index=(Index(), Index.of(Var(0))))
    rejected(parallel_loop(FILL, row_kernel("store", same, load(A, V))), "others write to out")
    reading = row_kernel("store", ROW, load(OUT, V))
    rejected(parallel_loop(FILL, reading), "others write to out")


def test_private_memory_is_that_of_one_loop() -> None:
    made = parallel_loop(FILL, STORE)
    outside = leaf(1, (Run("fill", 0, 1),), ())
    body = Seq((outside, made.tree.main.body))
    rejected(with_body(made, body), "private to a loop, but accessed outside")


def test_units_of_a_parallel_loop_do_the_same() -> None:
    made = parallel_loop(FILL, STORE)
    assert isinstance(made.tree.main.body, Seq)
    node, barrier = made.tree.main.body.children
    assert isinstance(node, For)
    uneven = replace(node, body=leaf(0, (Run("fill", 0, 1), Run("store", 0, 1)), ()))
    rejected(with_body(made, Seq((uneven, barrier))), "differ in what they do in a parallel loop")
    whole = (Run("fill", 0, 1), Run("store", 0, 1))
    counted = replace(node, body=leaf(1, whole, whole))
    rejected(with_body(made, Seq((counted, barrier))), "publishes steps")
    nested = replace(node, body=node)
    rejected(with_body(made, Seq((nested, barrier))), "has another one inside")
    rejected(with_body(made, Seq((replace(node, parallel=False), barrier))), "publishes nothing")


def test_registers_of_an_iteration_are_its_own() -> None:
    made = parallel_loop(FILL, STORE)
    assert isinstance(made.tree.main.body, Seq)
    node, barrier = made.tree.main.body.children
    assert isinstance(node, For)
    count = Reg("count", DType.I64)
    one_more = Let(count, Position(Index.of(count) + 1))
    begun = (Let(count, Position(Index())),)
    items = (one_more, Run("fill", 0, 1), Run("store", 0, 1))
    counting = replace(node, body=leaf(0, items, items))
    body = Seq((leaf(1, begun, begun), counting, barrier))
    rejected(with_body(made, body), "register count may be used before it is assigned")
    moved = (Let(TURN, Position(Index())), *items[1:])
    turned = replace(node, body=leaf(0, moved, moved))
    rejected(with_body(made, Seq((turned, barrier))), "assigns its index")


def test_others_wait_for_a_parallel_loop() -> None:
    made = parallel_loop(FILL, STORE)
    assert isinstance(made.tree.main.body, Seq)
    node, _ = made.tree.main.body.children
    read = with_index(B, OUT, Index.of(Var(0)))
    late = leaf(1, (Run("k", 0, read.tasks),), ())
    program = device(Seq((node, late)), FILL, STORE, read, units=2)
    program = replace(program, frames=_with_copies(program))
    rejected(program, "race on out: nothing orders")


def _with_copies(program: DeviceProgram) -> tuple[tuple[str, FrameLayout], ...]:
    ((name, frame),) = program.frames
    placed = tuple(
        (b, replace(place, copies=2 if b == "a" else 1, offset=1024 * n))
        for n, (b, place) in enumerate(frame.placements)
    )
    return ((name, replace(frame, placements=placed, nbytes=1024 * (len(placed) + 1))),)
