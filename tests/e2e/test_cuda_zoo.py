"""Every model of the zoo, small, on the emulated GPU, against eager PyTorch in float64."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch

import stretto
from benchmarks.models import ZOO
from stretto.options import Debug, Options
from tests.e2e.machines import CUDA, on_cuda, spread, units_of
from tests.e2e.test_zoo import MODELS, assert_close, made, tensors
from tests.sampling import sampled

CALLS = 3


SHORT = [name for name in MODELS if name not in ("lstm100", "skipnet", "blockdrop_policy")]
LONG = ("skipnet", "blockdrop_policy")
"""Seconds each; one number of units is tried of them."""
ONE = [
    *((name, units) for name, units in zip(SHORT, cycle((1, 5, 2, 16)), strict=False)),
    (LONG[0], 2),
]
ALL = [(name, units) for name in (*SHORT, *LONG) for units in (1, 2, 5, 16)]


@pytest.mark.whole
@pytest.mark.parametrize(("name", "units"), sampled(ALL, ONE))
def test_one_launch_per_call(name: str, units: int) -> None:
    """The progress counters go on from call to call."""
    model, inputs, wanted = made(name)
    options = Options(units=units, debug=Debug(seed=units))
    compiled = stretto.compile(model, backend=CUDA, options=options)
    with spread(), torch.no_grad():
        for _ in range(CALLS):
            assert_close(tensors(compiled(*inputs)), wanted)
    assert units_of(compiled) == [units]
    program = on_cuda(compiled)
    assert ZOO[name].one_launch
    assert program.is_single
    assert program.launches == CALLS
    assert (program.library_runs, program.reads) == (0, 0)
    (state,) = program.states.values()
    counters = state.control[-units:].tolist()
    assert len(set(counters)) == 1
    assert counters[0] % CALLS == 0


@pytest.mark.whole
@pytest.mark.parametrize("name", sampled(MODELS, [*SHORT, "blockdrop_policy"]))
def test_cut_as_for_a_device(name: str) -> None:
    """Tiles as the costs of a GPU make them."""
    model, inputs, wanted = made(name)
    compiled = stretto.compile(model, backend=CUDA)
    with torch.no_grad():
        assert_close(tensors(compiled(*inputs)), wanted)
    assert on_cuda(compiled).is_single
