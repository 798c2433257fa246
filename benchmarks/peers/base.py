"""The interface of a measured system: it turns a model into a call without arguments."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn


class Skipped(Exception):
    """Raised if a system does not run a model, with the reason for the record."""


@dataclass(frozen=True, slots=True)
class Case:
    """One model to prepare: the module in eval mode, its inputs, and its configuration. For a
    model that is written for one instance, the inputs are the instances."""

    name: str
    config: Any
    module: nn.Module
    inputs: tuple[Any, ...]
    threads: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A system ready to run.

    `call` is timed; `outputs` lists its results, outside of the timed part. `note` is a
    remark for the reader, such as that a program was adapted by hand. `instances`:
    number of the case's instances that a call runs, from the first on, if preparing all
    would take too long; its time is then scaled to all of them. `predicted`, called
    after the first call: the seconds that the system expects of a call, for systems that
    predict it; it may raise `Skipped`.
    """

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
        """Prepare a case. Raises `Skipped` if this system does not support it. Compiling may be
        left to the first two calls, which count as compile time too."""

    def release(self) -> None:  # noqa: B027 (most systems hold nothing)
        """Release what `prepare` holds outside of its result; called after each model."""


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
    """Call a system as `function(*inputs)` with gradients off."""

    def call() -> Any:
        with torch.no_grad():
            return function(*inputs)

    return Prepared(call, tensors_to_numpy)
