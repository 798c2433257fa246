"""Programs that loop over a table of steps, each of which computes rows of pools from other rows.

A step has a kind, the first row of its operands in a table of row numbers, how many rows it
computes, and where in the pools they begin.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stretto.ir.core import Program
from stretto.lowering.targets import InputUpdates
from tests.support import program_of

WIDTH = 24

LEVELS = """
func @main[0 <= c, 0 <= n, 1 <= p, 0 <= q, 0 <= t](INPUTS) -> (f32[p, 24], f32[p, 24]) {
  %W = constant "W" : f32[48, 24]
  %b = constant "b" : f32[48]
  %V = constant "V" : f32[24, 24]
  %h1, %k1 = for %i in (0, t, 1) carry (%h0 = %h, %k0 = %k) {
    %step = aten.select.int(%table, 0, %i) : i64[4]
    %kind = aten.select.int(%step, 0, 0) : i64[]
    %first = aten.select.int(%step, 0, 1) : i64[]
    %count = aten.select.int(%step, 0, 2) : i64[]
    %to = aten.select.int(%step, 0, 3) : i64[]
    %two = aten.eq.Scalar(%kind, 2) : bool[]
    %h2, %k2 = if %two {
      %m = size n <= c = %count : i64[]
      %part = stretto.narrow(%rows, 0, %first, n) : i64[n, 2]
      %left = aten.select.int(%part, 1, 0) : i64[n]
      %right = aten.select.int(%part, 1, 1) : i64[n]
      %hl = aten.index.Tensor(%h0, (%left,)) : f32[n, 24]
      %hr = aten.index.Tensor(%h0, (%right,)) : f32[n, 24]
      %kl = aten.index.Tensor(%k0, (%left,)) : f32[n, 24]
      %sum = aten.add.Tensor(%hl, %hr) : f32[n, 24]
      %both = aten.linear.default(%sum, %W, %b) : f32[n, 48]
      %gate = aten.slice.Tensor(%both, 1, 0, 24, 1) : f32[n, 24]
      %new = aten.slice.Tensor(%both, 1, 24, 48, 1) : f32[n, 24]
      %open = aten.sigmoid.default(%gate) : f32[n, 24]
      %bent = aten.tanh.default(%new) : f32[n, 24]
      %kept = aten.mul.Tensor(%open, %kl) : f32[n, 24]
      %k3 = aten.add.Tensor(%kept, %bent) : f32[n, 24]
      %out = aten.mm.default(%k3, %V) : f32[n, 24]
      %h3 = aten.tanh.default(%out) : f32[n, 24]
      %h4 = stretto.narrow_scatter(%h0, %h3, 0, %to) : f32[p, 24]
      %k4 = stretto.narrow_scatter(%k0, %k3, 0, %to) : f32[p, 24]
      yield %h4, %k4
    } else {
      %one = aten.eq.Scalar(%kind, 1) : bool[]
      %h5 = if %one {
        %m1 = size q <= c = %count : i64[]
        %part1 = stretto.narrow(%rows, 0, %first, q) : i64[q, 2]
        %left1 = aten.select.int(%part1, 1, 0) : i64[q]
        %hl1 = aten.index.Tensor(%h0, (%left1,)) : f32[q, 24]
        %out1 = aten.mm.default(%hl1, %V) : f32[q, 24]
        %new1 = aten.sigmoid.default(%out1) : f32[q, 24]
        %h6 = stretto.narrow_scatter(%h0, %new1, 0, %to) : f32[p, 24]
        yield %h6
      } else {
        yield %h0
      } : f32[p, 24]
      yield %h5, %k0
    } : f32[p, 24], f32[p, 24]
    yield %h2, %k2
  } : f32[p, 24], f32[p, 24]
  return %h1, %k1
}
""".replace("INPUTS", "%table: i64[t, 4], %rows: i64[c, 2], %h: f32[p, 24], %k: f32[p, 24]")

UPDATES = InputUpdates(((2, 0), (3, 1)), repeatable=True)
"""The pools are changed where they lie."""


def program() -> Program:
    return program_of(LEVELS)


def inputs(sizes: list[int], seed: int = 0) -> list[Tensor]:
    """Steps of so many rows, of all kinds in turn, whose operands are rows of earlier steps."""
    generator = torch.Generator().manual_seed(seed)
    ready, first, table, rows = 5, 0, list[list[int]](), list[Tensor]()
    for number, count in enumerate(sizes):
        table.append([(2, 1, 2, 0)[(number + seed) % 4], first, count, ready])
        rows.append(torch.randint(ready, (count, 2), generator=generator))
        first, ready = first + count, ready + count
    pools = [torch.randn(ready, WIDTH, generator=generator) for _ in range(2)]
    made = torch.tensor(table, dtype=torch.int64).reshape(-1, 4)
    return [made, torch.cat([torch.empty(0, 2, dtype=torch.int64), *rows]), *pools]
