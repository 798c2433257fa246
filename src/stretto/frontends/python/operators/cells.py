"""Steps of recurrent cells on as many rows as data decide.

ATen's own cells ask whether the input and the state have equally many rows, which the run alone may
know. The formulas are those of ATen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stretto.frontends.python.values.sizes import is_decided

aten = torch.ops.aten

State = tuple[Tensor, ...]
"""The hidden state, and for an LSTM the cell state."""
Step = Callable[["Cell", Tensor, State], State]
"""What a cell computes: the next state from the projected input and the state."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The weights of one direction of one layer."""

    step: Step
    input_weight: Tensor
    hidden_weight: Tensor
    input_bias: Tensor | None = None
    hidden_bias: Tensor | None = None
    projection: Tensor | None = None

    def gates(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.hidden_weight, self.hidden_bias)


def elman(activation: Callable[[Tensor], Tensor]) -> Step:
    def step(cell: Cell, row: Tensor, state: State) -> State:
        return (activation(row + cell.gates(state[0])),)

    return step


def gru(cell: Cell, row: Tensor, state: State) -> State:
    (hidden,) = state
    reset, update, new = row.chunk(3, -1)
    hidden_reset, hidden_update, hidden_new = cell.gates(hidden).chunk(3, -1)
    reset = torch.sigmoid(reset + hidden_reset)
    update = torch.sigmoid(update + hidden_update)
    new = torch.tanh(new + reset * hidden_new)
    return ((hidden - new) * update + new,)


def lstm(cell: Cell, row: Tensor, state: State) -> State:
    hidden, memory = state
    into, forget, new, out = (row + cell.gates(hidden)).chunk(4, -1)
    memory = torch.sigmoid(forget) * memory + torch.sigmoid(into) * torch.tanh(new)
    hidden = torch.sigmoid(out) * torch.tanh(memory)
    if cell.projection is not None:
        hidden = F.linear(hidden, cell.projection)
    return hidden, memory


def _stepped(step: Step) -> Callable[..., Any]:
    """The rule of an operator that is one step."""

    def rule(inputs: Any, states: Any, *weights: Any) -> Any:
        every = (states,) if isinstance(states, torch.Tensor) else tuple(states)
        if not any(is_decided(item.shape[0]) for item in (inputs, *every)):
            return NotImplemented
        cell = Cell(step, *weights)
        row = F.linear(inputs, cell.input_weight, cell.input_bias)
        found = step(cell, row, every)
        return found[0] if isinstance(states, torch.Tensor) else found

    return rule


def _bilinear(first: Any, second: Any, weight: Any, bias: Any = None) -> Any:
    """The sum over i and j of first[i] * weight[k, i, j] * second[j], for each k."""
    if not any(map(is_decided, (*first.shape, *second.shape))):
        return NotImplemented
    outputs, rows, columns = weight.shape
    table = weight.permute(1, 0, 2).reshape(rows, outputs * columns)
    products = (first @ table).unflatten(-1, (outputs, columns)) * second.unsqueeze(-2)
    return products.sum(-1) if bias is None else products.sum(-1) + bias


RULES: dict[Any, Callable[..., Any]] = {
    aten.rnn_tanh_cell.default: _stepped(elman(torch.tanh)),
    aten.rnn_relu_cell.default: _stepped(elman(torch.relu)),
    aten.gru_cell.default: _stepped(gru),
    aten.lstm_cell.default: _stepped(lstm),
    aten.bilinear.default: _bilinear,
}
