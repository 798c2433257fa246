"""The programs whose inputs change their size with every call, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..models.entry import generator
from ..models.weights import seed_weights

SEED = 0


@dataclass(frozen=True, slots=True)
class Stream:
    """A program and the sizes of its calls, which are drawn evenly from `low` to `high`.

    make: returns the module in eval mode; if `small`, one that takes a few seconds.
    inputs: those of a call with one size. dynamic: per input, the dims that have the
    size.
    """

    name: str
    summary: str
    low: int
    high: int
    make: Callable[[bool], nn.Module]
    inputs: Callable[[nn.Module, int, torch.Generator], tuple[Tensor, ...]]
    dynamic: tuple[Mapping[int, str], ...]

    def sizes(self, calls: int, small: bool) -> list[int]:
        high = min(self.high, self.low + 40) if small else self.high
        drawn = torch.randint(self.low, high + 1, (calls,), generator=generator(SEED))
        return [int(size) for size in drawn]


class Tagger(nn.Module):
    """Words [T] -> scores [T, tags]: embedding, two LSTM layers, a linear layer."""

    def __init__(self, words: int, hidden: int, tags: int) -> None:
        super().__init__()
        self.words = words
        self.embedding = nn.Embedding(words, hidden)
        self.lstm = nn.LSTM(hidden, hidden, num_layers=2)
        self.head = nn.Linear(hidden, tags)

    def forward(self, words: Tensor) -> Tensor:
        x, _ = self.lstm(self.embedding(words))
        return self.head(x)


def _tagger(small: bool) -> nn.Module:
    return Tagger(50, 16, 5) if small else Tagger(10_000, 256, 50)


def _words(module: nn.Module, size: int, source: torch.Generator) -> tuple[Tensor, ...]:
    assert isinstance(module, Tagger | Encoder)
    return (torch.randint(0, module.words, (size,), generator=source),)


class EncoderLayer(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        length, hidden = x.shape
        parts = self.qkv(x).view(length, 3, self.heads, hidden // self.heads)
        q, k, v = parts.permute(1, 2, 0, 3).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v)
        x = self.norms[0](x + self.out(attended.transpose(0, 1).reshape(length, hidden)))
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    """Words [T] -> [T, hidden]: BERT with learnt positions."""

    def __init__(self, words: int, hidden: int, heads: int, layers: int, longest: int) -> None:
        super().__init__()
        self.words = words
        self.embedding = nn.Embedding(words, hidden)
        self.positions = nn.Embedding(longest, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.ModuleList(EncoderLayer(hidden, heads) for _ in range(layers))

    def forward(self, words: Tensor) -> Tensor:
        places = torch.arange(words.shape[0])
        x = self.norm(self.embedding(words) + self.positions(places))
        for layer in self.layers:
            x = layer(x)
        return x


def _encoder(small: bool) -> nn.Module:
    return Encoder(50, 16, 2, 2, 512) if small else Encoder(30_522, 512, 8, 4, 512)


class DecoderLayer(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))

    def forward(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        """x [1, hidden], cache [2, heads, n, hidden / heads] -> x, and a cache of n + 1."""
        hidden = x.shape[1]
        parts = self.qkv(self.norms[0](x)).view(3, self.heads, 1, hidden // self.heads)
        cache = torch.cat([cache, parts[1:]], dim=2)
        attended = F.scaled_dot_product_attention(parts[0], cache[0], cache[1])
        x = x + self.out(attended.reshape(1, hidden))
        return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh")), cache


class DecodeStep(nn.Module):
    """GPT-2: a token [1] and caches [layers, 2, heads, n, d] -> scores [words], longer caches."""

    def __init__(self, words: int, hidden: int, heads: int, layers: int, longest: int) -> None:
        super().__init__()
        self.words, self.heads, self.hidden = words, heads, hidden
        self.embedding = nn.Embedding(words, hidden)
        self.positions = nn.Embedding(longest, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.ModuleList(DecoderLayer(hidden, heads) for _ in range(layers))

    def forward(self, token: Tensor, caches: Tensor) -> tuple[Tensor, Tensor]:
        place = caches.shape[3]
        x = self.embedding(token) + self.positions.weight[place]
        longer = list[Tensor]()
        for layer, cache in zip(self.layers, caches.unbind(0), strict=True):
            x, cache = layer(x, cache)
            longer.append(cache)
        return F.linear(self.norm(x), self.embedding.weight)[0], torch.stack(longer)


def _step(small: bool) -> nn.Module:
    return DecodeStep(50, 16, 2, 2, 600) if small else DecodeStep(50_257, 768, 12, 12, 600)


def _cache(module: nn.Module, size: int, source: torch.Generator) -> tuple[Tensor, ...]:
    assert isinstance(module, DecodeStep)
    shape = (len(module.layers), 2, module.heads, size, module.hidden // module.heads)
    token = torch.randint(0, module.words, (1,), generator=source)
    return token, torch.randn(shape, generator=source)


class ConvNet(nn.Module):
    """Images [B, 3, H, W] -> scores [B, 10]: four convolutions, a mean over the image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        widths = [3, channels, 2 * channels, 4 * channels, 4 * channels]
        self.convs = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=2 if number in (1, 2) else 1, padding=1)
            for number, (before, after) in enumerate(pairwise(widths))
        )
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.relu(conv(x))
        return self.head(x.mean(dim=(2, 3)))


def _conv_net(small: bool) -> nn.Module:
    return ConvNet(8 if small else 32)


def _image(module: nn.Module, size: int, source: torch.Generator) -> tuple[Tensor, ...]:
    return (torch.randn(1, 3, size, size, generator=source),)


def _images(module: nn.Module, size: int, source: torch.Generator) -> tuple[Tensor, ...]:
    return (torch.randn(size, 3, 32, 32, generator=source),)


_STREAMS = (
    Stream("tagger", "LSTM tagger, 1 to 512 words", 1, 512, _tagger, _words, ({0: "n"},)),
    Stream("bert", "BERT-small, 1 to 512 words", 1, 512, _encoder, _words, ({0: "n"},)),
    Stream(
        "decode",
        "a step of GPT-2-small's decoder, 1 to 512 in the cache",
        *(1, 512, _step, _cache, ({}, {3: "n"})),
    ),
    Stream(
        "images",
        "four convolutions, images of 32 x 32 to 224 x 224",
        *(32, 224, _conv_net, _image, ({2: "n", 3: "n"},)),
    ),
    Stream(
        "batches", "four convolutions, batches of 1 to 64", 1, 64, _conv_net, _images, ({0: "n"},)
    ),
)
STREAMS: dict[str, Stream] = {stream.name: stream for stream in _STREAMS}


def made(stream: Stream, small: bool) -> nn.Module:
    """Return the module of a stream, in eval mode, with its weights."""
    module = stream.make(small)
    seed_weights(module, SEED)
    return module.eval()
