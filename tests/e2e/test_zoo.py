"""Every model of the zoo, small, on every machine, against eager PyTorch in float64."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import stretto
from benchmarks.models import CORE, ZOO, build
from stretto.call.compiled import Compiled
from stretto.options import Debug, Options
from tests.e2e.machines import native, spread, units_of
from tests.sampling import sampled

RELATIVE_ERROR = 1e-4
"""Of float32, of the largest number of an output."""

# BlockDrop's sweep over rates is left out: its small sizes are those of BlockDrop.
MODELS = CORE

Made = tuple[nn.Module, tuple[Tensor, ...], tuple[Tensor, ...]]


def tensors(value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else value


@cache
def made(name: str) -> Made:
    """A model, its inputs, and its results in float64."""
    model, inputs = build(name, "small")
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    with torch.no_grad():
        return model, inputs, tensors(copy.deepcopy(model).double()(*wide))


def run(name: str, backend: str, units: int, seed: int = 0) -> Compiled:
    """Compiles a model for `units` units, all of which it uses, and compares two calls."""
    model, inputs, wanted = made(name)
    options = Options(threads=units, debug=Debug(seed=seed))
    compiled = stretto.compile(model, backend=backend, options=options)
    with spread(), torch.no_grad():
        for _ in range(2):
            assert_close(tensors(compiled(*inputs)), wanted)
    assert units_of(compiled) == [units]
    return compiled


def assert_close(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        if one.is_floating_point():
            assert one.dtype == torch.float32
            assert (one - other).abs().max() <= RELATIVE_ERROR * other.abs().max()
        else:
            assert torch.equal(one, other)


ALL = [(name, units) for name in MODELS for units in (1, 2, 3, 5)]
FEW = [(name, number % 3 + 1) for number, name in enumerate(MODELS)]
FEW += [(name, 5) for name in MODELS[::3]]


@pytest.mark.parametrize(("name", "units"), sampled(ALL, FEW))
def test_emulator(name: str, units: int) -> None:
    run(name, "emulator", units, seed=units)


NATIVE = [(name, units) for units in (1, 2) for name in MODELS]
FEW_NATIVE = [
    (name, units)
    for name, units in NATIVE
    if units == (1 if name in ("lstm", "rae") else 2) and name != "blockdrop_policy"
]


@pytest.mark.whole
@pytest.mark.parametrize(("name", "units"), sampled(NATIVE, FEW_NATIVE))
def test_cpu_in_one_launch(name: str, units: int) -> None:
    compiled = run(name, "cpu", units)
    program = native(compiled)
    assert ZOO[name].one_launch
    assert program.source.library == ()
    assert program.native.launches == 2
    report = compiled.explain()
    assert "launches per call  1" in report
    assert "library calls: none" in report
