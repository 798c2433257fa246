"""InstancePrograms written by hand, for tests of what runs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stretto.batching.instance_program import (
    AssignStatement,
    BlockStep,
    Body,
    CallStatement,
    ClassInfo,
    IfStatement,
    InstanceFunction,
    InstanceProgram,
    Literal,
    OperandPlaceholder,
    Operation,
    RecordStatement,
    ReturnStatement,
    StaticBlock,
    Variable,
)
from stretto.batching.types import (
    InstanceTensorType,
    RecordType,
    RowsType,
    Scalar,
    TupleType,
    Type,
    UnionType,
)
from stretto.ir.types import DType

NONE = Literal(None)


def f32(*shape: int) -> InstanceTensorType:
    return InstanceTensorType(DType.F32, shape)


def optional(type_: Type) -> Type:
    return UnionType(frozenset({type_, Scalar.NONE}))


def block(
    function: Any,
    inputs: tuple[InstanceTensorType | RowsType | Scalar, ...],
    *results: InstanceTensorType | RowsType,
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
        AssignStatement(word, "get", (node,), "word"),
        AssignStatement(left, "get", (node,), "left"),
        AssignStatement(is_leaf, "is", (left, NONE)),
        IfStatement(is_leaf, leaf, inner),
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
            AssignStatement(optional_sides[name], "get", (node,), name),
            AssignStatement(sides[name], "cast", (optional_sides[name],), RecordType(0)),
            CallStatement(states[name], 0, (sides[name],)),
        ]
    places = [(name, place) for name in sides for place in range(2)]
    for part, (name, place) in zip(parts, places, strict=True):
        inner.append(AssignStatement(part, "item", (states[name],), place))
    inner.append(RecordStatement((out_h, out_c), 1, tuple(parts)))
    result = (AssignStatement(made, "tuple", (out_h, out_c)), ReturnStatement(made))
    leaf = (RecordStatement((out_h, out_c), 0, (word,)), *result)
    body = leaf_or_inner(node, word, leaf, (*inner, *result))
    return InstanceProgram(
        functions=[InstanceFunction("forward", (node,), pair, body)],
        classes=[ClassInfo(Node, "object", ("left", "right", "word"), (0, 0, 1))],
        cells=[optional(RecordType(0)), Scalar.INT],
        blocks=blocks,
    )
