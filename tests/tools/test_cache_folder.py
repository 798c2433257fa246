"""The cache folder seen from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

import stretto
from stretto.errors import BuildError
from stretto.tools.doctor import CacheFolder
from tests.tools.programs import DECAY, decay


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "none")
    assert (folder.entries, folder.nbytes, folder.clear()) == (0, 0, 0)


def test_clearing_removes_programs_and_nothing_else(tmp_path: Path) -> None:
    options = stretto.Options(threads=1, cache_dir=tmp_path)
    fast = stretto.compile(decay, DECAY, backend="cpu", options=options)
    (tmp_path / "mine.txt").write_text("keep")
    (tmp_path / "notes").mkdir()
    folder = CacheFolder(tmp_path)
    assert folder.entries >= 1
    assert folder.nbytes > 1000
    removed = folder.entries
    assert folder.clear() == removed
    assert folder.entries == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "notes"]
    fast(*DECAY)  # what is loaded stays loaded


def test_a_folder_that_cannot_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "entry.so").write_text("")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(BuildError, match="cannot be cleared") as caught:
        CacheFolder(tmp_path).clear()
    assert str(tmp_path) in (caught.value.remedy or "")
