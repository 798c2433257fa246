"""Instances that wait for values: fibers, forks, and what is flushed together."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from stretto.batching.host.host_program import HostProgram
from stretto.batching.instance_program import Body, ClassInfo, InstanceProgram, instance_program
from stretto.batching.interpreter import interpret
from stretto.errors import CodegenError
from stretto.ir.core import Block, Literal, Op, Variable
from stretto.ir.data import (
    AssignOp,
    BreakOp,
    ForkOp,
    InstanceFunction,
    InvokeOp,
    LoopOp,
    PhaseOp,
    RaiseOp,
    ReadOp,
    RecordOp,
    ReturnOp,
    body_of,
)
from stretto.ir.ops import IfOp
from stretto.ir.types import DType, ListType, RecordType, Scalar, TensorType
from tests.batching.host.execution import Executor
from tests.batching.programs import Node, block, f32, optional, tree

H = f32(2)


def outcome(program: InstanceProgram, args: list[Any]) -> Any:
    try:
        return interpret(program, args)
    except Exception as error:
        return error


def check(executor: Executor, columns: list[list[Any]]) -> None:
    for result, args in zip(executor(columns), zip(*columns, strict=True), strict=True):
        expected = outcome(executor.host.program, list(args))
        assert type(result) is type(expected), (result, expected)
        if isinstance(expected, Exception):
            assert str(result) == str(expected)
        else:
            torch.testing.assert_close(result, expected)


@cache
def halving() -> Executor:
    """f(x, limit): halves x until its sum is below the limit; with a list of what was read."""
    x, limit = Variable("x", H), Variable("limit", Scalar.FLOAT)
    total, value = Variable("total", f32()), Variable("value", Scalar.FLOAT)
    test, items = Variable("test", Scalar.BOOL), Variable("items", ListType(0))
    count = Variable("count", Scalar.INT)
    body = (
        AssignOp("list", (), False, results=(items,)),
        LoopOp(
            body_of(
                (
                    RecordOp(1, (x,), results=(total,)),
                    ReadOp(total, results=(value,)),
                    AssignOp("append", (items, value)),
                    AssignOp("lt", (value, limit), results=(test,)),
                    IfOp(test, body_of((BreakOp(),)), Block()),
                    AssignOp("len", (items,), results=(count,)),
                    AssignOp("gt", (count, Literal(20)), results=(test,)),
                    IfOp(test, body_of((RaiseOp(RuntimeError, ("still ", value)),)), Block()),
                    RecordOp(0, (x,), results=(x,)),
                )
            )
        ),
        AssignOp("append", (items, x)),
        ReturnOp(items),
    )
    program = instance_program(
        [InstanceFunction("f", Block((x, limit), list(body)), ListType(0))],
        cells=[optional(H)],
        blocks=[block(lambda x: x / 2, (H,), H), block(torch.sum, (H,), f32())],
    )
    return Executor(HostProgram(program))


@pytest.mark.parametrize("count", [0, 1, 7, 300])
def test_each_instance_decides_by_its_values(count: int) -> None:
    torch.manual_seed(count)
    tensors = [20 * torch.rand(2) for _ in range(count)]
    limits = [0.1 * (n + 1) if n % 5 else 1e-30 for n in range(count)]
    check(halving(), [tensors, limits])


def test_what_waits_together_runs_together() -> None:
    executor = halving()
    executor.steps = 0
    executor([[torch.full((2,), 16.0)] * 9, [3.0] * 9])
    assert executor.steps == 1 + 2 * 4  # sums of 32, 16, 8, 4, 2: a step each, and the halves


KINDS = [
    (DType.F32, 2.7),
    (DType.F64, -1e300),
    (DType.F16, -6.1e-5),
    (DType.F16, 65504.0),
    (DType.BF16, 3.14),
    (DType.I64, -(2**62)),
    (DType.I32, -7),
    (DType.I16, 300),
    (DType.I8, -128),
    (DType.U8, 255),
    (DType.BOOL, True),
    (DType.F32, float("nan")),
    (DType.F16, float("inf")),
    (DType.F16, 0.0),
]


@pytest.mark.parametrize("dtype", sorted({kind[0] for kind in KINDS}, key=str))
def test_values_of_each_dtype(dtype: DType) -> None:
    """The first read is of a tensor that came in; the second of one that a block made."""
    type_ = TensorType(dtype, (1, 1))
    scalars = (Scalar.BOOL, Scalar.INT, Scalar.FLOAT)
    x, y, items = Variable("x", type_), Variable("y", type_), Variable("items", ListType(0))
    n = Variable("n", Scalar.INT)
    test = Variable("test", Scalar.BOOL)
    body: list[Op] = [
        RecordOp(0, (x,), results=(y,)),
        AssignOp("list", (), False, results=(items,)),
    ]
    for tensor in (x, y):
        for number, scalar in enumerate(scalars):
            value = Variable("value", scalar)
            arm: Body = (
                ReadOp(tensor, results=(value,)),
                AssignOp("append", (items, value)),
            )
            body += [
                AssignOp("ne", (n, Literal(number)), results=(test,)),
                IfOp(test, body_of(arm), Block()),
            ]
    cells = [optional(scalar) for scalar in scalars]
    program = instance_program(
        [InstanceFunction("f", Block((x, n), [*body, ReturnOp(items)]), ListType(0))],
        cells=cells[:1],
        blocks=[block(torch.clone, (type_,), type_)],
    )
    executor = Executor(HostProgram(program))
    tensors = [torch.full((1, 1), v, dtype=dtype.torch) for kind, v in KINDS if kind is dtype]
    for skipped in range(4):  # int() of what is not finite raises
        for result, tensor in zip(
            executor([tensors, [skipped] * len(tensors)]), tensors, strict=True
        ):
            expected = outcome(program, [tensor, skipped])
            assert repr(result) == repr(expected)
            assert type(result) is type(expected)


def forked_sum(inner: Body = ()) -> InstanceProgram:
    """f(node): the word of a leaf; else its value is read from a sum of both sides, forked."""
    node, side = Variable("node", RecordType(0)), Variable("side", optional(RecordType(0)))
    left, right = Variable("left", RecordType(0)), Variable("right", RecordType(0))
    test, word = Variable("test", Scalar.BOOL), Variable("word", Scalar.INT)
    a, b, value = (Variable(name, Scalar.FLOAT) for name in ("a", "b", "value"))
    made = Variable("made", f32())
    body: Body = (
        *inner,
        AssignOp("get", (node,), "word", results=(word,)),
        AssignOp("get", (node,), "left", results=(side,)),
        AssignOp("is", (side, Literal(None)), results=(test,)),
        IfOp(
            test,
            body_of(
                (
                    RecordOp(0, (word, Literal(0.0), Literal(0.0)), results=(made,)),
                    ReadOp(made, results=(value,)),
                    AssignOp("eq", (word, Literal(7)), results=(test,)),
                    IfOp(test, body_of((RaiseOp(ValueError, ("leaf ", value)),)), Block()),
                    ReturnOp(value),
                )
            ),
            Block(),
        ),
        AssignOp("cast", (side,), RecordType(0), results=(left,)),
        AssignOp("get", (node,), "right", results=(side,)),
        AssignOp("cast", (side,), RecordType(0), results=(right,)),
        ForkOp(
            (
                body_of((InvokeOp("f", (left,), results=(a,)),)),
                body_of((InvokeOp("f", (right,), results=(b,)),)),
            )
        ),
        RecordOp(0, (word, a, b), results=(made,)),
        ReadOp(made, results=(value,)),
        ReturnOp(value),
    )

    def combine(word: int, a: float, b: float) -> torch.Tensor:
        return torch.tensor(word + a - b / 2)

    return instance_program(
        [InstanceFunction("f", Block((node,), list(body)), Scalar.FLOAT)],
        [ClassInfo(Node, "object", ("left", "right", "word"), (0, 0, 1))],
        [optional(RecordType(0)), Scalar.INT],
        [block(combine, (Scalar.INT, Scalar.FLOAT, Scalar.FLOAT), f32())],
    )


def without(node: Node, word: int) -> Node:
    """Leaves of that word get another."""
    if node.left is None or node.right is None:
        return Node(None, None, 1 if node.word == word else node.word)
    return Node(without(node.left, word), without(node.right, word), node.word)


def test_calls_that_run_concurrently() -> None:
    executor = Executor(HostProgram(forked_sum()))
    trees = [without(tree(depth, 3 * depth), 7) for depth in (0, 4, 2, 3, 1)]
    executor.steps = 0
    check(executor, [trees])
    assert executor.steps == 5  # all nodes of a height wait together
    check(executor, [[*trees, tree(4), tree(3, 5)]])  # some fail, at a leaf


@pytest.mark.whole
def test_many_concurrent_calls() -> None:
    before = _data_bytes()
    check(Executor(HostProgram(forked_sum())), [[without(tree(10, n), 7) for n in range(6)]])
    # Limits on memory count what a process may write. Stacks that might be deep need little.
    assert _data_bytes() - before < 2 << 30


def _data_bytes() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmData:")[1].split()[0]) << 10


def test_endless_recursion_of_concurrent_calls() -> None:
    cycle = Node(None, None, 1)
    cycle.left = cycle.right = cycle
    executor = Executor(HostProgram(forked_sum()))
    leaf = Node(None, None, 2)
    results = executor([[leaf, cycle, leaf]])
    assert results[0] == results[2] == 2.0
    assert isinstance(results[1], RecursionError)


def test_forks_without_reads_run_in_order() -> None:
    items, n = Variable("items", ListType(0)), Variable("n", Scalar.INT)
    body = (
        AssignOp("list", (), False, results=(items,)),
        ForkOp(
            (
                body_of((AssignOp("append", (items, n)),)),
                body_of((AssignOp("append", (items, Literal(2))),)),
            )
        ),
        ReturnOp(items),
    )
    program = instance_program(
        [InstanceFunction("f", Block((n,), list(body)), ListType(0))], cells=[Scalar.INT]
    )
    assert Executor(HostProgram(program))([[1, 5]]) == [[1, 2], [5, 2]]


def test_a_fork_that_returns_is_refused() -> None:
    n = Variable("n", Scalar.INT)
    program = instance_program(
        [
            InstanceFunction(
                "f", Block((n,), [ForkOp((body_of((ReturnOp(n),)), Block()))]), Scalar.INT
            )
        ]
    )
    with pytest.raises(CodegenError, match="is left by a jump"):
        HostProgram(program)


def test_phases() -> None:
    """Depths are counted within a phase: what is deep in one is not later in the next."""
    x, y, n = Variable("x", H), Variable("y", H), Variable("n", Scalar.INT)
    test = Variable("test", Scalar.BOOL)
    body = (
        LoopOp(
            body_of(
                (
                    AssignOp("le", (n, Literal(0)), results=(test,)),
                    IfOp(test, body_of((BreakOp(),)), Block()),
                    RecordOp(0, (x,), results=(x,)),
                    AssignOp("sub", (n, Literal(1)), results=(n,)),
                )
            )
        ),
        PhaseOp(1),
        RecordOp(1, (x,), results=(y,)),
        ReturnOp(y),
    )
    program = instance_program(
        [InstanceFunction("f", Block((x, n), list(body)), H)],
        blocks=[block(lambda x: x / 2, (H,), H), block(lambda x: x + 1, (H,), H)],
    )
    executor = Executor(HostProgram(program))
    counts = [0, 4, 1, 3]
    check(executor, [[torch.rand(2) for _ in counts], counts])
    assert executor.steps == 4 + 1


def test_deep_recursion_in_a_fiber() -> None:
    node, left = Variable("node", optional(RecordType(0))), Variable("l", optional(RecordType(0)))
    test, count = Variable("test", Scalar.BOOL), Variable("count", Scalar.INT)
    made = Variable("made", f32())
    body = (
        AssignOp("is", (node, Literal(None)), results=(test,)),
        IfOp(
            test,
            body_of(
                (
                    RecordOp(0, (Literal(5),), results=(made,)),
                    ReadOp(made, results=(count,)),
                    ReturnOp(count),
                )
            ),
            Block(),
        ),
        AssignOp("get", (node,), "left", results=(left,)),
        InvokeOp("f", (left,), results=(count,)),
        AssignOp("add", (count, Literal(1)), results=(count,)),
        ReturnOp(count),
    )
    program = instance_program(
        [InstanceFunction("f", Block((node,), list(body)), Scalar.INT)],
        [ClassInfo(Node, "object", ("left", "right", "word"), (0, 0, 1))],
        [optional(RecordType(0)), Scalar.INT],
        [block(lambda n: torch.tensor(float(n)), (Scalar.INT,), f32())],
    )
    deep = None
    for _ in range(100_000):
        deep = Node(deep, None, 0)
    cycle = Node(None, None, 0)
    cycle.left = cycle
    results = Executor(HostProgram(program))([[deep, None, cycle]])
    assert results[:2] == [100_005, 5]
    assert isinstance(results[2], RecursionError)
    while deep is not None:
        deep.left, deep = None, deep.left
