"""What a program was made of is noticed when it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import stretto
from stretto.batching import compiled
from stretto.batching.frontend import Evaluation
from stretto.batching.instance_guards import FunctionOfInstances
from stretto.batching.instances.observe import Observer
from stretto.options import Options
from stretto.runtime.probes import native_check
from tests.batching.test_frontend import same

SETTINGS: dict[str, Any] = {"scale": 2.0, "sizes": [1, 2]}
SCALE = 3


def read(function: Callable[..., Any], instance: Any) -> FunctionOfInstances:
    evaluation = Evaluation()
    type_ = Observer(evaluation).observe([instance], 0, "instances")
    with torch.no_grad():
        return compiled.read_instance(function, [("x", type_)], evaluation, Options())


def check_of(function: Callable[..., Any], instance: Any, native: bool) -> Callable[[], bool]:
    return read(function, instance).values(native_check(Options()) if native else None)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.rest = nn.ModuleList([nn.Linear(3, 3)])
        self.scale = 2
        self.act = torch.tanh
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.drop(self.first(x))) * self.scale
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


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_noticed(change: str, native: bool) -> None:
    model = Model().eval()
    hold = check_of(model, torch.ones(3), native)
    assert hold()
    assert hold()
    CHANGES[change](model)
    assert not hold()


@pytest.mark.parametrize("native", [True, False])
def test_a_changed_global_is_noticed(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * SCALE + SETTINGS["scale"] + len(SETTINGS["sizes"])

    hold = check_of(scaled, torch.ones(3), native)
    assert hold()
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "SCALE", 4)
        assert not hold()
    with monkeypatch.context() as patch:
        patch.setitem(SETTINGS, "scale", 4.0)
        assert not hold()
    assert hold()
    monkeypatch.setitem(SETTINGS, "sizes", [1, 2, 3])
    assert not hold()


@pytest.mark.parametrize("native", [True, False])
def test_a_changed_free_variable_is_noticed(native: bool) -> None:
    factor = 2

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    hold = check_of(scaled, torch.ones(3), native)
    assert hold()
    factor = 3
    assert not hold()


class Called(nn.Module):
    """Modules of torch that are called as a whole, parameters that are read, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(3)
        self.batch_norm = nn.BatchNorm1d(3)
        self.lstm = nn.LSTMCell(3, 3)
        self.table = nn.Embedding(4, 3)
        self.free = nn.Linear(3, 3, bias=False)
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, word: int) -> torch.Tensor:
        x = self.norm(self.linear(self.table.weight[word])) + self.shift
        h, c = self.lstm(x[None])
        return self.free(self.batch_norm(h + c))


def _data(pick: Callable[[Called], torch.Tensor]) -> Callable[[Called], None]:
    def change(model: Called) -> None:
        pick(model).data = torch.randn_like(pick(model))

    return change


def _in_place(pick: Callable[[Called], torch.Tensor]) -> Callable[[Called], None]:
    def change(model: Called) -> None:
        pick(model).data.add_(1.0)

    return change


PARTS: dict[str, Callable[[Called], torch.Tensor]] = {
    "linear": lambda model: model.linear.weight,
    "bias": lambda model: model.linear.bias,
    "norm": lambda model: model.norm.weight,
    "cell": lambda model: model.lstm.weight_hh,
    "table": lambda model: model.table.weight,
    "buffer": lambda model: model.get_buffer("shift"),
    "statistics": lambda model: model.batch_norm.get_buffer("running_mean"),
}
UPDATES: dict[str, Callable[[Called], None]] = {
    **{f"data of {name}": _data(PARTS[name]) for name in ("bias", "cell", "statistics")},
    **{f"{name} in place": _in_place(pick) for name, pick in PARTS.items()},
    "eps": lambda model: setattr(model.norm, "eps", 1.0),
    "a bias that was none": lambda model: setattr(model.free, "bias", nn.Parameter(torch.ones(3))),
    "no bias": lambda model: setattr(model.linear, "bias", None),
}


@pytest.mark.whole
def test_results_follow_what_modules_hold() -> None:
    torch.manual_seed(5)
    model = Called().eval()
    many = stretto.batch(model)
    with torch.no_grad():
        for change in (lambda _: None, *UPDATES.values()):
            change(model)
            for found, word in zip(many([0, 3, 1]), [0, 3, 1], strict=True):
                torch.testing.assert_close(found, model(word), rtol=1e-4, atol=1e-5)


COUNT, FACTORS = torch.tensor(2), torch.tensor([1.0, 2.0])
MASK, PLACES = torch.tensor([True, False]), torch.tensor([1, 0])
READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "int": lambda x: x * int(COUNT),
    "item": lambda x: x * FACTORS[0].item(),
    "tolist": lambda x: [x * v for v in FACTORS.tolist()],
    "numpy": lambda x: x * float(FACTORS.numpy()[1]),
    "range": lambda x: [x for _ in range(int(COUNT))],
    "truth": lambda x: x if MASK[0] else -x,
    "any": lambda x: x if MASK.any() else -x,
    "operator": lambda x: x + FACTORS * 2,
    "norm": lambda x: x * (FACTORS / FACTORS.norm()),
    "result": lambda x: (FACTORS.softmax(0), x),
    "equal": lambda x: x if torch.equal(PLACES, torch.tensor([1, 0])) else x * 2,
    "slice": lambda x: x[: int(PLACES[0])],
    "size": lambda x: x * len(FACTORS[MASK]),
}


@pytest.mark.whole
def test_content_that_was_read_is_noticed() -> None:
    many = {name: stretto.batch(function) for name, function in READS.items()}
    instances = [torch.tensor([1.0, -1.0]), torch.tensor([3.0, 2.0])]
    contents = [
        (2, [1, 2], [1, 0], [1, 0]),
        (3, [2, 1], [0, 0], [0, 1]),
        (1, [5, 1], [1, 1], [1, 1]),
    ]
    for number, contents_now in enumerate((*contents, contents[0])):
        for tensor, content in zip((COUNT, FACTORS, MASK, PLACES), contents_now, strict=True):
            written = tensor.data if number % 2 else tensor  # without and with another version
            written.copy_(torch.tensor(content))
        for name, function in READS.items():
            wanted = [function(instance) for instance in instances]
            assert same(wanted, many[name](instances)), (name, number)


def test_weights_that_are_operands_are_no_content() -> None:
    assert not read(Called().eval(), 1).content
