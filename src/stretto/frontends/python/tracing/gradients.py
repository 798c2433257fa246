"""Tensors that a function reads with grad mode on: a program cannot hand gradients to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch

from stretto.frontends.python.tracing.signals import GradientsWanted
from stretto.frontends.python.tracing.tensor import TracedTensor


class Gradients:
    """The grad mode of one captured call, and the tensors that the function reads with it on.

    mode: the grad mode of the call. tensors: those of outside that may come to require grad, by id.
    uses_inputs: True if the function switches grad mode on by itself and computes then, or asks a
    tensor for its gradients, so that its inputs decide also in a call without grad mode.
    """

    def __init__(self, mode: bool) -> None:
        self.mode = mode
        self.tensors: dict[int, torch.Tensor] = {}
        self.uses_inputs = False
        self._inputs: Sequence[torch.Tensor] = ()

    def enter(self, inputs: Sequence[torch.Tensor]) -> None:
        """The call has these inputs. Raises GradientsWanted if one decides that it runs eager."""
        self._inputs = inputs
        if self.mode:
            self._refuse()

    def read(self, tensor: torch.Tensor) -> None:
        """A tensor of outside is read. Raises GradientsWanted if it requires grad."""
        if not torch.is_grad_enabled():
            return
        if tensor.requires_grad:
            raise GradientsWanted(tensor)
        if tensor.is_floating_point() or tensor.is_complex():
            self.tensors[id(tensor)] = tensor

    def compute(self, operands: Iterable[Any]) -> None:
        """An operator runs. Raises GradientsWanted with grad mode on, if the function has made an
        operand that requires grad; or has switched grad mode on, and an input requires grad."""
        if not torch.is_grad_enabled():
            return
        self.check_made(operands)
        if not self.mode:
            self.uses_inputs = True
            self._refuse()

    def check_made(self, value: Any) -> None:
        """Raises GradientsWanted for a traced tensor that requires grad, or a list with one."""
        if isinstance(value, list | tuple):
            for item in cast("Iterable[Any]", value):
                self.check_made(item)
        elif isinstance(value, TracedTensor) and value.requires_grad:
            raise GradientsWanted(None)

    def ask(self) -> None:
        """The function asks whether a tensor requires grad. Raises GradientsWanted if an input
        does."""
        self.uses_inputs = True
        self._refuse()

    def _refuse(self) -> None:
        for tensor in self._inputs:
            if tensor.requires_grad:
                raise GradientsWanted(tensor)
