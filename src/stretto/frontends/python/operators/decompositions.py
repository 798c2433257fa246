"""The operators that are kept, that have a rule, and that torch's tables decompose.

Operators that a kernel family computes directly are kept, so that their structure survives
(linear, normalisations, pools). The rest is lowered to the core ATen set.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions

from stretto.frontends.python.operators import replacements
from stretto.frontends.python.operators.checks import check_classes, eager_refusal, infer
from stretto.frontends.python.operators.draws import DROPOUTS
from stretto.frontends.python.operators.functional import overwrite
from stretto.frontends.python.operators.replacements import GROUPS as GROUPS
from stretto.frontends.python.operators.replacements import ORDERING as ORDERING
from stretto.frontends.python.operators.replacements import QUANTIZED as QUANTIZED
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import Storage, StorageState, TracedTensor
from stretto.frontends.python.tracing.tracer import data_dependent_shape, tracer
from stretto.frontends.python.values.data_dependent_sizes import is_decided
from stretto.frontends.python.values.raises import check
from stretto.frontends.python.values.scalars import is_number
from stretto.ir.types import DType

aten = torch.ops.aten


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions into core ATen that are written in Python."""
    return dict(core_aten_decompositions())


def _copy_(target: Any, source: Any, non_blocking: bool = False) -> Any:
    overwrite(target, source)
    return target


