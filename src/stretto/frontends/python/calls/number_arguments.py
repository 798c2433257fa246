"""Arguments of torch's functions that are numbers of Python and that only the run knows.

torch's own parser wants their values. Here they are operands of a program: a factor `alpha` or
`value` is a product, the shifts of `roll` are positions, and the momentum of batch norm is a
number of its decomposition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from stretto.frontends.python.operators.decompositions import batch_norm
from stretto.frontends.python.tracing.tensor import Hooks, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.scalars import is_number, number_kind

Rule = Callable[..., Any]


# ---- factors -------------------------------------------------------------------------------------


def _with_alpha(name: str) -> Rule:
    """`add` or `sub` with a factor of the second operand."""
    function = getattr(torch.Tensor, name)

    def rule(input: Any, other: Any, *, alpha: Any = 1) -> Any:
        if not is_number(alpha):
            return NotImplemented
        if number_kind(alpha) is float and not _has_floats(input, other):
            raise RuntimeError(
                "For integral input tensors, argument alpha must not be a floating point number."
            )
        tensors = (item for item in (input, other) if isinstance(item, torch.Tensor))
        if number_kind(alpha) is bool and any(item.dtype != torch.bool for item in tensors):
            raise RuntimeError("Boolean alpha only supported for Boolean results.")
        return function(input, _of_both(other, input) * alpha)

    return rule


def _of_both(factor: Any, input: Any) -> Any:
    """A factor in the dtype that torch computes with."""
    tensors = [item for item in (factor, input) if isinstance(item, torch.Tensor)]
    if len(tensors) < 2 or any(map(is_number, tensors)):
        return factor
    return factor.to(torch.result_type(input, factor))


def _has_floats(*operands: Any) -> bool:
    tensors = (item for item in operands if isinstance(item, torch.Tensor))
    return any(item.dtype.is_floating_point for item in tensors)


def _with_value(name: str) -> Rule:
    """`addcmul` or `addcdiv` with a factor of the product."""
    function = getattr(torch.Tensor, name)

    def rule(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
        if not is_number(value):
            return NotImplemented
        return function(input, _of_both(tensor1, input) * value, tensor2)

    return rule


_FACTORS = {
    **dict.fromkeys(("add", "add_", "sub", "sub_", "subtract", "subtract_"), _with_alpha),
    **dict.fromkeys(("addcmul", "addcmul_", "addcdiv", "addcdiv_"), _with_value),
}


# ---- roll ----------------------------------------------------------------------------------------


def _roll(input: Any, shifts: Any, dims: Any = None) -> Any:
    """`torch.roll`, by the positions that the elements come from."""
    every = tuple(shifts) if isinstance(shifts, list | tuple) else (shifts,)
    if not any(isinstance(shift, TracedTensor) for shift in every):
        return NotImplemented
    if dims is None or dims == ():
        return _roll(input.flatten(), shifts, 0).reshape(input.shape)
    places = tuple(dims) if isinstance(dims, list | tuple) else (dims,)
    if len(places) != len(every):
        return NotImplemented
    for shift, dim in zip(every, places, strict=True):
        size = input.shape[dim]
        positions = torch.arange(size, device=input.device)
        input = input.index_select(dim, torch.remainder(positions - shift, size))
    return input


# ---- batch norm ----------------------------------------------------------------------------------


def _batch_norm(
    input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: Any = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if not is_number(momentum):
        return NotImplemented
    if training:
        F._verify_batch_size(input.size())  # pyright: ignore
    return _batch_norm_of_torch(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )


def _batch_norm_of_torch(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any,
    training: bool, momentum: Any, eps: float, cudnn_enabled: bool = False,
) -> Any:  # fmt: skip
    if not is_number(momentum):
        return NotImplemented
    with tracer().running_natively():
        return batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


def _batch_norm_module(module: Any, input: Any) -> Any:
    """A module that averages over all batches: its factor is one by the number of batches."""
    counts = module.training and module.track_running_stats and module.momentum is None
    if not counts or module.num_batches_tracked is None:
        return NotImplemented
    module._check_input_dim(input)
    number = tracer().promote(module.num_batches_tracked)
    number.add_(1)
    factor = 1.0 / Hooks.call(float, number)
    mean, var = module.running_mean, module.running_var
    return Hooks.call(
        F.batch_norm, input, mean, var, module.weight, module.bias, True, factor, module.eps
    )


METHODS: dict[str, Rule] = {name: made(name) for name, made in _FACTORS.items()} | {"roll": _roll}
"""Methods of tensors, which take the tensor first."""
RULES: dict[Any, Rule] = {
    **{getattr(torch, name): rule for name, rule in METHODS.items() if hasattr(torch, name)},
    F.batch_norm: _batch_norm,
    torch.batch_norm: _batch_norm_of_torch,
    _BatchNorm.forward: _batch_norm_module,
}
