"""Models that people have, by the other ways into stretto: torch.compile, torch.export, files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stretto
from stretto.call import dynamo
from tests.models.configs import TORCHVISION, TRANSFORMERS, torchvision
from tests.models.test_models import assert_close
from tests.sampling import sampled

BY_HAND = {"backend": "interpreter"}


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def by_torch_compile(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    wanted = model(*args, **kwargs)
    fast = torch.compile(model, backend=dynamo.backend, options=BY_HAND)
    assert_close(fast(*args, **kwargs), wanted)


@pytest.mark.parametrize("name", sampled(list(TRANSFORMERS), ["llama"]))
def test_transformers_by_torch_compile(name: str) -> None:
    model = TRANSFORMERS[name]
    by_torch_compile(model.make(), model.args, model.kwargs)


@pytest.mark.parametrize("name", sampled(list(TORCHVISION), []))
def test_torchvision_by_torch_compile(name: str) -> None:
    make, size = TORCHVISION[name]
    torch.manual_seed(0)
    model = make(torchvision()).eval().requires_grad_(False)
    by_torch_compile(model, (torch.randn(1, 3, size, size),), {})


@pytest.mark.parametrize("name", sampled(["bert", "vit"], ["vit"]))
def test_transformers_from_files(name: str, tmp_path: Path) -> None:
    model = TRANSFORMERS[name]
    module = model.make()
    wanted = module(*model.args, **model.kwargs)
    fast = stretto.compile(module, backend="interpreter")
    fast(*model.args, **model.kwargs)
    fast.save(tmp_path / "model")
    again = stretto.load(tmp_path / "model", backend="interpreter", classes=[type(wanted)])
    assert_close(again(*model.args, **model.kwargs), wanted)


@pytest.mark.whole
def test_an_exported_vision_model() -> None:
    make, size = TORCHVISION["mobilenet_v3"]
    model = make(torchvision()).eval().requires_grad_(False)
    x = torch.randn(1, 3, size, size)
    exported = torch.export.export(model, (x,)).module()
    assert_close(stretto.compile(exported, backend="interpreter")(x), model(x))
