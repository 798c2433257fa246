"""Modules and functions on as many rows as data decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stretto
from tests.frontends.python.checks import assert_same

torch.manual_seed(0)
CELLS = {
    "gru": nn.GRUCell(4, 4),
    "lstm": nn.LSTMCell(4, 4, bias=False),
    "tanh": nn.RNNCell(4, 4),
    "relu": nn.RNNCell(4, 4, nonlinearity="relu", bias=False),
}
MODULES: dict[str, Any] = {
    "batch norm": (nn.BatchNorm1d(4), lambda m, x: m(x)),
    "batch norm of images": (nn.BatchNorm2d(2, affine=False), lambda m, x: m(x.view(-1, 2, 2, 1))),
    "encoder layer": (
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True),
        lambda m, x: m(x[None]),
    ),
    "lstm": (nn.LSTM(4, 3), lambda m, x: m(x)),
    "gru of two layers": (nn.GRU(4, 4, 2, bidirectional=True), lambda m, x: m(x[:, None])[0]),
    "rnn": (nn.RNN(4, 3, batch_first=True), lambda m, x: m(x[None])),
    "bilinear": (nn.Bilinear(4, 4, 3), lambda m, x: m(x, x * 2)),
    "bilinear without bias": (nn.Bilinear(4, 4, 2, bias=False), lambda m, x: m(x, x + 1)),
}
for _module, _ in MODULES.values():
    _module.eval()
X = torch.randn(6, 4)
P = torch.tensor([True, False, True, True, False, True])


@pytest.fixture(autouse=True)
def _without_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", MODULES)
def test_modules_on_chosen_rows(name: str) -> None:
    module, use = MODULES[name]

    def chosen(x: Tensor, p: Tensor) -> Any:
        return use(module, x[p])

    fast = stretto.compile(chosen, backend="emulator")
    for args in ((X, P), (X, ~P), (X[:3], P[:3]), (X, P)):
        assert_same(fast(*args), chosen(*args))


@pytest.mark.parametrize("name", CELLS)
def test_cells_on_the_sequences_that_go_on(name: str) -> None:
    cell = CELLS[name]

    def step(x: Tensor, h: Tensor) -> Tensor:
        return cell(x, (h, h * 0.5))[0] if name == "lstm" else cell(x, h)

    def steps(x: Tensor, lengths: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], 4)
        for t in range(x.shape[1]):
            n = int((lengths > t).sum())
            h = torch.cat([step(x[:n, t], h[:n]), h[n:]])
        return h

    fast = stretto.compile(steps, backend="emulator")
    x = torch.randn(3, 5, 4)
    for lengths in ((5, 4, 1), (3, 3, 2), (5, 0, 0)):
        assert_same(fast(x, torch.tensor(lengths)), steps(x, torch.tensor(lengths)))


def attended(x: Tensor, p: Tensor) -> Tensor:
    rows = x[p].view(1, -1, 2, 2).transpose(1, 2)
    keys = x.view(1, -1, 2, 2).transpose(1, 2)
    return F.scaled_dot_product_attention(rows, keys, keys) + F.scaled_dot_product_attention(
        rows, rows, rows, is_causal=True
    )


def test_attention() -> None:
    fast = stretto.compile(attended, backend="emulator")
    for args in ((X, P), (X, ~P), (X, P)):
        assert_same(fast(*args), attended(*args))


def solved(a: Tensor, p: Tensor) -> Tensor:
    lower = a[:4].tril() + 4 * torch.eye(4)
    return torch.linalg.solve_triangular(lower, a[p].t(), upper=False)


def solved_on_the_right(a: Tensor, p: Tensor) -> Tensor:
    upper = a[:4].triu() + 4 * torch.eye(4)
    return torch.linalg.solve_triangular(upper, a[p], upper=True, left=False)


@pytest.mark.parametrize("program", [solved, solved_on_the_right])
@pytest.mark.parametrize("dynamic", [None, True])
def test_triangular_systems(program: Callable[..., Tensor], dynamic: bool | None) -> None:
    fast = stretto.compile(program, backend="interpreter", dynamic=dynamic)
    for args in ((X, P), (X, ~P), (torch.cat([X, X]), torch.cat([P, ~P]))):
        assert_same(fast(*args), program(*args))


def test_systems_that_no_kernel_takes_are_refused() -> None:
    with pytest.raises(stretto.CaptureError, match="in a dim other than the first"):
        stretto.compile(solved, backend="emulator")(X, P)
    fast = stretto.compile(solved, backend="emulator", fallback=True)
    assert_same(fast(X, P), solved(X, P))


def test_a_state_of_another_size_is_an_error() -> None:
    def other(x: Tensor, p: Tensor) -> Tensor:
        return CELLS["gru"](x[p], x[~p])

    with pytest.raises(RuntimeError):
        stretto.compile(other, backend="interpreter")(X, P)
    with pytest.raises(RuntimeError, match="sequence length to be larger than 0"):
        stretto.compile(lambda x, p: nn.RNN(4, 4)(x[p])[0], backend="interpreter")(X, P & ~P)
