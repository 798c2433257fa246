"""Layers opened into their parts, so that the part which needs no recurrent state can run alone.

    %c = cat([%x, %h])                          %y = linear_columns(Linear, [%x])
    %s = Linear(%c)                     =>      %s = linear_rest(Linear, %y, [%h])

    %s = GRUCell(%x, %h)                =>      %i = cell_inputs(GRUCell, %x)
                                                %s = gru_state(GRUCell, %i, %h)

Changes: `Linear` of a concatenation, and the cells of torch, where one part needs no recurrent
value and another one does. Needs: a set of recurrent values. Guarantees: the same values up to the
order in which a sum is added up. The parts take the module as it is and read its parameters when
they are computed, as the module does.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from stretto.batching.passes.recurrences import Node
from stretto.batching.passes.uses import Names, all_assigned, used
from stretto.batching.program import (
    Input,
    Operand,
    Operate,
    Operation,
    Statement,
    Variable,
)
from stretto.batching.types import TensorType

# ---- the parts, as functions of torch


def linear_columns(layer: Any, parts: list[Tensor], ranges: tuple[tuple[int, int], ...]) -> Tensor:
    """The product of some columns of a layer's weight with the parts of its input, and the bias."""
    return functional.linear(_joined(parts, -1), _columns(layer, ranges), _bias(layer))


def linear_rest(
    layer: Any, before: Tensor, parts: list[Tensor], ranges: tuple[tuple[int, int], ...]
) -> Tensor:
    """What other columns add to that."""
    return before + functional.linear(_joined(parts, -1), _columns(layer, ranges))


def cell_inputs(cell: Any, x: Tensor) -> Tensor:
    """The product of a recurrent cell's input weight with an input."""
    return functional.linear(x, cell.weight_ih, cell.bias_ih)


def gru_state(cell: Any, inputs: Tensor, h: Tensor) -> Tensor:
    """The new state of a GRUCell (Cho et al. 2014), from `cell_inputs`."""
    states = functional.linear(h, cell.weight_hh, cell.bias_hh)
    reset_x, update_x, new_x = inputs.chunk(3, -1)
    reset_h, update_h, new_h = states.chunk(3, -1)
    update = torch.sigmoid(update_x + update_h)
    new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
    return new + update * (h - new)


