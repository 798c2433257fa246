"""Calls that run eager, because no program can do what eager PyTorch does there."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from operator import attrgetter

import torch

_REMEDY = "Call it under torch.no_grad() to run it compiled."
_REMEDY_OF_MADE = "Make the tensor without requires_grad to run it compiled."


class RunsEager(Exception):
    """A call runs eager, for a reason that the user is warned of."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


def is_training(module: torch.nn.Module) -> bool:
    """True for a module in training mode. A frozen one of TorchScript has no mode."""
    return getattr(module, "training", False)


class Trained(RunsEager):
    """A call runs eager because a tensor that it reads, `tensor`, requires grad, or one that it
    makes (None)."""

    def __init__(self, tensor: torch.Tensor | None) -> None:
        self.tensor = tensor
        verb, remedy = ("makes", _REMEDY_OF_MADE) if tensor is None else ("reads", _REMEDY)
        super().__init__(
            f"a tensor that it {verb} requires grad and training is not supported yet", remedy
        )


def while_it_holds(call: Trained) -> Callable[[], None]:
    """Returns a function that raises Trained again while its reason holds: the tensor is alive and
    requires grad."""
    wanted = None if call.tensor is None else weakref.ref(call.tensor)

    def check() -> None:
        if wanted is None:
            raise Trained(None)
        tensor = wanted()
        if tensor is not None:
            check_gradients((tensor,))

    return check


def check_gradients(tensors: Iterable[torch.Tensor]) -> None:
    """With grad mode on: raises Trained where one of the tensors that a call reads requires grad,
    so that eager would build a graph that the caller means to use."""
    for tensor in filter(requires_grad, tensors):
        raise Trained(tensor)


requires_grad = attrgetter("requires_grad")
