"""An RNN loop nested inside a GRU loop; both stop when their halting probabilities sum to 1.

Each step adds the probability that it is the last one; a loop ends when the sum passes 1,
after 20 steps at least and 40 at most. The published benchmark draws both numbers of steps
from 20..40. Here both are 30 on average, with seed 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..entry import Phase, generator
from ..weights import seed_weights
from .entry import InstanceEntry, ManyFunction, Wrap, chain_phase


@dataclass(frozen=True, slots=True)
class NestedRNNConfig:
    """Both loops make `fewest`..`most` steps. The biases are those of the halting
    layers."""

    hidden: int = 256
    fewest: int = 20
    most: int = 40
    inner_bias: float = -3.13
    outer_bias: float = -3.34


class NestedRNN(nn.Module):
    """x [hidden] -> the GRU's state [hidden], and the number of steps of each inner loop."""

    def __init__(self, config: NestedRNNConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.fewest = config.fewest
        self.most = config.most
        self.input = nn.Linear(hidden, hidden)
        self.inner = nn.Linear(hidden, hidden, bias=False)
        self.inner_halt = nn.Linear(hidden, 1)
        self.outer = nn.GRUCell(hidden, hidden)
        self.outer_halt = nn.Linear(hidden, 1)

    def refine(self, state: Tensor) -> tuple[Tensor, int]:
        """The inner loop."""
        x = self.input(state)
        h = torch.zeros_like(state)
        halted = 0.0
        steps = 0
        while steps < self.fewest or (halted < 1.0 and steps < self.most):
            h = torch.tanh(x + self.inner(h))
            halted += torch.sigmoid(self.inner_halt(h)).item()
            steps += 1
        return h, steps

    def forward(self, x: Tensor) -> tuple[Tensor, list[int]]:
        state = x
        halted = 0.0
        inner_steps: list[int] = []
        while len(inner_steps) < self.fewest or (halted < 1.0 and len(inner_steps) < self.most):
            h, steps = self.refine(state)
            state = self.outer(h, state)
            halted += torch.sigmoid(self.outer_halt(state)).item()
            inner_steps.append(steps)
        return state, inner_steps


def make(config: NestedRNNConfig, seed: int = 0) -> NestedRNN:
    model = NestedRNN(config)
    seed_weights(model, seed)
    with torch.no_grad():
        for halt, bias in (
            (model.inner_halt, config.inner_bias),
            (model.outer_halt, config.outer_bias),
        ):
            halt.bias.fill_(bias)
            halt.weight.mul_(0.5)
        model.inner.weight.mul_(0.8)  # a contraction: rounding does not grow over 900 steps
    return model


def instances(config: NestedRNNConfig, count: int, seed: int = 0) -> list[Tensor]:
    return list(torch.randn(count, config.hidden, generator=generator(seed + 1)).unbind())


def work(
    config: NestedRNNConfig, inputs: Sequence[Tensor], results: Sequence[tuple[Tensor, list[int]]]
) -> tuple[Phase, ...]:
    inner = sum(sum(steps) for _, steps in results)
    outer = sum(len(steps) for _, steps in results)
    square = config.hidden**2
    longest = max((len(steps) for _, steps in results), default=0)
    chain = max((sum(steps) for _, steps in results), default=0)
    return (
        chain_phase("outer", 14.0 * outer * square, 7 * square, longest),
        chain_phase("inner", 2.0 * inner * square, square, chain),
    )


def batched(model: NestedRNN, wrap: Wrap) -> ManyFunction:
    """All instances step together; those that have halted leave the batch of their loop."""
    inner, outer = wrap(_inner), wrap(_outer)
    inner_weight = model.inner.weight.t().contiguous()
    cell = model.outer
    weights = (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)

    def refine(state: Tensor) -> tuple[Tensor, list[int]]:
        x = model.input(state)
        h = torch.zeros_like(x)
        halted = x.new_zeros(len(x), dtype=torch.float64)
        result, steps = torch.empty_like(x), [0] * len(x)
        rows, step = list(range(len(x))), 0
        while rows:
            h, p = inner(x, h, inner_weight, model.inner_halt.weight, model.inner_halt.bias)
            halted += p
            step += 1
            if step < model.fewest:
                continue
            done = (halted >= 1.0) | (step >= model.most)
            if not done.any():
                continue
            ended = done.nonzero()[:, 0]
            where = [rows[i] for i in ended.tolist()]
            result[torch.tensor(where)] = h.index_select(0, ended)
            for row in where:
                steps[row] = step
            left = (~done).nonzero()[:, 0]
            rows = [rows[i] for i in left.tolist()]
            x, h, halted = (value.index_select(0, left) for value in (x, h, halted))
        return result, steps

    def many(inputs: Sequence[Tensor]) -> list[tuple[Tensor, list[int]]]:
        counts: list[list[int]] = [[] for _ in inputs]
        ends: list[Tensor] = list(inputs)
        if not inputs:
            return []
        state = torch.stack(list(inputs))
        halted = state.new_zeros(len(inputs), dtype=torch.float64)
        rows = list(range(len(inputs)))
        while rows:
            h, steps = refine(state)
            state, p = outer(h, state, *weights, model.outer_halt.weight, model.outer_halt.bias)
            halted += p
            for row, count in zip(rows, steps, strict=True):
                counts[row].append(count)
            step = len(counts[rows[0]])
            if step < model.fewest:
                continue
            done = ((halted >= 1.0) | (step >= model.most)).tolist()
            for row, end, final in zip(rows, done, state.unbind(), strict=True):
                if end:
                    ends[row] = final
            left = torch.tensor([i for i, end in enumerate(done) if not end], dtype=torch.int64)
            rows = [row for row, end in zip(rows, done, strict=True) if not end]
            state, halted = state.index_select(0, left), halted.index_select(0, left)
        return list(zip(ends, counts, strict=True))

    return many


def _inner(
    x: Tensor, h: Tensor, weight: Tensor, halt_weight: Tensor, halt_bias: Tensor
) -> tuple[Tensor, Tensor]:
    new = torch.tanh(torch.addmm(x, h, weight))
    return new, torch.sigmoid(torch.addmv(halt_bias, new, halt_weight[0]))


def _outer(
    x: Tensor,
    h: Tensor,
    input_weight: Tensor,
    state_weight: Tensor,
    input_bias: Tensor,
    state_bias: Tensor,
    halt_weight: Tensor,
    halt_bias: Tensor,
) -> tuple[Tensor, Tensor]:
    new = torch.gru_cell(x, h, input_weight, state_weight, input_bias, state_bias)
    return new, torch.sigmoid(torch.addmv(halt_bias, new, halt_weight[0]))


ENTRY = InstanceEntry(
    "nestedrnn",
    "an RNN loop inside a GRU loop, both halt by a probability",
    {
        "small": NestedRNNConfig(hidden=8, fewest=2, most=6, inner_bias=-0.9, outer_bias=-0.9),
        "256": NestedRNNConfig(hidden=256),
        "512": NestedRNNConfig(hidden=512, inner_bias=-3.24, outer_bias=-3.45),
    },
    make,
    instances,
    steps=lambda x, result: sum(result[1]) / len(result[1]),
    mean_steps=(28.0, 32.0),
    work=work,
    batched=batched,
    decides=True,
)
