"""JAX functions of ATen's convolutions, pools, norms and upsampling of images."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .base import Skipped
from .jax_operators import implements

CONVOLUTION = "aten.convolution.default"
BATCH_NORM = "aten._native_batch_norm_legit_no_training.default"

# Channels per group from which on each group is a separate convolution: on processors, XLA's
# grouped convolution takes three to five times as long for wide groups, and less for narrow ones.
SEPARATE_GROUPS = 32

# Letters of the spatial dims, for images of one, two and three dims.
SPATIAL = ("", "W", "HW", "DHW")


@implements(CONVOLUTION)
def convolution(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> jax.Array:
    """x [B, C, ...], weight [O, C / groups, ...], bias [O]."""
    if transposed:
        raise Skipped("transposed convolutions are not translated to JAX")
    rank = x.ndim - 2
    letters = SPATIAL[rank]
    convolve = partial(
        lax.conv_general_dilated,
        window_strides=each(stride, rank),
        padding=[(pad, pad) for pad in each(padding, rank)],
        rhs_dilation=each(dilation, rank),
        dimension_numbers=("NC" + letters, "OI" + letters, "NC" + letters),
    )
    if groups > 1 and weight.shape[1] >= SEPARATE_GROUPS:
        pairs = zip(jnp.split(x, groups, axis=1), jnp.split(weight, groups), strict=True)
        y = jnp.concatenate([convolve(part, filters) for part, filters in pairs], axis=1)
    else:
        y = convolve(x, weight, feature_group_count=groups)
    return y if bias is None else y + by_channel(bias, x.ndim)


def each(values: Sequence[int] | int, rank: int) -> tuple[int, ...]:
    """Expand to one value per spatial dim; torch may be given one for all."""
    listed = (values,) if isinstance(values, int) else tuple(values)
    return listed * rank if len(listed) == 1 else listed


def by_channel(values: jax.Array, rank: int) -> jax.Array:
    """[C] -> [C, 1, ...], to be combined with [B, C, ...] of that rank."""
    return values.reshape(-1, *(1,) * (rank - 2))


@implements(BATCH_NORM)
def batch_norm(
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    mean: jax.Array,
    variance: jax.Array,
    momentum: float,
    eps: float,
) -> tuple[jax.Array, None, None]:
    scale = lax.rsqrt(variance + eps)
    scale = scale if weight is None else scale * weight
    shift = -mean * scale
    shift = shift if bias is None else shift + bias
    return x * by_channel(scale, x.ndim) + by_channel(shift, x.ndim), None, None


@implements("aten.native_layer_norm.default")
def layer_norm(
    x: jax.Array, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    dims = tuple(range(x.ndim - len(shape), x.ndim))
    normed, mean, scale = _normed(x, dims, eps)
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias, mean, scale


@implements("aten.native_group_norm.default")
def group_norm(
    x: jax.Array,
    weight: Any,
    bias: Any,
    batch: int,
    channels: int,
    pixels: int,
    groups: int,
    eps: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    split = x.reshape(batch, groups, -1)
    normed, mean, scale = _normed(split, (2,), eps)
    normed = normed.reshape(x.shape)
    normed = normed if weight is None else normed * by_channel(weight, x.ndim)
    normed = normed if bias is None else normed + by_channel(bias, x.ndim)
    return normed, mean[..., 0], scale[..., 0]


def _normed(
    x: jax.Array, dims: tuple[int, ...], eps: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return x with mean 0 and variance 1 over `dims`, and the mean and scale that were removed."""
    mean = x.mean(axis=dims, keepdims=True)
    scale = lax.rsqrt(x.var(axis=dims, keepdims=True) + eps)
    return (x - mean) * scale, mean, scale


