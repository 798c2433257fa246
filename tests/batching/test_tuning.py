"""Kernels chosen for the numbers of rows that occur: the choice, where it is kept, and results."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stretto
from stretto.batching.batched import Batched
from stretto.batching.levels import LevelProgram
from stretto.batching.passes.pipeline import BatchPasses
from stretto.batching.tuning import (
    AS_USUAL,
    FOR_THESE_ROWS,
    ON_ONE_UNIT,
    Tuning,
    fastest,
    usual_rows,
    ways,
)
from stretto.options import Options
from tests.batching.levels import block_of, check, f32, launch


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Any, count: int) -> Any:
        for _ in range(count):
            x = torch.tanh(self.layer(x))
        return self.last(x)


def instances(count: int) -> tuple[list[Any], list[int]]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(16, generator=generator) for _ in range(count)], [
        n % 4 for n in range(count)
    ]


def check_results(model: nn.Module, many: Any) -> None:
    for count in (1, 3, 40):
        columns = instances(count)
        with torch.no_grad():
            for found, x, n in zip(many(*columns), *columns, strict=True):
                torch.testing.assert_close(found, model(x, n), rtol=1e-4, atol=1e-5)


@pytest.mark.whole
def test_the_choice_is_kept_and_can_be_turned_off(tmp_path: Path) -> None:
    model = Chain().eval()
    options = Options(threads=2, cache_dir=tmp_path)
    many = stretto.batch(model, options=options)
    assert isinstance(many, Batched)
    many(*instances(5))
    assert "kernels are chosen as usual: nothing was measured" in many.explain()
    found = many.tune(*instances(5), runs=2)
    assert [name for name, _ in found.milliseconds] == [AS_USUAL, FOR_THESE_ROWS, ON_ONE_UNIT]
    assert found.instances == 5
    assert f"kernels are chosen {found.name}, by a batch of 5 instances" in many.explain()
    check_results(model, many)

    again = Batched(model, options=options)
    check_results(model, again)
    assert f"kernels are chosen {found.name}, by a batch of 5 instances" in again.explain()
    again.tune(*instances(7), runs=1)
    newest = Batched(model, options=options)
    newest(*instances(2))
    assert "by a batch of 7 instances" in newest.explain()
    plain = Batched(model, options=options, passes=BatchPasses(tuned=False))
    plain(*instances(2))
    assert "nothing was measured" in plain.explain()


def test_what_cannot_be_measured() -> None:
    model = Chain().eval()
    many = stretto.batch(model)
    with pytest.raises(ValueError, match="tune: there is no instance"):
        many.tune([], [])
    with pytest.raises(ValueError, match="tune: runs must be at least 1, not 0"):
        many.tune(*instances(2), runs=0)
    check_results(model, many)
    nothing = stretto.batch(lambda count: count + 1)
    assert nothing.tune([1, 2]) == Tuning()
    assert nothing([1, 2]) == [2, 3]


def test_the_rows_in_the_middle() -> None:
    launches = [
        torch.tensor([[0, 1, 0, 0], [0, 1, 0, 0], [2, 64, 0, 0]]),
        torch.tensor([[0, 7, 0, 0], [2, 3, 0, 0], [2, 30, 0, 0]]),
    ]
    assert usual_rows(launches, 4) == (7, 0, 64, 0)
    assert usual_rows([], 1) == (0,)


@pytest.mark.parametrize(
    ("seconds", "taken"),
    [((1.0, 0.5, 0.7), FOR_THESE_ROWS), ((1.0, 0.99, 1.2), AS_USUAL), ((3, 2, 1), ON_ONE_UNIT)],
)
def test_the_fastest_is_taken_where_it_gains(seconds: Sequence[float], taken: str) -> None:
    found = ways((3,), Options(threads=2), "cpu")
    times = {way.name: spent for way, spent in zip(found, seconds, strict=True)}
    best = fastest(found, lambda way: times[way.name], 5, 3)
    assert best.name == taken
    assert best.units == (1 if taken == ON_ONE_UNIT else None)
    assert best.rows == (() if taken == AS_USUAL else (3,))
    assert ways((3,), Options(threads=1), "cpu") == found[:2]


@pytest.mark.parametrize(("rows", "units"), [(1, 2), (5, 3), (500, 2)])
def test_kernels_for_some_rows_are_right_for_all(rows: int, units: int) -> None:
    torch.manual_seed(0)
    wide, odd = nn.Linear(64, 512), nn.Linear(64, 37)
    blocks = [
        block_of("wide", (f32(64),), lambda x: torch.tanh(wide(x))[:64]),
        block_of("odd", (f32(64),), lambda x: odd(x).softmax(0)),
    ]
    program = LevelProgram(blocks, options=Options(threads=units), rows=(rows, 0))
    counts = [(block, n) for n in (1, 0, 2, 3, 4, 7, 16, 33, 255) for block in (0, 1)]
    check(program, launch(program, counts, random.Random(0), lengths=(1,)), 1e-4)
