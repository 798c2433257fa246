"""Tensors with a size that the instance decides in another dim than the first one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stretto
from stretto.errors import CaptureError, StrettoError
from tests.sampling import sampled

D = 8
torch.manual_seed(0)
WEIGHT = torch.randn(D, D)
MARK = torch.randn(1, D)
ATTENTION = nn.MultiheadAttention(D, 2, batch_first=True).eval()
LAYER = nn.TransformerEncoderLayer(D, 2, 16, batch_first=True).eval()
ENCODER = nn.TransformerEncoder(LAYER, 2, enable_nested_tensor=False).eval()
DECODER = nn.TransformerDecoderLayer(D, 2, 16, norm_first=True).eval()


def attention(x: Tensor) -> Tensor:
    query = x @ WEIGHT
    return torch.softmax(query @ x.T / math.sqrt(D), -1) @ x


def pooled(x: Tensor) -> Tensor:
    return attention(attention(x)).mean(0)


def einsum(x: Tensor) -> Tensor:
    return torch.softmax(torch.einsum("id,jd->ij", x, x), -1).sum(0).max()


def heads(x: Tensor) -> Tensor:
    parts = x.view(len(x), 2, D // 2).transpose(0, 1)
    scores = torch.softmax(parts @ parts.transpose(1, 2), -1)
    return (scores @ parts).transpose(0, 1).reshape(x.shape[0], D)


def library(x: Tensor) -> Tensor:
    y = x[None]
    return F.scaled_dot_product_attention(y, y * 2, y)[0]


def causal(x: Tensor) -> Tensor:
    n = x.shape[0]
    mask = torch.tril(torch.ones(n, n))
    return torch.softmax((x @ x.T).masked_fill(mask == 0, -math.inf), -1) @ x


def module(x: Tensor) -> Tensor:
    return ATTENTION(x[None], x[None] + 1, x[None])[0][0]


def encoder(x: Tensor) -> Tensor:
    return ENCODER(x[None])[0].sum(0)


def causal_layer(x: Tensor) -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(len(x))
    return LAYER(x[None], src_mask=mask)[0]


def decoder(x: Tensor) -> Tensor:
    return DECODER(x[:, None], (x + 1)[:, None])[:, 0]


def biaffine(x: Tensor) -> Tensor:
    scores = x @ WEIGHT @ x.T
    return scores.amax(-1, keepdim=True).sum() + scores.T.amax(-1).sum()


def distances(x: Tensor) -> Tensor:
    steps = torch.arange(len(x))
    return ((steps[:, None] - steps[None]).abs() * (x @ x.T)).sum(0)


def marked(x: Tensor) -> Tensor:
    return torch.cat([MARK, x]).mean(0)


def counted(x: Tensor) -> Any:
    return torch.zeros(len(x), 3) + x[:, :3], torch.ones(x.shape[0] + 1).sum(), x.T.mean(1)


def batched_view(x: Tensor) -> Tensor:
    return x.unsqueeze(0).transpose(1, 2).sum(1)[0]


def optional(x: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = x @ x.T
    mask = scores > 0 if mask is None else mask
    return (scores if mask is None else scores.masked_fill(mask, 0)).sum(0).max()


def in_a_loop(x: Tensor, times: int) -> Tensor:
    for _ in range(times):
        x = torch.tanh(attention(x))
    return x


def in_a_branch(x: Tensor, times: int) -> Tensor:
    scores = x @ x.T if times > 1 else (x @ x.T) * 2
    return scores.sum(0)


FUNCTIONS: list[Callable[..., Any]] = [
    attention, pooled, einsum, heads, library, causal, module, encoder, causal_layer, decoder,
    biaffine, distances, marked, counted, batched_view, optional, in_a_loop, in_a_branch,
]  # fmt: skip


def tensors(lengths: list[int]) -> list[Tensor]:
    return [torch.randn(length, D) for length in lengths]


SAMPLE = [
    attention, heads, library, causal, module, causal_layer, biaffine, marked,
    batched_view, in_a_loop,
]  # fmt: skip


@pytest.mark.whole
@pytest.mark.parametrize("function", sampled(FUNCTIONS, SAMPLE))
def test_equal_to_eager(function: Callable[..., Any]) -> None:
    many = stretto.batch(function)
    takes_times = "times" in function.__code__.co_varnames
    for lengths in ([3, 5, 1, 2, 3, 4], [2], [9, 1, 5, 5], [7] * 12 + [1, 2], []):
        columns: list[list[Any]] = [tensors(lengths)]
        if takes_times:
            columns.append([n % 3 for n in range(len(lengths))])
        expected = [function(*items) for items in zip(*columns, strict=True)]
        torch.testing.assert_close(many(*columns), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "function",
    sampled(
        [attention, heads, causal, causal_layer, decoder, biaffine, distances, marked, counted],
        [attention, biaffine, marked],
    ),
)
def test_without_rows(function: Callable[..., Any]) -> None:
    """As eager: a value, or the exception of that instance."""
    many = stretto.batch(function)
    many(tensors([2, 3]))
    for lengths in ([0], [0, 2]):
        given = tensors(lengths)
        try:
            expected = [function(x) for x in given]
        except (RuntimeError, IndexError) as error:
            with pytest.raises(type(error)):
                many(given)
        else:
            torch.testing.assert_close(many(given), expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    x = tensors([3])
    torch.testing.assert_close(many(x), [function(x[0])], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "function", [lambda x: x @ x.T, lambda x: [x.T], lambda x: float((x @ x.T).shape[0])]
)
def test_what_is_no_data_is_refused_with_its_reason(function: Callable[..., Any]) -> None:
    with pytest.raises(CaptureError, match="size that differs from instance to instance"):
        stretto.batch(function)(tensors([2, 3]))


def shape_of_one_row(x: Tensor) -> Tensor:
    """Of one row, `squeeze` makes another shape."""
    return torch.squeeze(x @ x.T, 0).sum(0).sum()


def value_of_one_row(x: Tensor) -> Tensor:
    """Correct, but torch's own way to it depends on the number of rows."""
    return torch.tensor_split(x @ x.T, 2)[0].sum()


@pytest.mark.parametrize("function", [shape_of_one_row, value_of_one_row])
def test_few_rows_are_right_or_refused(function: Callable[..., Any]) -> None:
    given = tensors([3, 1, 2, 0, 5])
    try:
        found = stretto.batch(function)(given)
    except StrettoError as error:
        assert "rows" in str(error) or "size" in str(error)
    else:
        torch.testing.assert_close(found, [function(x) for x in given], rtol=1e-4, atol=1e-5)


@pytest.mark.whole
def test_programs_for_two_rows_are_compared_where_there_are_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stretto.batching.levels.capture.run", lambda program, given: (given[0],))
    with pytest.raises(CaptureError, match="works for some numbers of rows only"):
        stretto.batch(causal_layer)(tensors([3, 4]))


def test_more_rows_than_a_table_has() -> None:
    """`table[:n]` has fewer rows than n where the table ends."""
    table = torch.randn(6, D)

    def function(x: Tensor) -> Tensor:
        return table[: len(x)].sum(0)

    given = tensors([2, 5, 8])
    try:
        found = stretto.batch(function)(given)
    except StrettoError:
        return
    torch.testing.assert_close(found, [function(x) for x in given])
