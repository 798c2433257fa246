"""Attention, sparse distributions and sequence labels of small packages."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.outside.registry import Case, program


@program("x-transformers")
def x_transformer() -> Case:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, rotary_pos_emb=True)
    model = TransformerWrapper(num_tokens=30, max_seq_len=32, attn_layers=layers).eval()
    first, second = torch.randint(0, 30, (1, 6)), torch.randint(0, 30, (2, 9))
    return Case(model, (first,), (second,))


@program("x-transformers")
def x_transformer_generates() -> Case:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, use_rmsnorm=True)
    net = TransformerWrapper(num_tokens=30, max_seq_len=32, attn_layers=layers)
    model = AutoregressiveWrapper(net).eval()

    def generated(prompt: Tensor) -> Tensor:
        return model.generate(prompt, 5, temperature=0.0, cache_kv=True)

    first, second = torch.randint(0, 30, (1, 6)), torch.randint(0, 30, (1, 9))
    return Case(generated, (first,), (second,), model)


@program("entmax")
def sparsemax() -> Case:
    from entmax import sparsemax

    def attended(scores: Tensor, values: Tensor) -> Tensor:
        return sparsemax(scores, dim=-1) @ values

    first = (torch.randn(3, 6), torch.randn(6, 4))
    return Case(attended, first, (torch.randn(5, 9), torch.randn(9, 4)))


@program("entmax")
def entmax_losses() -> Case:
    from entmax import entmax15, entmax15_loss

    def loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return entmax15(logits, dim=-1, k=4), entmax15_loss(logits, labels)

    first = (torch.randn(3, 6), torch.randint(0, 6, (3,)))
    return Case(loss, first, (torch.randn(5, 9), torch.randint(0, 9, (5,))))


@program("entmax")
def entmax_by_bisection() -> Case:
    from entmax import entmax_bisect

    def weights(scores: Tensor, alpha: Tensor) -> Tensor:
        return entmax_bisect(scores, alpha, dim=-1, n_iter=20)

    first = (torch.randn(3, 6), torch.tensor([[1.3], [1.5], [2.0]]))
    return Case(weights, first, (torch.randn(2, 9), torch.tensor([[1.2], [1.7]])))


def _emissions(steps: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    mask = torch.arange(steps)[:, None] < torch.randint(2, steps + 1, (rows,))
    mask[:, 0] = True
    return torch.randn(steps, rows, 4), torch.randint(0, 4, (steps, rows)), mask


@program("pytorch-crf")
def crf_likelihood() -> Case:
    from torchcrf import CRF

    return Case(CRF(4), _emissions(5, 2), _emissions(8, 3))


@program("pytorch-crf")
def crf_decoding() -> Case:
    from torchcrf import CRF

    crf = CRF(4)

    def decoded(emissions: Tensor, mask: Tensor) -> Any:
        return crf.decode(emissions, mask)

    (a, _, b), (c, _, d) = _emissions(5, 2), _emissions(8, 3)
    return Case(decoded, (a, b), (c, d), crf)


@program("local-attention")
def local_attention() -> Case:
    from local_attention import LocalAttention

    layer = LocalAttention(window_size=4, causal=True, dim=8, autopad=True).eval()

    def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return layer(q, k, v)

    first, second = (tuple(torch.randn(1, 2, n, 8) for _ in range(3)) for n in (8, 13))
    return Case(attended, first, second, layer)


@program("rotary-embedding-torch")
def rotary_positions() -> Case:
    from rotary_embedding_torch import RotaryEmbedding

    rotary = RotaryEmbedding(dim=8)

    def rotated(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rotary.rotate_queries_with_cached_keys(q, k)

    first = (torch.randn(1, 2, 3, 8), torch.randn(1, 2, 6, 8))
    return Case(rotated, first, (torch.randn(1, 2, 4, 8), torch.randn(1, 2, 9, 8)))


@program("vector-quantize-pytorch")
def vector_quantiser() -> Case:
    from vector_quantize_pytorch import VectorQuantize

    return _quantised(VectorQuantize(dim=8, codebook_size=6, decay=0.8))


@program("vector-quantize-pytorch")
def residual_quantiser() -> Case:
    from vector_quantize_pytorch import ResidualVQ

    return _quantised(ResidualVQ(dim=8, num_quantizers=2, codebook_size=6).eval())


@program("vector-quantize-pytorch")
def finite_scalar_quantiser() -> Case:
    from vector_quantize_pytorch import FSQ

    return _quantised(FSQ(levels=[5, 4, 3], dim=8).eval())


def _quantised(model: nn.Module) -> Case:
    return Case(model, (torch.randn(1, 6, 8),), (torch.randn(2, 9, 8),))


@program("einops")
def einops_mixer() -> Case:
    from einops import pack, rearrange, reduce, repeat, unpack

    mix = nn.Linear(12, 12)

    def mixed(image: Tensor, extra: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        patches = rearrange(image, "b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2)
        packed, shapes = pack([patches, repeat(extra, "d -> b d", b=len(image))], "b * d")
        packed = packed + mix(packed)
        patches, extra = unpack(packed, shapes, "b * d")
        return patches, extra, reduce(packed, "b n d -> b d", "max")

    first = (torch.rand(1, 3, 4, 6), torch.randn(12))
    return Case(mixed, first, (torch.rand(2, 3, 8, 4), torch.randn(12)), mix)
