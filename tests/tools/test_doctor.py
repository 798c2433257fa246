"""`stretto doctor`: each check where things are right, and where they are not."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
import torch

import stretto
from stretto.errors import BuildError
from stretto.machines.cuda.device import Gpu
from stretto.runtime import compiler
from stretto.tools import doctor
from stretto.tools.cache import CacheFolder

OPTIONS = stretto.Options(threads=1)


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("2.11.0", "ok"),
        ("2.13.1+cpu", "ok"),
        ("2.14.0.dev20260101", "warn"),
        ("2.10.9", "warn"),
        ("nightly", "warn"),
    ],
)
def test_versions_of_torch(version: str, status: str) -> None:
    check = doctor.check_torch(version)
    assert check.status == status
    if status == "warn":
        assert check.remedy == "pip install 'torch>=2.11,<2.14'"


def test_the_range_of_torch_is_that_of_the_package() -> None:
    low, high = (".".join(map(str, b)) for b in (doctor.TORCH_FROM, doctor.TORCH_BEFORE))
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'"torch>={low},<{high}"' in text


def test_the_compiler_of_this_machine() -> None:
    check = doctor.check_compiler()
    assert check.status == "ok"
    assert "-O3" in check.detail


@pytest.mark.parametrize(("tracked", "status"), [(True, "ok"), (False, "warn")])
def test_how_written_weights_are_noticed(
    monkeypatch: pytest.MonkeyPatch, tracked: bool, status: str
) -> None:
    monkeypatch.setattr(doctor, "tracks_pages", lambda options: tracked)
    check = doctor.check_weights(OPTIONS)
    assert check.status == status
    if not tracked:
        assert "read at each call" in check.detail and "Linux 6.7" in check.remedy


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    check = doctor.check_compiler()
    assert check.status == "fail"
    assert "no C++ compiler found" in check.detail
    assert "apt install g++" in check.remedy


def test_a_compiler_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    check = doctor.check_compiler()
    assert check.status == "fail"
    assert "/no/such/compiler" in check.detail


@pytest.mark.parametrize(
    ("processor", "status", "detail"),
    [
        ("Linux x86_64 {'flags': 'fpu avx2 fma avx512f'}", "ok", "avx512f avx2 fma"),
        ("Linux aarch64 {'Features': 'fp asimd sve'}", "ok", "asimd sve"),
        ("Linux x86_64 {'flags': 'fpu sse2'}", "warn", "none of AVX-512, AVX2, NEON"),
    ],
)
def test_vector_extensions(processor: str, status: str, detail: str) -> None:
    check = doctor.check_vectors(processor)
    assert (check.status, check.detail) == (status, detail)


def test_vectors_of_this_machine_can_be_read() -> None:
    assert doctor.check_vectors(compiler.cpu()).name == "vectors"


def test_a_cache_that_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "abc-def.so").write_bytes(bytes(2048))
    check = doctor.check_cache(CacheFolder(tmp_path))
    assert check.status == "ok"
    assert "1 programs, 2.0 KiB" in check.detail


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    check = doctor.check_cache(CacheFolder(file / "cache"))
    assert check.status == "warn"
    assert "Not a directory" in check.detail
    assert "STRETTO_CACHE" in check.remedy


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_gpu(device: torch.device) -> Gpu:
        raise BuildError("the NVIDIA driver is not there", remedy="install it")

    monkeypatch.setattr(doctor, "find_gpu", find_gpu)
    check = doctor.check_gpu()
    assert (check.status, check.detail) == ("warn", "the NVIDIA driver is not there")
    assert check.remedy == "for programs on a GPU only: install it"


def test_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeDriver:
        def version(self) -> tuple[int, int]:
            return (13, 1)

    monkeypatch.setattr(doctor, "find_gpu", lambda device: Gpu(0, "NVIDIA H200", (9, 0), 132))
    monkeypatch.setattr(doctor, "load_driver", FakeDriver)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check = doctor.check_gpu()
    assert check.status == "ok"
    assert check.detail == (
        "cuda:0: NVIDIA H200, compute capability 9.0, 132 multiprocessors; "
        "driver for CUDA 13.1, torch for 13.0, 1 more"
    )


def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    def require_triton() -> str:
        raise BuildError("Triton cannot be imported", remedy="pip install 'stretto[cuda]'")

    monkeypatch.setattr(doctor, "require_triton", require_triton)
    check = doctor.check_triton()
    assert check.status == "warn"
    assert check.remedy == "for programs on a GPU only: pip install 'stretto[cuda]'"


def test_triton_with_and_without_what_emulates(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "backend cuda-emulated works" in doctor.check_triton().detail

    def require_greenlet() -> object:
        raise BuildError("greenlet cannot be imported")

    monkeypatch.setattr(doctor, "require_greenlet", require_greenlet)
    check = doctor.check_triton()
    assert check.status == "ok"
    assert "no greenlet" in check.detail and "stretto[emulated]" in check.detail


def test_peers_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "jax":
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(doctor.metadata, "version", version)
    check = doctor.check_peers()
    assert check.status == "warn"
    assert check.detail.endswith("; not installed: jax")
    assert check.remedy.endswith("pip install jax")


def test_a_program_that_runs() -> None:
    assert doctor.check_run(OPTIONS).status == "ok"


def test_a_program_that_cannot_be_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    check = doctor.check_run(stretto.Options(threads=1, cache_dir=tmp_path))
    assert check.status == "fail"
    assert "/no/such/compiler" in check.detail


def test_a_program_that_is_wrong() -> None:
    calls: list[int] = []

    def unsteady(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x + len(calls)

    check = doctor.run_check(unsteady, torch.zeros(2), OPTIONS)
    assert check.status == "fail"
    assert "differs from eager" in check.detail


def test_all_checks_come_in_order() -> None:
    names = [check.name for check in doctor.checks(OPTIONS)]
    assert names[0] == "python"
    assert names[-1] == "compile and run"
    assert len(names) == len(set(names))
