"""What `stretto doctor` says of GPUs, where things are right and where they are not."""

from __future__ import annotations

import pytest
import torch

from stretto.errors import BuildError
from stretto.machines.cuda import device
from stretto.machines.cuda.device import Gpu
from stretto.machines.cuda.driver import COMPUTE_MODE
from tests.machines.cuda.cuda_fakes import FakeCuda


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_gpu(device: torch.device) -> Gpu:
        raise BuildError("the NVIDIA driver is not there", remedy="install it")

    monkeypatch.setattr(device, "find_gpu", find_gpu)
    check = device.check_gpu()
    assert (check.status, check.detail) == ("warn", "the NVIDIA driver is not there")
    assert check.remedy == "for programs on a GPU only: install it"


def test_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeDriver:
        def version(self) -> tuple[int, int]:
            return (13, 1)

    monkeypatch.setattr(device, "find_gpu", lambda device: Gpu(0, "NVIDIA H200", (9, 0), 132))
    monkeypatch.setattr(device, "load_driver", FakeDriver)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check = device.check_gpu()
    assert check.status == "ok"
    assert check.detail == (
        "cuda:0: NVIDIA H200, compute capability 9.0, 132 multiprocessors; "
        "driver for CUDA 13.1, torch for 13.0, 1 more"
    )


def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    def require_triton() -> str:
        raise BuildError("Triton cannot be imported", remedy="pip install 'stretto[cuda]'")

    monkeypatch.setattr(device, "require_triton", require_triton)
    check = device.check_triton()
    assert check.status == "warn"
    assert check.remedy == "for programs on a GPU only: pip install 'stretto[cuda]'"


def test_triton_with_and_without_what_emulates(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "backend cuda-emulated works" in device.check_triton().detail

    def require_greenlet() -> object:
        raise BuildError("greenlet cannot be imported")

    monkeypatch.setattr(device, "require_greenlet", require_greenlet)
    check = device.check_triton()
    assert check.status == "ok"
    assert "no greenlet" in check.detail and "stretto[emulated]" in check.detail


@pytest.mark.parametrize(
    ("mode", "status", "detail"),
    [
        (0, "ok", "default: several processes can use the GPU"),
        (2, "warn", "prohibited: no process can use the GPU"),
        (3, "warn", "exclusive process: one process at a time can use the GPU"),
    ],
)
def test_the_compute_mode(
    monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda, mode: int, status: str, detail: str
) -> None:
    cuda.library.fake_attribute(COMPUTE_MODE, mode)
    monkeypatch.setattr(device, "load_driver", cuda.driver)
    (check,) = device.check_mode()
    assert (check.name, check.status, check.detail) == ("compute mode", status, detail)
    assert ("--compute-mode=DEFAULT" in check.remedy) == (status == "warn")


def test_no_compute_mode_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_driver() -> object:
        raise BuildError("the NVIDIA driver is not there")

    monkeypatch.setattr(device, "load_driver", load_driver)
    assert list(device.check_mode()) == []
