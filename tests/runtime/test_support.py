"""Sources of the package that are built beside other work."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stretto.errors import BuildError
from stretto.options import Options
from stretto.runtime import compiler
from stretto.runtime.compiler import NativeLibrary, build_in_background


def nothing(library: object) -> None:
    return None


def test_load_takes_what_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, options = tmp_path / "answer.cpp", Options(cache_dir=tmp_path / "cache")
    source.write_text('extern "C" int answer() { return 42; }')
    builders = list[bool]()
    compile_shared = compiler.compile_shared

    def noted(*arguments: object) -> object:
        built = compile_shared(*arguments)  # type: ignore[arg-type]
        if not built.from_cache:
            builders.append(threading.current_thread() is threading.main_thread())
        return built

    monkeypatch.setattr(compiler, "compile_shared", noted)
    part = NativeLibrary(source, nothing)
    build_in_background([part], options)
    build_in_background([part], options)
    for thread in threading.enumerate():
        if thread.name == "stretto builds its libraries":
            thread.join()
    assert part.load(options).answer() == 42
    assert builders == [False]


def test_what_went_wrong_is_raised_by_load(tmp_path: Path) -> None:
    source, options = tmp_path / "wrong.cpp", Options(cache_dir=tmp_path / "cache")
    source.write_text("int main( {")
    part = NativeLibrary(source, nothing)
    build_in_background([part], options)
    with pytest.raises(BuildError, match="failed with exit code 1"):
        part.load(options)
