"""The zoo compiled for GPUs that need not be there: no spills, and of reasonable size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.models import ZOO, build
from stretto.build import build as build_stages
from stretto.frontends.python import capture
from stretto.machines.cuda.machine import CUDA, gpu_program
from stretto.machines.machine import Stages
from stretto.options import Options
from tests.e2e.test_zoo import MODELS
from tests.sampling import sampled

pytest.importorskip("triton", reason="triton is not installed")

LARGEST = 1 << 20
"""Bytes of a binary, above which a program grows without bounds; most have 50,000 to 200,000."""
FULL = ("lstm", "rae", "nasrnn", "seq2seq", "attention")
FEW = ("attention", "rae")
SMALL = [name for name in MODELS if name not in FULL and name != "lstm100"]


@torch.no_grad()
def compiled(name: str, preset: str, target: str, units: int, folder: Path) -> Stages:
    model, inputs = build(name, preset)
    options = Options(cache_dir=folder)
    captured = capture(model, tuple(inputs), {}, options)
    return build_stages(captured.program, CUDA.for_target(target, units), options)


def require_good(stages: Stages, name: str, units: int) -> None:
    assert ZOO[name].one_launch
    (kernel,) = gpu_program(stages).compiled
    assert stages.device is not None
    assert stages.device.units == units
    assert not kernel.from_cache
    assert len(kernel.binary) < LARGEST
    assert kernel.resources.spill_bytes == 0
    assert kernel.resources.units_per_sm >= 1


def beams(scores: torch.Tensor, table: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Selects from rows that are cut into slices, and sorts small ones, in a loop."""
    for _ in range(steps):
        scores, places = (scores[:, None] + table).reshape(-1).topk(4)
        scores = scores[(places % 1000).argsort(stable=True)]
    return scores


@pytest.mark.whole
def test_sorting_in_a_loop_for_hopper(tmp_path: Path) -> None:
    options = Options(cache_dir=tmp_path)
    arguments = (torch.zeros(4), torch.zeros(4, 1000), torch.tensor(3))
    program = capture(beams, arguments, {}, options).program
    stages = build_stages(program, CUDA.for_target("sm_90", 132), options)
    (kernel,) = gpu_program(stages).compiled
    assert kernel.resources.units_per_sm >= 1
    assert len(kernel.binary) < LARGEST


def params(names: Sequence[str], preset: str) -> list[tuple[str, str]]:
    return [(name, preset) for name in names]


CASES = [*params(SMALL, "small"), *params(FULL, "full")]
LONG = ("skipnet", "blockdrop", "blockdrop_policy", "lstm", "nasrnn", "seq2seq")
"""Seconds each."""


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "preset"), sampled(CASES, [case for case in CASES if case[0] not in LONG])
)
def test_hopper(name: str, preset: str, tmp_path: Path) -> None:
    require_good(compiled(name, preset, "sm_90", 132, tmp_path), name, 132)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "target", "units"),
    sampled(
        [(name, *target) for name in FEW for target in (("sm_80", 108), ("sm_100", 148))],
        [("attention", "sm_80", 108), ("rae", "sm_100", 148)],
    ),
)
def test_other_nvidia_gpus(name: str, target: str, units: int, tmp_path: Path) -> None:
    require_good(compiled(name, "small", target, units, tmp_path), name, units)


@pytest.mark.whole
@pytest.mark.parametrize("name", FEW)
def test_amd(name: str, tmp_path: Path) -> None:
    stages = compiled(name, "small", "gfx942", 304, tmp_path)
    (kernel,) = gpu_program(stages).compiled
    assert kernel.binary.startswith(b"\x7fELF")
    assert len(kernel.binary) < LARGEST
