"""nn.Module trees, functions of all kinds, arguments and results of all structures."""

from __future__ import annotations

import functools
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stretto
from stretto.frontends.python import PythonLeaf, capture
from stretto.options import Options
from tests.frontends.python.checks import assert_same, check, run_captured, structure

X = torch.randn(4, 3)


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.map = nn.Linear(size, size)
        self.norm = nn.LayerNorm(size)
        self.scale = 0.5

    def forward(self, x: Tensor, *, gate: bool = True) -> Tensor:
        y = self.norm(torch.relu(self.map(x)))
        if y.mean() > 0 and gate:
            y = y * self.scale
        return x + y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(3) for _ in range(3)])
        self.head = nn.Sequential(nn.Linear(3, 5), nn.GELU(), Block(5), nn.Dropout(0.5))
        self.__private = 2.0

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            x = block(x, gate=i != 1)
        return self.head(x) * self.__private


class Sub(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + super().forward(x)


def test_module_tree() -> None:
    captured = check(Net().eval(), (X,), (-X,))
    assert structure(captured) == {"if": 3}
    owners = {source.name for source in captured.constants}
    assert owners == {"weight", "bias"}
    assert all(source.is_current() for source in captured.constants)


def test_super_and_inheritance() -> None:
    check(Sub().eval(), (X,))


def test_constant_sources_notice_changes() -> None:
    model = Block(3)
    captured = capture(model, (X,), {}, Options())
    with torch.no_grad():
        model.map.weight.add_(1)
    stale = [source.key for source in captured.constants if not source.is_current()]
    assert stale == ["map.weight"]
    model.norm.bias = nn.Parameter(torch.zeros(3))
    stale = [source.key for source in captured.constants if not source.is_current()]
    assert sorted(stale) == ["map.weight", "norm.bias"]


def test_hooks_are_honoured() -> None:
    model = Block(3)
    model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model.register_forward_hook(lambda module, args, out: out * 2)
    check(model, (X,))


def test_kinds_of_functions() -> None:
    offset = torch.randn(3)

    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def __call__(self, x: Tensor) -> Tensor:
            return x * self.factor if x.sum() > 0 else x

        def method(self, x: Tensor, *rest: Tensor, **named: Tensor) -> Tensor:
            for extra in (*rest, *named.values()):
                x = x + extra
            return x

        @staticmethod
        def fixed(x: Tensor) -> Tensor:
            return x - 1

        @classmethod
        def made(cls, x: Tensor) -> Tensor:
            return cls(3.0)(x)

    def closure(x: Tensor) -> Tensor:
        return x + offset

    @torch.no_grad()
    def decorated(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x * 2
        return x

    scale = Scale(2.0)

    def f(x: Tensor) -> Tensor:
        pick = lambda v, k=2: v[k] if v.sum() > 0 else v[0]  # noqa: E731
        x = scale(closure(x)) + scale.method(x, x, other=x) + Scale.fixed(x) + Scale.made(x)
        x = functools.partial(torch.add, alpha=2)(x, decorated(x))
        with torch.no_grad():
            if x.sum() > 0:
                x = x / 2
        return x + pick(x) + sum([pick(x, 1), pick(x, k=2)])

    check(f, (X,), (-X,))


def test_keyword_arguments_and_defaults() -> None:
    def f(x: Tensor, *, y: Tensor, k: int = 3) -> Tensor:
        return x * k + y if x.sum() > 0 else y

    captured = capture(f, (X,), {"y": X + 1}, Options())
    assert_same(run_captured(captured, (X,), {"y": X + 1}), f(X, y=X + 1))


Point = namedtuple("Point", ["x", "y"])


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass
class Result:
    value: Tensor
    name: str
    extra: dict[str, Tensor] | None = None


def test_structured_results() -> None:
    def f(x: Tensor) -> object:
        y = x * 2
        result = Result(y, "n", {"a": x + 1})
        return {
            "list": [y, (y, x)],
            "none": None,
            "named": Point(y, 3),
            "typed": Pair(y, x - 1),
            "data": result,
            "text": "abc",
            "number": 4,
            "ordered": OrderedDict(a=x + 2),
        }

    check(f, (X,))
    x = X.clone()
    captured = capture(f, (x,), {}, Options())
    out = run_captured(captured, (x,), {})
    assert out["list"][0] is out["list"][1][0]
    assert out["list"][1][1] is x


def test_structured_arguments() -> None:
    def f(batch: dict[str, Tensor | list[Tensor]], pair: Pair) -> Tensor:
        total = batch["x"] + pair.first
        for part in batch["parts"]:
            total = total + part
        return total * pair.second

    check(f, ({"x": X, "parts": [X, X * 2]}, Pair(X, X + 1)))


def test_dataclass_state_in_a_loop() -> None:
    def f(x: Tensor) -> Result:
        state = Result(torch.zeros(3), "s")
        for i in range(4):
            state.value = state.value + x[i]
            if state.value.sum() > 1:
                state.value = -state.value
        return state

    assert structure(check(f, (X,), (-X,))) == {"for": 1, "if": 1}


def test_parameter_returned_as_it_is() -> None:
    model = nn.Linear(3, 3)

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return model(x), model.weight

    captured = capture(f, (X,), {}, Options())
    assert isinstance(captured.output.children[1], PythonLeaf)  # type: ignore[union-attr]
    assert run_captured(captured, (X,), {})[1] is model.weight


LAYERS = {
    "conv": (nn.Conv2d(3, 4, 3, padding=1, stride=2), (2, 3, 8, 8)),
    "conv1d": (nn.Conv1d(3, 4, 3, dilation=2), (2, 3, 9)),
    "grouped": (nn.Conv2d(4, 4, 3, groups=2, padding="same"), (2, 4, 8, 8)),
    "batch_norm": (nn.BatchNorm2d(3), (2, 3, 8, 8)),
    "group_norm": (nn.GroupNorm(2, 4), (2, 4, 8, 8)),
    "pools": (
        nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)),
        (2, 3, 8, 8),
    ),
    "attention": (nn.MultiheadAttention(8, 2, batch_first=True), None),
    "encoder": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
    "lstm": (nn.LSTM(4, 5, num_layers=2), (6, 2, 4)),
    "gru": (nn.GRU(4, 5, batch_first=True), (2, 6, 4)),
    "lstm_cell": (nn.LSTMCell(4, 5), (2, 4)),
    "embedding": (nn.Embedding(10, 4), None),
}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layers(name: str) -> None:
    layer, shape = LAYERS[name]
    layer = layer.eval()
    if name == "attention":
        check(lambda x: layer(x, x, x), (torch.randn(2, 5, 8),))
    elif name == "embedding":
        check(layer, (torch.tensor([[1, 2], [3, 9]]),))
    else:
        assert shape is not None
        check(layer, (torch.randn(shape),))


