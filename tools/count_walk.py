"""Count the functions and folders that a reader passes when following one small program
through stretto.

    python tools/count_walk.py [--backend NAME] [--top N]

Compiles and runs a function with one `while` loop in an empty cache and records each entry
of a Python function of the package, in order, on all threads. A *change of folder* is an
entry whose folder differs from that of the previous entry; generators count when they
start, not when they resume. `changes between stages` compares only the first folder below
the package: a sub-folder is part of its stage. `calls across` is the number of distinct
pairs of a function and one of another stage that it calls. The last three lines count the
source.

The script runs on an older checkout, too: PYTHONPATH=OLD/src python tools/count_walk.py.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

import torch

import stretto

PACKAGE = Path(stretto.__file__).parent


def program(x: torch.Tensor) -> torch.Tensor:
    while x.sum() < 100.0:
        x = x * 2.0
    return x


@dataclass(slots=True)
class Walk:
    """The entries so far. A place is (file relative to the package, qualified name)."""

    order: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    calls: set[tuple[tuple[str, str], tuple[str, str]]] = field(
        default_factory=set[tuple[tuple[str, str], tuple[str, str]]]
    )

    def watch(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or resumes(frame):
            return
        here = place(frame.f_code)
        if here is None:
            return
        self.order.append(here)
        caller = frame.f_back
        while caller is not None:
            there = place(caller.f_code)
            if there is not None:
                self.calls.add((there, here))
                return
            caller = caller.f_back

    def changes(self, *, stages: bool) -> int:
        """Count the entries whose folder, or stage, differs from that of the previous entry."""
        folders = [stage(name) if stages else folder(name) for name, _ in self.order]
        return sum(a != b for a, b in pairwise(folders))

    def hops(self) -> Counter[tuple[str, str, str]]:
        """Count the entries of each function from another folder: (from, to, function)."""
        return Counter(
            (folder(a), folder(b), name)
            for (a, _), (b, name) in pairwise(self.order)
            if folder(a) != folder(b)
        )


def resumes(frame: FrameType) -> bool:
    """Return True if a generator resumes, False if a function is entered."""
    generator = 0x20 | 0x80 | 0x200
    return bool(frame.f_code.co_flags & generator) and frame.f_lasti > 8


def place(code: CodeType) -> tuple[str, str] | None:
    path = Path(code.co_filename)
    if not path.is_relative_to(PACKAGE):
        return None
    return str(path.relative_to(PACKAGE)), code.co_qualname


def folder(name: str) -> str:
    return str(Path(name).parent)


def stage(name: str) -> str:
    return Path(name).parts[0] if "/" in name else "."


def local_imports(path: Path) -> int:
    """Return the number of imports inside functions."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = {
        node
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, functions)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    return len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", default="cpu", help="the machine to compile for")
    parser.add_argument("--top", type=int, default=0, help="print the N most frequent hops")
    arguments = parser.parse_args()
    walk = Walk()
    with tempfile.TemporaryDirectory() as cache:
        options = stretto.Options(cache_dir=cache)
        compiled = stretto.compile(program, backend=arguments.backend, options=options)
        threading.setprofile(walk.watch)
        sys.setprofile(walk.watch)
        try:
            compiled(torch.ones(4))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    across = {(a, b) for a, b in walk.calls if stage(a[0]) != stage(b[0])}
    files = sorted(PACKAGE.rglob("*.py"))
    for title, count in (
        ("files entered", len({name for name, _ in walk.order})),
        ("functions entered", len(set(walk.order))),
        ("changes of folder", walk.changes(stages=False)),
        ("changes between stages", walk.changes(stages=True)),
        ("calls across", len(across)),
        ("files of Python", len(files)),
        ("lines of Python", sum(len(path.read_text().splitlines()) for path in files)),
        ("local imports", sum(local_imports(path) for path in files)),
    ):
        print(f"{title:24}{count:8,}")
    for (a, b, name), count in walk.hops().most_common(arguments.top):
        print(f"{count:8,}  {a} -> {b}  {name}")


if __name__ == "__main__":
    main()
