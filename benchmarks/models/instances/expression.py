"""An evaluator of arithmetic expressions, with `match`; numbers stay Python's as long as possible.

Variables are vectors. An operation of two numbers gives a number, and one with a vector a
vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ..entry import Phase, generator
from ..weights import seed_weights
from .entry import InstanceEntry, chain_phase


@dataclass(frozen=True, slots=True)
class ExpressionConfig:
    """Expressions are at most `depth` operations deep."""

    hidden: int = 256
    depth: int = 6


@dataclass
class Number:
    value: float


@dataclass
class Variable:
    """value: [hidden]."""

    value: Tensor


@dataclass
class Negation:
    operand: Expression


@dataclass
class Operation:
    """sign: one of + - *."""

    sign: str
    left: Expression
    right: Expression


@dataclass
class Call:
    """function: `tanh`, or `layer`, which is a layer of the model."""

    function: str
    operand: Expression


Expression: TypeAlias = Number | Variable | Negation | Operation | Call


class Evaluator(nn.Module):
    """An expression -> its value: a number, or [hidden]."""

    def __init__(self, config: ExpressionConfig) -> None:
        super().__init__()
        self.layer = nn.Linear(config.hidden, config.hidden)

    def forward(self, expression: Expression) -> float | Tensor:
        match expression:
            case Number(value):
                return value
            case Variable(vector):
                return vector
            case Negation(operand):
                return -self.forward(operand)
            case Operation("+", left, right):
                return self.forward(left) + self.forward(right)
            case Operation("-", left, right):
                return self.forward(left) - self.forward(right)
            case Operation("*", left, right):
                return self.forward(left) * self.forward(right)
            case Operation(sign, _, _):
                raise ValueError(f"unknown operation {sign!r}")
            case Call("layer", operand):
                value = self.forward(operand)
                if not isinstance(value, Tensor):
                    return torch.tanh(value * self.layer.bias)
                return torch.tanh(self.layer(value))
            case Call(_, operand):
                value = self.forward(operand)
                return torch.tanh(value) if isinstance(value, Tensor) else math.tanh(value)


def make(config: ExpressionConfig, seed: int = 0) -> Evaluator:
    model = Evaluator(config)
    seed_weights(model, seed)
    return model


def instances(config: ExpressionConfig, count: int, seed: int = 0) -> list[Expression]:
    """Random expressions of 16 nodes on average. Products are of values below 1."""
    source = generator(seed + 1)

    def drawn() -> float:
        return float(torch.rand((), generator=source))

    def leaf() -> Expression:
        if drawn() < 0.4:
            return Number(2.0 * drawn() - 1.0)
        return Variable(torch.randn(config.hidden, generator=source))

    def made(depth: int) -> Expression:
        kind = drawn()
        if depth <= 0 or (kind < 0.15 and depth < config.depth):
            return leaf()
        if kind < 0.25:
            return Negation(made(depth - 1))
        if kind < 0.5:
            return Call("layer" if drawn() < 0.7 else "tanh", made(depth - 1))
        if kind < 0.7:
            return Operation("*", Call("tanh", made(depth - 2)), made(depth - 1))
        return Operation("+" if drawn() < 0.5 else "-", made(depth - 1), made(depth - 1))

    return [made(config.depth) for _ in range(count)]


def size(expression: Expression) -> int:
    """Return the number of nodes of an expression."""
    return 1 + sum(map(size, operands(expression)))


def operands(expression: Expression) -> list[Expression]:
    match expression:
        case Negation(operand) | Call(_, operand):
            return [operand]
        case Operation(_, left, right):
            return [left, right]
        case _:
            return []


def is_vector(expression: Expression) -> bool:
    layer = isinstance(expression, Call) and expression.function == "layer"
    return layer or isinstance(expression, Variable) or any(map(is_vector, operands(expression)))


def work(
    config: ExpressionConfig, expressions: Sequence[Expression], results: Sequence[Any]
) -> tuple[Phase, ...]:
    """The layers' products, and reading the variables once."""
    layers = sum(_layers(expression) for expression in expressions)
    chain = max(map(_chain, expressions), default=0)
    square = config.hidden**2
    return (chain_phase("layers", 2.0 * layers * square, square, chain),)


def _layers(expression: Expression) -> int:
    below = operands(expression)
    own = isinstance(expression, Call) and expression.function == "layer" and is_vector(below[0])
    return own + sum(map(_layers, below))


def _chain(expression: Expression) -> int:
    own = isinstance(expression, Call) and expression.function == "layer"
    return own + max(map(_chain, operands(expression)), default=0)


ENTRY = InstanceEntry(
    "expression",
    "evaluator of arithmetic expressions over numbers and vectors",
    {
        "small": ExpressionConfig(hidden=8, depth=4),
        "256": ExpressionConfig(hidden=256),
        "512": ExpressionConfig(hidden=512),
    },
    make,
    instances,
    steps=lambda expression, result: size(expression),
    mean_steps=(10.0, 24.0),
    work=work,
)
