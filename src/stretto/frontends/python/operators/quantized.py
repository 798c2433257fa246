"""Rules for linear layers that quantise what they are given, as `quantize_dynamic` makes them.

Their weights are packed into an object that only torch reads. It is unpacked while a function is
captured, and the layer becomes what torch's kernel does (FBGEMM, `ChooseQuantizationParams`): the
least and the largest value of the input give a scale and a zero point, the input is rounded to
bytes, bytes are multiplied exactly, and sums are scaled. The results are those of the kernel, up
to the last rounding, of a sum that is scaled and added to the bias. Of inputs that are infinite or
NaN eager makes numbers that mean nothing, and this NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stretto.frontends.python.tracing.tracer import tracer

SMALLEST = 6.1e-5
"""A scale below this is raised to it."""
NO_SCALE = 0.1
"""The scale of an input that is 0."""
_ENGINES = ("x86", "fbgemm")


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The weights of a layer: i8 [inputs, outputs], what one step of them is worth (f32, for each
    output or for all), the number that stands for 0, and the bias; `sums` over the inputs (i32)."""

    packed: Any
    weight: Tensor
    scale: Tensor
    zero: Tensor
    has_zero: bool
    sums: Tensor
    bias: Tensor | None


def _unpacked(packed: Any) -> Unpacked | None:
    """None for what is quantised in another way."""
    state = tracer()
    known = state.unpacked.get(id(packed))
    if known is not None:
        return known
    with state.native():
        weight, bias = packed.unpack()
        if weight.dtype is not torch.qint8:
            return None
        numbers = weight.int_repr()
        if weight.qscheme() is torch.per_tensor_affine:
            scale, zero = torch.tensor(weight.q_scale()), torch.tensor(weight.q_zero_point())
        else:
            scale, zero = weight.q_per_channel_scales(), weight.q_per_channel_zero_points()
        sums = numbers.int().sum(1, dtype=torch.int32)
        turned = numbers.t().contiguous()
        scale, zero, has_zero = scale.float(), zero.int(), bool(zero.any())
        bias = None if bias is None else bias.detach()

    def kept(tensor: Tensor) -> Tensor:
        return state.promote(tensor, guarded=False)

    bias = None if bias is None else kept(bias)
    turned, sums = kept(turned), kept(sums)
    found = Unpacked(packed, turned, kept(scale), kept(zero), has_zero, sums, bias)
    state.unpacked[id(packed)] = found
    return found


def _scale_and_zero(x: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """What one step of a byte is worth (f32), and the byte that stands for 0 (i32)."""
    low, high = x.amin().clamp(max=0.0), x.amax().clamp(min=0.0)
    scale = ((high.double() - low.double()) / levels).float()
    scale = torch.where((scale == 0) | torch.isinf(1 / scale), NO_SCALE, scale)
    is_small, least = scale < SMALLEST, torch.full_like(scale, SMALLEST)
    raised, widest = least / scale, least * levels
    above = torch.where(high == 0, high, high * raised)
    above = torch.where(low == 0, widest, above)
    below = torch.where(high == 0, -widest, low * raised)
    below = torch.where(low == 0, low, below)
    low, high = (
        torch.where(is_small, below, low).double(),
        torch.where(is_small, above, high).double(),
    )
    scale = torch.where(is_small, least, scale)
    wide = scale.double()
    from_low, from_high = -low / wide, levels - high / wide
    is_nearer = (low / wide).abs() < levels + (high / wide).abs()
    zero = torch.where(is_nearer, from_low, from_high).clamp(0, levels).round()
    return scale, zero.to(torch.int32)


def _linear_dynamic(
    x: Tensor, packed: Any, reduce_range: bool = False, *, relu: bool = False
) -> Any:
    if torch.backends.quantized.engine not in _ENGINES or x.dtype is not torch.float32:
        return NotImplemented
    weights = _unpacked(packed)
    if x.dim() < 2:
        raise RuntimeError("The dimension of input tensor should be larger than or equal to 2")
    if weights is None or x.size(-1) != weights.weight.size(0):
        return NotImplemented
    inputs, outputs = weights.weight.shape
    shape = (*x.shape[:-1], outputs)
    if x.numel() == 0:
        return x.new_zeros(shape)
    scale, zero = _scale_and_zero(x, 127 if reduce_range else 255)
    bytes = ((x * (1 / scale)).round() + zero).clamp(0, 255).to(torch.uint8).reshape(-1, inputs)
    sums = torch.ops.stretto.byte_mm(bytes, weights.weight) - zero * weights.sums
    if weights.has_zero:
        rows = bytes.sum(1, keepdim=True, dtype=torch.int32)
        sums = sums - weights.zero * (rows - inputs * zero)
    result = sums.float() * (scale * weights.scale)
    if weights.bias is not None:
        result = result + weights.bias
    return (result.relu() if relu else result).reshape(shape)


def _linear_of_halves(x: Tensor, packed: Any) -> Any:
    """Weights are kept as f16, and multiplied as f32."""
    state = tracer()
    if torch.backends.quantized.engine not in _ENGINES or x.dtype is not torch.float32:
        return NotImplemented
    known: tuple[Any, ...] | None = state.unpacked.get(id(packed))
    if known is None:
        with state.native():
            tensors = [None if t is None else t.detach() for t in packed.unpack()]
        pair = (None if t is None else state.promote(t, guarded=False) for t in tensors)
        known = state.unpacked[id(packed)] = (packed, *pair)
    return torch.nn.functional.linear(x, known[1], known[2])


_quantized = torch.ops.quantized
RULES: dict[Any, Callable[..., Any]] = {
    _quantized.linear_dynamic.default: _linear_dynamic,
    _quantized.linear_relu_dynamic.default: partial(_linear_dynamic, relu=True),
    _quantized.linear_dynamic_fp16.default: _linear_of_halves,
}
