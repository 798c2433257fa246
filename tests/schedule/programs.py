"""Small DevicePrograms written out by hand, which tests then break."""

from __future__ import annotations

from dataclasses import replace

from stretto.device.expr import Buffer, Expr, Index, Reg, Var
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
from stretto.device.tree import For, Leaf, Let, Node, Seq, Tree, TreeFunction
from tests.schedule.trees import at, buffer, call, load, map_kernel, number

X = buffer("x", 8, kind="input", slot=0)
OUT = buffer("out", 8, kind="output", slot=1)
A, B = buffer("a", 8), buffer("b", 8)
NOW, NEXT = buffer("now", 8), buffer("next", 8)
T = Reg("t")


def kernel(name: str, out: Buffer, *sources: Buffer, mirrored: bool = True) -> Kernel:
    """Two tasks; each reads the other half of its sources (or, not mirrored, its own)."""
    index = Index.of(Var(0)) * -1 + 7 if mirrored else Index.of(Var(0))
    value: Expr = load(sources[0], index)
    for source in sources[1:]:
        value = call("add", value, load(source, index))
    return map_kernel(name, out, value, 4)


def mixing(name: str, out: Buffer, *sources: Buffer) -> Kernel:
    """Each task reads both halves of its sources."""
    own, other = kernel(name, out, *sources, mirrored=False), kernel(name, out, *sources)
    value = call("add", *(made.stages[0].operator.value for made in (own, other)))
    return map_kernel(name, out, value, 4)


def leaf(steps: int, *units: tuple[Item, ...]) -> Leaf[Schedule]:
    return Leaf(Schedule(units, steps))


def device(
    body: Node[Schedule],
    *kernels: Kernel,
    units: int = 2,
    offsets: dict[str, int] | None = None,
    locals: tuple[Buffer, ...] = (A, B),
) -> DeviceProgram:
    """Locals 64 bytes apart, or at the given offsets."""
    places = {b.name: 64 * n for n, b in enumerate(locals)} | (offsets or {})
    end = max((offset + 64 for offset in places.values()), default=0)
    frame = FrameLayout(end, tuple((b.name, Placement(places[b.name], b.nbytes)) for b in locals))
    main: TreeFunction[Schedule] = TreeFunction("main", (), (), (), (), locals, body)
    return DeviceProgram(units, Tree((main,), (X, OUT)), kernels, (("main", frame),))


def chain() -> DeviceProgram:
    """a = x; out = a, where each unit reads what the other one has written."""
    body = leaf(
        2,
        (Run("first", 0), Signal(1), Wait(1, 1), Run("second", 0)),
        (Run("first", 1), Signal(1), Wait(0, 1), Run("second", 1)),
    )
    return device(body, kernel("first", A, X), kernel("second", OUT, A))


def loop() -> DeviceProgram:
    """now = x; three times: next = mirror of now; out = now."""
    start = leaf(1, (Run("start", 0),), (Run("start", 1),))
    turn = leaf(1, (Wait(1, 0), Run("step", 0)), (Wait(0, 0), Run("step", 1)))
    end = leaf(1, (Wait(1, 0), Run("end", 0)), (Wait(0, 0), Run("end", 1)))
    body = Seq((start, For(T, number(0), number(3), 1, turn, ((NOW, NEXT),)), end))
    kernels = kernel("start", NOW, X), kernel("step", NEXT, NOW), kernel("end", OUT, NOW)
    return device(body, *kernels, locals=(NOW, NEXT))


def reuse() -> DeviceProgram:
    """a = x; b = a; c in a's memory = b; out = c."""
    c = buffer("c", 8)
    body = leaf(
        4,
        (
            *(Run("ka", 0), Signal(1), Wait(1, 1), Run("kb", 0), Signal(2)),
            *(Wait(1, 2), Run("kc", 0), Signal(3), Wait(1, 3), Run("ko", 0)),
        ),
        (
            *(Run("ka", 1), Signal(1), Wait(0, 1), Run("kb", 1), Signal(2)),
            *(Wait(0, 2), Run("kc", 1), Signal(3), Wait(0, 3), Run("ko", 1)),
        ),
    )
    kernels = kernel("ka", A, X), kernel("kb", B, A), kernel("kc", c, B), kernel("ko", OUT, c)
    return device(body, *kernels, locals=(A, B, c), offsets={"c": 0})


def with_body(program: DeviceProgram, body: Node[Schedule]) -> DeviceProgram:
    main = replace(program.tree.main, body=body)
    return replace(program, tree=Tree((main,), program.tree.externals))


def with_items(program: DeviceProgram, *units: tuple[Item, ...]) -> DeviceProgram:
    """The program of one leaf with other items."""
    body = program.tree.main.body
    assert isinstance(body, Leaf)
    return with_body(program, leaf(body.body.steps, *units))


def items(program: DeviceProgram) -> list[list[Item]]:
    """The items of a program of one leaf, to be changed."""
    body = program.tree.main.body
    assert isinstance(body, Leaf)
    return [list(unit) for unit in body.body.units]


def let(register: str, value: int) -> Let:
    return Let(Reg(register), call("add", number(value), at(Reg("t"))))
