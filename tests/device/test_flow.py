"""The walk of analyses, against all ways through small trees."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from stretto.device.expr import Buffer, Const, Expr, Index, Position, Reg
from stretto.device.flow import Backward, Facts
from stretto.device.tree import Call, For, If, Leaf, Node, Rotation, Seq, While, swaps, trip_count
from stretto.ir.types import DType

Names = frozenset[str]
BUFFERS = tuple(Buffer(name, DType.F32, (4,)) for name in "abcd")
UNKNOWN = Position(Index.of(Reg("n")))


class Written(Facts[str, Names]):
    """Names that are surely written; a leaf is a name."""

    def after(self, body: str, state: Names) -> Names:
        return state | {body}

    def call(self, call: Call[str], state: Names) -> tuple[Node[str], Names]:
        return call, frozenset()

    def merge(self, a: Names, b: Names) -> Names:
        return a & b

    def rotate(self, state: Names, pairs: Rotation) -> Names:
        names = swaps(pairs)
        return frozenset(names[name].name if name in names else name for name in state)


class Remembered(Written):
    def key(self, state: Names) -> Names:
        return state


class Read(Backward[str, Names]):
    """Names that may be read later; a leaf is a name."""

    def leaf(self, body: str, after: Names) -> Names:
        return after | {body}

    def call(self, call: Call[str], after: Names) -> Names:
        return after | {"called"}

    def merge(self, a: Names, b: Names) -> Names:
        return a | b

    rotate = Written.rotate


def drawn(rng: random.Random, depth: int = 3) -> Node[str]:
    kind = rng.choice(["leaf", "leaf", "seq", "for", "while", "if", "call"]) if depth else "leaf"

    def below() -> Node[str]:
        return drawn(rng, depth - 1)

    match kind:
        case "seq":
            return Seq(tuple(below() for _ in range(rng.randint(0, 3))))
        case "for":
            stop: Expr = rng.choice([Const(0, DType.I64), Const(2, DType.I64), UNKNOWN])
            return For(Reg("i"), Const(0, DType.I64), stop, 1, below(), rotation(rng))
        case "while":
            return While(below(), Reg("c", DType.BOOL), below(), rotation(rng))
        case "if":
            return If(Reg("c", DType.BOOL), below(), below())
        case "call":
            return Call("f", (), ())
        case _:
            return Leaf(rng.choice("abcd"))


def rotation(rng: random.Random) -> Rotation:
    names = rng.sample(BUFFERS, 2)
    return ((names[0], names[1]),) if rng.random() < 0.5 else ()


class Live(Read):
    """Names that may be read before they are written; leaf "d" writes `a`, the others read."""

    def leaf(self, body: str, after: Names) -> Names:
        return after - {"a"} if body == "d" else after | {body}


Step = str | Rotation | Call[str]


def ways(node: Node[str]) -> Iterator[list[Step]]:
    """What is done on each way through a node, with at most two trips of a loop."""
    match node:
        case Leaf(name):
            yield [name]
        case Call():
            yield [node]
        case Seq(()):
            yield []
        case Seq((first, *rest)):
            for one in ways(first):
                for other in ways(Seq(tuple(rest))):
                    yield one + other
        case If(then=then, orelse=orelse):
            yield from ways(then)
            yield from ways(orelse)
        case For(body=body, rotate=pairs):
            trips = trip_count(node)
            turns = [[*way, pairs] for way in ways(body)]
            yield from repeated([], turns, range(3) if trips is None else [trips])
        case While(head=head, body=body, rotate=pairs):
            heads = list(ways(head))
            turns = [[*way, pairs, *again] for way in ways(body) for again in heads]
            for first in heads:
                yield from repeated(first, turns, range(3))


def repeated(
    first: list[Step], turns: list[list[Step]], counts: range | list[int]
) -> Iterator[list[Step]]:
    some = [first]
    for count in range(max(counts) + 1):
        if count in counts:
            yield from some
        some = [way + turn for way in some for turn in turns][:200]


@pytest.mark.parametrize("seed", range(150))
def test_on_all_ways(seed: int) -> None:
    tree = drawn(random.Random(seed))
    written, read, live = Written(), Read(), Live()
    start: Names = frozenset("a")
    ends: list[Names] = []
    befores: dict[Read, list[Names]] = {read: [], live: []}
    for way in ways(tree):
        state = start
        for step in way:
            match step:
                case str():
                    state = written.after(step, state)
                case Call():
                    state = frozenset()
                case _:
                    state = written.rotate(state, step)
        ends.append(state)
        for backward, found in befores.items():
            after: Names = frozenset()
            for step in reversed(way):
                match step:
                    case str():
                        after = backward.leaf(step, after)
                    case Call():
                        after = backward.call(step, after)
                    case _:
                        after = backward.rotate(after, step)
            found.append(after)
    for backward, before in befores.items():
        assert backward.visit(tree, frozenset()) >= frozenset.union(*before)
    found = written.end(tree, start)
    assert found <= frozenset.intersection(*ends)
    assert found == Remembered().end(tree, start)


def test_exact_where_all_trips_are_possible() -> None:
    """Nothing is lost in a loop that writes what it needs."""
    loop = While(Leaf("a"), Reg("c", DType.BOOL), Seq((Leaf("b"), Leaf("c"))))
    assert Written().end(loop, frozenset()) == {"a"}
    assert Written().end(loop, frozenset("b")) == {"a", "b"}
    surely = For(Reg("i"), Const(0, DType.I64), Const(2, DType.I64), 1, Leaf("b"))
    assert Written().end(surely, frozenset()) == {"b"}
    never = For(Reg("i"), Const(0, DType.I64), Const(0, DType.I64), 1, Leaf("b"))
    assert Written().end(never, frozenset()) == frozenset()


def test_a_loop_that_surely_runs_writes() -> None:
    def loop(trips: int) -> Node[str]:
        return For(Reg("i"), Const(0, DType.I64), Const(trips, DType.I64), 1, Leaf("d"))

    assert Live().visit(loop(2), frozenset("a")) == frozenset()
    assert Live().visit(loop(0), frozenset("a")) == {"a"}
    unknown = For(Reg("i"), Const(0, DType.I64), UNKNOWN, 1, Leaf("d"))
    assert Live().visit(unknown, frozenset("a")) == {"a"}


def test_a_loop_carries_what_trades_places() -> None:
    pair = ((BUFFERS[0], BUFFERS[1]),)
    loop = For(Reg("i"), Const(0, DType.I64), UNKNOWN, 1, Leaf("b"), pair)
    assert Written().end(loop, frozenset("a")) == {"a"}
    assert Written().end(loop, frozenset("b")) == frozenset()
    assert Read().visit(loop, frozenset("a")) == {"a", "b"}
