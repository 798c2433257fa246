"""Random trees: loops, branches, recursion, lists, reductions, control that reads memory."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from stretto.device.expr import Access, Buffer, Const, Expr, Index, Load, Reg, Var
from stretto.device.operator import Kernel, Operator, Span, Stage, TileDim
from stretto.device.regions import Body, Statement
from stretto.device.tree import Call, For, If, Leaf, Let, Node, Seq, Tree, TreeFunction, While
from stretto.ir.types import DType
from tests.schedule.trees import F32, at, buffer, call, condition, function, load, number

ROWS, WIDTH, ITEMS = 3, 12, 4


def random_tree(seed: int) -> Tree[Body]:
    """Inputs in slots 0 and 1, a list in slot 2, the output in slot 3; some trees recurse."""
    return Generator(random.Random(seed)).tree()


def random_memory(seed: int) -> dict[int, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        0: torch.randn(WIDTH, generator=generator),
        1: torch.randn(ROWS * WIDTH, generator=generator),
        2: torch.zeros(ITEMS * WIDTH),
        3: torch.zeros(WIDTH),
    }


class Generator:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.count = 0
        self.x = buffer("x", WIDTH, kind="input", slot=0)
        self.w = buffer("w", ROWS, WIDTH, kind="input", slot=1)
        self.items = buffer("items", ITEMS, WIDTH, kind="list", slot=2)
        self.out = buffer("out", WIDTH, kind="output", slot=3)
        self.locals: list[Buffer] = []
        self.recursive = rng.random() < 0.4

    def tree(self) -> Tree[Body]:
        functions: list[TreeFunction[Body]] = []
        if self.recursive:
            functions.append(self.callee())
            self.locals = []
        ready = [self.x, self.w]
        body = self.block(ready, depth=self.rng.choice([1, 2, 2, 3]))
        last = self.kernel(self.out, ready)
        main = function("main", Seq((body, Leaf((last,)))), tuple(self.locals))
        externals = (self.x, self.w, self.items, self.out)
        return Tree((main, *functions), externals)

    def name(self, what: str) -> str:
        self.count += 1
        return f"{what}{self.count}"

    def local(self) -> Buffer:
        shape = (WIDTH,) if self.rng.random() < 0.7 else (ROWS, WIDTH)
        made = buffer(self.name("b"), *shape)
        self.locals.append(made)
        return made

    # Kernels

    def operand(self, source: Buffer, out: Buffer) -> Expr:
        """A load for the last variable of `out`: straight, reversed, or of some row."""
        last = Index.of(Var(len(out.shape) - 1))
        if self.rng.random() < 0.3:
            last = last * -1 + (WIDTH - 1)
        if len(source.shape) == 1:
            return load(source, last)
        row = Index.of(Var(0)) if len(out.shape) == 2 else Index(const=self.rng.randrange(ROWS))
        return load(source, row, last)

    def value(self, out: Buffer, ready: list[Buffer]) -> Expr:
        first, second = (self.operand(self.rng.choice(ready), out) for _ in range(2))
        return call(self.rng.choice(["add", "mul", "maximum"]), call("tanh", first), second)

    def kernel(self, out: Buffer, ready: list[Buffer], place: Reg | None = None) -> Kernel:
        dims = tuple(d for d in out.shape if isinstance(d, int))
        index = tuple(Index.of(Var(d)) for d in range(len(dims)))
        if place is not None:  # an item of the list
            dims, index = dims[1:], (Index.of(place), Index.of(Var(0)))
        value, reduce, combine = self.value(buffer("shape", *dims), ready), (), ""
        vectors = [b for b in ready if len(b.shape) == 1]
        if self.rng.random() < 0.3:  # every element reads all of a vector
            inner = load(self.rng.choice(vectors), Var(len(dims)))
            value, reduce, combine = call("mul", value, call("tanh", inner)), (WIDTH,), "max"
        name = self.name("k")
        operator = Operator(name, dims, reduce, combine, value, Access(out, out.shape, index))
        spans = tuple(Span(d) for d in dims[:-1])
        tile = self.rng.choice([2, 3, 5, WIDTH])
        stage = Stage(operator, (*spans, Span(dims[-1], grid=0)))
        return Kernel(name, (TileDim(dims[-1], tile),), (stage,), self.rng.choice([1e-6, 3e-6]))

    def test(self, ready: list[Buffer]) -> tuple[Reg, Let]:
        """A condition read from memory."""
        source = self.rng.choice([b for b in ready if len(b.shape) == 1])
        flag = Reg(self.name("flag"), DType.BOOL)
        element = load(source, self.rng.randrange(WIDTH))
        return flag, Let(flag, condition("gt", element, Const(0.0, F32)))

    def straight(self, ready: list[Buffer]) -> Node[Body]:
        items: list[Statement] = []
        for _ in range(self.rng.randint(1, 4)):
            mine = [b for b in ready if b in self.locals]
            if mine and self.rng.random() < 0.3:
                out = self.rng.choice(mine)
                items.append(self.kernel(out, [b for b in ready if b != out]))
            else:
                out = self.local()
                items.append(self.kernel(out, ready))
                ready.append(out)
        return Leaf(tuple(items))

    # Control

    def block(self, ready: list[Buffer], depth: int) -> Node[Body]:
        """Adds what it surely writes to `ready`."""
        nodes: list[Node[Body]] = [self.straight(ready)]
        for _ in range(self.rng.randint(0, 2) if depth else 0):
            kinds = [self.loop, self.while_loop, self.branch, self.pushes]
            if self.recursive:
                kinds.append(self.recursion)
            nodes.append(self.rng.choice(kinds)(ready, depth - 1))
            nodes.append(self.straight(ready))
        return Seq(tuple(nodes))

    def pair(self, ready: list[Buffer]) -> tuple[Buffer, Buffer, Kernel]:
        """Two buffers that rotate, and what writes the first before the loop."""
        current, following = buffer(self.name("now"), WIDTH), buffer(self.name("next"), WIDTH)
        start = self.kernel(current, ready)
        self.locals += [current, following]
        return current, following, start

    def loop(self, ready: list[Buffer], depth: int) -> Node[Body]:
        current, following, start = self.pair(ready)
        inside = [*ready, current]
        body = self.block(inside, depth)
        step = self.kernel(following, [*inside, current])
        index = Reg(self.name("i"))
        trips = self.rng.randint(0, 3)
        loop = For(
            index, number(0), number(trips), 1, Seq((body, Leaf((step,)))), ((current, following),)
        )
        ready.append(current)
        return Seq((Leaf((start,)), loop))

    def while_loop(self, ready: list[Buffer], depth: int) -> Node[Body]:
        current, following, start = self.pair(ready)
        counter, flag = Reg(self.name("n")), Reg(self.name("go"), DType.BOOL)
        positive, test = self.test([current])
        small = condition("lt", at(counter), number(3))
        either = condition("and", small, condition("ne", at(positive), number(2)))
        head = Leaf((test, Let(flag, either)))
        inside = [*ready, current]
        body = self.block(inside, depth)
        step = self.kernel(following, inside)
        count = Let(counter, call("add", at(counter), number(1)))
        loop = While(head, flag, Seq((body, Leaf((step, count)))), ((current, following),))
        ready.append(current)
        return Seq((Leaf((start, Let(counter, number(0)))), loop))

    def branch(self, ready: list[Buffer], depth: int) -> Node[Body]:
        flag, test = self.test(ready)
        merged = buffer(self.name("m"), WIDTH)
        arms: list[Node[Body]] = []
        for _ in range(2):
            inside = list(ready)
            body = self.block(inside, depth) if self.rng.random() < 0.7 else Seq(())
            arms.append(Seq((body, Leaf((self.kernel(merged, inside),)))))
        self.locals.append(merged)
        ready.append(merged)
        return Seq((Leaf((test,)), If(flag, arms[0], arms[1])))

    def pushes(self, ready: list[Buffer], depth: int) -> Node[Body]:
        """A loop that fills the list, then a sum over its items."""
        index = Reg(self.name("i"))
        body = Seq((self.straight(list(ready)), Leaf((self.kernel(self.items, ready, index),))))
        total = self.local()
        dims = tuple(d for d in total.shape if isinstance(d, int))
        last = Var(len(dims) - 1)
        item = Load(
            Access(self.items, self.items.shape, (Index.of(Var(len(dims))), Index.of(last)))
        )
        target = Access(total, total.shape, tuple(Index.of(Var(d)) for d in range(len(dims))))
        operator = Operator(self.name("sum"), dims, (ITEMS,), "max", item, target)
        spans = (*(Span(d) for d in dims[:-1]), Span(WIDTH, grid=0))
        kernel = Kernel(operator.name, (TileDim(WIDTH, 4),), (Stage(operator, spans),), 1e-6)
        ready.append(total)
        return Seq((For(index, number(0), number(ITEMS), 1, body), Leaf((kernel,))))

    def recursion(self, ready: list[Buffer], depth: int) -> Node[Body]:
        source = self.rng.choice([b for b in ready if len(b.shape) == 1])
        result = buffer(self.name("r"), WIDTH)
        self.locals.append(result)
        count = Reg("depth")
        bound = (
            (buffer("p", WIDTH, kind="param"), whole(source)),
            (buffer("q", WIDTH, kind="param"), whole(result)),
        )
        ready.append(result)
        return Call("f", ((count, number(self.rng.randint(0, 3))),), bound)

    def callee(self) -> TreeFunction[Body]:
        """f(depth, p, q): q = something of p, of f(depth - 1, ...) while depth > 0."""
        p, q = buffer("p", WIDTH, kind="param"), buffer("q", WIDTH, kind="param")
        depth, go = Reg("depth"), Reg("go", DType.BOOL)
        ready = [self.x, p]
        first = self.straight(ready)
        inner, deeper = buffer("inner", WIDTH), list(ready)
        self.locals.append(inner)
        less = call("add", at(depth), number(-1))
        source = self.rng.choice([b for b in ready if b != self.x and len(b.shape) == 1])
        recurse = Call("f", ((depth, less),), ((p, whole(source)), (q, whole(inner))))
        deeper.append(inner)
        then = Seq((recurse, Leaf((self.kernel(q, deeper),))))
        orelse = Leaf((self.kernel(q, ready),))
        test = Leaf((Let(go, condition("gt", at(depth), number(0))),))
        return function(
            "f",
            Seq((first, test, If(go, then, orelse))),
            tuple(self.locals),
            tensors=(p, q),
            written=(q,),
            params=(depth,),
        )


def whole(source: Buffer) -> Access:
    return Access(source, source.shape, tuple(Index() for _ in source.shape))
