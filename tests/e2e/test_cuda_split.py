"""Reductions split over the units of the emulated GPU, and of the emulator, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.machines.emulator.machine import EmulatedExecutable
from stretto.options import Debug, Options
from tests.e2e.machines import CUDA, spread
from tests.sampling import sampled


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def matvec(x: Tensor, weight: Tensor) -> Tensor:
    return torch.relu(x @ weight.t())


def sums(x: Tensor) -> tuple[Tensor, ...]:
    return x.sum(), x.mean(0), x.amax(1), x.amin(), (x > 3).any(), x.argmax()


def product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.tanh(x @ weight) + 1


def in_loops(x: Tensor, weight: Tensor, n: Tensor) -> Tensor:
    i = 0
    while i < n:
        y = torch.tanh(x @ weight)
        if y.sum() > 0:
            x = x + y.sum() * 0.01
        else:
            x = x * 0.5 + x.amax()
        i = i + 1
    return x


def recursive(x: Tensor, weight: Tensor, n: Tensor) -> Tensor:
    if n > 0:
        below = recursive(x * 0.5, weight, n - 1)
        y = (x @ weight).sum(1, keepdim=True)
        return below + torch.tanh(y)
    return x - x.mean()


CASES: dict[Callable[..., Any], tuple[Tensor, ...]] = {
    matvec: (random(1, 5003), random(3, 5003)),
    sums: (random(130, 77),),
    product: (random(9, 1030), random(1030, 40) / 30),
    in_loops: (random(2, 1001), random(1001, 24) / 30, torch.tensor(3)),
    recursive: (random(2, 1001), random(1001, 24) / 30, torch.tensor(3)),
}


ALL = [(function, units) for function in CASES for units in (1, 2, 5, 16, 132)]
LONG = [(function, 132) for function in (in_loops, recursive)]
"""Several seconds each."""


@pytest.mark.whole
@pytest.mark.parametrize(
    ("function", "units"), sampled(ALL, [case for case in ALL if case not in LONG])
)
def test_split(function: Callable[..., Any], units: int) -> None:
    inputs = CASES[function]
    compiled = stretto.compile(
        function, backend=CUDA, options=Options(units=units, debug=Debug(seed=units))
    )
    with spread():
        found = compiled(*inputs)
    (entry,) = compiled.signatures
    device, lowered = entry.stages.device, entry.stages.lowered
    assert device is not None and lowered is not None
    owners = {
        f.name for f in device.tree.functions for buffer in f.locals if ".part" in buffer.name
    }
    assert owners or units <= 2
    assert not owners or units > 1
    wanted = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    assert_close(found, wanted)
    emulated = EmulatedExecutable(device, lowered.interface, Options(debug=Debug(seed=units)))
    results = emulated(list(inputs))
    assert_close(tuple(results) if isinstance(wanted, tuple) else results[0], wanted)


def assert_close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-4, check_dtype=False)


def test_parts_of_a_recursive_function_lie_in_its_frames() -> None:
    compiled = stretto.compile(recursive, backend=CUDA, options=Options(units=5))
    with spread():
        compiled(*CASES[recursive])
    (entry,) = compiled.signatures
    assert entry.stages.device is not None
    names = {
        f.name for f in entry.stages.device.tree.functions for b in f.locals if ".part" in b.name
    }
    assert names - {"main"}
