"""InstancePrograms written by hand, for tests of what runs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stretto.batching.instance_program import (
    BlockStep,
    Body,
    ClassInfo,
    InstanceProgram,
    StaticBlock,
    instance_program,
)
from stretto.ir.core import Block, Literal, Variable
from stretto.ir.data import (
    AssignOp,
    InstanceFunction,
    InvokeOp,
    OperandPlaceholder,
    Operation,
    RecordOp,
    ReturnOp,
    body_of,
)
from stretto.ir.ops import IfOp
from stretto.ir.types import (
    DataType,
    DType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    UnionType,
)

NONE = Literal(None)


def f32(*shape: int) -> TensorType:
    return TensorType(DType.F32, shape)


def optional(type_: DataType) -> DataType:
    return UnionType(frozenset({type_, Scalar.NONE}))


def block(
    function: Any,
    inputs: tuple[TensorType | RowsType | Scalar, ...],
    *results: TensorType | RowsType,
    name: str = "block",
) -> StaticBlock:
    """A block of one step that calls a function of all inputs."""
    count = len(inputs)
    operation = Operation(function, tuple(map(OperandPlaceholder, range(count))), (), results)
    outputs = tuple(range(count, count + len(results)))
    return StaticBlock(name, inputs, (BlockStep(operation, tuple(range(count))),), outputs)


@dataclass
class Node:
    left: Node | None
    right: Node | None
    word: int


def tree(depth: int, word: int = 1) -> Node:
    if depth == 0:
        return Node(None, None, word % 10)
    return Node(tree(depth - 1, 2 * word), tree(depth - 1, 2 * word + 1), word % 10)


def leaf_or_inner(node: Variable, word: Variable, leaf: Body, inner: Body) -> Body:
    """%word = node.word; if node.left is None: leaf, else: inner."""
    left = Variable("left", optional(RecordType(0)))
    is_leaf = Variable("is_leaf", Scalar.BOOL)
    return (
        AssignOp("get", (node,), "word", results=(word,)),
        AssignOp("get", (node,), "left", results=(left,)),
        AssignOp("is", (left, NONE), results=(is_leaf,)),
        IfOp(is_leaf, body_of(leaf), body_of(inner)),
    )


def tree_lstm(hidden: int = 4) -> InstanceProgram:
    """A binary TreeLSTM with words: forward(node) -> (h, c)."""
    torch.manual_seed(0)
    embedding = nn.Embedding(10, hidden)
    cell = nn.Linear(2 * hidden, 4 * hidden)
    h = f32(hidden)

    def embed(word: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = embedding.weight[word]
        return torch.tanh(x), x

    def combine(*states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        left, left_c, right, right_c = states
        i, f, o, u = cell(torch.cat([left, right])).chunk(4)
        c = i.sigmoid() * u.tanh() + f.sigmoid() * (left_c + right_c)
        return o.sigmoid() * c.tanh(), c

    blocks = [
        block(embed, (Scalar.INT,), h, h, name="leaf"),
        block(combine, (h, h, h, h), h, h, name="inner"),
    ]
    node, word = Variable("node", RecordType(0)), Variable("word", Scalar.INT)
    pair = TupleType((h, h))
    out_h, out_c = Variable("h", h), Variable("c", h)
    made = Variable("made", pair)
    sides = {name: Variable(name, RecordType(0)) for name in ("left", "right")}
    optional_sides = {name: Variable(name, optional(RecordType(0))) for name in sides}
    states = {name: Variable(f"{name}_state", pair) for name in sides}
    parts = [Variable(f"{name}_{part}", h) for name in sides for part in "hc"]
    inner = list[Any]()
    for name in sides:
        inner += [
            AssignOp("get", (node,), name, results=(optional_sides[name],)),
            AssignOp("cast", (optional_sides[name],), RecordType(0), results=(sides[name],)),
            InvokeOp("forward", (sides[name],), results=(states[name],)),
        ]
    places = [(name, place) for name in sides for place in range(2)]
    for part, (name, place) in zip(parts, places, strict=True):
        inner.append(AssignOp("item", (states[name],), place, results=(part,)))
    inner.append(RecordOp(1, tuple(parts), results=(out_h, out_c)))
    result = (AssignOp("tuple", (out_h, out_c), results=(made,)), ReturnOp(made))
    leaf = (RecordOp(0, (word,), results=(out_h, out_c)), *result)
    body = leaf_or_inner(node, word, leaf, (*inner, *result))
    return instance_program(
        functions=[InstanceFunction("forward", Block((node,), list(body)), pair)],
        classes=[ClassInfo(Node, "object", ("left", "right", "word"), (0, 0, 1))],
        cells=[optional(RecordType(0)), Scalar.INT],
        blocks=blocks,
    )
