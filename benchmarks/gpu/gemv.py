"""A matrix times a vector by the project's own reduce template, in other block shapes than chosen.

The program is captured, cut and scheduled as any other; then the rows, the depth and the warps of
its one reduction are set by hand, before it is printed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stretto.device.operator import Kernel, TileDim
from stretto.device.regions import Body
from stretto.device.tree import map_tree
from stretto.frontends.python import capture
from stretto.lowering.program import lower
from stretto.machines.cuda.compile import compile_source
from stretto.machines.cuda.costs import CUDA_COSTS
from stretto.machines.cuda.device import cuda_executable, emulated_cuda_executable
from stretto.machines.cuda.printer.program import Style, print_plan
from stretto.machines.cuda.select import select
from stretto.machines.cuda.templates.reduction import Reduce
from stretto.options import Options
from stretto.passes.manager import run_passes
from stretto.passes.pipeline import pipeline
from stretto.schedule.plan import make_plan
from stretto.schedule.scheduler import schedule_with_report

from .clock import device_seconds, rate
from .device import Bench
from .worker import WrongValue


@dataclass(frozen=True, slots=True)
class Shape:
    """rows x depth lanes of a block at a time, by so many warps."""

    rows: int
    depth: int
    warps: int

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.depth}, {self.warps} warps"


# Blocks of 2 K to 16 K lanes, which are loads in flight of 8 to 64 KiB a unit in float32.
SHAPES = (
    Shape(1, 2048, 4),
    Shape(1, 4096, 4),
    Shape(1, 4096, 8),
    Shape(2, 4096, 4),
    Shape(2, 4096, 8),
    Shape(4, 1024, 4),
    Shape(4, 2048, 4),
    Shape(4, 2048, 8),
    Shape(8, 512, 4),
    Shape(8, 1024, 4),
    Shape(8, 1024, 8),
    Shape(8, 2048, 8),
    Shape(8, 2048, 16),
    Shape(16, 512, 4),
    Shape(16, 512, 8),
    Shape(32, 256, 4),
    Shape(32, 256, 8),
    Shape(64, 128, 4),
)
DRY_SHAPES = (Shape(4, 32, 4), Shape(8, 16, 4))


def multiply(matrix: Tensor, vector: Tensor) -> Tensor:
    return matrix @ vector


def make(
    bench: Bench, folder: str, matrix: Tensor, vector: Tensor, shape: Shape | None, task_rows: int
) -> Any:
    """The executable of `multiply` for these operands. shape: None is what the project chooses."""
    options = Options(cache_dir=folder)
    captured = capture(multiply, (matrix, vector), {}, options)
    lowered = lower(run_passes(captured.program, pipeline()))
    tree = select(lowered, bench.units).tree
    if shape is not None:
        tree = map_tree(tree, lambda items: _shaped(items, shape, task_rows))
    program, _ = schedule_with_report(tree, bench.units, CUDA_COSTS)
    plan = make_plan(program)
    sources = print_plan(plan, Style(warps=shape.warps if shape is not None else 4))
    if bench.dry_run:
        return emulated_cuda_executable(plan, sources, lowered.interface, options)
    compiled = [compile_source(source, bench.target, options) for source in sources]
    return cuda_executable(plan, sources, compiled, lowered.interface, options, bench.device)


def _shaped(items: Body, shape: Shape, task_rows: int) -> Body:
    """The kernels with their reductions in that shape, in tasks of so many rows."""
    changed: list[Any] = []
    for item in items:
        if not isinstance(item, Kernel) or not any(s.operator.combine for s in item.stages):
            changed.append(item)
            continue
        template = Reduce(shape.rows, shape.depth)
        stages = tuple(
            replace(stage, template=template) if stage.operator.combine else stage
            for stage in item.stages
        )
        grid = tuple(
            TileDim(dim.extent, min(task_rows, dim.extent) if isinstance(dim.extent, int) else 1)
            for dim in item.grid
        )
        changed.append(replace(item, stages=stages, grid=grid))
    return tuple(changed)


def measure(
    bench: Bench, folder: str, dtype: torch.dtype, rows: int, columns: int, shape: Shape | None
) -> dict[str, Any]:
    """Bytes of the matrix per second; checked against float64 first."""
    generator = torch.Generator(device=bench.device).manual_seed(0)
    size = (rows, columns)
    matrix = torch.randn(size, generator=generator, device=bench.device).to(dtype)
    vector = torch.randn(columns, generator=generator, device=bench.device).to(dtype)
    # As many tasks as units, of whole blocks.
    block = shape.rows if shape is not None else 1
    task_rows = -(-rows // (bench.units * block)) * block
    run = make(bench, folder, matrix, vector, shape, task_rows)
    with torch.no_grad():
        (found,) = run([matrix, vector])
        wanted = torch.empty(rows, dtype=torch.float64, device=bench.device)
        for first in range(0, rows, 4096):
            part = matrix[first : first + 4096].double()
            wanted[first : first + 4096] = part @ vector.double()
        worst = float((found.double() - wanted).abs().max() / wanted.abs().max())
        if not worst <= (1e-4 if dtype is torch.float32 else 2e-2):
            raise WrongValue(f"error {worst:.1e}")
        calls = bench.size(20, 1)
        seconds = device_seconds(bench, lambda: run([matrix, vector]), calls, bench.size(7, 2))
        run.synchronize()
    nbytes = matrix.nbytes
    return rate(seconds, nbytes, "B/s") | {"bytes": nbytes, "error": worst}