@implements("aten.max_pool2d_with_indices.default")
def max_pool(
    x: jax.Array,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[jax.Array, None]:
    """Maximum pool. The positions of the maxima, which only training reads, are not computed."""
    sizes, steps, spread = each(kernel, 2), each(stride or kernel, 2), each(dilation, 2)
    pads = each(padding, 2)
    dims = zip(x.shape[-2:], sizes, steps, pads, spread, strict=True)
    edges = [(dim[3], _pad_after(*dim, ceil_mode)) for dim in dims]
    outer = x.ndim - 2
    pooled = lax.reduce_window(
        x,
        -jnp.inf,
        lax.max,
        (1,) * outer + sizes,
        (1,) * outer + steps,
        ((0, 0),) * outer + tuple(edges),
        window_dilation=(1,) * outer + spread,
    )
    return pooled, None


def _windows(size: int, kernel: int, step: int, pad: int, spread: int, ceil_mode: bool) -> int:
    """Return the number of windows of a pool in a dim of `size`."""
    room = size + 2 * pad - spread * (kernel - 1) - 1
    count = (-(-room // step) if ceil_mode else room // step) + 1
    # The last window must start inside of the image or of the padding before it.
    return count - 1 if ceil_mode and (count - 1) * step >= size + pad else count


def _pad_after(size: int, kernel: int, step: int, pad: int, spread: int, ceil_mode: bool) -> int:
    """Return the padding after the image that the last window reads."""
    count = _windows(size, kernel, step, pad, spread, ceil_mode)
    return max(0, (count - 1) * step + spread * (kernel - 1) + 1 - size - pad)


@implements("aten.avg_pool2d.default")
def average_pool(
    x: jax.Array,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> jax.Array:
    sizes, steps, pads = each(kernel, 2), each(stride or kernel, 2), each(padding, 2)
    edges: list[tuple[int, int]] = []
    counts: list[np.ndarray] = []
    for size, window, step, pad in zip(x.shape[-2:], sizes, steps, pads, strict=True):
        edges.append((pad, _pad_after(size, window, step, pad, 1, ceil_mode)))
        starts = np.arange(_windows(size, window, step, pad, 1, ceil_mode)) * step - pad
        first, last = (-pad, size + pad) if count_include_pad else (0, size)
        counts.append(np.minimum(starts + window, last) - np.maximum(starts, first))
    outer = x.ndim - 2
    summed = lax.reduce_window(
        x,
        0.0,
        lax.add,
        (1,) * outer + sizes,
        (1,) * outer + steps,
        ((0, 0),) * outer + tuple(edges),
    )
    shares = 1.0 / (np.outer(*counts) if divisor is None else np.full((1, 1), divisor))
    return summed * shares.astype(np.float32)


@implements("aten._adaptive_avg_pool2d.default")
def adaptive_average_pool(x: jax.Array, size: Sequence[int]) -> jax.Array:
    if tuple(size) == x.shape[-2:]:
        return x
    rows, columns = (_shares(had, wanted) for had, wanted in zip(x.shape[-2:], size, strict=True))
    return jnp.einsum("...hw,ih,jw->...ij", x, rows, columns)


def _shares(size: int, wanted: int) -> np.ndarray:
    """Return [wanted, size]: the weight of each value in each result."""
    shares = np.zeros((wanted, size), np.float32)
    for place in range(wanted):
        start, end = place * size // wanted, -(-(place + 1) * size // wanted)
        shares[place, start:end] = 1.0 / (end - start)
    return shares


@implements("aten.upsample_nearest2d.vec")
def enlarge(
    x: jax.Array, size: Sequence[int] | None, factors: Sequence[float] | None = None
) -> jax.Array:
    """Repeat each pixel; either the size or the factors of the last two dims are given."""
    for place, dim in enumerate((x.ndim - 2, x.ndim - 1)):
        had = x.shape[dim]
        factor = size[place] / had if size is not None else (factors or (1.0, 1.0))[place]
        wanted = int(had * factor) if size is None else size[place]
        if factor == int(factor):
            x = jnp.repeat(x, int(factor), axis=dim)
        else:
            sources = np.minimum((np.arange(wanted) / factor).astype(int), had - 1)
            x = jnp.take(x, sources, axis=dim)
    return x
