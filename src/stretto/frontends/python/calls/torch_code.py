"""torch functions that call functions or layers: these are called like user code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan as torch_scan
from torch.nn.modules import transformer
from torch.utils import _pytree as pytree

from stretto.frontends.python.tracing.tensor import Hooks
from stretto.frontends.python.tracing.tracer import tracer

# ---- torch's operators with functions as operands: `cond`, `while_loop`, `map` and `scan`.
#
# They become branches and loops. The functions named after them take the arguments of torch's
# public functions; the others take those of the operators in torch's graphs, where trees of tensors
# are flat.


def map_rows(f: Any, xs: Any, *args: Any) -> Any:
    """`map` of torch: apply `f` to each row of the tensors and stack the results."""
    tensors, spec = pytree.tree_flatten(xs)
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise RuntimeError(f"Mapped xs can only consist of tensors. Got xs {tensors}.")
    sizes = {tensor.shape[0] for tensor in tensors}
    if sizes == {0}:
        raise RuntimeError("Leading dimensions of mapped xs cannot be 0.")
    if len(sizes) > 1:
        shapes = [tensor.shape for tensor in tensors]
        raise RuntimeError(
            f"Leading dimensions of mapped xs must be consistent. Got shapes {shapes}."
        )
    made_spec: list[Any] = []

    def step(*row: Any) -> Any:
        made = Hooks.call(f, pytree.tree_unflatten(row, spec), *args)
        flat, *made_spec[:] = pytree.tree_flatten(made)
        return (), tuple(flat)

    _, stacked = _over_rows(step, (), tuple(tensors))
    return pytree.tree_unflatten(stacked, made_spec[0])


def map_flat(f: Any, xs: Sequence[Any], args: Sequence[Any] = ()) -> Any:
    """The operator that `map` becomes in a graph."""

    def step(*row: Any) -> Any:
        return (), tuple(Hooks.call(f, *row, *args))

    return _over_rows(step, (), tuple(xs))[1]


def scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    """`scan` of torch: apply `combine_fn` to a carried tree and each row of the tensors in `xs`,
    in order."""
    carried, carried_spec = pytree.tree_flatten(init)
    tensors, spec = pytree.tree_flatten(xs)
    if not tensors:
        return init, []
    dim = dim % tensors[0].dim()
    rows = [torch.movedim(tensor, dim, 0) for tensor in tensors]
    if any(tensor.shape[0] == 0 for tensor in rows):
        raise RuntimeError(
            "All xs leaves must at least have 'dim' number of dimensions and scan dimension > 0"
        )
    made_spec: list[Any] = []

    def step(*values: Any) -> Any:
        state = pytree.tree_unflatten(values[: len(carried)], carried_spec)
        row = pytree.tree_unflatten(values[len(carried) :], spec)
        state, made = Hooks.call(combine_fn, state, row)
        flat, *made_spec[:] = pytree.tree_flatten(made)
        return tuple(pytree.tree_leaves(state)), tuple(flat)

    rows = [torch.flip(row, [0]) for row in rows] if reverse else rows
    state, stacked = _over_rows(step, tuple(carried), tuple(rows))
    stacked = tuple(torch.flip(item, [0]) for item in stacked) if reverse else stacked
    if dim != 0 and _scan_moves_back():
        stacked = (torch.movedim(x, 0, dim) if dim < x.dim() else x for x in stacked)
    return (
        pytree.tree_unflatten(state, carried_spec),
        pytree.tree_unflatten(stacked, made_spec[0]),
    )


@cache
def _scan_moves_back() -> bool:
    """Return True if this version of torch puts the results of a scan along `dim`; older ones use
    dim 0."""
    return inspect.getsource(torch_scan).count("movedim") > 1


def scan_flat(
    combine_fn: Any, init: Sequence[Any], xs: Sequence[Any], additional_inputs: Sequence[Any] = ()
) -> Any:
    """The operator that `scan` becomes in a graph."""
    carried, extra = tuple(init), tuple(additional_inputs)

    def step(*values: Any) -> Any:
        made = tuple(Hooks.call(combine_fn, *values, *extra))
        return made[: len(carried)], made[len(carried) :]

    state, stacked = _over_rows(step, carried, tuple(xs))
    return (*state, *stacked)


Step = Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]
"""Maps the carried values and a row of each tensor to the next carried values and a row of each
result."""


def _over_rows(
    step: Step, carried: tuple[Any, ...], tensors: tuple[torch.Tensor, ...]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Run `step` over the rows in a loop. Returns the last carried values, and the results
    stacked."""
    with tracer().transaction() as take_back:
        _, made = step(*carried, *(tensor[0] for tensor in tensors))
        count = len(made)
        take_back()
    arguments = (step, carried, tensors, [[] for _ in range(count)])
    return Hooks.own(_loop)(*arguments)


def _loop(step: Any, carried: Any, tensors: Any, results: Any) -> Any:
    """The loop of `_over_rows`. It is traced like a user function, so it becomes a loop of the
    Program."""
    for row in range(len(tensors[0])):
        carried, made = step(*carried, *[tensor[row] for tensor in tensors])
        for number in range(len(results)):
            results[number].append(made[number])
    return carried, tuple([torch.stack(result) for result in results])


def _inner(position: int) -> Callable[..., Any]:
    """Return a rule for an operator that only calls the function at a position with the arguments
    after it."""
    return lambda *args, **kwargs: Hooks.call(args[position], *args[position + 1 :])


def _under_grad_mode(enabled: bool, function: Any, *args: Any) -> Any:
    with torch.set_grad_enabled(enabled):
        return Hooks.call(function, *args)


