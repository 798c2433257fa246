"""The memory a process may use, with and without the limit of a container."""

import os
from pathlib import Path

from stretto.runtime.memory_watch import usable_memory

PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_without_a_limit(tmp_path: Path):
    assert usable_memory(tmp_path) == PHYSICAL
    (tmp_path / "unlimited").mkdir()
    (tmp_path / "unlimited" / "memory.max").write_text("max\n")
    assert usable_memory(tmp_path / "unlimited") == PHYSICAL


def test_limit_of_a_container(tmp_path: Path):
    (tmp_path / "memory.max").write_text("1048576\n")
    assert usable_memory(tmp_path) == 1 << 20
