"""Prints one stage of a task as Triton, by the template that kernel selection chose."""

from __future__ import annotations

from stretto.codegen.triton_expr import Names
from stretto.codegen.triton_stage_dot import DotPrinter
from stretto.codegen.triton_stage_map import MapPrinter
from stretto.codegen.triton_stage_nest import GridBound, NestPrinter
from stretto.codegen.triton_stage_reduce import ReducePrinter
from stretto.kernels.operator import Stage
from stretto.text import Writer


def print_stage(
    out: Writer, names: Names, stage: Stage, grid: tuple[GridBound, ...], counter: list[int]
) -> None:
    """`grid`: where the task lies in each grid dim; `counter` numbers the names of the text."""
    parts = (out, names, stage, grid, counter)
    if NestPrinter(*parts).is_empty:
        return
    if stage.operator.combine in ("cumsum", "cumprod"):
        ReducePrinter(*parts).scan()
    elif not stage.operator.combine:
        MapPrinter(*parts).map()
    elif stage.method.template == "dot":
        DotPrinter(*parts).dot()
    else:
        ReducePrinter(*parts).reduce()
