"""Tests of the `golden` fixture itself."""

from pathlib import Path

import pytest

from tests.conftest import golden_check


def test_golden_accepts_what_the_file_holds(tmp_path: Path) -> None:
    (tmp_path / "add.cpp").write_text("a + b\n")
    golden_check(tmp_path, update=False)("a + b\n", "add.cpp")


def test_golden_shows_what_changed(tmp_path: Path) -> None:
    (tmp_path / "add.cpp").write_text("a + b\n")
    with pytest.raises(pytest.fail.Exception, match=r"(?s)make golden.*-a \+ b.*\+a - b"):
        golden_check(tmp_path, update=False)("a - b\n", "add.cpp")


def test_golden_asks_for_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="no golden file add.cpp"):
        golden_check(tmp_path, update=False)("a + b\n", "add.cpp")


def test_golden_rewrites_with_update(tmp_path: Path) -> None:
    golden_check(tmp_path, update=True)("a - b\n", "kernels/add.cpp")
    assert (tmp_path / "kernels" / "add.cpp").read_text() == "a - b\n"
