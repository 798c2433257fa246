"""Recurrent layers as ordinary loops over time.

`nn.RNN`, `nn.LSTM` and `nn.GRU` call one operator of ATen for all layers and steps, which torch
decomposes into unrolled steps. Here they are loops that are captured like those of a user: the
input projections of a layer are one product in front of its loop.

In a packed sequence the rows of a step are those sequences that have not ended. Its loop computes
all rows of all steps, and keeps the state of a sequence where it has no item: before its first step
in the reverse direction, and behind its last one otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stretto.frontends.python.source.rewrite import rewritten
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import data_dependent_shape, tracer

aten = torch.ops.aten

State = tuple[Tensor, ...]
"""The hidden state, and for an LSTM the cell state."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The weights of one direction of one layer, and what it computes in a step: the next state
    from the projected input and the state."""

    step: Callable[[Cell, Tensor, State], State]
    input_weight: Tensor
    hidden_weight: Tensor
    input_bias: Tensor | None = None
    hidden_bias: Tensor | None = None
    projection: Tensor | None = None

    def gates(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.hidden_weight, self.hidden_bias)


def _elman(activation: Callable[[Tensor], Tensor]) -> Callable[[Cell, Tensor, State], State]:
    def step(cell: Cell, row: Tensor, state: State) -> State:
        return (activation(row + cell.gates(state[0])),)

    return step


def _gru(cell: Cell, row: Tensor, state: State) -> State:
    (hidden,) = state
    reset, update, new = row.chunk(3, -1)
    hidden_reset, hidden_update, hidden_new = cell.gates(hidden).chunk(3, -1)
    reset = torch.sigmoid(reset + hidden_reset)
    update = torch.sigmoid(update + hidden_update)
    new = torch.tanh(new + reset * hidden_new)
    return ((hidden - new) * update + new,)


def _lstm(cell: Cell, row: Tensor, state: State) -> State:
    hidden, memory = state
    into, forget, new, out = (row + cell.gates(hidden)).chunk(4, -1)
    memory = torch.sigmoid(forget) * memory + torch.sigmoid(into) * torch.tanh(new)
    hidden = torch.sigmoid(out) * torch.tanh(memory)
    if cell.projection is not None:
        hidden = F.linear(hidden, cell.projection)
    return hidden, memory


@dataclass(frozen=True, slots=True)
class Packing:
    """Where the items of a packed sequence stand in a matrix of all steps by all sequences.

    items: for each place of the matrix an item; any item where the sequence has ended.
    places: for each item its place in the matrix, counted row by row.
    active: which places have an item. None if all have.
    """

    items: Tensor
    places: Tensor
    active: Tensor | None

    @staticmethod
    def of(batch_sizes: Tensor) -> Packing:
        if isinstance(batch_sizes, TracedTensor):
            raise data_dependent_shape("the number of packed items")
        with tracer().native():
            sizes = batch_sizes.tolist()
            tracer().read_values[id(batch_sizes)] = batch_sizes
            columns = torch.arange(max(sizes, default=0))
            active = columns < batch_sizes[:, None]
            starts = batch_sizes.cumsum(0) - batch_sizes
            items = torch.where(active, starts[:, None] + columns, 0)
            places = active.flatten().nonzero().flatten()
            return Packing(items, places, None if active.all() else active[..., None])

    def spread(self, data: Tensor) -> Tensor:
        """The items as a tensor of steps, sequences and features."""
        if self.active is None:
            return data.unflatten(0, self.items.shape)
        return data[self.items]

    def packed(self, rows: Tensor) -> Tensor:
        """The inverse of `spread`."""
        flat = rows.flatten(0, 1)
        return flat if self.active is None else flat[self.places]


def _over_time(cell: Cell, rows: Any, state: State) -> tuple[Tensor, State]:
    """The hidden states after all steps, and the last state."""
    hidden: Any = []
    for row in rows:
        state = cell.step(cell, row, state)
        hidden.append(state[0])
    return torch.stack(hidden), state


def _over_active(cell: Cell, rows: Any, active: Any, state: State) -> tuple[Tensor, State]:
    """The same where in each step only the rows that are active have an item."""
    hidden: Any = []
    for row, is_active in zip(rows, active, strict=True):
        state = _where(is_active, cell.step(cell, row, state), state)
        hidden.append(state[0])
    return torch.stack(hidden), state


def _where(flags: Tensor, state: State, other: State) -> State:
    return tuple(torch.where(flags, *both) for both in zip(state, other, strict=True))


def _direction(
    cell: Cell, inputs: Tensor, state: State, packing: Packing | None, *, reverse: bool
) -> tuple[Tensor, State]:
    """One direction of one layer."""
    rows = F.linear(inputs, cell.input_weight, cell.input_bias)
    active = None
    if packing is not None:
        rows, active = packing.spread(rows), packing.active
    rows = rows.flip(0) if reverse else rows
    if active is None:
        hidden, last = rewritten(_over_time)(cell, rows, state)
    else:
        active = active.flip(0) if reverse else active
        hidden, last = rewritten(_over_active)(cell, rows, active, state)
    hidden = hidden.flip(0) if reverse else hidden
    return hidden if packing is None else packing.packed(hidden), last


@dataclass(frozen=True, slots=True)
class _Layers:
    """What a call of a recurrent operator says: its cells layer by layer, and in each layer the
    directions."""

    cells: list[list[Cell]]
    dropout: float
    train: bool

    def run(
        self, inputs: Tensor, states: Sequence[Tensor], packing: Packing | None = None
    ) -> tuple[Tensor, ...]:
        """The hidden states of the last layer, and the last states of all."""
        steps = inputs.shape[0]
        if steps == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        lasts = list[State]()
        for layer in self.cells:
            if lasts and self.train and self.dropout:
                inputs = torch.dropout(inputs, self.dropout, True)
            outputs = list[Tensor]()
            for cell in layer:
                state = tuple(every[len(lasts)] for every in states)
                output, last = _direction(cell, inputs, state, packing, reverse=bool(outputs))
                outputs.append(output)
                lasts.append(last)
            inputs = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        return inputs, *(torch.stack(every) for every in zip(*lasts, strict=True))


def _layers(
    step: Callable[[Cell, Tensor, State], State],
    params: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> _Layers:
    directions = 2 if bidirectional else 1
    per_cell = len(params) // (layers * directions)
    made = list[Cell]()
    for first in range(0, len(params), per_cell):
        weights = params[first : first + per_cell]
        into, onto = weights[2:4] if has_biases else (None, None)
        projection = weights[-1] if per_cell % 2 else None
        made.append(Cell(step, weights[0], weights[1], into, onto, projection))
    split = range(0, len(made), directions)
    return _Layers([made[first : first + directions] for first in split], dropout, train)


def _whole(step: Callable[[Cell, Tensor, State], State]) -> Callable[..., tuple[Tensor, ...]]:
    """The rule of an operator on tensors of steps and sequences."""

    def rule(inputs: Tensor, states: Any, *arguments: Any) -> tuple[Tensor, ...]:
        states = (states,) if isinstance(states, torch.Tensor) else states
        *options, batch_first = arguments
        inputs = inputs.transpose(0, 1) if batch_first else inputs
        output, *lasts = _layers(step, *options).run(inputs, states)
        return output.transpose(0, 1) if batch_first else output, *lasts

    return rule


def _packed(step: Callable[[Cell, Tensor, State], State]) -> Callable[..., tuple[Tensor, ...]]:
    """The rule of an operator on packed sequences."""

    def rule(data: Tensor, batch_sizes: Tensor, states: Any, *options: Any) -> tuple[Tensor, ...]:
        states = (states,) if isinstance(states, torch.Tensor) else states
        return _layers(step, *options).run(data, states, Packing.of(batch_sizes))

    return rule


_STEPS = {
    aten.rnn_tanh: _elman(torch.tanh),
    aten.rnn_relu: _elman(torch.relu),
    aten.gru: _gru,
    aten.lstm: _lstm,
}

RULES: dict[Any, Callable[..., Any]] = {
    **{packet.input: _whole(step) for packet, step in _STEPS.items()},
    **{packet.data: _packed(step) for packet, step in _STEPS.items()},
}
