"""All models for one instance: a batch of any size and order gives what eager gives for each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import stretto
from benchmarks.models.instances import INSTANCE_ZOO, build
from checks.fuzz.observe import Thing, observe
from tests.sampling import sampled

SIZES = (0, 1, 2, 3, 5, 8, 13, 33, 64, 100, 256)


def leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The numbers and tensors in a result, and where they are."""
    if isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from leaves(item, f"{place}[{number}]")
    elif isinstance(value, Thing):
        for name, item in value.parts:
            yield from leaves(item, f"{place}.{name}")
    else:
        yield place, value


def assert_close(found: Any, wanted: Any, tolerance: float, place: str) -> None:
    ours, theirs = (list(leaves(observe(value), place)) for value in (found, wanted))
    assert [where for where, _ in ours] == [where for where, _ in theirs]
    for (where, one), (_, two) in zip(ours, theirs, strict=True):
        if isinstance(two, torch.Tensor | float):
            torch.testing.assert_close(
                one, two, rtol=tolerance, atol=tolerance, msg=lambda text, where=where: where + text
            )
        else:
            assert one == two, where


SAMPLE = [("treelstm", (33, 0, 1, 5)), ("drnn", (13, 1)), ("expression", (33, 2))]


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "sizes"),
    sampled([*SAMPLE, *((name, SIZES) for name in INSTANCE_ZOO)], SAMPLE),
)
def test_batches_of_all_sizes(name: str, sizes: tuple[int, ...]) -> None:
    """Equal to eager; and among other neighbours, in another order, the same beyond rounding."""
    model, instances = build(name, "small", count=max(sizes))
    draw = random.Random(0)
    with torch.no_grad():
        wanted = [model(item) for item in instances]
    many = stretto.batch(model)
    for size in sizes:
        chosen = draw.sample(range(len(instances)), size)
        found = many([instances[k] for k in chosen])
        assert len(found) == size
        other = draw.sample(chosen, size)
        again = dict(zip(other, many([instances[k] for k in other]), strict=True))
        for k, result in zip(chosen, found, strict=True):
            assert_close(result, wanted[k], 1e-4, f"{name}, {size} instances, instance {k}")
            assert_close(result, again[k], 1e-5, f"{name}, {size} instances, in another order")
