"""Rules that replace ATen operators by others of the same meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stretto.frontends.python.operators.checks import check_all, eager_refusal, infer
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data_dependent_sizes import is_decided
from stretto.ops.infer import resolve

# ---- Rules for linear layers that quantise their input, as created by `quantize_dynamic`.
#
# Their weights are packed into an object that only torch reads. It is unpacked during the capture,
# and the layer becomes the computation of torch's kernel (FBGEMM, `ChooseQuantizationParams`): the
# least and the largest value of the input give a scale and a zero point, the input is rounded to
# bytes, bytes are multiplied exactly, and sums are scaled. The results equal the kernel's up to the
# last rounding, of the scaled sum that is added to the bias. For infinite or NaN inputs eager
# returns meaningless numbers, and these rules NaN.


SMALLEST = 6.1e-5
"""Lower bound of scales: smaller ones are raised to it."""
NO_SCALE = 0.1
"""The scale of an input that is 0."""
_ENGINES = ("x86", "fbgemm")


@dataclass(frozen=True, slots=True)
class QuantizedWeights:
    """The weights of a layer: i8 [inputs, outputs], their scale (f32, per output or for all), zero
    point, and bias; `sums` over the inputs (i32)."""

    packed: Any
    weight: Tensor
    scale: Tensor
    zero: Tensor
    has_zero: bool
    sums: Tensor
    bias: Tensor | None


def _unpacked(packed: Any) -> QuantizedWeights | None:
    """Return the unpacked weights, promoted to constants; None for another quantisation."""
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
    found = QuantizedWeights(packed, turned, kept(scale), kept(zero), has_zero, sums, bias)
    state.unpacked[id(packed)] = found
    return found


def _scale_and_zero(x: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Return the scale of the bytes of `x` (f32), and their zero point (i32)."""
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
    sums = resolve("stretto.byte_mm.default")(bytes, weights.weight) - zero * weights.sums
    if weights.has_zero:
        rows = bytes.sum(1, keepdim=True, dtype=torch.int32)
        sums = sums - weights.zero * (rows - inputs * zero)
    result = sums.float() * (scale * weights.scale)
    if weights.bias is not None:
        result = result + weights.bias
    return (result.relu() if relu else result).reshape(shape)


def _linear_of_halves(x: Tensor, packed: Any) -> Any:
    """Multiply in f32 with weights stored as f16."""
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
QUANTIZED: dict[Any, Callable[..., Any]] = {
    _quantized.linear_dynamic.default: _linear_dynamic,
    _quantized.linear_relu_dynamic.default: partial(_linear_dynamic, relu=True),
    _quantized.linear_dynamic_fp16.default: _linear_of_halves,
}


# ---- Rules for grouped matrix products, and for histograms.


aten = torch.ops.aten


