"""Measured kernels: what they are known by, how they decide, and that any decision is right."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import stretto
from stretto.call.compiler import begin, run_stages
from stretto.device.operator import Kernel
from stretto.device.tree import leaves
from stretto.frontends.python import capture
from stretto.machines.cpu.machine import CpuMachine
from stretto.machines.cpu.measured import NumberedChooser, kernel_key
from stretto.machines.machine import HOST, Machine, Stages
from stretto.machines.stages import TO_SCHEDULE
from stretto.options import Options
from stretto.tools import tune
from stretto.tools.models import Model
from stretto.tools.tune import measure, tune_model
from stretto.tuning import Database, KernelTime, this_cpu
from tests.sampling import sampled


class Net(nn.Module):
    """Products and pointwise work in a loop, whose kernels have several variants."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter = nn.Linear(96, 160)
        self.step = nn.Linear(160, 160)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.enter(x)
        for _ in range(6):
            y = torch.tanh(self.step(y)) + y
        if y.sum() > 0:
            y = y.softmax(1)
        return y


X = torch.rand(67, 96)


def _kernels(stages: Stages) -> list[Kernel]:
    assert stages.selected is not None
    bodies = (body for f in stages.selected.tree.functions for body in leaves(f.body))
    return [item for body in bodies for item in body if isinstance(item, Kernel)]


def _planned(module: nn.Module, *inputs: torch.Tensor) -> Stages:
    """The stages up to the schedule, without measurements."""
    options = Options(threads=2, tune="off")
    with torch.no_grad():
        captured = capture(module, inputs, {}, options)
    stages = begin(captured.program, CpuMachine("cpu"), options, HOST)
    run_stages(stages, TO_SCHEDULE)
    return stages


def _selected(stages: Stages, machine: Machine, options: Options) -> list[Kernel]:
    """The kernels that a machine selects for the same operators."""
    assert stages.lowered is not None
    selected = machine.select(stages.lowered, 2, options, stages.remarks)
    return _kernels(replace(stages, selected=selected))


def _numbered(stages: Stages, number: int) -> list[Kernel]:
    """The kernels of the same operators in their variant of that number."""
    machine = CpuMachine("cpu", chooser=NumberedChooser(number))
    return _selected(stages, machine, stages.options)


class Layers(nn.Module):
    def __init__(self, function: type[nn.Module], size: int) -> None:
        super().__init__()
        layers = (nn.Sequential(nn.Linear(size, size), function()) for _ in range(3))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def test_a_kernel_is_known_by_its_text() -> None:
    """Equal layers are one kernel; other tiles, sizes or functions make another one."""
    found = [
        _kernels(_planned(Layers(*setting), torch.rand(40, setting[1])))
        for setting in ((nn.ReLU, 64), (nn.Tanh, 64), (nn.ReLU, 80))
    ]
    keys = [{kernel_key(kernel) for kernel in kernels} for kernels in found]
    assert [len(kernels) for kernels in found] == [3, 3, 3]
    assert [len(one) for one in keys] == [1, 1, 1]
    assert len(set.union(*keys)) == 3
    (kernel, *_) = found[0]
    assert kernel_key(replace(kernel, name="another")) == kernel_key(kernel)
    cut = replace(kernel, grid=tuple(replace(dim, tile=8) for dim in kernel.grid))
    assert kernel_key(cut) != kernel_key(kernel)


def test_kernels_whose_tasks_the_call_decides_are_not_known() -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return torch.special.i1e(x * 2.0)

    options = Options(threads=2, tune="off")
    fast = stretto.compile(doubled, backend="cpu", options=options, dynamic=True)
    for rows in (40, 41, 42):
        assert torch.allclose(fast(torch.ones(rows, 7)), doubled(torch.ones(rows, 7)))
    assert [kernel_key(kernel) for kernel in _kernels(fast.signatures[-1].stages)] == [None, None]


