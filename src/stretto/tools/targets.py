"""Compiles models for GPUs that need not be there."""

from __future__ import annotations

import torch

from stretto.build import build
from stretto.frontends.python import Captured, capture
from stretto.machines.cuda.machine import CrossCompiler
from stretto.machines.cuda.toolchain import TARGETS, Target, require_triton
from stretto.machines.machine import Stages
from stretto.options import Options
from stretto.tools.models import Model
from stretto.tools.names import UsageError, suggestion

MULTIPROCESSORS = {
    "sm_80": 108,  # A100
    "sm_86": 84,  # A40, RTX A6000
    "sm_89": 142,  # L40S
    "sm_90": 132,  # H100 (SXM), H200
    "sm_100": 132,  # a B200 has 148; 132 compares with sm_90
    "sm_120": 170,  # RTX 5090
    "gfx942": 304,  # MI300X
}
"""Of a usual GPU of each target."""


def multiprocessors(target: str) -> int:
    return MULTIPROCESSORS[target]


def require_target(name: str) -> str:
    """The target's name as its binaries have it. Raises UsageError for one that is not known, and
    BuildError where Triton is missing or not a supported version."""
    try:
        target = Target.parse(name)
    except ValueError:
        raise UsageError(f"unknown target {name!r}{suggestion(name, list(TARGETS))}") from None
    require_triton()
    return target.name


def compile_model(
    model: Model, target: str, units: int, options: Options
) -> tuple[Captured, Stages]:
    """A model captured, and all stages of it for a target; its tensors stay on the CPU."""
    with torch.no_grad():
        captured = capture(model.function, model.inputs, {}, options)
    return captured, build(captured.program, CrossCompiler.of(target, units), options)
