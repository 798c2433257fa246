"""Compiled functions and modules are copied, pickled, saved, and parts of other modules."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.machines.cpu import pool
from stretto.options import Debug, Options
from stretto.runtime import compiler, memory_watch, probes
from tests.frontends.python.checks import assert_same
from tests.native import optimised_flags

A = torch.tensor([1.0, 2.0, 3.0])
OPTIONS = Options(threads=1, debug=Debug(unroll=2))


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(3.0))
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.shift


def plain(x: Tensor) -> Tensor:
    return x * 3


@stretto.compile(backend="interpreter", options=OPTIONS)
def decorated(x: Tensor) -> Tensor:
    return x * 5


def fast(function: Any) -> Any:
    return stretto.compile(function, backend="interpreter", options=OPTIONS)


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def through_torch_save(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = [through_pickle, through_torch_save, copy.deepcopy, copy.copy]


@pytest.mark.parametrize("copied", COPIES)
def test_a_function(copied: Any) -> None:
    compiled = fast(plain)
    assert_same(compiled(A), A * 3)
    made = copied(compiled)
    assert type(made) is type(compiled)
    assert made is not compiled
    assert_same(made(A), A * 3)
    assert repr(made) == repr(compiled)
    assert made._options == OPTIONS


@pytest.mark.parametrize("copied", COPIES)
def test_a_decorated_function_is_found_by_its_name(copied: Any) -> None:
    assert copied(decorated) is decorated


@pytest.mark.parametrize("copied", COPIES)
def test_a_module(copied: Any) -> None:
    compiled = fast(Block().eval())
    wanted = compiled(A)
    made = copied(compiled)
    assert len(made.signatures) == 0
    assert_same(made(A), wanted)
    assert not made.training
    compiled.weight.mul_(2)
    shared = copied is copy.copy
    assert_same(made(A), compiled(A) if shared else wanted)


class Scaled:
    __slots__ = ("k",)

    def __init__(self) -> None:
        self.k = 2.0

    def run(self, x: Tensor) -> Tensor:
        return x * self.k

    @stretto.compile(backend="interpreter", options=OPTIONS)
    def fast(self, x: Tensor) -> Tensor:
        return x * self.k


@pytest.mark.parametrize("copied", COPIES[:3])
def test_bound_methods_of_a_class_with_slots(copied: Any) -> None:
    holder = Scaled()
    for method in (fast(holder.run), holder.fast):
        assert_same(method(A), A * 2)
        made = copied(method)
        holder.k = 3.0
        assert_same(method(A), A * 3)
        assert_same(made(A), A * 2)
        holder.k = 2.0
    assert holder.fast == holder.fast
    assert holder.fast.__self__ is holder
    assert holder.fast.__name__ == "fast"


def test_what_has_no_name_is_refused_as_by_pickle() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError), match="<lambda>"):
        pickle.dumps(fast(lambda x: x + 1))
    made = copy.deepcopy(fast(lambda x: x + 1))
    assert_same(made(A), A + 1)


def test_weak_references_and_partials() -> None:
    compiled = fast(plain)
    assert weakref.ref(compiled)() is compiled
    assert_same(functools.partial(compiled, A)(), A * 3)
    assert {compiled: 1}[compiled] == 1


# ---- parts of modules --------------------------------------------------------------------------


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = fast(Block().eval())
        self.parts = nn.Sequential(fast(Block().eval()), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(self.inner(x))


KEYS = ["inner.weight", "inner.shift", "parts.0.weight", "parts.0.shift"]


def eager(model: Any, x: Tensor) -> Tensor:
    once = x * model.inner.weight + model.inner.shift
    return torch.tanh(once * model.parts[0].weight + model.parts[0].shift)


def test_a_compiled_module_is_a_module() -> None:
    compiled = fast(Block())
    assert isinstance(compiled, nn.Module)
    assert isinstance(compiled, Block)
    assert not isinstance(fast(plain), nn.Module)


def test_parameters_of_compiled_children() -> None:
    model = Outer()
    assert sorted(model.state_dict()) == sorted(KEYS)
    assert len(list(model.parameters())) == 2
    assert [name for name, _ in model.named_buffers()] == ["inner.shift", "parts.0.shift"]
    assert "Block" in repr(model)
    assert_same(model(A), eager(model, A))
    model.load_state_dict({key: torch.full((3,), 0.5) for key in KEYS})
    assert_same(model(A), eager(model, A))
    assert model.double()(A.double()).dtype == torch.float64
    assert_same(model(A.double()), eager(model, A.double()))
    model.train()
    assert model.inner.training
    model.eval()
    assert not model.parts[0].training


@pytest.mark.parametrize("copied", COPIES[:3])
def test_a_module_with_compiled_children(copied: Any) -> None:
    model = Outer().eval()
    wanted = model(A)
    made = copied(model)
    assert type(made.inner) is type(model.inner)
    assert_same(made(A), wanted)
    made.inner.weight.mul_(2)
    assert_same(made(A), eager(made, A))
    assert_same(model(A), wanted)


def test_a_compiled_module_with_compiled_children() -> None:
    model = Outer().eval()
    compiled = fast(model)
    assert_same(compiled(A), eager(model, A))
    model.inner.weight.mul_(3)
    model.parts[0].shift.add_(1)
    assert_same(compiled(A), eager(model, A))
    model.inner.register_forward_hook(lambda module, args, result: result * 2)
    assert_same(compiled(A), model(A))


@pytest.mark.whole
def test_compiled_again_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "build_flags", optimised_flags)  # as the other process does
    options = Options(threads=1, cache_dir=tmp_path / "cache")
    compiled = stretto.compile(Block().eval(), backend="cpu", options=options)
    wanted = compiled(A)
    torch.save((compiled, A, wanted), tmp_path / "saved")
    for part in (pool, memory_watch, probes):  # this process may have those of another cache
        part.built(options)
    program = (
        "import torch\n"
        f"fast, x, wanted = torch.load({str(tmp_path / 'saved')!r}, weights_only=False)\n"
        "with torch.no_grad():\n"
        "    assert torch.equal(fast(x), wanted)\n"
        "print(len(fast.signatures), fast.signatures[0].stages.seconds['compile'] < 1)\n"
    )
    folder = Path(__file__).parents[2]
    environment = {"PYTHONPATH": f"{folder / 'src'}:{folder}", "PATH": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "1"