def test_the_fastest_measured_variant_is_taken(tmp_path: Path) -> None:
    options = Options(threads=2, cache_dir=tmp_path)
    plain = _planned(Net(), X)
    several = [_numbered(plain, number) for number in range(4)]
    assert any(one.grid != last.grid for one, last in zip(several[0], several[3], strict=True))
    for number in range(4):
        fast = {kernel_key(kernel) for kernel in several[number]}
        times = {
            key: KernelTime((1e-9 if key in fast else 1e-3) / kernel.tasks, 1)
            for kernels in several
            for kernel in kernels
            if (key := kernel_key(kernel))
        }
        Database(tmp_path).put_kernels(this_cpu(options), times)
        chosen = _selected(plain, CpuMachine("cpu").tuned(options), options)
        keys = [key for kernel in chosen if (key := kernel_key(kernel))]
        assert keys
        assert fast >= set(keys)


def test_only_measured_variants_compete(tmp_path: Path) -> None:
    """An estimate may be far too low, so a measured time never competes with one."""
    options = Options(threads=2, cache_dir=tmp_path)
    plain = _planned(Net(), X)
    last = _numbered(plain, 99)
    times = {key: KernelTime(5.0, 1) for kernel in last if (key := kernel_key(kernel))}
    Database(tmp_path).put_kernels(this_cpu(options), times)
    found = _selected(plain, CpuMachine("cpu").tuned(options), options)
    assert [kernel.grid for kernel in found] == [kernel.grid for kernel in last]
    known = [kernel for kernel in found if kernel_key(kernel)]
    assert known
    assert all(kernel.seconds >= 5.0 for kernel in known)


@pytest.mark.parametrize("seed", sampled(range(6), [0]))
def test_whatever_was_measured_the_results_are_right(tmp_path: Path, seed: int) -> None:
    options = Options(threads=2, cache_dir=tmp_path)
    plain = _planned(Net(), X)
    draw = random.Random(seed)
    for number in range(5):
        for kernel in _numbered(plain, number):
            key = kernel_key(kernel)
            if key is not None and draw.random() < 0.7:
                time = KernelTime(10 ** draw.uniform(-9, -1), 1)
                Database(tmp_path).put_kernels(this_cpu(options), {key: time})
    net = Net()
    with torch.no_grad():
        fast = stretto.compile(net, (X,), backend="cpu", options=options)
        assert torch.allclose(fast(X), net(X), atol=1e-5)


@pytest.mark.whole
def test_kernels_of_a_program_are_measured_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what measuring runs draws nothing from torch."""
    monkeypatch.setattr(tune, "SECONDS", 0.01)
    monkeypatch.setattr(tune, "COMPARED_SECONDS", 0.01)
    options = Options(threads=2, cache_dir=tmp_path)

    class Noisy(Layers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.rand_like(x)

    x = torch.rand(67, 96)
    with torch.no_grad():
        fast = stretto.compile(Noisy(nn.Tanh, 96), (x,), backend="cpu", options=options)
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    measured = measure(fast.signatures[0], options)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert Database(tmp_path).kernels(this_cpu(options), measured) == measured
    tuned = tune_model(Model("layers", Layers(nn.Tanh, 96), (x,)), options)
    assert (tuned.kernels, tuned.model) == (3, "layers")
    assert min(tuned.before, tuned.after, tuned.predicted) > 0
    machine = CpuMachine("cpu").tuned(options)
    found = _selected(_planned(Layers(nn.Tanh, 96), x), machine, options)
    known = Database(tmp_path).kernels(this_cpu(options), filter(None, map(kernel_key, found)))
    assert {kernel_key(kernel) for kernel in found} == set(known)


@pytest.mark.whole
def test_kernels_are_measured_while_a_signature_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "SECONDS", 0.01)
    options = Options(threads=2, cache_dir=tmp_path, tune="measure")
    module, x = Layers(nn.Tanh, 96).requires_grad_(False), torch.rand(67, 96)
    kept = x.clone()
    fast = stretto.compile(module, backend="cpu", options=options)
    assert torch.allclose(fast(x), module(x), atol=1e-5)
    assert torch.equal(x, kept)
    stages = fast.signatures[0].stages
    keys = [key for kernel in _kernels(stages) if (key := kernel_key(kernel))]
    known = Database(tmp_path).kernels(this_cpu(options), keys)
    assert set(known) == set(keys)
    costs = stages.machine.costs
    for kernel in _kernels(stages):
        assert kernel.seconds == known[kernel_key(kernel) or ""].seconds + costs.start_seconds
