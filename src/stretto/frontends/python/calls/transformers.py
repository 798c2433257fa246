"""torch's transformers: their layers are called as code of the user would call them.

So a layer may be a class of the user, and what torch decides by the content of a mask is not asked.
Eager PyTorch drops the padding of sequences where it can ("nested tensors"), so that its encoder
gives zeros there; so does a captured one. Where eager takes a fused kernel, which gives NaN for a
row of which all keys are masked, so does a captured program.
"""

# pyright: reportPrivateUsage=false
# what torch's modules ask of themselves has no public names

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import transformer

from stretto.frontends.python.source.rewrite import rewritten
from stretto.frontends.python.tracing.tracer import tracer


def _staged(forward: Any) -> Callable[..., Any]:
    """A function of torch, traced as one of the user."""
    return lambda *args, **kwargs: rewritten(forward)(*args, **kwargs)


def _is_causal(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Whether to take a mask for a causal one unseen. By itself torch would look at its content,
    only to take a faster kernel."""
    return is_causal is True


def _encoder(
    self: nn.TransformerEncoder,
    src: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    padding = src_key_padding_mask
    output = rewritten(nn.TransformerEncoder.forward)(self, src, mask, padding, is_causal)  # pyright: ignore[reportArgumentType]
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
        return nn.TransformerEncoderLayer.forward(self, src, *args, **kwargs)


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
    with _rows_of_nan(is_fused):
        return nn.MultiheadAttention.forward(self, query, key, value, **arguments)


_ARGUMENTS = (
    "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal",
)  # fmt: skip


def _is_fused(attention: nn.MultiheadAttention, x: Tensor, weights: Iterable[Tensor]) -> bool:
    """What the layers ask before they call their fused kernels."""
    state = tracer()
    state.names_read.add("is_grad_enabled")
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
    """What `nn.TransformerEncoder.forward` asks, but for the content of the mask."""
    state, first = tracer(), encoder.layers[0]
    state.names_read.add("is_grad_enabled")
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