def test_functions_of_everyday_use() -> None:
    def f(x: Tensor, index: Tensor) -> dict[str, object]:
        values, places = x.topk(2, dim=-1)
        return {
            "softmax": F.softmax(x, -1) + F.log_softmax(x, 0),
            "topk": (values, places),
            "sort": x.sort(dim=0).values,
            "one_hot": F.one_hot(index, 5),
            "sdpa": F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
            "gather": x.gather(1, index[:, None] % 3),
            "pad": F.pad(x, (1, 2)),
            "tri": x.tril() + x.triu(),
            "roll": x.roll(1, 0).flip(1),
            "moments": (x.var(), x.std(0), x.mean(1), x.cumsum(0), x.prod()),
            "tests": (x > 0).any() & (x < 9).all(),
            "where": torch.where(x > 0, x, 0.0),
            "clamp": x.clamp(-0.5, 0.5).pow(2).sqrt().add(1).log(),
            "einsum": torch.einsum("ij,kj->ik", x, x),
            "arange": torch.arange(5, dtype=x.dtype).repeat(2),
            "types": (x.double(), x.to(torch.int32), x.half().float(), x.bool()),
            "max": x.max(dim=1),
            "argmin": x.argmin(),
            "interpolate": F.interpolate(x[None, None], scale_factor=2),
            "norm": x.norm() + F.normalize(x, dim=0).sum(),
            "cross": F.cross_entropy(x, index % 3),
            "meshgrid": torch.meshgrid(x[0], x[1], indexing="ij"),
        }

    captured = capture(f, (X, torch.tensor([1, 0, 4, 2])), {}, Options())
    args = (X, torch.tensor([1, 0, 4, 2]))
    out, expected = run_captured(captured, args, {}), f(*args)
    for key in expected:
        for one, other in zip(
            torch.utils._pytree.tree_leaves(out[key]),
            torch.utils._pytree.tree_leaves(expected[key]),
            strict=True,
        ):
            torch.testing.assert_close(one, other, msg=lambda m, k=key: f"{k}: {m}")


def test_exceptions_of_the_function_are_unchanged() -> None:
    class Custom(ValueError):
        pass

    problem = Custom("no")

    def f(x: Tensor) -> Tensor:
        if x.shape[0] > 2:
            raise problem
        return x

    with pytest.raises(Custom) as caught:
        capture(f, (X,), {}, Options())
    assert caught.value is problem
    lines = [entry.lineno for entry in caught.traceback if str(entry.path) == __file__]
    first = f.__code__.co_firstlineno
    assert any(line + 1 in (first + 1, first + 2) for line in lines)

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        capture(lambda x: x @ x, (X,), {}, Options())


class Metric(nn.Module):
    """A hash of its own, as modules of torchmetrics have, and an attribute set in a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(())

    def __hash__(self) -> int:
        return hash((type(self).__name__, id(self), self.total))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.total = self.total + x.sum()
        return self.total * 2


def test_the_tracer_looks_modules_up_without_calling_their_hashes() -> None:
    eager, traced = Metric(), Metric()
    fast = stretto.compile(traced, backend="interpreter")
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        assert torch.equal(fast(x), eager(x))
        assert torch.equal(traced.total, eager.total)


class Toggled(nn.Module):
    def __init__(self, momentum: float | None) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, momentum=momentum)

    def forward(self, x: Tensor) -> Tensor:
        self.norm.train(x.shape[0] > 3)
        y = self.norm(x)
        self.norm.eval()
        return y + self.norm(x)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_module_in_training_for_a_part_of_the_call(momentum: float | None) -> None:
    mine, other = Toggled(momentum).eval(), Toggled(momentum).eval()
    fast = stretto.compile(mine, backend="interpreter")
    with torch.no_grad():
        for x in (X, X[:2], X * 5 + 1):
            assert_same(fast(x), other(x))
            assert_same(dict(mine.named_buffers()), dict(other.named_buffers()))
            assert mine.norm.training == other.norm.training
