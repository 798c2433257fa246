"""Recurrent layers are captured as loops, one for each direction of each layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from tests.frontends.python.checks import assert_same, check, structure

LAYERS: dict[str, tuple[Any, int]] = {
    "lstm": (nn.LSTM(4, 5), 1),
    "lstm_layers": (nn.LSTM(4, 5, 3), 3),
    "lstm_no_bias": (nn.LSTM(4, 5, bias=False, batch_first=True), 1),
    "lstm_both_ways": (nn.LSTM(4, 5, 2, bidirectional=True), 4),
    "lstm_projected": (nn.LSTM(4, 5, 2, proj_size=2, bidirectional=True), 4),
    "lstm_projected_no_bias": (nn.LSTM(4, 5, proj_size=2, bias=False), 1),
    "lstm_double": (nn.LSTM(4, 5, dtype=torch.float64), 1),
    "gru": (nn.GRU(4, 5, 2, dropout=0.5), 2),
    "gru_both_ways": (nn.GRU(4, 5, batch_first=True, bidirectional=True), 2),
    "gru_no_bias": (nn.GRU(4, 5, bias=False), 1),
    "tanh": (nn.RNN(4, 5, 2), 2),
    "relu": (nn.RNN(4, 5, nonlinearity="relu", bidirectional=True), 2),
    "relu_no_bias": (nn.RNN(4, 5, nonlinearity="relu", bias=False), 1),
}


def states_of(layer: Any, *batch: int) -> Any:
    """Random first states."""
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    dtype = layer.weight_ih_l0.dtype
    hidden = torch.randn(count, *batch, layer.proj_size or layer.hidden_size, dtype=dtype)
    if not isinstance(layer, nn.LSTM):
        return hidden
    return hidden, torch.randn(count, *batch, layer.hidden_size, dtype=dtype)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layers_are_loops(name: str) -> None:
    layer, loops = LAYERS[name]
    layer = layer.eval()
    dtype = layer.weight_ih_l0.dtype
    x = torch.randn(3, 7, 4, dtype=dtype) if layer.batch_first else torch.randn(7, 3, 4).to(dtype)
    captured = check(lambda x: layer(x), (x,), (2 - x,))
    assert structure(captured) == {"for": loops}
    check(lambda x, states: layer(x, states), (x, states_of(layer, 3)))
    row = torch.randn(7, 4, dtype=dtype)
    check(lambda x: layer(x), (row,))
    check(lambda x, states: layer(x, states), (row, states_of(layer)))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_sizes_of_zero_and_one(kind: Any) -> None:
    layer = kind(4, 5)
    check(lambda x: layer(x), (torch.randn(1, 1, 4),))
    check(lambda x: layer(x), (torch.randn(7, 0, 4),))
    with pytest.raises(RuntimeError, match="sequence length to be larger than 0"):
        check(lambda x: layer(x), (torch.randn(0, 3, 4),))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_as_many_steps_as_data_say(kind: Any) -> None:
    layer = kind(4, 5, bidirectional=True)
    x, keep = torch.randn(6, 4), torch.tensor([True, False, True, True, False, False])
    check(lambda x, keep: layer(x[keep]), (x, keep), (x, ~keep), (-x, x[:, 0] > x[0, 0] - 1))
    with pytest.raises(RuntimeError, match="sequence length to be larger than 0"):
        stretto.compile(lambda x, keep: layer(x[keep]), backend="interpreter")(x, keep & ~keep)


@pytest.mark.parametrize("cell", [nn.LSTMCell(4, 5), nn.GRUCell(4, 5), nn.RNNCell(4, 5)])
def test_cells(cell: Any) -> None:
    check(lambda x: cell(x), (torch.randn(3, 4),))
    check(lambda x: cell(x), (torch.randn(4),))

    def steps(x: Tensor) -> Tensor:
        state = cell(x[0])
        for row in x:
            state = cell(row, state)
        return state

    assert structure(check(steps, (torch.randn(7, 3, 4),))) == {"for": 1}


def test_a_state_that_is_no_parameter_of_a_module() -> None:
    weights = [torch.randn(15, 4), torch.randn(15, 5)]

    def run(x: Tensor, h: Tensor) -> Any:
        return torch.gru(x, h, weights, False, 1, 0.0, False, False, False)

    check(run, (torch.randn(7, 3, 4), torch.randn(1, 3, 5)))


@pytest.mark.whole
def test_a_long_layer_runs() -> None:
    layer = nn.LSTM(8, 8, 2, bidirectional=True).eval()
    compiled = stretto.compile(layer)
    with torch.no_grad():
        for length in (100, 6):
            x = torch.randn(length, 2, 8)
            assert_same(compiled(x), layer(x))
