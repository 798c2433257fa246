"""Seeded weights that keep activations near one, so that 1e-4 relative error means something."""

import math

import torch
from torch import nn

from .entry import generator


@torch.no_grad()
def seed_weights(module: nn.Module, seed: int, gain: float = 1.0) -> None:
    """Fill every parameter and batch-norm statistic of `module`, in place, from `seed` alone.

    Weights are normal with standard deviation gain / sqrt(fan in); biases are normal with 0.1;
    batch norms get means, variances and scales that are not the identity.
    """
    source = generator(seed)
    for child in module.modules():
        if isinstance(child, nn.BatchNorm2d):
            _seed_batch_norm(child, source)
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


def _seed_batch_norm(norm: nn.BatchNorm2d, source: torch.Generator) -> None:
    assert norm.running_mean is not None and norm.running_var is not None
    norm.running_mean.normal_(0.0, 0.1, generator=source)
    norm.running_var.uniform_(0.8, 1.2, generator=source)
    norm.weight.uniform_(0.9, 1.1, generator=source)
    norm.bias.normal_(0.0, 0.1, generator=source)
