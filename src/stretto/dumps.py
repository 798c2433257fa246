"""`Debug.dump_dir`: the text of each form of a program, written into numbered files."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from stretto.errors import BuildError


class Dumper:
    """Writes texts into a folder, numbered in order; without a folder it writes nothing.

    Existing files stay: numbers continue after the largest one, so that each signature, and
    each process, adds files. Links are not followed.
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self.folder = None if folder is None else Path(folder)
        self.number = 0
        if self.folder is not None:
            with _reported():
                self.folder.mkdir(parents=True, exist_ok=True)
                taken = (re.match(r"\d+(?=-)", name) for name in os.listdir(self.folder))
                self.number = max((int(found[0]) + 1 for found in taken if found), default=0)

    def text(self, name: str, text: str) -> None:
        """Write the next file, `<number>-<name>`."""
        if self.folder is None:
            return
        with _reported():
            while not _write_new(self.folder / f"{self.number:02d}-{name}", text):
                self.number += 1
        self.number += 1


@contextmanager
def _reported() -> Generator[None]:
    """Turn an OSError inside the block into a BuildError."""
    try:
        yield
    except OSError as error:
        remedy = "choose another dump_dir"
        raise BuildError(f"cannot write dumps: {error}", remedy=remedy) from error


def _write_new(path: Path, text: str) -> bool:
    """Write a file unless something with its name exists, even a link; return True if it was
    written."""
    try:
        with path.open("x") as file:  # "x" never follows a link
            file.write(text)
    except FileExistsError:
        return False
    return True
