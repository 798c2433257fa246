"""Compiles models for devices that need not be there."""

from __future__ import annotations

import torch

from stretto import placement
from stretto.build import build
from stretto.frontends.python import Captured, capture
from stretto.machines.machine import Machine, Stages
from stretto.machines.registry import known_machines
from stretto.options import Options
from stretto.tools.models import Model
from stretto.tools.names import UsageError, suggestion


def target_machine(target: str, units: int | None = None) -> Machine:
    """The machine that compiles for a target. Raises UsageError for one that none knows, and
    BuildError where its compiler is missing."""
    try:
        return placement.target_machine(target, units)
    except ValueError as error:
        known = [name for machine in known_machines().values() for name in machine.targets]
        raise UsageError(f"unknown target {target!r}{suggestion(target, known)}") from error


def compile_model(model: Model, machine: Machine, options: Options) -> tuple[Captured, Stages]:
    """A model captured, and all stages of it; its tensors stay on the CPU."""
    with torch.no_grad():
        captured = capture(model.function, model.inputs, {}, options)
    return captured, build(captured.program, machine, options)
