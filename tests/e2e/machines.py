"""Runs a function through `stretto.compile` on a machine, against eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

import stretto
from stretto.call.compiled import Compiled
from stretto.machines.cpu.executable import CpuExecutable
from stretto.machines.cuda.host import PlanExecutable
from stretto.machines.registry import find_machine, known_machines, registered
from stretto.options import Debug, Options
from tests.frontends.python.checks import assert_same

CUDA = "cuda-emulated"


@contextmanager
def spread() -> Iterator[None]:
    """What compiles inside is cut finely and uses all units, however small its work is."""
    machines = known_machines().values()
    with registered(*(replace(machine, costs=machine.costs.spread()) for machine in machines)):
        yield


@contextmanager
def costs_of(backend: str, **figures: float) -> Iterator[None]:
    """What compiles inside for a machine (and for the one that the emulator stands for) takes these
    figures."""
    machines = [find_machine(name) for name in {backend, "cpu"}]
    with registered(*(replace(m, costs=replace(m.costs, **figures)) for m in machines)):
        yield


def units_of(compiled: Compiled) -> list[int]:
    """How many units the program of each signature uses."""
    devices = [entry.stages.device for entry in compiled.signatures]
    return [device.units for device in devices if device is not None]


def native(compiled: Compiled) -> CpuExecutable:
    """The one program of a function that was compiled for the CPU machine."""
    (entry,) = compiled.signatures
    assert isinstance(entry.executable, CpuExecutable)
    return entry.executable


def on_cuda(compiled: Compiled) -> PlanExecutable:
    """The one program of a function that was compiled for the emulated GPU."""
    (entry,) = compiled.signatures
    assert isinstance(entry.executable, PlanExecutable)
    return entry.executable


def check(
    function: Callable[..., Any],
    *cases: tuple[Any, ...],
    backend: str = "emulator",
    units: int = 2,
    options: Options | None = None,
) -> Compiled:
    """Results and arguments after each call, of one compiled signature, are those of eager.

    Modules and closures are not copied: give functions that do not change what they close over.
    """
    options = options or Options(threads=units, units=units, debug=Debug(unroll=2))
    compiled = stretto.compile(function, backend=backend, options=options)
    with spread(), torch.no_grad():
        for case in cases:
            check_call(compiled, function, case)
    assert len(compiled.signatures) == 1
    return compiled


def check_call(
    compiled: Callable[..., Any], function: Callable[..., Any], arguments: Sequence[Any]
) -> None:
    """One call gives what eager gives, and leaves the arguments as eager does."""
    wanted_arguments, arguments = copy.deepcopy(tuple(arguments)), copy.deepcopy(tuple(arguments))
    wanted = function(*wanted_arguments)
    assert_same(compiled(*arguments), wanted)
    assert_same(arguments, wanted_arguments)
