"""Time to schedule, by the number of operators: python -m benchmarks.scheduling.growth.

A program is a wide, layered graph in one leaf: every kernel reads two of the layer before it and
one constant that all share. It is scheduled, which includes memory and waits, but not verified; as
in a compile, Python does not search for garbage meanwhile.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from stretto.batching.compiled import uncollected
from stretto.device.costs import CostModel
from stretto.device.expr import Access, Apply, Buffer, Index, Load, Var
from stretto.device.operator import Combine, Kernel, Operator, Span, Stage, TileDim
from stretto.device.regions import Body
from stretto.device.tree import Leaf, Tree, TreeFunction
from stretto.ir.types import DType
from stretto.schedule.policies import POLICIES
from stretto.schedule.scheduler import schedule_with_report

WIDTH = 8
"""Number of kernels per layer."""
SIZE, TILE = 64, 16
SECONDS = 5e-6
SIZES = (100, 1_000, 10_000)
SETTINGS = (("wavefront", 2), ("list", 2), ("team", 132), ("list", 132))


def layered(operators: int, seed: int = 0) -> Tree[Body]:
    """Build a program of `count` kernels of four tasks each."""
    rng = random.Random(seed)
    start = Buffer("x", DType.F32, (SIZE,), "input", 0)
    weights = Buffer("w", DType.F32, (SIZE,), "input", 1)
    out = Buffer("out", DType.F32, (SIZE,), "output", 2)
    made = [Buffer(f"b{n}", DType.F32, (SIZE,)) for n in range(operators - 1)]
    layers = [[start], *(made[n : n + WIDTH] for n in range(0, len(made), WIDTH))]
    kernels = list(_kernels(layers, weights, rng))
    kernels.append(_kernel(out, (layers[-1][-1], weights)))
    main: TreeFunction[Body] = TreeFunction(
        "main", (), (), (), (), tuple(made), Leaf(tuple(kernels))
    )
    return Tree((main,), (start, weights, out))


def _kernels(
    layers: Sequence[Sequence[Buffer]], weights: Buffer, rng: random.Random
) -> Iterator[Kernel]:
    for before, layer in pairwise(layers):
        for buffer in layer:
            yield _kernel(buffer, (rng.choice(before), rng.choice(before), weights))


def _kernel(out: Buffer, sources: Sequence[Buffer]) -> Kernel:
    """Each task reads its own part of its sources."""
    index = (Index.of(Var(0)),)
    first, *others = (Load(Access(one, one.shape, index)) for one in sources)
    value = first
    for load in others:
        value = Apply("add", (value, load), DType.F32)
    operator = Operator(
        f"k_{out.name}", (SIZE,), (), Combine.NONE, value, Access(out, out.shape, index)
    )
    stage = Stage(operator, (Span(SIZE, grid=0),))
    return Kernel(operator.name, (TileDim(SIZE, TILE),), (stage,), SECONDS)


def seconds(operators: int, policy: str, units: int) -> float:
    """Measure the seconds to schedule a program of `count` operators."""
    tree = layered(operators)
    costs = CostModel(uniform=units > 100)
    with uncollected():
        begun = time.perf_counter()
        schedule_with_report(tree, units, costs, policy=POLICIES[policy])
        return time.perf_counter() - begun


def main(
    output: Annotated[Path, typer.Option(help="JSON of the results.")],
    most: Annotated[int, typer.Option(help="Operators.")] = SIZES[-1],
) -> None:
    """Measures, prints, and writes JSON."""
    rows: list[dict[str, str | int | float]] = []
    for policy, units in SETTINGS:
        for size in SIZES:
            if size <= most:
                spent = seconds(size, policy, units)
                row: dict[str, str | int | float] = {
                    "policy": policy,
                    "units": units,
                    "operators": size,
                    "seconds": spent,
                }
                rows.append(row)
                print(f"{policy} {units} {size} {spent:.2f}", flush=True)
                output.write_text(json.dumps({"growth": rows}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
