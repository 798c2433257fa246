"""Random programs with nested control flow equal eager PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.frontends.python.checks import check
from tests.frontends.python.writer import Writer, load


class VectorWriter(Writer):
    """Writes a random function over three vectors, a list and a counter."""

    names = ("a", "b", "c")
    trips, size, otherwise = 5, "a", 0.6
    control = ("if", "if", "for", "while", "range")
    plain = (*("assign",) * 4, "number", "pair", "append", "inplace", "item")

    def vector(self) -> str:
        one, other = self.name(), self.name()
        return self.pick(
            f"torch.tanh({one} + {other})",
            f"{one} * 0.5 - {other}",
            f"{one} + n * 0.1",
            f"torch.where({one} > 0, {one}, {other} * 0.3)",
            f"pair[0] + {one}",
            f"out[-1] * 0.9 + {one} if out else {one}",
        )

    def test(self, depth: int = 0) -> str:
        one = self.name()
        simple = self.pick(f"{one}.sum() > 0", f"{one}[0] < {one}[1]", "n % 2 == 0", "n > 3")
        if depth > 1 or self.random.random() < 0.6:
            return simple
        joined = self.pick("and", "or")
        return f"({simple} {joined} not {self.test(depth + 1)})"

    def simple(self, kind: str) -> str:
        match kind:
            case "assign":
                return f"{self.name()} = {self.vector()}"
            case "number":
                return f"n = n + {self.random.randint(1, 3)}"
            case "pair":
                return f"pair = (pair[1], {self.vector()})"
            case "append":
                return f"out.append({self.vector()})"
            case "inplace":
                return f"fixed.mul_(0.5).add_({self.vector()})"
            case _:
                return f"fixed[n % 4] = {self.name()}.sum()"

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


@pytest.mark.parametrize("seed", range(120, 150))
def test_random_programs(seed: int, tmp_path: Path) -> None:
    text = VectorWriter(seed).program()
    draw = torch.Generator().manual_seed(seed)
    cases = [tuple(torch.randn(4, generator=draw) for _ in VectorWriter.names) for _ in range(4)]
    try:
        check(load(text, tmp_path / f"program_{seed}.py").f, *cases)
    except BaseException:
        print(text)
        raise