def _grouped_mm(
    rows: Any, matrices: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    """Multiply groups of rows by matrices; torch's shape rule refuses dtypes that its kernels
    accept."""
    is_plain = offs is not None and bias is None and out_dtype in (None, rows.dtype)
    if not is_plain or (rows.dim(), matrices.dim()) != (2, 3):
        return NotImplemented
    refused = eager_refusal(aten._grouped_mm.default, (rows, matrices, offs), {})
    if refused is not None:
        raise refused
    return resolve("stretto.grouped_mm.default")(rows, matrices, offs)


def _histogram(values: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Find bins as torch's kernel does: by one multiplication and one division in the values'
    dtype."""
    if min == max or not values.dtype.is_floating_point:
        return NotImplemented  # the bounds are those of the data
    refused = eager_refusal(aten.histc.default, (values, bins, min, max), {})
    if refused is not None:
        raise refused
    with tracer().native():
        bounds = torch.tensor([min, max], dtype=torch.float64).to(values.dtype)
        (least, most), span = bounds.tolist(), float(bounds[1] - bounds[0])
    flat = values.reshape(-1, 1)
    places = ((flat - least) * bins / span).clamp(0, bins - 1).to(torch.int64)
    inside = torch.logical_and(flat >= least, flat <= most)
    hits = torch.logical_and(places == torch.arange(bins), inside)
    return hits.sum(0, dtype=values.dtype)


GROUPS = {aten._grouped_mm.default: _grouped_mm, aten.histc.default: _histogram}


# ---- Steps of recurrent cells on a data-dependent number of rows.
#
# ATen's own cells check that the input and the state have equally many rows, which may be known
# only at run time. The formulas are those of ATen.


State = tuple[Tensor, ...]
"""The hidden state, and for an LSTM the cell state."""
Step = Callable[["RecurrentCell", Tensor, State], State]
"""Function of a cell: the next state from the projected input and the state."""


@dataclass(frozen=True, slots=True)
class RecurrentCell:
    """The weights of one direction of one layer."""

    step: Step
    input_weight: Tensor
    hidden_weight: Tensor
    input_bias: Tensor | None = None
    hidden_bias: Tensor | None = None
    projection: Tensor | None = None

    def gates(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.hidden_weight, self.hidden_bias)


def elman(activation: Callable[[Tensor], Tensor]) -> Step:
    def step(cell: RecurrentCell, row: Tensor, state: State) -> State:
        return (activation(row + cell.gates(state[0])),)

    return step


def gru(cell: RecurrentCell, row: Tensor, state: State) -> State:
    (hidden,) = state
    reset, update, new = row.chunk(3, -1)
    hidden_reset, hidden_update, hidden_new = cell.gates(hidden).chunk(3, -1)
    reset = torch.sigmoid(reset + hidden_reset)
    update = torch.sigmoid(update + hidden_update)
    new = torch.tanh(new + reset * hidden_new)
    return ((hidden - new) * update + new,)


def lstm(cell: RecurrentCell, row: Tensor, state: State) -> State:
    hidden, memory = state
    into, forget, new, out = (row + cell.gates(hidden)).chunk(4, -1)
    memory = torch.sigmoid(forget) * memory + torch.sigmoid(into) * torch.tanh(new)
    hidden = torch.sigmoid(out) * torch.tanh(memory)
    if cell.projection is not None:
        hidden = F.linear(hidden, cell.projection)
    return hidden, memory


def _stepped(step: Step) -> Callable[..., Any]:
    """Return the rule of an operator that is one step."""

    def rule(inputs: Any, states: Any, *weights: Any) -> Any:
        every = (states,) if isinstance(states, torch.Tensor) else tuple(states)
        if not any(is_decided(item.shape[0]) for item in (inputs, *every)):
            return NotImplemented
        cell = RecurrentCell(step, *weights)
        row = F.linear(inputs, cell.input_weight, cell.input_bias)
        found = step(cell, row, every)
        return found[0] if isinstance(states, torch.Tensor) else found

    return rule


def _bilinear(first: Any, second: Any, weight: Any, bias: Any = None) -> Any:
    """Return the sum over i and j of first[i] * weight[k, i, j] * second[j], for each k."""
    if not any(map(is_decided, (*first.shape, *second.shape))):
        return NotImplemented
    outputs, rows, columns = weight.shape
    table = weight.permute(1, 0, 2).reshape(rows, outputs * columns)
    products = (first @ table).unflatten(-1, (outputs, columns)) * second.unsqueeze(-2)
    return products.sum(-1) if bias is None else products.sum(-1) + bias


CELLS: dict[Any, Callable[..., Any]] = {
    aten.rnn_tanh_cell.default: _stepped(elman(torch.tanh)),
    aten.rnn_relu_cell.default: _stepped(elman(torch.relu)),
    aten.gru_cell.default: _stepped(gru),
    aten.lstm_cell.default: _stepped(lstm),
    aten.bilinear.default: _bilinear,
}


# ---- Sorting operators replaced by ones with a defined order of equal elements.
#
# Eager PyTorch does not define which of several equal elements `sort` and `topk` return first. A
# program needs this defined: the interpreter, the emulator and every machine must agree. So the
# operators become `aten.sort.stable` and `stretto.topk`, and operators built from them likewise.


def _check_dim(x: Any, dim: int) -> None:
    """Raise IndexError for a dim out of range, which torch's shape rule of `sort` accepts."""
    rank = max(x.dim(), 1)
    if not -rank <= dim < rank:
        allowed = f"[{-rank}, {rank - 1}]"
        raise IndexError(
            f"Dimension out of range (expected to be in range of {allowed}, but got {dim})"
        )


def _sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    _check_dim(x, dim)
    return aten.sort.stable(x, stable=True, dim=dim, descending=descending)


def _sort_stable(
    x: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    _check_dim(x, dim)
    return NotImplemented if stable else _sort(x, dim, descending)


def _topk(x: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if not isinstance(k, int):
        return NotImplemented
    infer(tracer(), aten.topk.default, (x, k, dim, largest, sorted), {})
    return resolve("stretto.topk.default")(x, k, dim, largest)


def _kthvalue(x: Any, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    if not isinstance(k, int):
        return NotImplemented
    infer(tracer(), aten.kthvalue.default, (x, k, dim, keepdim), {})
    if x.dim() == 0:
        return _sort(x)
    size = x.size(dim)
    if not 1 <= k <= size:
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {dim}")
    if 2 * k <= size:
        values, places = resolve("stretto.topk.default")(x, k, dim, False)
    else:
        values, places = resolve("stretto.topk.default")(x, size - k + 1, dim, True)
    return _selected(values, dim, keepdim, -1), _selected(places, dim, keepdim, -1)


def _selected(x: Any, dim: int, keepdim: bool, place: int) -> Any:
    chosen = x.select(dim, place)
    chosen = chosen.unsqueeze(dim) if keepdim else chosen
    return chosen.clone(memory_format=torch.contiguous_format)


def _of_all(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return the median rule for all elements, from the rule for one dim."""
    return lambda x: rule(x.reshape(-1), 0)[0] if x.numel() else NotImplemented


def _median_dim(x: Any, dim: int, keepdim: bool = False) -> Any:
    """Return the lower of the two middle elements; NaN if there is a NaN."""
    infer(tracer(), aten.median.dim, (x, dim, keepdim), {})
    if x.dim() == 0:
        return _sort(x)
    if x.numel() == 0:
        return NotImplemented
    values, places = _sort(x, dim)
    middle = (x.size(dim) - 1) // 2
    value, place = (_selected(item, dim, keepdim, middle) for item in (values, places))
    if not x.is_floating_point():
        return value, place
    last = _selected(values, dim, keepdim, -1)
    first_nan = torch.argmax(x, dim, keepdim)
    return torch.where(last.isnan(), last, value), torch.where(last.isnan(), first_nan, place)


def _nanmedian_dim(x: Any, dim: int, keepdim: bool = False) -> Any:
    """Return the median of the elements that are not NaN; NaN if there are none."""
    if not x.is_floating_point():
        return _median_dim(x, dim, keepdim)
    infer(tracer(), aten.nanmedian.dim, (x, dim, keepdim), {})
    if x.dim() == 0:
        return _sort(x)
    if x.numel() == 0:
        return NotImplemented
    values, places = _sort(x, dim)
    numbers = (~x.isnan()).sum(dim, keepdim=True)
    middle = ((numbers - 1).clamp(min=0)) // 2
    found = tuple(item.gather(dim, middle) for item in (values, places))
    return found if keepdim else tuple(item.squeeze(dim) for item in found)


_ROUNDED = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}


def _quantile(name: str) -> Callable[..., Any]:
    """Return the rule of `quantile` or `nanquantile`: elements of the sorted tensor at the
    positions given by `q`, or interpolated between two of them."""

    def rule(
        x: Any,
        q: Any,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
    ) -> Any:
        q = _quantiles(name, x, q, interpolation)
        if dim is not None:
            _check_dim(x, dim)
        rows = x.reshape(-1) if dim is None or x.dim() == 0 else x.movedim(dim, -1)
        values = _sort(rows)[0]
        if name == "nanquantile":
            places = q * ((~values.isnan()).sum(-1, keepdim=True) - 1)
            places = places.masked_fill(places < 0, 0)
        else:
            last = values.size(-1) - 1
            places = (q * last).masked_fill(values.isnan().any(-1, keepdim=True), last)
        found = _at(values, places, interpolation)
        if keepdim and x.dim():
            ones = [1] * x.dim()
            found = found.reshape(*ones, -1) if dim is None else found.unsqueeze(dim % x.dim())
        return found.movedim(-1, 0).clone() if q.dim() else found.squeeze(-1)

    return rule


def _quantiles(name: str, x: Any, q: Any, interpolation: str) -> Any:
    """Return the requested quantiles as a tensor, after eager's checks."""
    if interpolation not in ("linear", "midpoint", *_ROUNDED):
        raise RuntimeError(
            f"{name}() interpolation must be one of linear, lower, higher, midpoint or nearest, "
            f"but got {interpolation}"
        )
    if x.numel() == 0:
        raise RuntimeError(f"{name}() input tensor must be non-empty")
    if x.dtype not in (torch.float32, torch.float64):
        raise RuntimeError(f"{name}() input tensor must be either float or double dtype")
    if not isinstance(q, torch.Tensor):
        if not 0 <= q <= 1:
            raise RuntimeError(f"{name}() q must be in the range [0, 1] but got {q}")
        return x.new_full((), q)
    if q.dim() > 1:
        raise RuntimeError(f"{name}() q must be a scalar or 1D tensor")
    if q.dtype != x.dtype:
        raise RuntimeError(f"{name}() q tensor must be same dtype as the input tensor")
    valid = (q >= 0) & (q <= 1)
    check_all(valid, "RuntimeError", "quantile() q values must be in the range [0, 1]")
    return q


def _at(values: Any, places: Any, interpolation: str) -> Any:
    """Return the elements of the last dim at these positions, which may be between two elements."""
    if interpolation in _ROUNDED:
        return values.gather(-1, _ROUNDED[interpolation](places).to(torch.int64))
    below = places.to(torch.int64)
    weight = torch.full_like(places, 0.5) if interpolation == "midpoint" else places - below
    above = values.gather(-1, places.ceil().to(torch.int64))
    return values.gather(-1, below).lerp(above, weight)


ORDERING: dict[Any, Any] = {
    aten.quantile.default: _quantile("quantile"),
    aten.quantile.scalar: _quantile("quantile"),
    aten.nanquantile.default: _quantile("nanquantile"),
    aten.nanquantile.scalar: _quantile("nanquantile"),
    aten.sort.default: _sort,
    aten.sort.stable: _sort_stable,
    aten.topk.default: _topk,
    aten.kthvalue.default: _kthvalue,
    aten.median.default: _of_all(_median_dim),
    aten.median.dim: _median_dim,
    aten.nanmedian.default: _of_all(_nanmedian_dim),
    aten.nanmedian.dim: _nanmedian_dim,
}
