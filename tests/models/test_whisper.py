"""Whisper's own `generate`, which loops over segments of the input, as one program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.models.configs import MEL, TRANSFORMERS
from tests.models.test_generate import varied

TOKENS = 8
SETTINGS = {
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": 3, "<|de|>": 4},
    "task_to_id": {"transcribe": 5, "translate": 6},
    "no_timestamps_token_id": 90,
}


def model_of(**settings: Any) -> Any:
    known = TRANSFORMERS["whisper"]
    model = varied(replace(known, sizes={**known.sizes, **_LAYERS}).make())
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    return model


_LAYERS = {"encoder_layers": 1, "decoder_layers": 1}


def batch(rows: int) -> Tensor:
    return torch.cat([MEL, MEL.flip(1), MEL * 3, -MEL])[:rows]


@pytest.mark.whole
@pytest.mark.parametrize(
    ("backend", "rows"),
    [("cpu", 1), ("interpreter", 3)],
)
def test_of_features(backend: str, rows: int) -> None:
    """Rows end at different steps, at the token that the first one gives in the middle."""
    model = model_of()

    def generate(features: Tensor) -> Any:
        return model.generate(features, max_new_tokens=TOKENS, do_sample=False)

    x = batch(rows)
    tokens = generate(x)
    assert len(set(tokens[0].tolist())) > 3
    model.generation_config.eos_token_id = int(tokens[0, 3])
    fast = stretto.compile(generate, backend=backend, dynamic=False)
    for features in (x, x * 1.5, batch(4)[4 - rows :]):
        wanted, found = generate(features), fast(features)
        assert found.dtype is wanted.dtype and torch.equal(found, wanted)
    assert len(fast.signatures) == 1


@pytest.mark.whole
def test_with_a_language_and_a_task() -> None:
    model = model_of(**SETTINGS)

    def generate(features: Tensor) -> Any:
        return model.generate(
            features, max_new_tokens=TOKENS, do_sample=False, language="de", task="translate"
        )

    fast = stretto.compile(generate, backend="interpreter", dynamic=False)
    assert torch.equal(fast(MEL), generate(MEL))


@pytest.mark.whole
def test_time_stamps_with_fallback() -> None:
    """An input that is longer than one window."""
    model = model_of(**{**SETTINGS, "no_timestamps_token_id": 60})
    features = torch.cat([MEL, MEL.flip(2)], 2)[:, :, :70]

    def generate(x: Tensor) -> Any:
        return model.generate(x, max_new_tokens=TOKENS, do_sample=False, return_timestamps=True)

    wanted = generate(features)
    fast = stretto.compile(generate, backend="interpreter", dynamic=False, fallback=True)
    assert torch.equal(fast(features), wanted)