def _under_autocast(
    device: str, dtype: Any, enabled: bool, cache: Any, function: Any, *args: Any
) -> Any:
    with torch.autocast(device, dtype, enabled, cache):
        return Hooks.call(function, *args)


def _invoke_subgraph(function: Any, name: Any, *args: Any) -> Any:
    return Hooks.call(function, *args)


_RULES: dict[str, Callable[..., Any]] = {
    "map_impl": map_flat,
    "scan": scan_flat,
    "invoke_subgraph": _invoke_subgraph,
    "tag_activation_checkpoint": _inner(0),
    "wrap": _inner(0),
    "wrap_activation_checkpoint": _inner(0),
    "wrap_with_autocast": _under_autocast,
    "wrap_with_set_grad_enabled": _under_grad_mode,
}
"""Operators of torch's graphs that call functions, by name, with their rules."""

OPERATORS: dict[Any, Callable[..., Any]] = {
    found: rule
    for name, rule in _RULES.items()
    if (found := getattr(torch.ops.higher_order, name, None)) is not None
}
"""The operators of `_RULES` that this version of torch has."""


# ---- torch's transformers: their layers are called like user code.
#
# So a layer may be a user class, and torch's checks of the content of a mask are skipped. The
# results are eager's: where eager drops the padding of sequences ("nested tensors"), the encoder
# gives zeros there; where eager takes a fused kernel, a row with all keys masked gives NaN.


# pyright: reportPrivateUsage=false
# the attributes of torch's modules that decide about fast paths are private


def _staged(forward: Any) -> Callable[..., Any]:
    """Return a rule that traces a torch function like a user function."""
    return lambda *args, **kwargs: Hooks.own(forward)(*args, **kwargs)


def _is_causal(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Return True if the caller declares a mask causal. torch would otherwise read its content,
    only to choose a faster kernel."""
    return is_causal is True


def _encoder(
    self: nn.TransformerEncoder,
    src: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    padding = src_key_padding_mask
    output = Hooks.own(nn.TransformerEncoder.forward)(self, src, mask, padding, is_causal)  # pyright: ignore[reportArgumentType]
    if padding is None or mask is not None or not _drops_padding(self, src):
        return output
    padded = torch.logical_not(torch.logical_not(padding))
    is_behind = (padded[:, 1:] >= padded[:, :-1]).all()
    dropped = output.new_zeros(1, 1, output.shape[-1])
    if self.norm is not None:
        dropped = self.norm(dropped)
    return torch.where((padded & is_behind).unsqueeze(-1), dropped, output)


def _layer(self: nn.TransformerEncoderLayer, src: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    attention = self.self_attn
    is_fused = _is_fused(attention, src, self.parameters()) and (
        self.activation_relu_or_gelu and self.norm1.eps == self.norm2.eps
    )
    hooks = (len(m._forward_hooks) + len(m._forward_pre_hooks) for m in self.modules())
    with _rows_of_nan(bool(is_fused) and not any(hooks)):
        return Hooks.own(nn.TransformerEncoderLayer.forward)(self, src, *args, **kwargs)


def _attention(
    self: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *args: Any,
    **kwargs: Any,
) -> Any:
    arguments = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
    masks = (arguments.get(name) for name in ("key_padding_mask", "attn_mask"))
    added = any(mask is not None and mask.is_floating_point() for mask in masks)
    is_fused = query is key is value and not added and self.bias_k is None
    is_fused = is_fused and not self.add_zero_attn and _is_fused(self, query, self.parameters())
    with _rows_of_nan(is_fused or tracer().masks_to_nan):  # a fused layer has no other attention
        return Hooks.own(nn.MultiheadAttention.forward)(self, query, key, value, **arguments)


_ARGUMENTS = (
    "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal",
)  # fmt: skip


def _is_fused(attention: nn.MultiheadAttention, x: Tensor, weights: Iterable[Tensor]) -> bool:
    """Return True under the conditions on which the layers call their fused kernels."""
    state = tracer()
    state.heap.outside.log.native(torch.is_grad_enabled)
    if not state.fast_path or x.dim() != 3 or attention.training or torch.is_autocast_enabled():
        return False
    if (
        not attention.batch_first
        or attention._parameters.get("in_proj_bias") is None
        or attention.num_heads % 2
    ):
        return False
    graded = torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)
    return attention._qkv_same_embed_dim and not graded


@contextmanager
def _rows_of_nan(wanted: bool) -> Generator[None]:
    state = tracer()
    before, state.masks_to_nan = state.masks_to_nan, wanted
    try:
        yield
    finally:
        state.masks_to_nan = before


def _drops_padding(encoder: nn.TransformerEncoder, src: Tensor) -> bool:
    """Return True under the conditions of `nn.TransformerEncoder.forward` for dropping padding,
    except for the content of the mask."""
    state, first = tracer(), encoder.layers[0]
    state.heap.outside.log.native(torch.is_grad_enabled)
    wanted = getattr(encoder, "use_nested_tensor", False) and not first.training
    if not wanted or not state.fast_path or src.dim() != 3 or torch.is_autocast_enabled():
        return False
    return not (torch.is_grad_enabled() and any(w.requires_grad for w in first.parameters()))


RULES: dict[Any, Callable[..., Any]] = {
    nn.Transformer.forward: _staged(nn.Transformer.forward),
    nn.TransformerEncoder.forward: _encoder,
    nn.TransformerDecoder.forward: _staged(nn.TransformerDecoder.forward),
    nn.TransformerEncoderLayer.forward: _layer,
    nn.MultiheadAttention.forward: _attention,
    transformer._detect_is_causal_mask: _is_causal,
}
