"""Random programs in which tensors share memory: views, buffers, constants, branches, loops."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from typing import Any

NAMES = ("a", "b", "c", "d")


class AliasWriter:
    """Writes a module over vectors of four elements that alias each other; every loop ends."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.loops = 0
        self.locals = 0

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def name(self) -> str:
        return self.random.choice(NAMES)

    def fresh(self) -> str:
        """An expression with memory of its own."""
        one, other = self.name(), self.name()
        return self.pick(
            f"{one} + {other}", f"{one} * 0.5", f"torch.tanh({one})", f"{one}.clone()", f"-{one}"
        )

    def shared(self) -> str:
        """An expression that may be memory of another name, of a buffer, or of a constant."""
        one, other = self.name(), self.name()
        return self.pick(
            one,
            one,
            one,
            "self.h",
            "self.h",
            "self.t[0]",
            "self.t[n % 2]",
            "WEIGHT",
            "m[0]",
            "m[n % 3]",
            "items[0]",
            "items[-1]",
            f"{one}.view(2, 2).view(4)",
            f"{one}[:]",
            f"m[{one}.sum().long() % 3]",
            f"({one} if {self.test()} else {other})",
            f"{one}.view(2, 2).t().reshape(4)",
            f"{one}.flip(0)",
            f"same({one})",
            f"either({one}, {other})",
        )

    def test(self) -> str:
        one, other = self.name(), self.name()
        return self.pick(
            f"{one}.sum() > 0", f"{one}[0] < {other}[1]", "n % 2 == 0", f"{one}[0] > 0.1"
        )

    def write(self) -> str:
        one = self.name()
        return self.pick(
            f"{one}.mul_(0.5).add_(0.25)",
            f"{one}.add_({self.name()})",
            f"{one} += 0.5",
            f"{one}[1] = 2.0",
            f"{one}[1:3].mul_(-0.5)",
            f"{one}.copy_({self.name()})",
            f"{one}[n % 4] = 0.75",
            "m[1].add_(1.0)",
            "items[0].mul_(0.5)",
            "self.t[0].sub_(0.25)",
            f"bump({one})",
        )

    def statement(self, indent: int, depth: int, in_loop: bool) -> None:
        pad = "    " * indent
        kinds = ["share"] * 4 + ["fresh"] * 2 + ["write"] * 4 + ["number", "append", "slice"]
        kinds += ["both", "swap"]
        if depth < 3:
            kinds += ["if"] * 4 + ["for", "range", "while"]
        if in_loop:
            kinds += ["break", "continue"]
        match self.random.choice(kinds):
            case "share":
                self.lines.append(f"{pad}{self.name()} = {self.shared()}")
            case "fresh":
                self.lines.append(f"{pad}{self.name()} = {self.fresh()}")
            case "both":
                self.lines.append(f"{pad}{self.name()} = {self.name()} = {self.fresh()}")
            case "swap":
                one, other = self.random.sample(NAMES, 2)
                self.lines.append(f"{pad}{one}, {other} = {other}, {one}")
            case "write":
                self.lines.append(f"{pad}{self.write()}")
            case "number":
                self.lines.append(f"{pad}n = n + {self.random.randint(1, 3)}")
            case "append":
                self.lines.append(f"{pad}items.append({self.name()})")
            case "slice":
                self.lines.append(f"{pad}{self.name()}[:2] = {self.name()}[2:]")
            case "if":
                self.lines.append(f"{pad}if {self.test()}:")
                self.block(indent + 1, depth + 1, in_loop)
                if self.random.random() < 0.5:
                    self.lines.append(f"{pad}else:")
                    self.block(indent + 1, depth + 1, in_loop)
            case "for":
                self.loops += 1
                self.lines.append(f"{pad}for i{self.loops} in range({self.random.randint(0, 4)}):")
                self.block(indent + 1, depth + 1, True)
            case "range":
                self.loops += 1
                self.lines.append(f"{pad}for i{self.loops} in range(int(x.abs().sum()) % 3):")
                self.block(indent + 1, depth + 1, True)
            case "while":
                self.loops += 1
                counter = f"k{self.loops}"
                self.lines.append(f"{pad}{counter} = 0")
                self.lines.append(f"{pad}while {counter} < 3 and {self.test()}:")
                self.lines.append(f"{pad}    {counter} += 1")
                self.block(indent + 1, depth + 1, True)
            case jump:
                self.lines.append(f"{pad}if {self.test()}:")
                self.lines.append(f"{pad}    {jump}")

    def block(self, indent: int, depth: int, in_loop: bool) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.statement(indent, depth, in_loop)

    def program(self) -> str:
        self.lines = []
        for _ in range(5):
            self.statement(2, 0, False)
        body = "\n".join(self.lines)
        return HEAD + body + "\n        return a, b, c, d, m, n, items\n"


HEAD = """\
import torch
from torch import nn

WEIGHT = torch.linspace(-1, 1, 4)


def same(v):
    return v


def either(v, w):
    if v.sum() > w.sum():
        return v
    return w


def bump(v):
    if v[0] > 0:
        v.add_(0.125)
        return
    v[2] = 0.5


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.linspace(1, -1, 4))
        self.register_buffer("t", torch.linspace(-2, 2, 8).view(2, 4))

    def forward(self, x, y):
        n, a, b, c, d, m = 0, x, y, self.h, x * 0.5, torch.stack([x, y, x - y])
        items = [a, d]
"""


def load(text: str, path: Path) -> Any:
    """The module's file as a Python module."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
