"""Kernels are named after the user's modules and lines; what is built does not depend on that."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import stretto
from stretto.options import Options
from stretto.runtime.compiler import NAMES


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(48, 48)
        self.norm = nn.LayerNorm(48)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.tanh(self.proj(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Part() for _ in range(3))
        self.head = nn.Sequential(nn.Linear(48, 8), nn.ReLU())

    def forward(self, x: Tensor, steps: int) -> Tensor:
        for _ in range(steps):
            for layer in self.layers:
                x = layer(x) if x.sum() < 1000 else x
        return self.head(x).softmax(-1)


def kernels(compiled: Any) -> list[str]:
    return [kernel.name for kernel in compiled.signatures[-1].stages.device.kernels]


def made(function: Callable[..., Any], *inputs: Any, **settings: Any) -> Any:
    compiled = stretto.compile(function, options=Options.of({"threads": 2, **settings}))
    torch.testing.assert_close(compiled(*inputs), function(*inputs))
    return compiled


def test_modules_below_loops_and_branches() -> None:
    with torch.no_grad():
        compiled = made(Net().eval(), torch.randn(4, 48), 9)
    names = kernels(compiled)
    for layer in range(3):
        assert any(name.startswith(f"layers.{layer}.proj.linear") for name in names), names
        assert any(name.startswith(f"layers.{layer}.norm.") for name in names), names
    assert any(name.startswith("head.0.linear") for name in names), names
    assert any(name.startswith("forward:") for name in names), names
    assert len(set(names)) == len(names)


def test_equal_layers_are_one_function(tmp_path: Path) -> None:
    model = nn.Sequential(*(Part() for _ in range(5))).eval()
    with torch.no_grad():
        made(model, torch.randn(64, 48), dump_dir=tmp_path)
    (text,) = (file.read_text() for file in tmp_path.rglob("*.cpp"))
    assert f"{NAMES}0.proj.linear and 4 more\n" in text


def test_a_module_that_is_made_in_the_call_and_one_that_is_passed() -> None:
    def run(net: nn.Module, x: Tensor) -> Tensor:
        return torch.tanh(nn.Softmax(-1)(net(x)) @ x.T)

    with torch.no_grad():
        names = kernels(made(run, nn.Sequential(Part()), torch.randn(4, 48)))
    assert any(name.startswith("0.proj.linear") for name in names), names
    assert any(name.startswith("run:") for name in names), names


def on_line(number: int, folder: Path) -> Callable[[Tensor, Tensor], Tensor]:
    """A function that stands on this line of its file."""
    file = folder / f"step{number}.py"
    lines = ["import torch", "def step(x, w):", "    return torch.tanh(x @ w).softmax(-1) + x", ""]
    file.write_text("\n" * (number - 2) + "\n".join(lines))
    return runpy.run_path(str(file))["step"]


def test_a_line_that_moves_changes_names_alone(tmp_path: Path) -> None:
    inputs = torch.randn(8, 32), torch.randn(32, 32)
    first, second = (
        made(on_line(number, tmp_path), *inputs, cache_dir=tmp_path / "cache") for number in (2, 9)
    )
    assert "step:3.mm" in kernels(first) and "step:10.mm" in kernels(second)
    built = [re.search("build cache +(hit|miss)", one.explain()) for one in (first, second)]
    assert [found and found[1] for found in built] == ["miss", "hit"]


def test_names_survive_saving(tmp_path: Path) -> None:
    with torch.no_grad():
        compiled = made(Net().eval(), torch.randn(4, 48), 9)
        compiled.save(tmp_path / "net.stretto")
        again = stretto.load(tmp_path / "net.stretto")
        assert kernels(again) == kernels(compiled)
