"""Checks which calls cannot be compiled, because of their context or their tensors.

Transformations of torch (make_fx, vmap, jvp, torch.jit.trace, torch.export) run a function on their
own tensors to see every operator. Compiled programs are of no use to them: they get the original
function. This module also tracks tensors read in grad mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils import _device

from stretto.errors import CaptureError
from stretto.frontends.python.tracing.signals import GradientsWanted, fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.ir.types import DType

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
# torch has no public names for what is active


_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transformation = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]
_traced_by_jit: Callable[[], Any] = torch._C._get_tracing_state

PLAIN = frozenset((torch.Tensor, nn.Parameter, nn.Buffer))
"""Tensor classes that hold only their data."""


def active_transformation() -> str | None:
    """Describe the active transformation that has to see the operators of the original function;
    None if there is none. Called on each call, so it must be fast."""
    if _dispatch_modes():
        mode = torch._C._get_dispatch_stack_at(_dispatch_modes() - 1)
        return f"the dispatch mode {type(mode).__name__} is active"
    if _transformation() is not None:
        return f"it is called within torch.func ({_transformation().key().name.lower()})"
    if _traced_by_jit() is not None:
        return "torch.jit.trace is tracing it"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    if _function_modes():
        modes = map(torch._C._get_function_stack_at, range(_function_modes()))
        for mode in modes:
            if not isinstance(mode, _device.DeviceContext):
                return f"the function mode {type(mode).__name__} is active"
    return None


def foreign_input(leaves: Iterable[Any]) -> str | None:
    """Describe an input that is a tensor of another class or acts as one; None if there is none."""
    for leaf in leaves:
        kind = type(leaf)
        if kind not in PLAIN and (
            isinstance(leaf, torch.Tensor)
            or (hasattr(kind, "__torch_function__") and not isinstance(leaf, type))
        ):
            return f"an input is a {kind.__name__}"
    return None


def check_inputs(tensors: Sequence[torch.Tensor]) -> None:
    """Raise CaptureError for tensors that no program can take."""
    for tensor in tensors:
        problem = _problem(tensor)
        if problem is not None:
            reason, remedy = problem
            raise CaptureError(f"an input {reason}", remedy=remedy)


def check_constant(tensor: torch.Tensor, name: str) -> None:
    """Raise Abort for a captured external tensor that no program can use."""
    problem = _problem(tensor)
    if problem is None and _dispatch_of(type(tensor)) is not _dispatch_of(torch.Tensor):
        problem = (f"is a {type(tensor).__name__}", "use plain tensors and parameters")
    if problem is None and (tensor.is_neg() or tensor.is_conj()):
        problem = ("is a lazily negated view", "call resolve_neg() on it before")
    if problem is not None:
        reason, remedy = problem
        fail(f"the tensor '{name}' {reason}", remedy)


def _dispatch_of(kind: Any) -> Any:
    return kind.__torch_dispatch__


def _problem(tensor: torch.Tensor) -> tuple[str, str] | None:
    if tensor.is_nested:
        return "is a nested tensor", "pad it: .to_padded_tensor(0.0)"
    if tensor.is_quantized:
        return "is quantized", "pass dense tensors (.dequantize())"
    if tensor.layout is not torch.strided:
        return f"has layout {tensor.layout}", "pass dense tensors (.to_dense())"
    if tensor.device.type == "meta":
        return "is on the meta device, so it has no data", "make it on the CPU"
    try:
        DType.from_torch(tensor.dtype)
    except KeyError:
        reason = f"has dtype {tensor.dtype}, which is not supported"
        return reason, "cast it to a real float, integer or bool dtype"
    return None


def overlaps(tensor: torch.Tensor) -> bool:
    """True if several elements may have one address. False for expanded tensors: torch itself
    refuses to write to them."""
    if any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True)):
        return False
    dims = sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1)
    end = 0
    for stride, size in dims:
        if stride <= end:
            return True
        end += stride * (size - 1)
    return False


# ---- Tensors that a function reads with grad mode on: a program computes no gradients for them.


class Gradients:
    """The grad mode of one captured call, and the tensors that the function reads with it on.

    mode: the grad mode of the call. tensors: external ones that may later require grad, by id.
    uses_inputs: True if the function itself switches grad mode on and computes, or reads a
    tensor's gradient attributes, so that its inputs matter even in a call without grad mode.
    """

    def __init__(self, mode: bool) -> None:
        self.mode = mode
        self.tensors: dict[int, torch.Tensor] = {}
        self.uses_inputs = False
        self._inputs: Sequence[torch.Tensor] = ()

    def enter(self, inputs: Sequence[torch.Tensor]) -> None:
        """Set the inputs of the call. Raises GradientsWanted if one of them makes it run
        in eager."""
        self._inputs = inputs
        if self.mode:
            self._refuse()

    def read(self, tensor: torch.Tensor) -> None:
        """Record a read of an external tensor. Raises GradientsWanted if it requires grad."""
        if not torch.is_grad_enabled():
            return
        if tensor.requires_grad:
            raise GradientsWanted(tensor)
        if tensor.is_floating_point() or tensor.is_complex():
            self.tensors[id(tensor)] = tensor

    def compute(self, operands: Iterable[Any]) -> None:
        """Check an operator before it runs. Raises GradientsWanted, with grad mode on, if the
        function created an operand that requires grad, or switched grad mode on while an input
        requires grad."""
        if not torch.is_grad_enabled():
            return
        self.check_made(operands)
        if not self.mode:
            self.uses_inputs = True
            self._refuse()

    def check_made(self, value: Any) -> None:
        """Raise GradientsWanted for a traced tensor that requires grad, or a list with one."""
        if type(value) is TracedTensor:
            if value.requires_grad:
                raise GradientsWanted(None)
        elif isinstance(value, (list, tuple)):
            for item in cast("Iterable[Any]", value):
                self.check_made(item)

    def ask(self) -> None:
        """Record that the function checks if a tensor requires grad. Raises GradientsWanted if an
        input does."""
        self.uses_inputs = True
        self._refuse()

    def _refuse(self) -> None:
        for tensor in self._inputs:
            if tensor.requires_grad:
                raise GradientsWanted(tensor)
