"""Programs with symbolic sizes: texts, their eager equivalents, and sizes to try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch

from stretto.ir.core import Program
from stretto.ir.sizes import Size, Symbol
from stretto.ir.symbols import symbols_of_types
from stretto.ir.types import DType, TensorType
from tests.support import program_of


@dataclass(frozen=True)
class Example:
    """`eager` takes the inputs of `main`; `sizes` are tried for every symbol that allows them."""

    name: str
    text: str
    eager: Callable[..., object]
    sizes: tuple[int, ...] = (0, 1, 2, 9)

    def program(self) -> Program:
        return program_of(self.text)

    def bindings(self) -> list[dict[Symbol, int]]:
        types = [value.type for value in self.program().main.params]
        symbols = sorted(symbols_of_types(types), key=str)
        allowed = [
            [n for n in self.sizes if n >= s.low and (s.high is None or n <= s.high)]
            for s in symbols
        ]
        return [dict(zip(symbols, values, strict=True)) for values in product(*allowed)]

    def inputs(self, binding: dict[Symbol, int]) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(sum(binding.values()))
        return [_tensor(v.tensor, binding, generator) for v in self.program().main.params]

    def expected(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        found = self.eager(*inputs)
        return list(found) if isinstance(found, tuple) else [found]  # type: ignore

    def __str__(self) -> str:
        return self.name


def _tensor(
    type: TensorType, binding: dict[Symbol, int], generator: torch.Generator
) -> torch.Tensor:
    shape = [
        dim.evaluate(binding.__getitem__) if isinstance(dim, Size) else dim for dim in type.shape
    ]
    if type.dtype is DType.I64:
        return torch.randint(0, 4, shape, generator=generator)
    return torch.randn(shape, generator=generator)


def _repeated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.tanh(x @ w)
    return x


def _until(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    for i in range(int(n)):
        x = x * 0.5 + i
    return x


def _scan(x: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(3)
    for row in x:
        h = torch.tanh(h + row)
    return h


EXAMPLES = (
    Example(
        "elementwise",
        """
        func @main[0 <= n <= 64](%x: f32[n, 4], %y: f32[4], %z: f32[n, 1]) -> (f32[n, 4]) {
          %a = aten.add.Tensor(%x, %y) : f32[n, 4]
          %b = aten.mul.Tensor(%a, %z) : f32[n, 4]
          %c = aten.tanh.default(%b) : f32[n, 4]
          return %c
        }
        """,
        lambda x, y, z: torch.tanh((x + y) * z),
    ),
    Example(
        "matmul",
        """
        func @main[0 <= n usually 300, 1 <= k, 0 <= m](
          %x: f32[n, k], %w: f32[k, m]
        ) -> (f32[n, m]) {
          %a = aten.mm.default(%x, %w) : f32[n, m]
          %b = aten.relu.default(%a) : f32[n, m]
          return %b
        }
        """,
        lambda x, w: torch.relu(x @ w),
        (0, 1, 9),
    ),
    Example(
        "cat",
        """
        func @main[0 <= m, 0 <= n](%x: f32[n, 3], %y: f32[m, 3]) -> (f32[m + n, 3]) {
          %a = aten.neg.default(%y) : f32[m, 3]
          %b = aten.cat.default((%x, %a)) : f32[m + n, 3]
          %c = aten.mul.Tensor(%b, %b) : f32[m + n, 3]
          return %c
        }
        """,
        lambda x, y: torch.cat((x, -y)) ** 2,
    ),
    Example(
        "slices",
        """
        func @main[2 <= n](%x: f32[3, n]) -> (f32[3, n - 1], f32[3, n - 2]) {
          %a = aten.slice.Tensor(%x, 1, 1, 9223372036854775807) : f32[3, n - 1]
          %b = aten.slice.Tensor(%x, 1, 0, -1) : f32[3, n - 1]
          %c = aten.sub.Tensor(%a, %b) : f32[3, n - 1]
          %d = aten.slice.Tensor(%c, 1, 1, 9223372036854775807) : f32[3, n - 2]
          %e = aten.exp.default(%d) : f32[3, n - 2]
          return %c, %e
        }
        """,
        lambda x: (x[:, 1:] - x[:, :-1], (x[:, 1:] - x[:, :-1])[:, 1:].exp()),
    ),
    Example(
        "tail",
        """
        func @main[0 <= n](%x: f32[n]) -> (f32[min(n, 2)]) {
          %a = aten.slice.Tensor(%x, 0, -2, 9223372036854775807) : f32[min(n, 2)]
          %b = aten.neg.default(%a) : f32[min(n, 2)]
          return %b
        }
        """,
        lambda x: -x[-2:],
    ),
    Example(
        "reshape",
        """
        func @main[0 <= n](%x: f32[n, 4]) -> (f32[4*n], f32[n, 2, 2]) {
          %a = aten.sin.default(%x) : f32[n, 4]
          %b = aten.view.default(%a, (-1,)) : f32[4*n]
          %c = aten.add.Scalar(%b, 1) : f32[4*n]
          %d = aten.view.default(%c, (n, 2, 2)) : f32[n, 2, 2]
          return %c, %d
        }
        """,
        lambda x: (x.sin().view(-1) + 1, (x.sin().view(-1) + 1).view(-1, 2, 2)),
    ),
    Example(
        "reduce",
        """
        func @main[1 <= m, 1 <= n](%x: f32[n, m]) -> (f32[n], f32[m], f32[n, m]) {
          %a = aten.sum.dim_IntList(%x, (1,)) : f32[n]
          %b = aten.amax.default(%x, (0,)) : f32[m]
          %c = aten._softmax.default(%x, 1, False) : f32[n, m]
          return %a, %b, %c
        }
        """,
        lambda x: (x.sum(1), x.amax(0), x.softmax(1)),
    ),
    Example(
        "created",
        """
        func @main[0 <= n <= 9](%x: f32[n]) -> (f32[n], f32[2, n], i64[n]) {
          %a = aten.arange.default(n) : i64[n]
          %b = aten.add.Tensor(%x, %a) : f32[n]
          %c = aten.full.default((2, n), 1.5) : f32[2, n]
          %d = aten.expand.default(%b, (2, n)) : f32[2, n]
          %e = aten.add.Tensor(%c, %d) : f32[2, n]
          return %b, %e, %a
        }
        """,
        lambda x: (
            x + torch.arange(len(x)),
            (x + torch.arange(len(x))).expand(2, -1) + 1.5,
            torch.arange(len(x)),
        ),
    ),
    Example(
        "transposed",
        """
        func @main[1 <= m, 1 <= n](%x: f32[2, n, m]) -> (f32[n, m], f32[m, 2, n]) {
          %a = aten.permute.default(%x, (2, 0, 1)) : f32[m, 2, n]
          %b = aten.exp.default(%a) : f32[m, 2, n]
          %c = aten.sum.dim_IntList(%b, (1,)) : f32[m, n]
          %d = aten.t.default(%c) : f32[n, m]
          %e = aten.flip.default(%d, (0,)) : f32[n, m]
          return %e, %b
        }
        """,
        lambda x: (
            x.permute(2, 0, 1).exp().sum(1).t().flip(0),
            x.permute(2, 0, 1).exp().contiguous(),
        ),
    ),
    Example(
        "loop",
        """
        func @main[0 <= n](%x: f32[n, 4], %w: f32[4, 4]) -> (f32[n, 4]) {
          %r = for %i in (0, 3, 1) carry (%h = %x) {
            %a = aten.mm.default(%h, %w) : f32[n, 4]
            %b = aten.tanh.default(%a) : f32[n, 4]
            yield %b
          } : f32[n, 4]
          return %r
        }
        """,
        _repeated,
    ),
    Example(
        "trips",
        """
        func @main[0 <= n](%x: f32[n], %t: i64[]) -> (f32[n]) {
          %zero = literal 0 : i64[]
          %r = for %i in (%zero, %t, 1) carry (%h = %x) {
            %a = aten.mul.Scalar(%h, 0.5) : f32[n]
            %b = aten.add.Tensor(%a, %i) : f32[n]
            yield %b
          } : f32[n]
          return %r
        }
        """,
        _until,
    ),
    Example(
        "range",
        """
        func @main[0 <= n](%x: f32[n, 3]) -> (f32[3]) {
          %z = aten.full.default((3,), 0.0) : f32[3]
          %r = for %i in (0, n, 1) carry (%h = %z) {
            %a = aten.select.int(%x, 0, %i) : f32[3]
            %b = aten.add.Tensor(%h, %a) : f32[3]
            %c = aten.tanh.default(%b) : f32[3]
            yield %c
          } : f32[3]
          return %r
        }
        """,
        _scan,
    ),
    Example(
        "library",
        """
        func @main[2 <= n](%x: f32[n, 3]) -> (f32[n, 3], f32[n, 3]) {
          %a = aten.roll.default(%x, (1,), (0,)) : f32[n, 3]
          %b = aten.exp.default(%a) : f32[n, 3]
          %c = aten.roll.default(%b, (`n - 2`,), (0,)) : f32[n, 3]
          return %b, %c
        }
        """,
        lambda x: (x.roll(1, 0).exp(), x.roll(1, 0).exp().roll(len(x) - 2, 0)),
    ),
    Example(
        "gathered",
        """
        func @main[1 <= m, 4 <= n](%x: f32[n, 3], %p: i64[m], %i: i64[]) -> (f32[m, 3], f32[3]) {
          %a = aten.index_select.default(%x, 0, %p) : f32[m, 3]
          %b = aten.neg.default(%a) : f32[m, 3]
          %c = aten.select.int(%x, 0, %i) : f32[3]
          return %b, %c
        }
        """,
        lambda x, p, i: (-x[p], x[i]),
    ),
    Example(
        "branch",
        """
        func @main[0 <= n](%x: f32[n, 3], %t: i64[]) -> (f32[n, 3]) {
          %c = aten.gt.Scalar(%t, 1) : bool[]
          %r = if %c {
            %a = aten.exp.default(%x) : f32[n, 3]
            yield %a
          } else {
            %b = aten.neg.default(%x) : f32[n, 3]
            yield %b
          } : f32[n, 3]
          return %r
        }
        """,
        lambda x, t: x.exp() if t > 1 else -x,
    ),
    Example(
        "call",
        """
        func @main[0 <= n](%x: f32[n, 3], %t: i64[]) -> (f32[2*n, 3]) {
          %a = aten.cat.default((%x, %x)) : f32[2*n, 3]
          %b = call @halve(%a, %t) : f32[2*n, 3]
          return %b
        }
        func @halve[0 <= m](%x: f32[m, 3], %t: i64[]) -> (f32[m, 3]) {
          %c = aten.gt.Scalar(%t, 0) : bool[]
          %r = if %c {
            %y = aten.mul.Scalar(%x, 0.5) : f32[m, 3]
            %s = aten.sub.Scalar(%t, 1) : i64[]
            %z = call @halve(%y, %s) : f32[m, 3]
            yield %z
          } else {
            yield %x
          } : f32[m, 3]
          return %r
        }
        """,
        lambda x, t: torch.cat((x, x)) * 0.5 ** int(t),
    ),
)
