"""Programs compiled for GPUs that need not be there: no spills, and of reasonable size. The zoo for
Hopper is in `tests/machines/cuda/test_compiled_waits.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.models import ZOO, build
from stretto.call.compiler import build as build_stages
from stretto.frontends.python import capture
from stretto.machines.cuda.compile import CompiledTriton
from stretto.machines.cuda.machine import CUDA, gpu_program
from stretto.machines.machine import Stages
from stretto.options import Options
from tests.sampling import sampled

pytest.importorskip("triton", reason="triton is not installed")

LARGEST = 1 << 20
"""Bytes of a binary, above which a program grows without bounds; most have 50,000 to 200,000."""
FEW = ("attention", "rae")


@torch.no_grad()
def compiled(name: str, target: str, units: int, folder: Path) -> Stages:
    model, inputs = build(name, "small")
    options = Options(cache_dir=folder)
    captured = capture(model, tuple(inputs), {}, options)
    return build_stages(captured.program, CUDA.for_target(target, units), options)


def require_good(kernel: CompiledTriton) -> None:
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


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "target", "units"),
    sampled(
        [(name, *target) for name in FEW for target in (("sm_80", 108), ("sm_100", 148))],
        [("attention", "sm_80", 108), ("rae", "sm_100", 148)],
    ),
)
def test_other_nvidia_gpus(name: str, target: str, units: int, tmp_path: Path) -> None:
    stages = compiled(name, target, units, tmp_path)
    assert ZOO[name].one_launch
    (kernel,) = gpu_program(stages).compiled
    assert stages.device is not None
    assert stages.device.units == units
    assert not kernel.from_cache
    require_good(kernel)


@pytest.mark.whole
@pytest.mark.parametrize("name", FEW)
def test_amd(name: str, tmp_path: Path) -> None:
    stages = compiled(name, "gfx942", 304, tmp_path)
    (kernel,) = gpu_program(stages).compiled
    assert kernel.binary.startswith(b"\x7fELF")
    assert len(kernel.binary) < LARGEST
