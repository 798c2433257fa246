"""Helpers of the JAX programs: convolutions with channels last, the layout XLA is best at."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from torch import nn

from .weights import array, fold

# A function of (weights, *inputs), and its weights as a tree of arrays.
Program = tuple[Callable[..., Any], Any]
ConvWeights = tuple[jax.Array, jax.Array]


def conv_weights(conv: nn.Conv2d, norm: nn.BatchNorm2d | None = None) -> ConvWeights:
    """(weight HWIO, bias), with the batch norm folded in if there is one."""
    if norm is None:
        assert conv.bias is not None
        weight, bias = array(conv.weight), array(conv.bias)
    else:
        weight, bias = fold(conv, norm)
    return jnp.asarray(weight.transpose(2, 3, 1, 0)), jnp.asarray(bias)


def convolve(x: jax.Array, weights: ConvWeights, conv: nn.Conv2d) -> jax.Array:
    """x [B, H, W, C], with the stride and padding of `conv`."""
    weight, bias = weights
    padding = [(int(pad), int(pad)) for pad in conv.padding]
    dimensions = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, weight, conv.stride, padding, dimension_numbers=dimensions)
    return y + bias
