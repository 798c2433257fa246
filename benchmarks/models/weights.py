"""Seeded weights that keep activations near one, so that a relative error of 1e-4 is meaningful."""

import math

import torch
from torch import nn

from .entry import generator


@torch.no_grad()
def seed_weights(module: nn.Module, seed: int, gain: float = 1.0) -> None:
    """Fill all parameters of `module` and the statistics of batch norms, in place, from
    `seed` alone.

    Weights are normal with standard deviation gain / sqrt(fan in); biases are normal
    with 0.1; norms get scales and shifts, batch norms also means and variances, that are
    not the identity.
    """
    source = generator(seed)
    for child in module.modules():
        if isinstance(child, _NORMS):
            _seed_norm(child, source)
            continue
        for parameter in child.parameters(recurse=False):
            if isinstance(child, nn.Embedding):
                scale = 1.0
            elif parameter.dim() < 2:
                scale = 0.1
            else:
                scale = gain / math.sqrt(parameter[0].numel())
            parameter.normal_(0.0, scale, generator=source)
    module.eval()


_NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


def _seed_norm(norm: nn.Module, source: torch.Generator) -> None:
    mean, variance = getattr(norm, "running_mean", None), getattr(norm, "running_var", None)
    if mean is not None and variance is not None:
        mean.normal_(0.0, 0.1, generator=source)
        variance.uniform_(0.8, 1.2, generator=source)
    weight, bias = norm.weight, norm.bias
    if isinstance(weight, nn.Parameter):
        weight.uniform_(0.9, 1.1, generator=source)
    if isinstance(bias, nn.Parameter):
        bias.normal_(0.0, 0.1, generator=source)
