"""Writers of random programs for capture: the statements they share, and where they differ."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from typing import Any


class Writer:
    """Writes statements, nested up to three deep; every loop ends.

    A subclass says what names there are, how loops are counted, and what the statements without
    control flow are.
    """

    names: tuple[str, ...]
    trips: int
    """Most iterations of a loop over a constant range; other loops have fewer."""
    size: str
    """A tensor that decides the iterations of a loop over a range."""
    otherwise: float
    """The share of branches that have an else."""
    control: tuple[str, ...]
    """Kinds of statements with control flow, as often as they shall be drawn."""
    plain: tuple[str, ...]
    """The same for those without, which `simple` writes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.loops = 0

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def name(self) -> str:
        return self.random.choice(self.names)

    def test(self) -> str:
        """A condition."""
        raise NotImplementedError

    def simple(self, kind: str) -> str:
        """A statement of one of the kinds in `plain`."""
        raise NotImplementedError

    def statement(self, indent: int, depth: int, in_loop: bool) -> None:
        kinds = [*self.plain]
        if depth < 3:
            kinds += self.control
        if in_loop:
            kinds += ["break", "continue"]
        kind = self.random.choice(kinds)
        if kind == "if":
            self.branch(indent, depth, in_loop)
        elif kind in ("for", "range", "while"):
            self.loop(kind, indent, depth)
        elif kind in ("break", "continue"):
            self.line(indent, f"if {self.test()}:")
            self.line(indent + 1, kind)
        else:
            self.line(indent, self.simple(kind))

    def branch(self, indent: int, depth: int, in_loop: bool) -> None:
        self.line(indent, f"if {self.test()}:")
        self.block(indent + 1, depth + 1, in_loop)
        if self.random.random() < self.otherwise:
            self.line(indent, "else:")
            self.block(indent + 1, depth + 1, in_loop)

    def loop(self, kind: str, indent: int, depth: int) -> None:
        self.loops += 1
        counter = f"k{self.loops}"
        match kind:
            case "for":
                trips = self.random.randint(0, self.trips)
                self.line(indent, f"for i{self.loops} in range({trips}):")
            case "range":
                size = f"int({self.size}.abs().sum()) % {self.trips - 1}"
                self.line(indent, f"for i{self.loops} in range({size}):")
            case _:
                self.line(indent, f"{counter} = 0")
                self.line(indent, f"while {counter} < {self.trips - 1} and {self.test()}:")
                self.line(indent + 1, f"{counter} += 1")
        self.block(indent + 1, depth + 1, True)

    def block(self, indent: int, depth: int, in_loop: bool) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.statement(indent, depth, in_loop)

    def line(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)


def load(text: str, path: Path) -> Any:
    """The module that the text is, as a file, because capture reads the source of functions."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
