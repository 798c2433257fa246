"""torch's transformers and their attention, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stretto
from tests.frontends.python.checks import assert_same, check

attend = F.scaled_dot_product_attention
Q, K, V = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 6)
FLAGS, ADDED = torch.rand(5, 7) > 0.3, torch.randn(5, 7)
FLAGS[2], ADDED[1] = False, -inf
"""Of a row in each, all keys are masked."""

ATTENTIONS: dict[str, Callable[..., Any]] = {
    "plain": lambda q, k, v, flags, added: attend(q, k, v),
    "causal": lambda q, k, v, flags, added: attend(q, k, v, is_causal=True),
    "more rows than keys": lambda q, k, v, *_: attend(k, q, v[:, :, :5], is_causal=True),
    "flags": lambda q, k, v, flags, added: attend(q, k, v, flags),
    "flags of keys": lambda q, k, v, flags, added: attend(q, k, v, flags[:1, None]),
    "added": lambda q, k, v, flags, added: attend(q, k, v, added),
    "scale": lambda q, k, v, flags, added: attend(q, k, v, scale=-0.3),
    "groups": lambda q, k, v, *_: attend(q, k[:, :2], v[:, :2], enable_gqa=True),
    "one batch": lambda q, k, v, flags, added: attend(q, k[:1], v[:1]),
    "a matrix": lambda q, k, v, flags, added: attend(q[0, 0], k[0, 0], v[0, 0]),
    "mask and causal": lambda q, k, v, *_: attend(q, k, k, _[0], is_causal=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", sorted(ATTENTIONS))
def test_attention(name: str, dtype: torch.dtype) -> None:
    operands = [x.to(dtype) for x in (Q, K, V)]
    check(ATTENTIONS[name], (*operands, FLAGS, ADDED.to(dtype)))


def test_halves_are_computed_in_f32() -> None:
    operands = [x.bfloat16() for x in (Q, K, V)]
    check(ATTENTIONS["flags"], (*operands, FLAGS, ADDED.bfloat16()))


def test_a_mask_beside_is_causal_is_refused_as_in_eager() -> None:
    with pytest.raises(RuntimeError, match="Explicit attn_mask should not be set"):
        check(lambda q, k, v, m: attend(q, k, v, m, is_causal=True), (Q, K, V, FLAGS))


X, Y = torch.randn(3, 5, 8), torch.randn(3, 7, 8)
PADDING = torch.tensor([[False] * 7, [False] * 5 + [True] * 2, [False] * 6 + [True]])


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_modules_of_attention(options: dict[str, bool]) -> None:
    module = nn.MultiheadAttention(8, 2, batch_first=True, **options).eval()

    def run(x: Tensor, y: Tensor, padding: Tensor, masked: Tensor) -> Any:
        return (
            module(x, x, x),
            module(x, y, y, need_weights=False),
            module(x, y, y, average_attn_weights=False, key_padding_mask=padding),
            module(x, y, y, attn_mask=masked, key_padding_mask=padding, need_weights=False),
            module(x[0], y[0], y[0], attn_mask=masked),
        )

    masked = torch.zeros(5, 7, dtype=torch.bool)
    masked[1, 2:] = True
    check(run, (X, Y, PADDING, masked))


def test_keys_and_values_of_other_widths() -> None:
    module = nn.MultiheadAttention(8, 2, kdim=3, vdim=4, bias=False).eval()
    check(lambda x, k, v: module(x, k, v), (X, torch.randn(7, 5, 3), torch.randn(7, 5, 4)))


def encoder(**options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8)).eval()


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm_first", [True, False])
def test_encoders_and_decoders(norm_first: bool) -> None:
    """A causal mask is not looked for by the content of the mask."""
    stack = encoder(norm_first=norm_first, activation="gelu")
    layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    decoder = nn.TransformerDecoder(layer, 2).eval()
    whole = nn.Transformer(8, 2, 1, 1, 16, batch_first=True, norm_first=norm_first).eval()

    def run(x: Tensor, y: Tensor, mask: Tensor, padding: Tensor) -> Any:
        return (
            stack(x),
            stack(x, mask=mask),
            stack(x, mask=mask, is_causal=True),
            decoder(x, y, tgt_mask=mask, memory_key_padding_mask=padding),
            whole(y, x, tgt_mask=whole.generate_square_subsequent_mask(5)),
        )

    check(run, (X, Y, nn.Transformer.generate_square_subsequent_mask(5), PADDING))


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("graded", [True, False])
def test_padding_is_zero_where_eager_drops_it(graded: bool) -> None:
    """Without gradients eager takes nested tensors, if the padding is behind the sequences."""
    stack = encoder()
    compiled = stretto.compile(
        lambda y, padding: stack(y, src_key_padding_mask=padding), backend="interpreter"
    )
    for padding in (PADDING, PADDING.flip(1)):
        with torch.set_grad_enabled(graded):
            expected = stack(Y, src_key_padding_mask=padding).detach()
            assert_same(compiled(Y, padding), expected)


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("graded", [True, False])
def test_sequences_of_padding_alone(graded: bool) -> None:
    """NaN where eager takes fused kernels, which it does without gradients, else numbers."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    whole = nn.MultiheadAttention(8, 2, batch_first=True).eval()

    def run(x: Tensor, padding: Tensor, added: Tensor) -> Any:
        return (
            layer(x, src_key_padding_mask=padding),
            whole(x, x, x, key_padding_mask=padding, need_weights=False)[0],
            whole(x, x, x, key_padding_mask=added, need_weights=False)[0],
            whole(x, x + 0, x, padding, False)[0],
            whole(x, x, x, padding, True)[0],
        )

    padding = PADDING.clone()
    padding[0] = True
    added = torch.zeros(3, 7).masked_fill(padding, -inf)
    with torch.set_grad_enabled(graded):
        expected = [item.detach() for item in run(Y, padding, added)]
        found = stretto.compile(run, backend="interpreter")(Y, padding, added)
    assert_same(list(found), expected)
    assert bool(expected[0][0].isnan().all()) is not graded


class Gated(nn.TransformerEncoderLayer):
    """A layer with control flow."""

    def forward(self, src: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        changed = super().forward(src, *args, **kwargs)
        if changed.sum() > 0:
            return changed
        return src - changed


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_layers_of_the_user_are_traced() -> None:
    stack = nn.TransformerEncoder(Gated(8, 2, 16, batch_first=True), 2, norm=None).eval()
    check(lambda x: stack(x), (X,), (-X,), (2 * X,))
