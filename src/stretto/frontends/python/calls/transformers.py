"""torch's transformers: their layers are called as code of the user would call them.

So a layer may be a class of the user, and what torch decides by the content of a mask is not asked.
Eager PyTorch drops the padding of sequences where it can ("nested tensors"), so that its encoder
gives zeros there; so does a captured one.
"""

from __future__ import annotations

from collections.abc import Callable
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
    transformer._detect_is_causal_mask: _is_causal,  # pyright: ignore[reportPrivateUsage]
}
