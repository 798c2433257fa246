"""`stretto doctor`: each check where things are right, and where they are not."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
import torch

import stretto
from stretto.tools import doctor
from stretto.tools.doctor import CacheFolder

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
