"""Whose accesses need an order: which memory is written, through params too."""

from __future__ import annotations

from stretto.device.expr import Access, Buffer, Index
from stretto.device.regions import Body
from stretto.device.tree import Call, Leaf, Node, Seq, Tree
from stretto.schedule.scheduler import ordered_buffers
from tests.schedule.programs import OUT, A, X, kernel
from tests.schedule.trees import buffer, function

W = buffer("w", 8, kind="constant", slot=2)
P, Q = buffer("p", 8, kind="param"), buffer("q", 8, kind="param")


def calling(name: str, **tensors: Buffer) -> Call[Body]:
    bound = {"p": P, "q": Q}
    return Call(
        name, (), tuple((bound[n], Access(b, b.shape, (Index(),))) for n, b in tensors.items())
    )


def tree(main: Node[Body], f: Node[Body], g: Node[Body] | None = None) -> Tree[Body]:
    functions = [function("main", main, (A,)), function("f", f, tensors=(P, Q))]
    if g is not None:
        functions.append(function("g", g, tensors=(P, Q)))
    return Tree(tuple(functions), (X, OUT, W))


def ordered(made: Tree[Body], name: str) -> set[str]:
    matters = ordered_buffers(made)(name)
    return {b.name for b in (A, X, OUT, W, P, Q) if matters(b)} - {"a"}


def test_what_kernels_write() -> None:
    made = tree(Leaf((kernel("k", OUT, X),)), Seq(()))
    assert ordered(made, "main") == {"out"}
    assert ordered_buffers(made)("main")(A)


def test_a_param_stands_for_what_callers_bind() -> None:
    body = Leaf((kernel("k", A, P),))
    assert ordered(tree(calling("f", p=X), body), "f") == set()
    written = Seq((Leaf((kernel("o", OUT, X),)), calling("f", p=OUT, q=W)))
    assert ordered(tree(written, body), "f") == {"out", "p"}
    assert ordered(tree(calling("f", p=A), body), "f") == {"p"}


def test_what_is_written_through_params() -> None:
    """f passes its param on to g, which writes it."""
    made = tree(calling("f", p=X, q=W), calling("g", p=P), Leaf((kernel("k", P, X),)))
    assert ordered(made, "main") == {"x"}
    assert ordered(made, "f") == ordered(made, "g") == {"x", "p"}


def test_another_callers_memory_does_not_matter() -> None:
    """f is called with memory that is written, and with a constant, which stays one."""
    both = Seq((calling("f", p=A), calling("f", p=W)))
    made = tree(both, Leaf((kernel("k", A, P),)))
    assert ordered(made, "main") == set()
    assert ordered(made, "f") == {"p"}


def test_recursion() -> None:
    again = Seq((Leaf((kernel("k", A, P),)), calling("f", p=Q, q=P)))
    assert ordered(tree(calling("f", p=X, q=A), again), "f") == {"p", "q"}
    assert ordered(tree(calling("f", p=X, q=W), again), "f") == set()
