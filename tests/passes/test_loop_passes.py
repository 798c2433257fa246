"""The loop passes together, on random loops: they stay valid and give the same results."""

import random

import pytest

from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import Argument, ForOp, IfOp, ListNewOp, ListPushOp, ListStackOp
from stretto.ir.text import print_program
from stretto.ir.types import FLAG, INDEX, DType, TensorListType, TensorType
from stretto.ir.verifier import verify
from stretto.ops.infer import tensor_op
from stretto.passes.pipeline import loop_passes
from stretto.passes.split_concat import SplitConcat
from tests.passes.loops import apply
from tests.support import program_of

ROW = TensorType(DType.F32, (2, 3))
ROWS = 12
WEIGHTS = 4


class RandomLoops:
    """Builds a main with a loop, in whose body all values but conditions are of type f32[2, 3]."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        text = "".join(f'%w{n} = constant "w{n}" : f32[3, 3]\n' for n in range(WEIGHTS))
        text += "".join(f'%v{n} = constant "v{n}" : f32[3, 6]\n' for n in range(2))
        self.program = program_of(
            f"func @main(%x: f32[{ROWS}, 2, 3], %y: f32[2, 3], %flags: bool[{ROWS}], %n: i64[])"
            f" -> (f32[2, 3]) {{\n{text} return %y\n}}"
        )
        body = self.program.main.body
        self.x, self.y, self.flags, self.n = body.params
        values = [op.result for op in body.ops]
        self.weights, self.wide = values[:WEIGHTS], values[WEIGHTS:]

    def build(self) -> Program:
        body = self.program.main.body
        results: list[Value] = []
        for _ in range(self.random.randint(1, 2)):
            results += self.loop(body.ops, [self.y, *results], depth=0)
        body.yields = tuple(results)
        verify(self.program)
        return self.program

    def emit(self, ops: list[Op], target: str, *args: Argument) -> Value:
        ops.append(tensor_op(target, *args))
        return ops[-1].results[0]

    def loop(self, ops: list[Op], pool: list[Value], depth: int) -> list[Value]:
        """Appends a loop to `ops`; its results that are tensors."""
        count = self.random.randint(1, 4)
        inits = [self.random.choice(pool) for _ in range(count)]
        empty = ListNewOp(results=(Value(TensorListType(ROW), "none"),))
        ops.append(empty)
        index, *carried = (
            Value(type, hint)
            for type, hint in [(INDEX, "t"), *[(ROW, "p")] * count, (TensorListType(ROW), "l")]
        )
        known = [(0, 4, 1), (0, 1, 1), (3, 3, 1), (1, 6, 2), (5, 0, -1), (-3, 0, 1)]
        unknown = [(0, self.n, 1), (1, self.n, 1)]
        start, stop, step = self.random.choice([*known, *unknown])
        inside: list[Op] = []
        values = self.body(inside, pool, carried[:-1], index, depth)
        push = ListPushOp(
            carried[-1], self.random.choice(values), results=(Value(TensorListType(ROW)),)
        )
        inside.append(push)
        yields = [self.random.choice(values) for _ in range(count)]
        block = Block((index, *carried), inside, (*yields, push.result))
        results = tuple(Value(value.type, "r") for value in carried)
        inits_all = (*inits, empty.result)
        loop = ForOp(start, stop, step, inits_all, block, results=results)
        ops.append(loop)
        trips = loop.trip_count()
        if trips and depth == 0:
            stacked = Value(TensorType(DType.F32, (trips, 2, 3)))
            ops.append(ListStackOp(results[-1], results=(stacked,)))
            mean = self.emit(ops, "aten.mean.dim", stacked, (0,))
            return [*results[:-1], mean]
        return list(results[:-1])

    def body(
        self, ops: list[Op], pool: list[Value], carried: list[Value], index: Value, depth: int
    ) -> list[Value]:
        position = self.emit(ops, "aten.add.Tensor", index, self.random.choice([3, 4]))
        row = self.emit(ops, "aten.select.int", self.x, 0, position)
        values = [*carried, row, self.random.choice(pool)]
        for _ in range(self.random.randint(2, 9)):
            values.append(self.value(ops, values, position, depth))
        return values

    def value(self, ops: list[Op], values: list[Value], position: Value, depth: int) -> Value:
        one, other = self.random.choice(values), self.random.choice(values)
        match self.random.randint(0, 11):
            case 0 | 1 | 2:
                return self.emit(ops, "aten.linear.default", one, self.random.choice(self.weights))
            case 3:
                return self.emit(ops, "aten.mm.default", one, self.random.choice(self.weights))
            case 4:
                both = self.emit(ops, "aten.cat.default", (one, other), -1)
                return self.emit(ops, "aten.linear.default", both, self.random.choice(self.wide))
            case 5 | 6:
                return self.emit(ops, "aten.add.Tensor", one, other)
            case 7:
                return self.emit(ops, "aten._softmax.default", one, 0, False)
            case 8:
                turned = self.emit(ops, "aten.permute.default", one, (1, 0))
                square = self.emit(ops, "aten.mm.default", one, turned)
                cubic = self.emit(ops, "aten.mm.default", square, other)
                return self.emit(ops, "aten.tanh.default", cubic)  # keeps numbers finite
            case 9:
                return self.branch(ops, values, position, depth)
            case 10 if depth < 1:
                return self.random.choice(self.loop(ops, values, depth + 1))
            case _:
                return self.emit(ops, "aten.tanh.default", one)

    def branch(self, ops: list[Op], values: list[Value], position: Value, depth: int) -> Value:
        flag = self.emit(ops, "aten.select.int", self.flags, 0, position)
        assert flag.type == FLAG
        arms: list[Block] = []
        for _ in range(2):
            inside: list[Op] = []
            found = self.value(inside, values, position, depth + 1)
            arms.append(Block((), inside, (found,)))
        ops.append(IfOp(flag, *arms, results=(Value(ROW),)))
        return ops[-1].result


@pytest.mark.parametrize("seed", range(60))
def test_random_loops(seed: int) -> None:
    program = RandomLoops(seed).build()
    text = print_program(program)
    apply(program, *loop_passes())
    apply(program, SplitConcat(calls=True), *loop_passes(), *loop_passes())
    assert print_program(program) == text
