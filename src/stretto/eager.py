"""Calls that run eager, because no program can do what eager PyTorch does there."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

import torch

_REMEDY = "Call it under torch.no_grad() to run it compiled."


class RunsEager(Exception):
    """A call runs eager, for a reason that the user is warned of."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


def is_training(module: torch.nn.Module) -> bool:
    """True for a module in training mode. A frozen one of TorchScript has no mode."""
    return getattr(module, "training", False)


class Trained(RunsEager):
    """A call runs eager because a tensor that it reads, `tensor`, requires grad."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        super().__init__(
            "a tensor that it reads requires grad and training is not supported yet", _REMEDY
        )


def check_gradients(tensors: Iterable[torch.Tensor]) -> None:
    """With grad mode on: raises Trained where one of the tensors that a call reads requires grad,
    so that eager would build a graph that the caller means to use."""
    for tensor in filter(requires_grad, tensors):
        raise Trained(tensor)


requires_grad = attrgetter("requires_grad")
