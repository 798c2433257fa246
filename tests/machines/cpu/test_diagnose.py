"""What `stretto doctor` says of this host, where things are right and where they are not."""

from __future__ import annotations

import pytest

import stretto
from stretto.machines.cpu import machine
from stretto.runtime import compiler

OPTIONS = stretto.Options(threads=1)


def test_the_compiler_of_this_machine() -> None:
    check = machine.check_compiler()
    assert check.status == "ok"
    assert "-O3" in check.detail


@pytest.mark.parametrize(("tracked", "status"), [(True, "ok"), (False, "warn")])
def test_how_written_weights_are_noticed(
    monkeypatch: pytest.MonkeyPatch, tracked: bool, status: str
) -> None:
    monkeypatch.setattr(machine, "tracks_pages", lambda options: tracked)
    check = machine.check_weights(OPTIONS)
    assert check.status == status
    if not tracked:
        assert "read at each call" in check.detail and "Linux 6.7" in check.remedy


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    check = machine.check_compiler()
    assert check.status == "fail"
    assert "no C++ compiler found" in check.detail
    assert "apt install g++" in check.remedy


def test_a_compiler_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    check = machine.check_compiler()
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
    check = machine.check_vectors(processor)
    assert (check.status, check.detail) == (status, detail)


def test_vectors_of_this_machine_can_be_read() -> None:
    assert machine.check_vectors(compiler.cpu()).name == "vectors"
