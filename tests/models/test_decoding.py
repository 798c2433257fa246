"""Greedy decoding of models with an encoder as one call: a loop of the user around the decoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.models.configs import TRANSFORMERS, transformers
from tests.sampling import sampled

START = {"t5": 0, "whisper": 1}


@pytest.mark.parametrize("name", sampled(["t5", "whisper"], []))
def test_greedy_decoding_with_an_encoder(name: str) -> None:
    """The cache grows by one token in each round, until a token ends the loop."""
    source = TRANSFORMERS[name]
    model: Any = source.make()

    def decode(x: Tensor, stop: Tensor, limit: int) -> Tensor:
        encoded = model.get_encoder()(x)
        tokens = torch.full((x.shape[0], 1), START[name])
        cache = None
        for _ in range(limit):
            step = model(
                encoder_outputs=encoded,
                decoder_input_ids=tokens[:, -1:],
                past_key_values=cache,
                use_cache=True,
            )
            cache = step.past_key_values
            token = step.logits[:, -1].argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, token], 1)
            if (token == stop).all():
                break
        return tokens

    fast = stretto.compile(decode, backend="interpreter")
    x = source.args[0]
    never = torch.tensor(-1)
    with torch.no_grad():
        wanted = decode(x, never, 12)
        assert torch.equal(fast(x, never, 12), wanted)
        stop = wanted[0, 4]
        assert torch.equal(fast(x, stop, 12), decode(x, stop, 12))


@pytest.mark.parametrize("name", sampled(["mixtral", "mamba"], ["mamba"]))
def test_steps_with_what_the_step_before_left(name: str) -> None:
    """Experts with a cache of keys and values, and a cache of states, which has one size."""
    source = TRANSFORMERS[name]
    model: Any = source.make()
    kept = "cache_params" if name == "mamba" else "past_key_values"

    def steps(ids: Tensor) -> Tensor:
        step = model(ids[:, :4], use_cache=True)
        found = [step.logits]
        for i in range(4, 7):
            step = model(ids[:, i : i + 1], use_cache=True, **{kept: step[kept]})
            found.append(step.logits)
        return torch.cat(found, 1)

    with torch.no_grad():
        found = stretto.compile(steps, backend="interpreter")(source.args[0])
        torch.testing.assert_close(found, steps(source.args[0]), rtol=1e-3, atol=1e-4)


@pytest.mark.whole
def test_steps_with_a_cache_that_grows() -> None:
    """The cache is an argument, and what the step returns; a second one needs no new program."""
    source = TRANSFORMERS["llama"]
    model: Any = source.make()

    def step(ids: Tensor, cache: Any) -> tuple[Tensor, Any]:
        found = model(ids, past_key_values=cache, use_cache=True)
        return found.logits[:, -1], found.past_key_values

    fast = stretto.compile(step, backend="interpreter")
    ids = source.args[0]
    with torch.no_grad():
        for first in (3, 3, 2):
            mine, other = (transformers().DynamicCache(config=model.config) for _ in range(2))
            for begin, end in [(0, first), *((n, n + 1) for n in range(first, ids.shape[1]))]:
                found, mine = fast(ids[:, begin:end], mine)
                wanted, other = step(ids[:, begin:end], other)
                torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
                torch.testing.assert_close(mine.layers[1].keys, other.layers[1].keys)
    assert len(fast.signatures) <= 4


@pytest.mark.parametrize("name", sampled(["mixtral", "mamba"], []))
def test_generate_of_experts_and_states(name: str) -> None:
    source = TRANSFORMERS[name]
    model: Any = source.make()

    def generated(ids: Tensor) -> Tensor:
        return model.generate(ids, max_new_tokens=12, do_sample=False)

    with torch.no_grad():
        found = stretto.compile(generated, backend="interpreter")(source.args[0])
        assert torch.equal(found, generated(source.args[0]))