def lstm_state(cell: Any, inputs: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The new state of an LSTMCell, from `cell_inputs`."""
    gates = inputs + functional.linear(h, cell.weight_hh, cell.bias_hh)
    i, f, g, o = gates.chunk(4, -1)
    new = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(new), new


def rnn_state(cell: Any, inputs: Tensor, h: Tensor) -> Tensor:
    """The new state of an RNNCell, from `cell_inputs`."""
    sums = inputs + functional.linear(h, cell.weight_hh, cell.bias_hh)
    return torch.tanh(sums) if cell.nonlinearity == "tanh" else torch.relu(sums)


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _columns(layer: Any, ranges: tuple[tuple[int, int], ...]) -> Tensor:
    weight = layer[0] if isinstance(layer, tuple) else layer.weight
    return _joined([weight[:, first:last] for first, last in ranges], 1)


def _bias(layer: Any) -> Tensor | None:
    return layer[1] if isinstance(layer, tuple) else layer.bias


# ---- where they replace a layer


@dataclass(slots=True)
class Concatenations:
    """Which variables are concatenations of what other variables still hold, at some place."""

    found: dict[Variable, Operate] = field(default_factory=dict[Variable, Operate])

    def note(self, statement: Statement) -> None:
        """Goes on behind a statement."""
        changed = all_assigned(statement)
        for target, made in list(self.found.items()):
            if target in changed or not changed.isdisjoint(used(made)):
                del self.found[target]
        if isinstance(statement, Operate) and statement.operation.function in (
            torch.cat,
            torch.concat,
        ):
            self.found[statement.targets[0]] = statement


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens the layers of one function. recurrent: the values that depend on a recurrence."""

    recurrent: Set[Node]
    names: Names

    def opened(self, statement: Statement, whole: Concatenations) -> list[Statement]:
        """The parts of a layer; any other statement itself."""
        if not isinstance(statement, Operate):
            return [statement]
        function = statement.operation.function
        if function is functional.linear or type(function) is nn.Linear:
            return self._linear(statement, whole) or [statement]
        if type(function) in _CELLS:
            return self._cell(statement) or [statement]
        return [statement]

    def _is_recurrent(self, operand: Operand) -> bool:
        return isinstance(operand, Variable) and operand in self.recurrent

    def _linear(self, statement: Operate, whole: Concatenations) -> list[Statement]:
        layer = _layer(statement.operation)
        if layer is None or len(statement.operands) != 1:
            return []
        (given,) = statement.operands
        made = whole.found.get(given) if isinstance(given, Variable) else None
        parts = None if made is None else _parts(made)
        if made is None or parts is None:
            return []
        early: list[tuple[Any, tuple[int, int]]] = []
        late: list[tuple[Any, tuple[int, int]]] = []
        first = 0
        for part, size in parts:
            recurrent = isinstance(part, Variable) and self._is_recurrent(part)
            (late if recurrent else early).append((part, (first, first + size)))
            first += size
        if not late or not any(isinstance(part, Variable) for part, _ in early):
            return []
        result = statement.operation.results[0]
        partial = self.names.like(statement.targets[0])
        location = statement.operation.location
        return [
            _made((partial,), linear_columns, (layer,), early, (result,), location),
            _made(statement.targets, linear_rest, (layer, partial), late, (result,), location),
        ]

    def _cell(self, statement: Operate) -> list[Statement]:
        operation, operands = statement.operation, statement.operands
        cell: Any = operation.function
        size, state = _CELLS[type(cell)]
        match operation.args:
            case (Input(x), Input(h)) if not operation.kwargs and size != 4:
                states = (operands[h],)
            case (Input(x), (Input(h), Input(c))) if not operation.kwargs and size == 4:
                states = (operands[h], operands[c])
            case _:
                return []
        given = operands[x]
        if self._is_recurrent(given):
            return []
        if not any(map(self._is_recurrent, states)):
            return []
        assert isinstance(given, Variable) and isinstance(given.type, TensorType)
        shape = (*given.type.shape[:-1], size * cell.hidden_size)
        type_ = TensorType(given.type.dtype, shape)
        gates = Variable(self.names.like(statement.targets[0]).name, type_)
        first = Operation(cell_inputs, (cell, Input(0)), (), (type_,), operation.location)
        places = tuple(Input(number) for number in range(1 + len(states)))
        args = (cell, *places)
        second = Operation(state, args, (), operation.results, operation.location)
        return [
            Operate((gates,), first, (given,)),
            Operate(statement.targets, second, (gates, *states)),
        ]


_CELLS: dict[type, tuple[int, Callable[..., Any]]] = {
    nn.GRUCell: (3, gru_state),
    nn.LSTMCell: (4, lstm_state),
    nn.RNNCell: (1, rnn_state),
}
"""Cells of torch: how many gates each has, and the part that needs its state."""


def _layer(operation: Operation) -> Any:
    """A linear layer, as its module or as (weight, bias); None where its weight is an operand."""
    if isinstance(operation.function, nn.Linear):
        plain = len(operation.args) == 1 and not operation.kwargs
        return operation.function if plain else None
    named = dict(operation.kwargs)
    rest = list(operation.args[1:])
    weight = rest.pop(0) if rest else named.pop("weight", None)
    bias = rest.pop(0) if rest else named.pop("bias", None)
    if rest or named or not isinstance(weight, Tensor) or not isinstance(bias, Tensor | None):
        return None
    return (weight, bias)


def _parts(statement: Operate) -> list[tuple[Any, int]] | None:
    """What is concatenated along the last dim (variables and static tensors), with sizes."""
    operation = statement.operation
    named = dict(operation.kwargs)
    rest = list(operation.args)
    items = rest.pop(0) if rest else named.pop("tensors", None)
    dim = rest.pop(0) if rest else named.pop("dim", 0)
    if rest or named or not isinstance(items, list | tuple):
        return None
    found: list[tuple[Any, int]] = []
    for item in items:
        part = statement.operands[item.number] if isinstance(item, Input) else item
        if isinstance(part, Variable) and isinstance(part.type, TensorType):
            shape = part.type.shape
        elif isinstance(part, Tensor):
            shape = tuple(part.shape)
        else:
            return None
        if not shape or dim not in (-1, len(shape) - 1):
            return None
        found.append((part, shape[-1]))
    return found


def _made(
    targets: tuple[Variable, ...],
    function: Callable[..., Any],
    before: tuple[Any, ...],
    parts: list[tuple[Any, tuple[int, int]]],
    results: tuple[Any, ...],
    location: Any,
) -> Operate:
    """A part as an operator: its operands are the variables among its arguments."""
    operands: list[Variable] = []

    def place(item: Any) -> Any:
        if not isinstance(item, Variable):
            return item
        if item not in operands:
            operands.append(item)
        return Input(operands.index(item))

    args = (*map(place, before), [place(part) for part, _ in parts])
    ranges = tuple(columns for _, columns in parts)
    operation = Operation(function, (*args, ranges), (), results, location)
    return Operate(targets, operation, tuple(operands))
