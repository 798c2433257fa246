"""Whole greedy decodes by transformers' own `generate`, as one program, token for token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import stretto
from tests.models.configs import TRANSFORMERS
from tests.sampling import sampled

TOKENS = 9


def model_of(name: str) -> Any:
    known = TRANSFORMERS[name]
    layers = {"n_layer": 1} if name == "gpt2" else {"num_hidden_layers": 1}
    model: Any = replace(known, sizes={**known.sizes, **layers}).make()
    settings = model.generation_config
    settings.pad_token_id, settings.eos_token_id, settings.disable_compile = 98, 98, True
    return model


def prompts(*sizes: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(5, 90, (1, size), generator=generator) for size in sizes]


def decoding(model: Any, **options: Any) -> Callable[..., Any]:
    def decode(ids: torch.Tensor) -> Any:
        return model.generate(ids, max_new_tokens=TOKENS, do_sample=False, **options)

    return decode


def check(decode: Callable[..., Any], *calls: torch.Tensor, backend: str = "interpreter") -> Any:
    fast = stretto.compile(decode, backend=backend)
    for ids in calls:
        wanted, found = decode(ids), fast(ids)
        assert found.dtype is wanted.dtype and torch.equal(found, wanted)
    return fast


CACHES: dict[str, dict[str, Any]] = {"growing": {}, "static": {"cache_implementation": "static"}}
CASES = [(name, cache) for name in ("gpt2", "llama") for cache in CACHES]


def test_prompts_of_any_length() -> None:
    fast = check(decoding(model_of("gpt2")), *prompts(5, 7, 3, 12))
    assert len(fast.signatures) == 2, fast.explain()


@pytest.mark.parametrize(("name", "cache"), sampled(CASES, [("llama", "static")]))
def test_a_token_that_ends_the_text(name: str, cache: str) -> None:
    """It is one that the model gives in the middle."""
    model = model_of(name)
    decode = decoding(model, **CACHES[cache])
    (ids,) = prompts(5)
    last = int(decode(ids)[0, ids.shape[1] + 3])
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = last
    assert decode(ids).shape[1] < ids.shape[1] + TOKENS
    check(decode, ids, backend="cpu")
