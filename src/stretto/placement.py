"""Where a call runs: the backend and the one device for its tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stretto.errors import BuildError
from stretto.frontends.python import ArgumentLeaf, Captured, Fetched, IntLeaf
from stretto.frontends.python.tracing.admission import check_inputs
from stretto.machines.machine import HOST, Machine
from stretto.machines.registry import default_machine, find_machine, known_machines

AUTO = "auto"
"""The backend that goes by the devices of the inputs."""


def require_backend(backend: str) -> None:
    """Raises ValueError for a name that is no machine's."""
    if backend != AUTO and backend not in known_machines():
        known = ", ".join((AUTO, *known_machines()))
        raise ValueError(f"backend must be one of {known}, not {backend!r}")


def target_machine(target: str, units: int | None = None, backend: str = AUTO) -> Machine:
    """The machine that compiles for a device that need not be here. Raises ValueError for a target
    that none knows, or not this backend, and BuildError where its compiler is missing."""
    machines = known_machines()
    for machine in machines.values() if backend == AUTO else (machines[backend],):
        if target in machine.targets:
            return machine.for_target(target, units)
    known = [name for machine in machines.values() for name in machine.targets]
    raise ValueError(f"unknown target {target!r}; known are {', '.join(known)}")


def choose_machine(backend: str, tensors: Sequence[torch.Tensor]) -> Machine:
    """The machine for these inputs: one on an accelerator where any of them is there. Raises for
    tensors that it cannot take."""
    check_inputs(tensors)
    if backend != AUTO:
        require_backend(backend)  # it may have been unregistered meanwhile
        return find_machine(backend)
    served = {m.device_type for m in known_machines().values() if m.is_default}
    found = {tensor.device.type for tensor in tensors} & served - {HOST.type}
    return default_machine(min(found, default=HOST.type))


def device_of(
    machine: Machine, tensors: Sequence[torch.Tensor], captured: Captured | None = None
) -> torch.device:
    """The one device of the inputs, and of all else that a captured program uses. Raises BuildError
    where they are on several, or on one that the machine does not run on."""
    found = {f"input {number}": tensor.device for number, tensor in enumerate(tensors)}
    if captured is not None:
        found |= {
            f"the tensor '{b.name}'": b.device if isinstance(b, Fetched) else b.tensor.device
            for b in captured.inputs
            if not isinstance(b, ArgumentLeaf | IntLeaf)
        }
        # A number on the host goes with tensors on any device, as in eager PyTorch; it is moved.
        constants = captured.program.constants.items()
        found |= {
            f"the tensor '{name}'": tensor.device
            for name, tensor in constants
            if tensor.dim() or tensor.device != HOST
        }
    _require_type(machine, found)
    devices = dict.fromkeys(found.values())
    if len(devices) > 1:
        names = ", ".join(f"{what} on {device}" for what, device in found.items())
        raise BuildError(
            f"tensors on several devices: {names}", remedy="move all of them to one device"
        )
    return next(iter(devices)) if devices else machine.device()


def _require_type(machine: Machine, found: dict[str, torch.device]) -> None:
    """Raises BuildError for a tensor on a device of a type that the machine does not take."""
    kind = machine.device_type
    wrong = {what: device for what, device in found.items() if device.type != kind}
    if not wrong:
        return
    what, device = next(iter(wrong.items()))
    if kind != HOST.type and len(wrong) < len(found):
        target = next(device for device in found.values() if device.type == kind)
        raise BuildError(
            f"{what} is on {device}, others are on {target}",
            remedy=f"move all inputs and the module to one device: .to('{target}')",
        )
    remedy = f"move the inputs and the module with .{kind}()"
    others = known_machines().values()
    if machine.is_default and any(m.is_default and m.device_type == device.type for m in others):
        remedy += f', or compile with backend="{AUTO}"'
    message = f"{what} is on {device}: backend {machine.name!r} runs on {kind}"
    raise BuildError(message, remedy=remedy)
