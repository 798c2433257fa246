"""Random programs in which tensors share memory: views, buffers, constants, branches, loops."""

from __future__ import annotations

from tests.frontends.python.writer import Writer


class AliasWriter(Writer):
    """Writes a module over vectors of four elements that alias each other."""

    names = ("a", "b", "c", "d")
    trips, size, otherwise = 4, "x", 0.5
    control = (*("if",) * 4, "for", "range", "while")
    plain = (
        *(*("share",) * 4, *("fresh",) * 2, *("write",) * 4),
        *("number", "append", "slice", "both", "swap"),
    )

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

    def simple(self, kind: str) -> str:
        match kind:
            case "share":
                return f"{self.name()} = {self.shared()}"
            case "fresh":
                return f"{self.name()} = {self.fresh()}"
            case "both":
                return f"{self.name()} = {self.name()} = {self.fresh()}"
            case "swap":
                one, other = self.random.sample(self.names, 2)
                return f"{one}, {other} = {other}, {one}"
            case "write":
                return self.write()
            case "number":
                return f"n = n + {self.random.randint(1, 3)}"
            case "append":
                return f"items.append({self.name()})"
            case _:
                return f"{self.name()}[:2] = {self.name()}[2:]"

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
