"""Models that people have, from transformers and torchvision, against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import stretto
from tests.models.configs import TORCHVISION, TRANSFORMERS, torchvision
from tests.sampling import sampled


def assert_close(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    pairs = zip(tree_leaves(found), tree_leaves(wanted), strict=True)
    for one, other in pairs:
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        else:
            assert type(one) is type(other)


def compare(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], backend: str) -> None:
    with torch.no_grad():
        wanted = model(*args, **kwargs)
        assert_close(stretto.compile(model, backend=backend)(*args, **kwargs), wanted)


@pytest.mark.parametrize("name", sampled(list(TRANSFORMERS), ["gpt2", "t5", "mixtral", "mamba"]))
def test_transformers(name: str) -> None:
    model = TRANSFORMERS[name]
    compare(model.make(), model.args, model.kwargs, "interpreter")


@pytest.mark.parametrize("name", sampled(list(TORCHVISION), ["mobilenet_v3", "swin"]))
def test_torchvision(name: str) -> None:
    make, size = TORCHVISION[name]
    torch.manual_seed(0)
    model = make(torchvision()).eval().requires_grad_(False)
    compare(model, (torch.randn(1, 3, size, size),), {}, "interpreter")


@pytest.mark.whole
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_on_the_cpu(name: str) -> None:
    model = TRANSFORMERS[name]
    compare(model.make(), model.args, model.kwargs, "cpu")
