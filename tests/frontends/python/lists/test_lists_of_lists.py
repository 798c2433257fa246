"""Lists in lists and dicts, whose lengths data decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same


def collected(x: Tensor) -> list[list[Tensor]]:
    made = []
    for row in x:
        found = []
        for v in row:
            if v > 0:
                found.append(v)
        made.append(found)
    return made


def appended_first(x: Tensor) -> list[list[Tensor]]:
    made = []
    for row in x:
        found: list[Tensor] = []
        made.append(found)
        for v in row:
            if v > 0:
                found.append(v)
    return made


def appended_again(x: Tensor) -> tuple[list[list[Tensor]], int]:
    found = []
    for v in x[0]:
        if v > 0:
            found.append(v)
    made = [found]
    made.append(found)
    made[0].append(x[0, 0])
    return made, len(made[1])


def comprehension(x: Tensor) -> list[list[Tensor]]:
    return [[v * 2 for v in row if v > 0] for row in x]


def nested_comprehension(x: Tensor) -> list[list[Tensor]]:
    return [[a * b for b in row if b > 0] for row in x for a in row[:1]]


def lengths(x: Tensor) -> tuple[list[int], int]:
    made = collected(x)
    return [len(found) for found in made], max(len(found) for found in made)


def gone_through(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for found in [[v for v in row if v > 0] for row in x]:
        for v in found:
            total = total * 0.9 + v
    return total


def buckets(x: Tensor) -> list[list[Tensor]]:
    made: list[list[Tensor]] = [[], [], []]
    for v in x[0]:
        made[int(v.abs()) % 3].append(v)
    return made


def in_a_dict(x: Tensor) -> dict[int, list[Tensor]]:
    made: dict[int, list[Tensor]] = {}
    for place, row in enumerate(x):
        for v in row:
            if v > 0:
                made.setdefault(place % 2, []).append(v)
    return made


def best_paths(x: Tensor) -> list[list[int]]:
    """The tags of each sequence, as a conditional random field decodes them."""
    ends = (x[:, :, 0] > 0).long().sum(1)
    every = []
    for scores, end in zip(x, ends, strict=True):
        tags = [int(scores[0].argmax())]
        for row in reversed(scores[: int(end)]):
            tags.append(int(row[tags[-1]].abs() * 9) % 3)
        tags.reverse()
        every.append(tags)
    return every


@pytest.mark.parametrize(
    "f",
    [
        collected, appended_first, appended_again, comprehension, nested_comprehension, lengths,
        gone_through, buckets, in_a_dict,
    ],
)  # fmt: skip
def test_equals_eager(f: Callable[..., Any]) -> None:
    compiled = stretto.compile(f, backend="interpreter")
    for size in ((3, 4), (3, 4), (3, 6), (4, 3)):
        x = torch.randn(size)
        assert_same(compiled(x), f(x))


def test_paths_of_sequences() -> None:
    compiled = stretto.compile(best_paths, backend="interpreter")
    for size in ((2, 5, 3), (2, 5, 3), (3, 4, 3)):
        x = torch.randn(size)
        assert_same(compiled(x), best_paths(x))
