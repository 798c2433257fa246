"""Packed sequences, of lengths that are numbers and of lengths that are a tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    unpack_sequence,
)

import stretto
from tests.frontends.python.checks import assert_same, check, structure

X = torch.randn(6, 3, 4)
LENGTHS = torch.tensor([6, 4, 1])
UNSORTED = torch.tensor([2, 5, 4])

MODULES: dict[str, Any] = {
    "lstm": nn.LSTM(4, 5, 2, bidirectional=True),
    "lstm_projected": nn.LSTM(4, 5, proj_size=3, batch_first=True),
    "gru": nn.GRU(4, 5, bidirectional=True, bias=False),
    "tanh": nn.RNN(4, 5, 2, dropout=0.5),
    "relu": nn.RNN(4, 5, nonlinearity="relu"),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", sorted(MODULES))
def test_modules(name: str) -> None:
    module = MODULES[name].eval()

    def run(x: Tensor, lengths: Any, is_sorted: bool) -> Any:
        first = module.batch_first
        packed = pack_padded_sequence(
            x.transpose(0, 1) if first else x, lengths, first, enforce_sorted=is_sorted
        )
        output, last = module(packed)
        padded = pad_packed_sequence(output, first, padding_value=-1.0, total_length=7)
        return padded, last

    captured = check(lambda x: run(x, [6, 4, 1], True), (X,), (-X,))
    directions = 2 if module.bidirectional else 1
    assert structure(captured) == {"for": module.num_layers * directions}
    check(lambda x: run(x, [2, 5, 4], False), (X,))
    check(lambda x: run(x, [6, 6, 6], True), (X,))
    check(lambda x, n: run(x, n, True), (X, LENGTHS), (X, torch.tensor([3, 3, 3])))
    check(lambda x, n: run(x, n, False), (X, UNSORTED), (X, LENGTHS), (X, LENGTHS.flip(0)))


def test_first_states_are_in_the_order_of_the_sequences() -> None:
    module = nn.LSTM(4, 5)
    states = torch.randn(1, 3, 5), torch.randn(1, 3, 5)

    def run(x: Tensor, n: Tensor, states: Any) -> Any:
        output, last = module(pack_padded_sequence(x, n, enforce_sorted=False), states)
        return pad_packed_sequence(output, total_length=6)[0], last

    check(run, (X, UNSORTED, states), (X, LENGTHS, states))


def test_the_longest_sequence_decides_the_padded_size() -> None:
    def run(x: Tensor, n: Tensor) -> Any:
        padded, lengths = pad_packed_sequence(pack_padded_sequence(x, n, enforce_sorted=False))
        return padded * 2, lengths

    check(run, (X, UNSORTED), (X, LENGTHS), (X, torch.tensor([1, 1, 2])))
    check(lambda x: run(x, UNSORTED), (X,))


def test_the_items_of_known_lengths() -> None:
    module = nn.GRU(4, 5)

    def run(x: Tensor) -> Any:
        packed = pack_padded_sequence(x, [2, 5, 4], enforce_sorted=False)
        data, sizes, order, back = packed
        moved = PackedSequence(packed.data * 2, sizes, order, back)
        output, last = module(moved)
        return data + 1, sizes, order, output.data, pad_packed_sequence(output), last

    check(run, (X,))
    check(lambda x: pack_padded_sequence(x, [6, 4, 1]), (X,))
    check(lambda x: isinstance(pack_padded_sequence(x, [6, 4, 1]), PackedSequence), (X,))


def test_the_items_of_lengths_in_a_tensor() -> None:
    def run(x: Tensor, n: Tensor) -> Any:
        packed = pack_padded_sequence(x, n, enforce_sorted=False)
        return packed.data.sum(0), packed.batch_sizes.sum()

    check(run, (X, UNSORTED), (X, LENGTHS))


def test_sequences_of_known_sizes() -> None:
    module = nn.GRU(4, 5)

    def run(*rows: Tensor) -> Any:
        output, last = module(pack_sequence(list(rows), enforce_sorted=False))
        return pad_packed_sequence(output), last

    check(run, (X[:2, 0], X[:5, 1], X[:4, 2]))
    check(lambda x, y: unpack_sequence(pack_sequence([x, y]))[1] * 2, (X[:5, 0], X[:4, 1]))
    check(lambda x, n: unpack_sequence(pack_padded_sequence(x, n))[1].sum(0), (X, LENGTHS))


@pytest.mark.parametrize("is_sorted", [True, False])
def test_packed_by_the_caller(is_sorted: bool) -> None:
    module = nn.LSTM(4, 5, bidirectional=True)

    def run(packed: PackedSequence, states: Any = None) -> Any:
        output, last = module(packed, states)
        return output.data * 2, output, pad_packed_sequence(output, True, -1.0), last

    def packed(*lengths: int) -> PackedSequence:
        return pack_padded_sequence(X, lengths, enforce_sorted=is_sorted)  # type: ignore[arg-type]

    first, second = packed(6, 4, 1), packed(6, 3, 2)
    check(run, (first,), (second,))
    states = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    check(run, (first, states), (second, states))
    check(lambda x: pad_packed_sequence(x)[0] * 2, (first,), (second,))


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "unsorted": ([4, 6, 1], {}, "must be sorted in decreasing order"),
    "empty": ([6, 4, 0], {}, "has to be greater than 0"),
    "count": ([6, 4], {}, r"equal to batch_size, but got 2 \(batch_size=3\)"),
    "long": ([7, 4, 1], {}, "greater than the number of steps"),
    "total": ([6, 4, 1], {"total_length": 5}, "Expected total_length to be at least"),
}


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("name", sorted(BAD))
def test_lengths_that_are_refused(name: str, as_tensor: bool) -> None:
    lengths, options, message = BAD[name]
    kind = ValueError if name == "total" else RuntimeError

    def run(x: Tensor, n: Any) -> Any:
        return pad_packed_sequence(pack_padded_sequence(x, n), **options)[0].sum()

    compiled = stretto.compile(run, backend="interpreter")
    with pytest.raises(kind, match=message):
        compiled(X, torch.tensor(lengths) if as_tensor else lengths)


def test_a_tagger_runs() -> None:
    module = nn.LSTM(4, 5, bidirectional=True, batch_first=True).eval()

    def run(x: Tensor, n: Tensor) -> Any:
        packed = pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)
        output, (hidden, _) = module(packed)
        return pad_packed_sequence(output, batch_first=True, total_length=12)[0], hidden

    compiled = stretto.compile(run)
    x = torch.randn(3, 12, 4)
    with torch.no_grad():
        for lengths in ([12, 7, 3], [1, 2, 9]):
            assert_same(compiled(x, torch.tensor(lengths)), run(x, torch.tensor(lengths)))


def test_any_number_of_sequences_of_any_length() -> None:
    module = nn.LSTM(4, 5, batch_first=True).eval()

    def run(x: Tensor, n: Tensor) -> Any:
        packed = pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(module(packed)[0], batch_first=True)

    compiled = stretto.compile(run, backend="interpreter")
    with torch.no_grad():
        for batch, lengths in ((2, [3, 6]), (3, [2, 4, 1]), (1, [1]), (4, [5, 2, 2, 8])):
            x = torch.randn(batch, max(lengths) + 1, 4)
            assert_same(compiled(x, torch.tensor(lengths)), run(x, torch.tensor(lengths)))
    assert len(compiled.signatures) == 2, compiled.explain()


def test_states_that_do_not_fit_the_sequences() -> None:
    module = nn.GRU(4, 5, batch_first=True).eval()

    def run(x: Tensor, n: Tensor, h: Tensor) -> Any:
        return module(pack_padded_sequence(x, n, batch_first=True), h)[1]

    with pytest.raises(RuntimeError, match=r"Expected hidden size \(1, 3, 5\), got \[1, 2, 5\]"):
        stretto.compile(run)(X.transpose(0, 1), LENGTHS, torch.zeros(1, 2, 5))
