"""Which buffers of a program may be the same memory."""

from __future__ import annotations

from stretto.device.aliases import aliasing_of
from stretto.device.expr import Access, Buffer, Index
from stretto.device.program import DeviceProgram, FrameLayout, Placement, Schedule
from stretto.device.tree import Call, For, Node, Seq, Tree, TreeFunction
from tests.schedule.programs import NEXT, NOW, OUT, A, B, T, X, leaf
from tests.schedule.trees import buffer, number

P, Q = buffer("p", 8, kind="param"), buffer("q", 8, kind="param")
OWN = buffer("own", 8)
LOCALS = (A, B, NOW, NEXT)


def call(p: Buffer, q: Buffer) -> Node[Schedule]:
    places = (Access(one, (8,), (Index(),)) for one in (p, q))
    return Call("f", (), tuple(zip((P, Q), places, strict=True)))


def program(*main: Node[Schedule], inner: Node[Schedule] | None = None) -> DeviceProgram:
    """`b` lies where `next` does."""
    body = inner or leaf(1, ())
    functions = (
        TreeFunction("main", (), (), (), (), LOCALS, Seq(main)),
        TreeFunction("f", (), (P, Q), (P,), (), (OWN,), body),
    )
    places = {A: 0, B: 128, NOW: 64, NEXT: 128}
    frames = (
        ("main", FrameLayout(192, tuple((b.name, Placement(places[b], 32)) for b in LOCALS))),
        ("f", FrameLayout(64, ((OWN.name, Placement(0, 32)),))),
    )
    return DeviceProgram(1, Tree(functions, (X, OUT)), (), frames)


def test_params_that_stand_for_one_memory_in_some_call() -> None:
    apart = aliasing_of(program(call(A, X), call(OUT, B)))["f"]
    assert not apart.may_share(P, Q)
    assert apart.may_share(P, OUT) and apart.may_share(Q, X)
    assert not apart.may_share(P, X) and not apart.may_share(Q, OUT)
    assert not apart.may_share(P, OWN)
    assert aliasing_of(program(call(A, X), call(A, A)))["f"].may_share(P, Q)
    assert aliasing_of(program(call(B, NEXT)))["f"].may_share(P, Q)


def test_params_are_followed_through_calls_of_calls() -> None:
    turned = aliasing_of(program(call(OUT, X), inner=call(Q, P)))["f"]
    assert turned.may_share(P, X) and turned.may_share(Q, OUT)
    assert not turned.may_share(P, Q)
    given = aliasing_of(program(call(OUT, X), inner=call(OWN, P)))["f"]
    assert given.may_share(Q, OUT) and not given.may_share(P, Q)
    assert aliasing_of(program(call(OUT, X), inner=call(P, P)))["f"].may_share(P, Q)


def test_buffers_that_trade_places_may_lie_where_either_does() -> None:
    still = aliasing_of(program())["main"]
    assert still.may_share(NEXT, B) and not still.may_share(NOW, B)
    loop = For(T, number(0), number(3), 1, leaf(1, ()), ((NOW, NEXT),))
    moving = aliasing_of(program(loop))["main"]
    assert moving.may_share(NEXT, B) and moving.may_share(NOW, B)
    assert not moving.may_share(NOW, NEXT) and not moving.may_share(NOW, A)


def test_the_host_may_bind_params_of_main_to_anything() -> None:
    main = TreeFunction("main", (), (P, Q), (P,), (), (A,), leaf(1, ()))
    frame = FrameLayout(64, ((A.name, Placement(0, 32)),))
    found = aliasing_of(DeviceProgram(1, Tree((main,), (X, OUT)), (), (("main", frame),)))["main"]
    assert found.may_share(P, Q) and found.may_share(P, X) and not found.may_share(P, A)
    assert [*found.externals(P)] == [X, OUT]