def _fill_(target: Any, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        refused = eager_refusal(aten.fill_.Scalar, (target, value), {})
        if refused is not None:
            raise refused
        value = aten.full.default([], value, dtype=target.dtype)
    elif value.dim():
        raise RuntimeError(
            "fill_ only supports 0-dimension value tensor but got tensor with "
            f"{value.dim()} dimensions."
        )
    elif value.is_floating_point() and DType.from_torch(target.dtype).is_integer:
        limits = torch.iinfo(target.dtype)
        fits = torch.logical_and(value >= limits.min, value <= limits.max)
        message = f"value cannot be converted to type {target.dtype} without overflow"
        check(fits, "RuntimeError", message)
    overwrite(target, value)
    return target


def _zero_(target: Any) -> Any:
    return _fill_(target, 0)


def _as_strided_in_place(value: Any, size: Any, stride: Any, offset: int | None = None) -> Any:
    """Accept the last step of pooling in eager PyTorch for channels-last images, which only
    changes the strides of dims of one element; refuse any other reshape in place."""
    shape = list(value.shape)
    same = all(n == 1 or a == b for n, a, b in zip(shape, stride, value.stride(), strict=False))
    if shape == list(size) and same and offset in (None, value.storage_offset()):
        return value
    return _reshape_inplace(value)


def _reshape_inplace(*args: Any, **kwargs: Any) -> Any:
    fail(
        "this operator changes the shape of a tensor in place",
        "use the out-of-place operator (unsqueeze instead of unsqueeze_, ...)",
    )


def _split_at_values(*args: Any, **kwargs: Any) -> Any:
    if not any(isinstance(item, TracedTensor) for item in args[1:]):
        return NotImplemented
    raise data_dependent_shape()


def _lift_fresh(value: torch.Tensor) -> Any:
    """Return a tensor literal of the user's code as a traced value."""
    if isinstance(value, TracedTensor):
        return value
    made = _lifted(value)
    tracer().note_arrays(value, made)
    return made


def _lifted(value: torch.Tensor) -> TracedTensor:
    state = tracer()
    if value.numel() == 1 and value.dim() == 0:
        with state.native():
            number = value.item()
        dtype = state.type_of(value).dtype
        if not isinstance(number, complex):
            with state.faking():
                fake = torch.empty((), dtype=value.dtype, device=value.device)
            return state.fresh(state.literal(number, dtype), fake)
    constant = state.promote(value, guarded=False)
    storage = Storage(StorageState(state.current(constant.memory)), state.scope, constant.fake)
    return TracedTensor(constant.fake, storage)


def _clone(value: Any, *, memory_format: Any = None, device: Any = None) -> Any:
    """Return a copy: the same value in its own storage."""
    state = tracer()
    traced = value if isinstance(value, TracedTensor) else state.promote(value)
    with state.faking():
        fake = aten.clone.default(traced.fake, memory_format=memory_format)
        if device is not None:
            fake = aten._to_copy.default(fake, device=device)
    state.type_of(fake)
    made = state.fresh(state.read(traced), fake, traced.number)
    made.memory.any_layout = traced.memory.any_layout
    return made


def _view_as_dtype(value: Any, dtype: Any) -> Any:
    return aten.alias.default(value) if dtype == value.dtype else NotImplemented


def _scalar_tensor(value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return the tensor that torch's decompositions make of a Python number."""
    return aten.full.default([], value, dtype=dtype, device=device)


def _zeros(fill: float) -> Callable[..., Any]:
    def rule(
        size: Any, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any
    ) -> Any:
        dtype = dtype or torch.get_default_dtype()
        value = bool(fill) if dtype is torch.bool else fill
        value = int(fill) if not dtype.is_floating_point and dtype is not torch.bool else value
        made = aten.full.default(size, value, dtype=dtype, device=device)
        if memory_format in (None, torch.contiguous_format):
            return made
        return _clone(made, memory_format=memory_format)

    return rule


def _like(fill: float | None) -> Callable[..., Any]:
    """Return the rule for a tensor like another one, including its strides."""
    made = _new(fill)

    def rule(like: Any, *args: Any, memory_format: Any = None, **options: Any) -> Any:
        value = made(like, list(like.shape), *args, **options)
        state = tracer()
        source = like if isinstance(like, TracedTensor) else state.promote(like)
        with state.faking():
            wanted = memory_format or torch.preserve_format
            fake = aten.empty_like.default(source.fake, dtype=value.dtype, memory_format=wanted)
        any_layout = source.memory.any_layout and wanted is torch.preserve_format
        if fake.stride() == value.fake.stride() and not any_layout:
            return value
        strided = state.fresh(state.read(value), fake, value.number)
        strided.memory.any_layout = any_layout
        return strided

    return rule


def _new(fill: float | None) -> Callable[..., Any]:
    def rule(
        like: Any, size: Any, *args: Any, dtype: Any = None, device: Any = None, **_: Any
    ) -> Any:
        dtype, device = dtype or like.dtype, device or like.device
        value = args[0] if fill is None else fill
        if dtype is not torch.bool and fill is not None:
            value = float(fill) if dtype.is_floating_point else int(fill)
        return aten.full.default(size, value, dtype=dtype, device=device)

    return rule


def batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any,
    training: bool, momentum: Any, eps: float, cudnn: bool = False,
) -> Any:  # fmt: skip
    """Return (x - mean) / sqrt(var + eps) * weight + bias, per channel. momentum may be known only
    at run time."""
    by_data = not training and mean is not None and any(map(is_decided, x.shape))
    if by_data and mean is not None and x.shape[1] != mean.shape[0]:
        raise RuntimeError(f"running_mean should contain {x.shape[1]} elements")
    if not by_data:
        function = aten.batch_norm.default
        infer(tracer(), function, (x, weight, bias, mean, var, training, 0.1, eps, cudnn), {})
    if not by_data and x.numel() == 0:  # eager accepts any rank here, and updates no statistic
        return _clone(x)
    if training or mean is None or var is None:
        mean, var = _batch_statistics(x, mean, var, momentum if training else 0.0)
    shape = [1, -1] + [1] * (x.dim() - 2)
    scale = torch.rsqrt(var + eps)
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale
    if bias is not None:
        shift = shift + bias
    return x * scale.reshape(shape).to(x.dtype) + shift.reshape(shape).to(x.dtype)


def _batch_statistics(x: Any, mean: Any, var: Any, momentum: Any) -> tuple[Any, Any]:
    """Return mean and variance of the batch; the running ones move toward them by `momentum`."""
    if x.dtype.itemsize == 2:
        x = x.float()  # the variance may leave the range of F16
    dims = [dim for dim in range(x.dim()) if dim != 1]
    batch_mean, batch_var = x.mean(dims), x.var(dims, correction=0)
    if mean is not None and (isinstance(momentum, TracedTensor) or momentum):
        mean.copy_(mean * (1 - momentum) + batch_mean * momentum)
        var.copy_(var * (1 - momentum) + x.var(dims, correction=1) * momentum)
    return batch_mean, batch_var


def _softmax_backward(grad: Any, output: Any, dim: int, input_dtype: Any) -> Any:
    """Compute in the order of ATen's kernel; torch's decomposition multiplies before it
    subtracts."""
    total = aten.sum.dim_IntList(grad * output, [dim], True)
    return ((grad - total) * output).to(input_dtype)


def _flag_to_the_power(flags: Any, exponent: Any) -> Any:
    """Return a bool, as ATen's kernel does; torch's shape rule gives an integer."""
    if flags.dtype is not torch.bool or not isinstance(exponent, bool):
        return NotImplemented
    return _clone(flags) if exponent else torch.ones_like(flags)


def _integers_to_the_power(base: Any, exponent: Any) -> Any:
    """Refuse integers to the power of a negative Python int; with a tensor exponent they are
    allowed. A traced int looks like a tensor."""
    is_int = is_number(exponent) and not exponent.dtype.is_floating_point
    if is_int and exponent.dtype == base.dtype == torch.bool:
        return base | torch.logical_not(exponent)
    if is_int and not (base.dtype.is_floating_point or base.dtype.is_complex):
        message = "Integers to negative integer powers are not allowed."
        check(exponent >= 0, "RuntimeError", message)
    return NotImplemented


WHOLE_SCORES = 1024
"""An attention with fewer scores per head is decomposed, so that passes see its products."""
FEW_ROWS = 8
"""An attention with fewer rows is decomposed too, if the number of keys is known only at
the call."""


def _with_nan(
    query: Any, key: Any, value: Any, mask: Any, is_causal: bool, scale: float | None, groups: bool
) -> Any:
    """Return the attention with NaN in rows whose keys are all masked."""
    state = tracer()
    state.masks_to_nan = False
    try:
        made = aten.scaled_dot_product_attention.default(
            query, key, value, mask, 0.0, is_causal, scale=scale, enable_gqa=groups
        )
    finally:
        state.masks_to_nan = True
    hidden = torch.logical_not(mask) if mask.dtype == torch.bool else mask == -math.inf
    return made.masked_fill(hidden.all(-1, keepdim=True), math.nan)


def _has_many_scores(rows: Any, keys: Any) -> bool:
    """True if an attention is kept whole. A decoder's step has few rows, however many keys there
    are."""
    if all(type(size) is int for size in (rows, keys)):
        return rows * keys >= WHOLE_SCORES
    if is_decided(rows) and is_decided(keys):  # no kernel can size its buffer for the scores
        return False
    if tracer().splits_attention:
        return False
    return type(rows) is not int or rows >= FEW_ROWS


def _has_none(shape: Any) -> bool:
    """True if a tensor is known to have no elements. Data-dependent sizes are not tested: if they
    are 0, the products are empty too."""
    return any(type(size) is int and size == 0 for size in shape)


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Return scaled_dot_product_attention: recorded whole for many scores, else as two products
    and a softmax.

    If the query is empty, or an operand is and the sizes do not fit, the result is zeros in the
    shape of the query, as in eager. As there, a row whose keys are all masked gives zeros, and
    f16 and bf16 are computed in f32.
    """
    if dropout_p > 0:
        math_only = aten._scaled_dot_product_attention_math.default
        options = {"scale": scale, "enable_gqa": enable_gqa}
        return math_only(query, key, value, attn_mask, dropout_p, is_causal, **options)[0]
    if tracer().masks_to_nan and attn_mask is not None:
        return _with_nan(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    # Sizes of the call are compared here, as the operator itself does not compare them.
    fits = bool(query.shape[-1] == key.shape[-1]) and bool(key.shape[-2] == value.shape[-2])
    empty = any(_has_none(item.shape) for item in (query, key, value))
    if (empty and (not fits or _has_none(query.shape[:-1]))) or (
        is_causal and attn_mask is not None
    ):
        function = aten.scaled_dot_product_attention.default
        options: Any = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        refused = eager_refusal(function, (query, key, value, attn_mask), options)
        if refused is not None:
            raise refused
    if empty and (not fits or _has_none(query.shape[:-1])):
        return query.new_zeros([*query.shape[:-1], value.shape[-1]])
    if not empty and _has_many_scores(query.size(-2), key.size(-2)):
        return NotImplemented
    if enable_gqa:
        repeats = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    dtype = query.dtype
    if dtype.itemsize == 2:
        query, key, value = query.float(), key.float(), value.float()
    factor = 1 / math.sqrt(max(query.size(-1), 1)) if scale is None else scale
    scores = torch.matmul(query * factor, key.transpose(-2, -1))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(torch.logical_not(attn_mask), -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        rows, columns = (torch.arange(size) for size in scores.shape[-2:])
        scores = scores.masked_fill(columns > rows.unsqueeze(-1), -math.inf)
    weights = aten._safe_softmax.default(scores, -1)
    return torch.matmul(weights, value).to(dtype)


def _multilabel_margin_loss(input: Any, target: Any, reduction: int) -> Any:
    """Return a tensor without dims for a single row, as eager does; the operator's shape rule
    gives one dim."""
    if input.dim() > 1 or reduction != 0:
        return NotImplemented
    return aten.multilabel_margin_loss_forward.default(input, target, 1)


def _select_scatter(x: Any, src: Any, dim: int, index: Any) -> Any:
    """Replace the operator by an assignment if sizes decide the position, which is then checked."""
    if not isinstance(index, torch.SymInt):
        return NotImplemented
    made = x.clone()
    part = made.select(dim, index)
    if part.shape != src.shape:
        raise RuntimeError("expected src to have a size equal to the slice of self.")
    part.copy_(src)
    return made


def _one_hot(index: Any, classes: int) -> Any:
    check_classes(index, classes)
    return aten._to_copy.default(
        index.unsqueeze(-1) == torch.arange(classes, device=index.device), dtype=torch.int64
    )


_OF_BAGS = (
    *("scale_grad_by_freq", "mode", "sparse", "per_sample_weights", "include_last_offset"),
    "padding_idx",
)


def _embedding_bag(packet: Any) -> Callable[..., Any]:
    """Return a rule for two cases in which torch's shape rule differs from its kernel. A bfloat16
    result is computed in float32. If the offsets include the end of the last bag, which is the
    number of indices, the operator is called without it."""

    def rule(weight: Any, indices: Any, offsets: Any, *args: Any, **kwargs: Any) -> Any:
        options = dict(zip(_OF_BAGS, args, strict=False)) | kwargs
        infer(tracer(), packet.default, (weight, indices, offsets), options)
        if options.get("include_last_offset"):
            options["include_last_offset"] = False
            return packet.default(weight, indices, offsets[:-1], **options)
        if weight.dtype is not torch.bfloat16:
            return NotImplemented
        samples = options.get("per_sample_weights")
        if samples is not None:
            options["per_sample_weights"] = samples.float()
        found, *rest = packet.default(weight.float(), indices, offsets, **options)
        return found.to(torch.bfloat16), *rest

    return rule


def _reshaping_in_place(view: Any) -> Callable[..., Any]:
    """Return a rule for in-place forms of a view, applied to the latest result only: torch's own
    kernels use them so, as in a matrix-vector product within vmap. For an older tensor the
    shape would have to be restored whenever tracing returns to an earlier state."""

    def rule(x: Any, *dims: Any) -> Any:
        if not isinstance(x, TracedTensor):
            _reshape_inplace()
        last, memory = tracer().last_op(), x.memory
        if last is None or memory.made is not memory.state.base or memory.made not in last.results:
            _reshape_inplace()
        made = view(x, *dims)
        x.data = made
        x.fake, x.steps, x.cached = made.fake, made.steps, made.cached
        return x

    return rule


def _shift(packet: Any) -> Callable[..., Any]:
    """Return a rule for a shift that, like Python's operator, accepts flags together with a
    number, which torch's decomposition does not."""

    def rule(x: Any, other: Any) -> Any:
        dtype = torch.result_type(x, other)
        if dtype.is_floating_point or dtype is torch.bool:
            return NotImplemented
        other = other.to(dtype) if isinstance(other, torch.Tensor) else other
        kind = packet.Tensor if isinstance(other, torch.Tensor) else packet.Tensor_Scalar
        return kind(x.to(dtype), other)

    return rule


def _to_copy(
    x: Any, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any
) -> Any:
    if not isinstance(x, torch.Tensor):  # torch passes numbers within vmap
        return torch.tensor(x, dtype=dtype)
    if device is not None and torch.device(device).type != x.device.type:
        _check_device(torch.device(device))
    if dtype is None or dtype == x.dtype:
        return _clone(x, memory_format=memory_format, device=device)
    return NotImplemented


def _check_device(wanted: torch.device) -> None:
    """Fail for a tensor that is moved to another device than that of the program's tensors."""
    state = tracer()
    given = (*state.inputs.values(), *(constant.tensor for constant in state.constants.values()))
    devices = {tensor.device.type for tensor in given}
    if devices and wanted.type not in devices:
        fail(
            f"a tensor is moved to another device, '{wanted}'",
            "move it outside of the compiled function",
        )


def _softmax(kernel: Any) -> Callable[..., Any]:
    def rule(x: Any, dim: int, dtype: Any = None) -> Any:
        most = max(x.dim() - 1, 0)  # torch's shape rule does not check the dim
        if not -most - 1 <= dim <= most:
            places = f"(expected to be in range of [{-most - 1}, {most}], but got {dim})"
            raise IndexError(f"Dimension out of range {places}")
        return kernel(x if dtype is None else x.to(dtype), dim, False)

    return rule


def _each(rule: Callable[..., Any], *names: str) -> dict[Any, Callable[..., Any]]:
    """Return a table with one rule for all overloads of these operators except those with `out`."""
    packets = [getattr(aten, name) for name in names]
    overloads = [(packet, name) for packet in packets for name in packet.overloads()]
    return {getattr(p, name): rule for p, name in overloads if not name.endswith("out")}


RULES: dict[Any, Callable[..., Any]] = {
    **ORDERING,
    **GROUPS,
    **QUANTIZED,
    aten.copy_.default: _copy_,
    aten.fill_.Scalar: _fill_,
    aten.fill_.Tensor: _fill_,
    aten.zero_.default: _zero_,
    aten.is_same_size.default: lambda one, other: one.shape == other.shape,
    aten.view.dtype: _view_as_dtype,
    aten.lift_fresh.default: _lift_fresh,
    aten.lift.default: _lift_fresh,
    aten.clone.default: _clone,
    **DROPOUTS,
    aten._embedding_bag.default: _embedding_bag(aten._embedding_bag),
    aten._embedding_bag_forward_only.default: _embedding_bag(aten._embedding_bag_forward_only),
    aten.__lshift__.Scalar: _shift(aten.bitwise_left_shift),
    aten.__lshift__.Tensor: _shift(aten.bitwise_left_shift),
    aten.__rshift__.Scalar: _shift(aten.bitwise_right_shift),
    aten.__rshift__.Tensor: _shift(aten.bitwise_right_shift),
    aten.empty.memory_format: _zeros(0),
    aten.zeros.default: _zeros(0),
    aten.ones.default: _zeros(1),
    torch.ops.prims.scalar_tensor.default: _scalar_tensor,
    aten.zeros_like.default: _like(0),
    aten.ones_like.default: _like(1),
    aten.empty_like.default: _like(0),
    aten.full_like.default: _like(None),
    aten.new_zeros.default: _new(0),
    aten.new_ones.default: _new(1),
    aten.new_empty.default: _new(0),
    aten.new_full.default: _new(None),
    **replacements.CELLS,
    aten.batch_norm.default: batch_norm,
    aten.scaled_dot_product_attention.default: _attention,
    aten._softmax_backward_data.default: _softmax_backward,
    aten.pow.Tensor_Scalar: _flag_to_the_power,
    aten.pow.Tensor_Tensor: _integers_to_the_power,
    aten.pow_.Tensor: _integers_to_the_power,
    aten.multilabel_margin_loss_forward.default: _multilabel_margin_loss,
    aten.one_hot.default: _one_hot,
    aten.select_scatter.default: _select_scatter,
    aten._to_copy.default: _to_copy,
    aten.softmax.int: _softmax(aten._softmax.default),
    aten.log_softmax.int: _softmax(aten._log_softmax.default),
    **_each(_reshape_inplace, "t_", "transpose_", "resize_"),
    **_each(_reshaping_in_place(aten.squeeze), "squeeze_"),
    **_each(_reshaping_in_place(aten.unsqueeze), "unsqueeze_"),
    **_each(_reshape_inplace, "swapaxes_", "swapdims_"),
    aten.as_strided_.default: _as_strided_in_place,
    aten.set_.source_Tensor: _reshape_inplace,
    aten.tensor_split.tensor_indices_or_sections: _split_at_values,
}
