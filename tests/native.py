"""Settings for building the tests' C++, and fixtures for small hand-written programs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stretto.machines.cpu.native import Interface, LibraryCall, NativeProgram
from stretto.machines.cpu.pool import HEADERS
from stretto.options import Options
from stretto.runtime import compiler
from stretto.runtime.compiler import compile_shared
from tests.machines.cuda.cuda_fakes import FakeCuda

Build = Callable[..., NativeProgram]

_PROLOGUE = """
#include <atomic>
#include "abi.h"
using namespace stretto;
"""

FULLY_OPTIMISED = ("bench", "extending", "kernels", "machines", "runtime", "tuning")
"""Folders with tests of kernels, or of the compiler's flags. All other tests check the meaning of
programs, which is the same without optimisation, and g++ then takes less than half as long."""

optimised_flags = compiler.build_flags


def _quick_flags(*, trace: bool) -> tuple[str, ...]:
    return tuple("-O0" if flag == "-O3" else flag for flag in optimised_flags(trace=trace))


@pytest.hookimpl(tryfirst=True)  # fixtures build, too
def pytest_runtest_setup(item: pytest.Item) -> None:
    folder = item.nodeid.split("/")[1]
    compiler.build_flags = optimised_flags if folder in FULLY_OPTIMISED else _quick_flags


@pytest.fixture(scope="session")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    return Options(cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def build(options: Options) -> Build:
    """`build(body, units=...)` returns a program whose stretto_run(ctx, unit) has this body."""

    def build_program(
        body: str,
        *,
        before: str = "",
        profile: bool = False,
        constants: tuple[int, ...] = (),
        library: LibraryCall | None = None,
        units: int = 1,
        buffers: int = 1,
        **interface: int,
    ) -> NativeProgram:
        source = f"{_PROLOGUE}{before}\nextern "
        source += f'"C" void stretto_run(Context* ctx, int unit) {{ {body} }}'
        built = compile_shared(source, replace(options, profile=profile), HEADERS)
        return NativeProgram(
            built.path,
            Interface(units=units, buffers=buffers, **interface),
            options,
            constants=constants,
            library=library,
        )

    return build_program


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """`fake_compiler(script)` sets CXX to a shell script that answers --version and then runs
    `script` with the real compiler's arguments."""

    def make(script: str) -> Path:
        path = tmp_path / "fake-cxx"
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo fake 1.0 && exit 0\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return path

    return make


@pytest.fixture(scope="session")
def built_cuda(tmp_path_factory: pytest.TempPathFactory) -> FakeCuda:
    return FakeCuda(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def cuda(built_cuda: FakeCuda) -> FakeCuda:
    """A fake libcuda that records its calls; empty at first."""
    built_cuda.library.fake_reset()
    return built_cuda
