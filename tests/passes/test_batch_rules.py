"""Every batching rule: one op in a loop over rows leaves the loop and gives the same results."""

import pytest
import torch

from stretto.interp.interpreter import run
from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.ops import ConstantOp, ForOp, ListNewOp, ListPushOp, ListStackOp, TensorOp
from stretto.ir.types import INDEX, DType, TensorListType, TensorType
from stretto.ir.verifier import verify
from stretto.ops.infer import tensor_op
from stretto.passes.batch_loops import BatchLoops
from stretto.passes.manager import run_passes

TRIPS = 3
X = TensorType(DType.F32, (2, 4))

# The operand %x is a row of the input, of shape [2, 4]; C<shape> is a constant of that shape.
SAME_DIMS = [
    ("aten.tanh.default", ("x",)),
    ("aten.add.Tensor", ("x", "C4")),
    ("aten.add.Tensor", ("C5,2,4", "x")),
    ("aten.mul.Tensor", ("x", "x")),
    ("aten.where.self", ("mask", "x", "C2,4")),
    ("aten.clamp.default", ("x", -0.5, 0.5)),
    ("aten._to_copy.default", ("x",)),
    ("aten.softmax.int", ("x", 0)),
    ("aten._softmax.default", ("x", -1, False)),
    ("aten._log_softmax.default", ("x", 1, False)),
    ("aten.sum.dim_IntList", ("x", (0,))),
    ("aten.sum.dim_IntList", ("x", None)),
    ("aten.sum.dim_IntList", ("x", (-1,), True)),
    ("aten.sum.default", ("x",)),
    ("aten.mean.default", ("x",)),
    ("aten.mean.dim", ("x", (0, 1))),
    ("aten.amax.default", ("x",)),
    ("aten.max.default", ("x",)),
    ("aten.max.dim", ("x", 0)),
    ("aten.argmax.default", ("x", 1)),
    ("aten.any.dim", ("mask", 0)),
    ("aten.all.default", ("mask",)),
    ("aten.cumsum.default", ("x", 1)),
    ("aten.var.correction", ("x", (1,))),
    ("aten.flip.default", ("x", (0, -1))),
    ("aten.topk.default", ("x", 2)),
    ("aten.sort.default", ("x", 0)),
    ("aten.layer_norm.default", ("x", (4,), "C4", "C4")),
    ("aten.native_layer_norm.default", ("x", (4,), "C4", "C4", 1e-5)),
    ("aten.constant_pad_nd.default", ("x", (1, 0), 2.0)),
    ("aten.tril.default", ("x",)),
    ("aten.zeros_like.default", ("x",)),
    ("aten.cat.default", (("x", "C2,4"), 0)),
    ("aten.cat.default", (("C2,4", "x"), -1)),
    ("aten.stack.default", (("x", "C2,4"), 1)),
    ("aten.embedding.default", ("C7,3", "ids")),
    ("aten.index.Tensor", ("C7,3", ("ids",))),
    ("aten.index.Tensor", ("x", ("I1",))),
    ("aten.select.int", ("C7,3", 0, "id")),
    ("aten.select.int", ("C3,7", -1, "id")),
]
VIEWS = [
    ("aten.split.Tensor", ("x", 2, -1)),
    ("aten.unbind.int", ("x", 0)),
    ("aten.view.default", ("x", (8,))),
    ("aten.view.default", ("x", (-1, 2))),
    ("aten.select.int", ("x", 1, 2)),
    ("aten.unsqueeze.default", ("x", 0)),
    ("aten.unsqueeze.default", ("x", -1)),
    ("aten.unsqueeze.default", ("id", 0)),
    ("aten.slice.Tensor", ("x", 1, 0, 2)),
    ("aten.slice.Tensor", ("x",)),
    ("aten.transpose.int", ("x", 0, -1)),
    ("aten.permute.default", ("x", (-1, 0))),
    ("aten.t.default", ("x",)),
    ("aten.expand.default", ("x", (3, 2, 4))),
    ("aten.squeeze.default", ("x",)),
]
CONTRACTIONS = [
    ("aten.linear.default", ("x", "C5,4", "C5")),
    ("aten.linear.default", ("v", "C5,4")),
    ("aten.mm.default", ("x", "C4,5")),
    ("aten.mm.default", ("C3,2", "x")),
    ("aten.mm.default", ("C3,2", "wide")),
    ("aten.mm.default", ("x", "xt")),
    ("aten.addmm.default", ("C5", "x", "C4,5")),
    ("aten.addmm.default", ("C1,5", "x", "C4,5")),
    ("aten.addmm.default", ("C2,5", "x", "C4,5")),
    ("aten.addmm.default", ("x", "C2,3", "C3,4")),
    ("aten.addmm.default", ("v", "x", "C4,4")),
    ("aten.mv.default", ("C5,4", "v")),
    ("aten.mv.default", ("x", "C4")),
    ("aten.mv.default", ("x", "v")),
    ("aten.mv.default", ("xt", "w")),
    ("aten.dot.default", ("v", "C4")),
    ("aten.dot.default", ("C4", "v")),
    ("aten.dot.default", ("v", "v")),
    ("aten.matmul.default", ("x", "v")),
    ("aten.matmul.default", ("w", "x")),
    ("aten.matmul.default", ("C2", "x")),
    ("aten.matmul.default", ("v", "v")),
    ("aten.matmul.default", ("C4", "v")),
    ("aten.matmul.default", ("v", "x3t")),
    ("aten.matmul.default", ("x3", "v")),
    ("aten.matmul.default", ("v", "C6,4,5")),
    ("aten.matmul.default", ("C6,3,4", "v")),
    ("aten.matmul.default", ("x", "C4,5")),
    ("aten.matmul.default", ("v", "C4,5")),
    ("aten.matmul.default", ("C5,4", "v")),
    ("aten.matmul.default", ("x", "C6,4,5")),
    ("aten.matmul.default", ("C6,3,2", "x")),
    ("aten.bmm.default", ("x3", "C2,4,5")),
    ("aten.bmm.default", ("C2,5,1", "x3")),
    ("aten.bmm.default", ("x3", "x3t")),
    (
        "aten.convolution.default",
        ("img", "C3,1,2,2", "C3", (1, 1), (0, 0), (1, 1), False, (0, 0), 1),
    ),
    ("aten.conv2d.default", ("img3", "C3,1,2,2", "C3")),
    ("aten.avg_pool2d.default", ("img", (2, 2))),
]


