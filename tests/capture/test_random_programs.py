"""Random programs with nested control flow equal eager PyTorch."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.capture.checks import check

NAMES = ("a", "b", "c")


class Writer:
    """Writes a random function over three vectors, a list and a counter; every loop ends."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.loops = 0

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def vector(self) -> str:
        one, other = self.random.choice(NAMES), self.random.choice(NAMES)
        return self.pick(
            f"torch.tanh({one} + {other})",
            f"{one} * 0.5 - {other}",
            f"{one} + n * 0.1",
            f"torch.where({one} > 0, {one}, {other} * 0.3)",
            f"pair[0] + {one}",
            f"out[-1] * 0.9 + {one} if out else {one}",
        )

    def test(self, depth: int = 0) -> str:
        one = self.random.choice(NAMES)
        simple = self.pick(f"{one}.sum() > 0", f"{one}[0] < {one}[1]", "n % 2 == 0", "n > 3")
        if depth > 1 or self.random.random() < 0.6:
            return simple
        joined = self.pick("and", "or")
        return f"({simple} {joined} not {self.test(depth + 1)})"

    def statement(self, indent: int, depth: int, in_loop: bool) -> None:
        pad = "    " * indent
        kinds = ["assign"] * 4 + ["number", "pair", "append", "inplace", "item"]
        if depth < 3:
            kinds += ["if", "if", "for", "while", "range"]
        if in_loop:
            kinds += ["break", "continue"]
        match self.random.choice(kinds):
            case "assign":
                self.lines.append(f"{pad}{self.random.choice(NAMES)} = {self.vector()}")
            case "number":
                self.lines.append(f"{pad}n = n + {self.random.randint(1, 3)}")
            case "pair":
                self.lines.append(f"{pad}pair = (pair[1], {self.vector()})")
            case "append":
                self.lines.append(f"{pad}out.append({self.vector()})")
            case "inplace":
                self.lines.append(f"{pad}fixed.mul_(0.5).add_({self.vector()})")
            case "item":
                self.lines.append(f"{pad}fixed[n % 4] = {self.random.choice(NAMES)}.sum()")
            case "if":
                self.lines.append(f"{pad}if {self.test()}:")
                self.block(indent + 1, depth + 1, in_loop)
                if self.random.random() < 0.6:
                    self.lines.append(f"{pad}else:")
                    self.block(indent + 1, depth + 1, in_loop)
            case "for":
                self.loops += 1
                self.lines.append(f"{pad}for i{self.loops} in range({self.random.randint(0, 5)}):")
                self.block(indent + 1, depth + 1, True)
            case "range":
                self.loops += 1
                self.lines.append(f"{pad}for i{self.loops} in range(int(a.abs().sum()) % 4):")
                self.block(indent + 1, depth + 1, True)
            case "while":
                self.loops += 1
                counter = f"k{self.loops}"
                self.lines.append(f"{pad}{counter} = 0")
                self.lines.append(f"{pad}while {counter} < 4 and {self.test()}:")
                self.lines.append(f"{pad}    {counter} += 1")
                self.block(indent + 1, depth + 1, True)
            case jump:
                self.lines.append(f"{pad}if {self.test()}:")
                self.lines.append(f"{pad}    {jump}")

    def block(self, indent: int, depth: int, in_loop: bool) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.statement(indent, depth, in_loop)

    def program(self) -> str:
        self.lines = ["import torch", "", "def f(a, b, c):"]
        self.lines += ["    n, pair, out = 0, (a, b), []", "    fixed = torch.zeros(4)"]
        for _ in range(4):
            self.statement(1, 0, False)
        self.lines.append(f"    if {self.test()}:")
        self.lines.append("        return fixed, n, pair, out, a")
        self.statement(1, 1, False)
        self.lines.append("    return fixed, n, pair, out, b + c")
        return "\n".join(self.lines) + "\n"


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.f


@pytest.mark.parametrize("seed", range(120, 150))
def test_random_programs(seed: int, tmp_path: Path) -> None:
    path = tmp_path / f"program_{seed}.py"
    path.write_text(Writer(seed).program())
    draw = torch.Generator().manual_seed(seed)
    cases = [tuple(torch.randn(4, generator=draw) for _ in NAMES) for _ in range(4)]
    try:
        check(load(path), *cases)
    except BaseException:
        print(path.read_text())
        raise
