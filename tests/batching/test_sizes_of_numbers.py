"""Tensors whose sizes are numbers of the instance, and tensors of lists of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stretto
from stretto.errors import CaptureError
from tests.sampling import every

torch.manual_seed(0)
TABLE = torch.randn(10, 4)
WORDS = nn.Embedding(50, 8)
PLACES = nn.Embedding(32, 8)
LAYER = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()

NUMBERS = [2, 3, 0, 1, 5, 12, 10]
OF_NUMBERS: dict[str, Callable[[int], Any]] = {
    "zeros": lambda n: torch.zeros(n, 3),
    "ones": lambda n: (torch.ones(n, 2) + n).sum(0),
    "arange": lambda n: torch.arange(n),
    "eye": lambda n: torch.eye(n).sum(1),
    "first": lambda n: TABLE[:n].sum(0),
    "last": lambda n: TABLE[-n:],
    "behind": lambda n: TABLE[n:].sum(0),
    "between": lambda n: TABLE[n - 2 : n + 1],
    "in_a_loop": lambda n: [TABLE[:i].sum() for i in range(n)],
}


@pytest.mark.parametrize("name", every(2, tuple(OF_NUMBERS)))
def test_sizes_of_numbers(name: str) -> None:
    function = OF_NUMBERS[name]
    many = stretto.batch(function)
    slices = [-1, -3, -20] if name in ("first", "last", "behind", "between") else []
    for numbers in (NUMBERS, [4], slices, []):
        expected = [function(n) for n in numbers]
        torch.testing.assert_close(many(numbers), expected, rtol=1e-5, atol=1e-5)


def test_bounds_of_pairs() -> None:
    def part(bounds: tuple[int, int], x: Tensor) -> Tensor:
        return x[bounds[0] : bounds[1]].sum(0) + TABLE[bounds[0] : bounds[1]].sum(0)

    pairs = [(1, 3), (2, 2), (0, 7), (-4, -1), (5, 2), (-30, 30)]
    xs = [torch.randn(6, 4) for _ in pairs]
    expected = [part(*items) for items in zip(pairs, xs, strict=True)]
    torch.testing.assert_close(stretto.batch(part)(pairs, xs), expected)


def test_negative_sizes_end_their_instance() -> None:
    many = stretto.batch(lambda n: torch.zeros(n, 3).sum())
    many([1, 2])
    with pytest.raises(RuntimeError, match="negative dimension -1"):
        many([3, -1])
    assert [float(x) for x in many([3])] == [0.0]


@pytest.mark.parametrize("function", [lambda n: TABLE[:, :n].sum(), lambda n: TABLE[:: n + 1]])
def test_other_sizes_of_numbers_are_refused(function: Callable[[int], Any]) -> None:
    with pytest.raises(CaptureError, match="size"):
        stretto.batch(function)([1, 2])


def sentence(words: list[int]) -> Tensor:
    """What one writes for a sentence: words and places embedded, a transformer, a mean."""
    x = WORDS(torch.tensor(words)) + PLACES(torch.arange(len(words)))
    return LAYER(x[None])[0].mean(0)


OF_LISTS: dict[str, Callable[[list[int]], Any]] = {
    "sentence": sentence,
    "embedded": lambda words: WORDS(torch.tensor(words)).sum(0),
    "places": lambda words: WORDS(torch.tensor(words)) + PLACES.weight[: len(words)],
    "floats": lambda words: torch.tensor([word * 0.5 for word in words]),
    "flags": lambda words: torch.tensor([word > 3 for word in words]),
    "typed": lambda words: torch.tensor(words, dtype=torch.float32).sum(),
    "long": lambda words: F.one_hot(torch.LongTensor(words), 50).sum(0),
}


@pytest.mark.whole
@pytest.mark.parametrize("name", every(2, tuple(OF_LISTS)))
def test_tensors_of_lists(name: str) -> None:
    function = OF_LISTS[name]
    many = stretto.batch(function)
    with torch.no_grad():
        for lists in ([[1, 2, 3], [4], [5, 6, 7, 8], [2, 3]], [[9] * 12], []):
            expected = [function(words) for words in lists]
            torch.testing.assert_close(many(lists), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.whole
def test_empty_lists() -> None:
    """`torch.tensor([])` is a tensor of floats, also where others in the batch are of ints."""
    many = stretto.batch(lambda words: torch.tensor(words).sum())
    assert [int(x) for x in many([[1, 2], [3]])] == [3, 3]
    with pytest.raises(RuntimeError, match="empty list is a tensor of floats"):
        many([[1], []])
    typed = stretto.batch(lambda words: torch.tensor(words, dtype=torch.int64))
    torch.testing.assert_close(typed([[1], []]), [torch.tensor([1]), torch.empty(0).long()])
    floats = stretto.batch(lambda words: torch.tensor(words) * 2)
    torch.testing.assert_close(floats([[0.5], []]), [torch.tensor([1.0]), torch.empty(0)])


def test_lists_of_lists_are_refused() -> None:
    with pytest.raises(CaptureError, match="tensor of a list of"):
        stretto.batch(lambda rows: torch.tensor(rows).sum())([[[1], [2]], [[3, 4]]])
