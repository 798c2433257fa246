"""Calls that run eager, because no program can do what eager PyTorch does there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

_REMEDY = "Call it under torch.no_grad() to run it compiled."


class RunsEager(Exception):
    """A call runs eager, for a reason that the user is warned of."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


def is_training(module: torch.nn.Module) -> bool:
    """Whether a module is in training mode. A frozen one of TorchScript has no mode."""
    return getattr(module, "training", False)


def check_gradients(module: torch.nn.Module | None, tensors: Sequence[torch.Tensor]) -> None:
    """With grad mode on: raises RunsEager where eager would build a graph that the caller means to
    use. Inputs that require grad say so; so do parameters of a module in training mode."""
    trained = module is not None and is_training(module) and _require_grad(module.parameters())
    if trained or _require_grad(tensors):
        raise RunsEager(
            "an input, or a parameter of a module in training mode, requires grad and training is "
            "not supported yet",
            _REMEDY,
        )


def check_held_gradients(tensors: Iterable[torch.Tensor]) -> None:
    """With grad mode on: raises RunsEager where a tensor that an object holds requires grad."""
    if _require_grad(tensors):
        raise RunsEager(
            "a tensor that an object holds requires grad and training is not supported yet", _REMEDY
        )


def _require_grad(tensors: Iterable[torch.Tensor]) -> bool:
    return any(tensor.requires_grad for tensor in tensors)
