"""Guards of the program of a function for one instance: before each batch they check the values and
tensors that all instances share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stretto.batching.instance_program import InstanceProgram
from stretto.frontends.python.guards.guards import NativeCheck
from stretto.runtime.constants import ConstantFreshness

Check = Callable[[], bool]
"""Returns True if nothing has changed. It is quick, since it runs at each call."""


@dataclass(frozen=True, slots=True)
class FunctionOfInstances:
    """A function that has been read for one instance.

    values: makes the check of the static values that it has read, with native code if that can be
    used. tensors: those that are the same for all instances. content: those whose content was read.
    """

    program: InstanceProgram
    values: Callable[[NativeCheck | None], Check]
    tensors: Sequence[torch.Tensor]
    content: Sequence[torch.Tensor]


class TensorGuards:
    """Guards of tensors that are the same for all instances: they must stay at the same address.
    `p.data = other`, and with it `module.half()` and `module.to(device)`, change a tensor that
    stays the same object. If its content was read, as in `self.mask.numpy()`, that must be
    unchanged, too."""

    def __init__(
        self, tensors: Iterable[torch.Tensor], content: Sequence[torch.Tensor], *, native: bool
    ) -> None:
        unique = {id(tensor): tensor for tensor in (*tensors, *content)}
        self._known = [(tensor, _place(tensor)) for tensor in unique.values()]
        self._content = ConstantFreshness(
            [item for item in content if item.is_cpu], (), native=native
        )

    @property
    def tensors(self) -> Iterator[torch.Tensor]:
        """The guarded tensors."""
        return (tensor for tensor, _ in self._known)

    def hold(self) -> bool:
        """Return True if all tensors have the same address, shape, strides and dtype, and the
        content that was read."""
        is_there = all(_place(tensor) == place for tensor, place in self._known)
        return is_there and self._content.is_current()


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
