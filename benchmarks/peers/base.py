"""What every measured system offers: it turns a model into a call without arguments."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn


class Skipped(Exception):
    """This system does not run this model; the message is the reason that goes on record."""


@dataclass(frozen=True, slots=True)
class Case:
    """One model to prepare: the module in eval mode, its inputs, and what it was made from.

    The inputs of a model that is written for one instance are the instances."""

    name: str
    config: Any
    module: nn.Module
    inputs: tuple[Any, ...]
    threads: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A system ready to run. `call` is what is timed; `outputs` lists what it returned, outside
    of the time. `note` says what a reader should know, such as a program adapted by hand.
    `instances`: how many of the case's instances a call runs, from the first on, where preparing
    all would take too long; its time is then scaled to all of them. `predicted`, called after the
    first call: the seconds that the system expects of a call, where it makes such predictions; it
    may raise `Skipped`."""

    call: Callable[[], object]
    outputs: Callable[[Any], list[np.ndarray]]
    note: str = ""
    instances: int | None = None
    predicted: Callable[[], float] | None = None


class Peer(ABC):
    """A system, known by its `name` on the command line and in records."""

    name: ClassVar[str]

    @abstractmethod
    def prepare(self, case: Case) -> Prepared:
        """Raises `Skipped` for what this system does not support. It may leave compiling to the
        first two calls, which count as compile time too."""

    def release(self) -> None:  # noqa: B027 (most systems hold nothing)
        """Give back what `prepare` holds outside of its result; called after each model."""


def tensors_to_numpy(value: Any) -> list[np.ndarray]:
    """The tensors of a result, in order, as arrays."""
    if isinstance(value, Tensor):
        return [value.detach().numpy()]
    return [array for item in value for array in tensors_to_numpy(item)]


def arrays_to_numpy(value: Any) -> list[np.ndarray]:
    """The arrays of a result (NumPy's or JAX's), in order."""
    if isinstance(value, Sequence):
        return [array for item in value for array in arrays_to_numpy(item)]
    return [np.asarray(value)]


def without_gradients(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Prepared:
    """A system called as `function(*inputs)` with gradients off."""

    def call() -> Any:
        with torch.no_grad():
            return function(*inputs)

    return Prepared(call, tensors_to_numpy)
