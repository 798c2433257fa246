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

from stretto.frontends.python.calls.packings import Packing
from stretto.frontends.python.operators.cells import Cell, State, Step, elman, gru, lstm
from stretto.frontends.python.source.rewrite import rewritten
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.sizes import is_decided, plain

aten = torch.ops.aten

_NO_STEPS = "Expected sequence length to be larger than 0 in RNN"


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
    cell: Cell, inputs: Tensor, state: State, active: Tensor | None, *, reverse: bool
) -> tuple[Tensor, State]:
    """One direction of one layer."""
    rows = F.linear(inputs, cell.input_weight, cell.input_bias)
    rows = rows.flip(0) if reverse else rows
    if active is None:
        hidden, last = rewritten(_over_time)(cell, rows, state)
    else:
        active = active.flip(0) if reverse else active
        hidden, last = rewritten(_over_active)(cell, rows, active, state)
    return hidden.flip(0) if reverse else hidden, last


@dataclass(frozen=True, slots=True)
class Layers:
    """What a call of a recurrent operator says: its cells layer by layer, and in each layer the
    directions."""

    cells: list[list[Cell]]
    dropout: float
    train: bool

    def run(
        self, inputs: Tensor, states: Sequence[Tensor], active: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The hidden states of the last layer, and the last states of all. active: for each step
        and sequence whether it has an item; None if all have."""
        steps: Any = inputs.shape[0]
        if is_decided(steps):
            check(plain(steps) > 0, "RuntimeError", _NO_STEPS)
        elif steps == 0:
            raise RuntimeError(_NO_STEPS)
        lasts = list[State]()
        for layer in self.cells:
            if lasts and self.train and self.dropout:
                if active is not None:
                    fail(
                        "dropout between the layers of a packed sequence draws numbers for items",
                        "call eval() on the module before compiling",
                    )
                inputs = torch.dropout(inputs, self.dropout, True)
            outputs = list[Tensor]()
            for cell in layer:
                state = tuple(every[len(lasts)] for every in states)
                output, last = _direction(cell, inputs, state, active, reverse=bool(outputs))
                outputs.append(output)
                lasts.append(last)
            inputs = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        return inputs, *(torch.stack(every) for every in zip(*lasts, strict=True))


def layers_of(
    step: Step,
    params: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> Layers:
    directions = 2 if bidirectional else 1
    per_cell = len(params) // (layers * directions)
    made = list[Cell]()
    for first in range(0, len(params), per_cell):
        weights = params[first : first + per_cell]
        into, onto = weights[2:4] if has_biases else (None, None)
        projection = weights[-1] if per_cell % 2 else None
        made.append(Cell(step, weights[0], weights[1], into, onto, projection))
    split = range(0, len(made), directions)
    return Layers([made[first : first + directions] for first in split], dropout, train)


def _whole(step: Step) -> Callable[..., tuple[Tensor, ...]]:
    """The rule of an operator on tensors of steps and sequences."""

    def rule(inputs: Tensor, states: Any, *arguments: Any) -> tuple[Tensor, ...]:
        states = (states,) if isinstance(states, torch.Tensor) else states
        *options, batch_first = arguments
        inputs = inputs.transpose(0, 1) if batch_first else inputs
        output, *lasts = layers_of(step, *options).run(inputs, states)
        return output.transpose(0, 1) if batch_first else output, *lasts

    return rule


def _packed(step: Step) -> Callable[..., tuple[Tensor, ...]]:
    """The rule of an operator on packed sequences."""

    def rule(data: Tensor, batch_sizes: Tensor, states: Any, *options: Any) -> tuple[Tensor, ...]:
        states = (states,) if isinstance(states, torch.Tensor) else states
        packing = Packing.of(batch_sizes)
        output, *lasts = layers_of(step, *options).run(packing.spread(data), states, packing.active)
        return packing.packed(output), *lasts

    return rule


STEPS: dict[Any, Step] = {
    aten.rnn_tanh: elman(torch.tanh),
    aten.rnn_relu: elman(torch.relu),
    aten.gru: gru,
    aten.lstm: lstm,
}

RULES: dict[Any, Callable[..., Any]] = {
    **{packet.input: _whole(step) for packet, step in STEPS.items()},
    **{packet.data: _packed(step) for packet, step in STEPS.items()},
}
