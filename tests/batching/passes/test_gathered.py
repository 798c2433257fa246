"""Without parameter reuse, parameters are operands of each instance; the results are the same."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stretto.batching.batched import Batched
from stretto.batching.instance_program import InstanceProgram
from stretto.batching.passes.pipeline import BatchPasses, passes
from tests.batching.passes.checking import check

WITHOUT = BatchPasses(reuse=False)


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.linspace(1, 2, 4))

    def forward(self, x: Tensor, n: int) -> Tensor:
        for _ in range(n):
            x = torch.tanh(self.layer(x)) * self.scale
        return x @ torch.eye(4)


def inputs(count: int) -> list[Tensor]:
    torch.manual_seed(count)
    return list(torch.randn(count, 4).unbind())


def operands(program: InstanceProgram) -> int:
    return max(len(block.inputs) for block in program.blocks)


def test_parameters_are_operands() -> None:
    model = Chain().eval()
    columns = (inputs(3), [0, 1, 3])

    def call(x: Tensor, n: int) -> Tensor:
        return model(x, n)

    assert operands(check(call, columns, *passes(BatchPasses()))) == 1
    assert operands(check(call, columns, *passes(WITHOUT))) == 4  # weight, bias and scale


def test_end_to_end() -> None:
    model = Chain().eval()
    many = Batched(model, passes=WITHOUT)
    with torch.no_grad():
        for count in (0, 1, 7):
            columns = (inputs(count) if count else [], [n % 4 for n in range(count)])
            for x, n, found in zip(*columns, many(*columns), strict=True):
                torch.testing.assert_close(found, model(x, n), rtol=1e-4, atol=1e-5)
