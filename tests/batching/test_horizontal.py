"""Products of a block that share their operand are one product of the level program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stretto.batching.batched import Batched
from stretto.batching.levels.level_program import level_code
from stretto.batching.passes.pipeline import BatchPasses, run_passes
from stretto.ir.ops import TensorOp
from stretto.ir.rewrite import all_blocks
from stretto.ops.properties import is_contraction
from stretto.options import Options
from stretto.passes.horizontal import Horizontal
from stretto.passes.manager import run_passes as optimised
from stretto.passes.pipeline import pipeline
from tests.batching.passes.checking import check, program_of

X = [torch.linspace(-1, 1, 16), torch.ones(16)]


def products(
    function: Callable[..., Any], *columns: list[Any], switches: BatchPasses | None = None
) -> int:
    """How many contractions the level program of a function has."""
    check(function, columns)
    made = program_of(function, columns)
    run_passes(made, switches)
    skipped = frozenset[str]() if made.joins else frozenset((Horizontal.name,))
    program = level_code(made.blocks, Options(), skipped=skipped).program
    program = optimised(program, pipeline())
    return sum(
        isinstance(op, TensorOp) and is_contraction(op)
        for function_ in program.functions.values()
        for block in all_blocks(function_.body)
        for op in block.ops
    )


class Gates(nn.Module):
    """An LSTM cell whose gates are layers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.of_x = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])
        self.of_h = nn.ModuleList([nn.Linear(16, 16, bias=False) for _ in range(4)])

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        i, f, o, g = (a(x) + b(h) for a, b in zip(self.of_x, self.of_h, strict=True))
        c = torch.sigmoid(f) * h + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


def test_gates_of_one_input() -> None:
    model = Gates().eval()
    assert products(lambda x, h: model(x, h), X, X) == 2


@pytest.mark.whole
def test_the_switch() -> None:
    model = Gates().eval()
    apart = BatchPasses(horizontal=False)
    assert products(lambda x, h: model(x, h), X, X, switches=apart) == 8
    many = Batched(model, passes=apart)
    torch.testing.assert_close(many(X, X), [model(x, x) for x in X], rtol=1e-4, atol=1e-5)


def test_cells_and_three_layers_of_one_input() -> None:
    cell = nn.LSTMCell(16, 16).eval()
    layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)]).eval()
    assert products(lambda x, h: cell(x, (h, h)), X, X) == 2
    assert products(lambda x: torch.cat([layer(x) for layer in layers]), X) == 1


def test_layers_of_both_children() -> None:
    """One operand each: nothing is shared."""
    model = Gates().eval()
    assert products(lambda x, h: model.of_x[0](x) + model.of_x[1](h), X, X) == 2


def test_layers_of_a_row_of_a_table() -> None:
    table = nn.Embedding(5, 16)
    model = Gates().eval()

    def gathered(n: int) -> Tensor:
        x = table.weight[n]
        return model.of_x[0](x) * model.of_x[1](x)

    assert products(gathered, [0, 4]) == 1


def test_layers_in_the_arms_of_a_branch() -> None:
    """Each arm is a block with one product, whose operands are those of its own instances."""
    model = Gates().eval()

    def arms(x: Tensor, n: int) -> Tensor:
        if n:
            return torch.tanh(model.of_x[0](x)) * model.of_x[1](x)
        return torch.sigmoid(model.of_x[2](x)) * model.of_x[3](x)

    assert products(arms, X, [0, 1]) == 2


def test_unpacking_a_comprehension_makes_no_list() -> None:
    model = Gates().eval()

    def starred(x: Tensor, h: Tensor) -> tuple[Tensor, list[Tensor]]:
        first, *rest = [layer(x) for layer in model.of_x]
        rest.append(h)
        return first, rest

    def swapped(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        x, h = [x * 2, h + x]
        (x, h), z = [(h, x), x]
        return x + z, h

    def nested(x: Tensor, h: Tensor) -> Tensor:
        (a, b), (c, d) = ([layer(item) for layer in model.of_x[:2]] for item in (x, h))
        return a * b + c * d

    def wrong(x: Tensor, h: Tensor) -> Tensor:
        a, b = (layer(x) for layer in model.of_x)
        return a + b + h

    assert products(starred, X, X) == 1
    check(swapped, (X, X))
    assert products(nested, X, X) == 2
    check(wrong, (X, X))
