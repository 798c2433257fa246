"""What a program was made of is noticed when it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stretto.batching.frontend import Evaluation, Observer, evaluate, holds

SETTINGS: dict[str, Any] = {"scale": 2.0, "sizes": [1, 2]}
SCALE = 3


def evaluated(function: Callable[..., Any], instance: Any) -> Evaluation:
    evaluation = Evaluation()
    type_ = Observer(evaluation).observe([instance], 0, "instances")
    with torch.no_grad():
        evaluate(function, [("x", type_)], evaluation)
    return evaluation


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.rest = nn.ModuleList([nn.Linear(3, 3)])
        self.scale = 2
        self.act = torch.tanh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.first(x)) * self.scale
        for layer in self.rest:
            x = layer(x)
        return x


def _replace_parameter(model: Model) -> None:
    model.first.weight = nn.Parameter(torch.zeros(3, 3))


CHANGES: dict[str, Callable[[Model], Any]] = {
    "setting": lambda model: setattr(model, "scale", 3),
    "kind of setting": lambda model: setattr(model, "scale", 2.0),
    "function": lambda model: setattr(model, "act", torch.relu),
    "module": lambda model: setattr(model, "first", nn.Linear(3, 3)),
    "parameter": _replace_parameter,
    "list": lambda model: model.rest.append(nn.Linear(3, 3)),
    "mode": lambda model: model.train(),
    "removed": lambda model: delattr(model, "act"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_noticed(change: str) -> None:
    model = Model().eval()
    evaluation = evaluated(model, torch.ones(3))
    assert holds(evaluation.reads.values())
    assert holds(evaluation.reads.values())
    CHANGES[change](model)
    assert not holds(evaluation.reads.values())


def test_a_changed_global_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * SCALE + SETTINGS["scale"] + len(SETTINGS["sizes"])

    evaluation = evaluated(scaled, torch.ones(3))
    assert holds(evaluation.reads.values())
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "SCALE", 4)
        assert not holds(evaluation.reads.values())
    with monkeypatch.context() as patch:
        patch.setitem(SETTINGS, "scale", 4.0)
        assert not holds(evaluation.reads.values())
    assert holds(evaluation.reads.values())
    SETTINGS["sizes"].append(3)
    assert not holds(evaluation.reads.values())


def test_a_changed_free_variable_is_noticed() -> None:
    factor = 2

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    evaluation = evaluated(scaled, torch.ones(3))
    assert holds(evaluation.reads.values())
    factor = 3
    assert not holds(evaluation.reads.values())
