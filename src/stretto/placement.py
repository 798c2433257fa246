"""Where a call runs: the backend and the one device for its tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stretto.build import CPU
from stretto.errors import BuildError
from stretto.frontends.python import ArgumentLeaf, Captured, Fetched
from stretto.frontends.python.tracing.admission import check_inputs
from stretto.machines.cuda.device import find_gpu


def choose_backend(backend: str, tensors: Sequence[torch.Tensor]) -> str:
    """The backend for these inputs. Raises for tensors that it cannot take."""
    check_inputs(tensors)
    if backend == "auto":
        return "cuda" if any(tensor.device.type == "cuda" for tensor in tensors) else "cpu"
    return backend


def device_of(
    backend: str, tensors: Sequence[torch.Tensor], captured: Captured | None = None
) -> torch.device:
    """The one device of the inputs, and of all else that a captured program uses. Raises BuildError
    where they are on several, or on one that the backend does not run on."""
    found = {f"input {number}": tensor.device for number, tensor in enumerate(tensors)}
    if captured is not None:
        found |= {
            f"the tensor '{b.name}'": b.device if isinstance(b, Fetched) else b.tensor.device
            for b in captured.inputs
            if not isinstance(b, ArgumentLeaf)
        }
        # A number on the CPU goes with tensors on any device, as in eager PyTorch; it is moved.
        constants = captured.program.constants.items()
        found |= {
            f"the tensor '{name}'": tensor.device
            for name, tensor in constants
            if tensor.dim() or tensor.device.type != "cpu"
        }
    kind = "cuda" if backend == "cuda" else "cpu"
    wrong = {what: device for what, device in found.items() if device.type != kind}
    if wrong:
        what, device = next(iter(wrong.items()))
        if backend == "cuda" and len(wrong) < len(found):
            target = next(device for device in found.values() if device.type == kind)
            raise BuildError(
                f"{what} is on {device}, others are on {target}",
                remedy=f"move all inputs and the module to one device: .to('{target}')",
            )
        remedy = "move the inputs and the module with .cpu()"
        if backend == "cuda":
            remedy = "move the inputs and the module with .cuda()"
        elif device.type == "cuda" and backend == "cpu":
            remedy += ', or compile with backend="auto"'
        message = f"{what} is on {device}: backend {backend!r} runs on {kind}"
        raise BuildError(message, remedy=remedy)
    devices = dict.fromkeys(found.values())
    if len(devices) > 1:
        names = ", ".join(f"{what} on {device}" for what, device in found.items())
        raise BuildError(
            f"tensors on several devices: {names}", remedy="move all of them to one device"
        )
    if devices:
        return next(iter(devices))
    return find_gpu(torch.device("cuda")).device if kind == "cuda" else CPU


def is_capturing_stream() -> bool:
    """Is the current stream captured? (torch without CUDA has no such question.)"""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
