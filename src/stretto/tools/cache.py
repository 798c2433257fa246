"""The folder of compiled programs, seen from outside: its size, and how to empty it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from stretto.errors import BuildError


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """Entries lie in subfolders of two characters; see `runtime/cache.py`."""

    path: Path

    @property
    def files(self) -> list[Path]:
        return sorted(file for file in self.path.glob("[0-9a-f][0-9a-f]/*") if file.is_file())

    @property
    def entries(self) -> int:
        return len(self.files)

    @property
    def nbytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    def clear(self) -> int:
        """Removes every entry and gives their number. Programs that run keep what they loaded.

        Raises BuildError where the folder cannot be changed.
        """
        removed = self.entries
        try:
            for folder in {file.parent for file in self.files}:
                shutil.rmtree(folder)
        except OSError as error:
            raise BuildError(
                f"the cache cannot be cleared: {error}", remedy=f"remove {self.path} yourself"
            ) from error
        return removed
