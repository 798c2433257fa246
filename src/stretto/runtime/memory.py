"""How much memory this process may use."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

CONTROL_GROUP = Path("/sys/fs/cgroup")


@cache
def usable_memory(folder: Path = CONTROL_GROUP) -> int:
    """Bytes: the machine's memory, or less where a container of `folder` has a limit."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)
