"""GPUs that can be used and those that cannot, with what to do about it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from stretto.errors import BuildError
from stretto.machines.cuda import device as cuda_device
from stretto.machines.cuda.device import EMULATED_UNITS, Gpu, find_gpu, resident_units
from stretto.machines.cuda.machine import CUDA, MACHINES
from stretto.options import Options
from stretto.simulator.devices import A100, costs_on
from tests.machines.cuda.cuda_fakes import Compiled, FakeCuda


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> SimpleNamespace:
    """A machine with a GPU as torch reports it; the attributes can be changed."""
    found = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, available=True
    )
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(cuda_device, "load_driver", cuda.driver)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found.available)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found)
    return found


def test_the_gpu_of_a_device(machine: SimpleNamespace) -> None:
    assert find_gpu(torch.device("cuda:1")) == Gpu(1, "NVIDIA H200", (9, 0), 132)
    current = find_gpu(torch.device("cuda"))
    assert current.device == torch.device("cuda:2")


def test_one_unit_for_each_multiprocessor(machine: SimpleNamespace) -> None:
    gpu, emulated = MACHINES
    assert gpu.units(Options(), torch.device("cuda:0")) == 132
    assert gpu.units(Options(units=7), torch.device("cuda:0")) == 7
    assert emulated.units(Options(), torch.device("cpu")) == EMULATED_UNITS


def test_programs_are_planned_with_the_figures_of_the_gpu(machine: SimpleNamespace) -> None:
    place = torch.device("cuda:0")
    assert CUDA.tuned(Options(), place).costs == CUDA.costs
    machine.name, machine.major, machine.minor = "NVIDIA A100-SXM4-80GB", 8, 0
    tuned = CUDA.tuned(Options(), place)
    assert tuned.costs == costs_on(A100, CUDA.costs) and tuned.tuned(Options(), place) is tuned
    assert CUDA.for_target("sm_80", None).costs == tuned.costs
    assert CUDA.for_target("sm_90", None).costs == CUDA.costs


def test_how_many_units_fit(machine: SimpleNamespace, cuda: FakeCuda) -> None:
    cuda.library.fake_resident(2)
    assert resident_units(Compiled(), torch.device("cuda:0")) == 264


def test_a_gpu_that_is_too_old(machine: SimpleNamespace) -> None:
    machine.major, machine.minor, machine.name = 7, 5, "Tesla T4"
    with pytest.raises(BuildError, match="Tesla T4.* has compute capability 7.5; .* need 8.0") as e:
        find_gpu(torch.device("cuda:0"))
    assert "Ampere" in (e.value.remedy or "")


def test_torch_without_cuda(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(BuildError, match="is built without CUDA") as caught:
        find_gpu(torch.device("cuda"))
    assert "install a build with CUDA" in (caught.value.remedy or "")


def test_a_gpu_that_torch_cannot_use(machine: SimpleNamespace) -> None:
    machine.available = False
    with pytest.raises(BuildError, match="built for CUDA 13.0.* finds no GPU that it can use") as e:
        find_gpu(torch.device("cuda"))
    assert "CUDA_VISIBLE_DEVICES" in (e.value.remedy or "")


def test_a_gpu_that_another_process_holds(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(index: int) -> object:
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nmore")

    monkeypatch.setattr(torch.cuda, "get_device_properties", busy)
    with pytest.raises(BuildError, match="torch cannot use cuda:0: .* busy or unavailable\n") as e:
        find_gpu(torch.device("cuda:0"))
    assert "--compute-mode=DEFAULT" in (e.value.remedy or "")