class Loop:
    """for t in range(3): collects the results of some ops on row t of an input [3, 2, 4]."""

    def __init__(self) -> None:
        self.x = Value(TensorType(DType.F32, (TRIPS, 2, 4)), "x")
        self.ids = Value(TensorType(DType.I64, (TRIPS, 2)), "ids")
        self.index = Value(INDEX, "t")
        self.before: list[Op] = []
        self.body: list[Op] = []
        self.constants: dict[str, torch.Tensor] = {}

    def emit(self, target: str, *args: object) -> tuple[Value, ...]:
        op = tensor_op(target, *args)  # type: ignore[arg-type]
        self.body.append(op)
        return op.results

    def constant(self, tensor: torch.Tensor) -> Value:
        key = f"c{len(self.constants)}"
        self.constants[key] = tensor
        type = TensorType(DType.from_torch(tensor.dtype), tuple(tensor.shape))
        self.before.append(ConstantOp(key, results=(Value(type, key),)))
        return self.before[-1].result

    def operand(self, item: object) -> object:
        """What a word in a case's arguments stands for."""
        if isinstance(item, tuple):
            return tuple(self.operand(part) for part in item)
        if not isinstance(item, str):
            return item
        if item[0] == "C":
            return self.constant(torch.randn([int(size) for size in item[1:].split(",")]))
        if item == "I1":
            return self.constant(torch.tensor([1, 0, -1]))
        if item in ("ids", "id"):
            (ids,) = self.emit("aten.select.int", self.ids, 0, self.index)
            return ids if item == "ids" else self.emit("aten.select.int", ids, 0, 1)[0]
        (x,) = self.emit("aten.select.int", self.x, 0, self.index)
        match item:
            case "x":
                return x
            case "v":
                return self.emit("aten.select.int", x, 0, 1)[0]
            case "w":
                return self.emit("aten.select.int", x, 1, 1)[0]
            case "wide":
                return self.emit("aten.cat.default", (x,) * 8, 1)[0]
            case "xt":
                return self.emit("aten.t.default", x)[0]
            case "x3":
                return self.emit("aten.view.default", x, (2, 1, 4))[0]
            case "x3t":
                return self.emit("aten.view.default", x, (2, 4, 1))[0]
            case "mask":
                return self.emit("aten.gt.Scalar", x, 0)[0]
            case "img":
                return self.emit("aten.view.default", x, (1, 1, 2, 4))[0]
            case "img3":
                return self.emit("aten.view.default", x, (1, 2, 4))[0]
            case _:
                raise ValueError(item)

    def program(self, collected: tuple[Value, ...]) -> Program:
        lists = [ListNewOp(results=(Value(TensorListType(item.tensor)),)) for item in collected]
        carried = tuple(Value(op.result.type) for op in lists)
        pushes = [
            ListPushOp(values, item, results=(Value(values.type),))
            for values, item in zip(carried, collected, strict=True)
        ]
        body = Block(
            (self.index, *carried), [*self.body, *pushes], tuple(op.result for op in pushes)
        )
        results = tuple(Value(op.result.type) for op in lists)
        loop = ForOp(0, TRIPS, 1, tuple(op.result for op in lists), body, results=results)
        stacks = [
            ListStackOp(
                values,
                results=(Value(TensorType(item.tensor.dtype, (TRIPS, *item.tensor.shape))),),
            )
            for values, item in zip(results, collected, strict=True)
        ]
        ops = [*self.before, *lists, loop, *stacks]
        main = Function("main", Block((self.x, self.ids), ops, tuple(op.result for op in stacks)))
        return Program({"main": main}, self.constants)


