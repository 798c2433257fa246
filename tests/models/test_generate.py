"""Whole greedy decodes by transformers' own `generate`, as one program, token for token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stretto
from tests.models.configs import TRANSFORMERS
from tests.sampling import sampled

TOKENS = 9


def model_of(name: str) -> Any:
    model: Any = TRANSFORMERS[name].make()
    settings = model.generation_config
    settings.pad_token_id, settings.eos_token_id, settings.disable_compile = 98, 98, True
    return model


def prompts(*sizes: int, rows: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(5, 90, (rows, size), generator=generator) for size in sizes]


def decoding(model: Any, **options: Any) -> Callable[..., Any]:
    def decode(ids: torch.Tensor, **masks: torch.Tensor) -> Any:
        return model.generate(ids, max_new_tokens=TOKENS, do_sample=False, **options, **masks)

    return decode


def check(decode: Callable[..., Any], *calls: torch.Tensor, backend: str = "interpreter") -> Any:
    fast = stretto.compile(decode, backend=backend)
    for ids in calls:
        wanted, found = decode(ids), fast(ids)
        assert found.dtype is wanted.dtype and torch.equal(found, wanted)
    return fast


CACHES: dict[str, dict[str, Any]] = {"growing": {}, "static": {"cache_implementation": "static"}}
CASES = [(name, cache) for name in ("gpt2", "llama") for cache in CACHES]


@pytest.mark.parametrize(("name", "cache"), sampled(CASES, [("gpt2", "growing")]))
def test_prompts_of_any_length(name: str, cache: str) -> None:
    fast = check(decoding(model_of(name), **CACHES[cache]), *prompts(5, 7, 3, 12))
    assert len(fast.signatures) == 2, fast.explain()


@pytest.mark.parametrize(("name", "cache"), sampled(CASES, [("llama", "static")]))
def test_a_token_that_ends_the_text(name: str, cache: str) -> None:
    """It is one that the model gives in the middle."""
    model = model_of(name)
    decode = decoding(model, **CACHES[cache])
    (ids,) = prompts(5)
    model.generation_config.eos_token_id = int(decode(ids)[0, ids.shape[1] + 3])
    model.generation_config.pad_token_id = 0
    assert decode(ids).shape[1] < ids.shape[1] + TOKENS
    check(decode, ids, backend="cpu")


@pytest.mark.parametrize("name", sampled(["gpt2", "llama"], []))
def test_prompts_with_padding(name: str) -> None:
    model = model_of(name)
    decode = decoding(model)
    fast = stretto.compile(decode, backend="interpreter")
    for ids in prompts(5, 7, rows=2):
        for padding in (0, 2):
            mask = torch.ones_like(ids)
            mask[0, :padding] = 0
            wanted = decode(ids, attention_mask=mask)
            assert torch.equal(fast(ids, attention_mask=mask), wanted)