def make_program(target: str, args: tuple[object, ...], then: str | None = None) -> Program:
    torch.manual_seed(1)
    loop = Loop()
    results = loop.emit(target, *(loop.operand(item) for item in args))
    if then is not None:
        results = tuple(value for item in results for value in loop.emit(then, item))
    program = loop.program(results)
    verify(program)
    return program


def inside_loops(program: Program) -> list[str]:
    """Targets of the tensor ops in loop bodies."""
    loops = [op for op in program.walk() if isinstance(op, ForOp)]
    ops = [op for loop in loops for op in loop.body.ops]
    return [op.target for op in ops if isinstance(op, TensorOp)]


def check_batched(program: Program) -> None:
    inputs = (torch.randn(TRIPS, 2, 4), torch.randint(0, 7, (TRIPS, 2)))
    after = run_passes(program, (BatchLoops(),))
    assert set(inside_loops(after)) == {"aten.select.int"}
    expected = run(program, inputs, dtype=torch.float64)
    for got, want in zip(run(after, inputs, dtype=torch.float64), expected, strict=True):
        torch.testing.assert_close(got, want)
    verify(after)


@pytest.mark.parametrize(("target", "args"), SAME_DIMS + CONTRACTIONS, ids=str)
def test_rule(target: str, args: tuple[object, ...]) -> None:
    check_batched(make_program(target, args))


@pytest.mark.parametrize(("target", "args"), VIEWS, ids=str)
def test_rule_of_a_view(target: str, args: tuple[object, ...]) -> None:
    check_batched(make_program(target, args, then="aten.neg.default"))
