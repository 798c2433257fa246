"""Makes the statements of one stage of a task, by the template that selection chose."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.device.operator import Kernel, Loops, Stage, TileDim
from stretto.machines.cpu.printer.loops import LoopPrinter
from stretto.machines.cpu.template import CpuTemplate, Shared, Strip
from stretto.machines.cpu.transposed import transposed_operands
from stretto.machines.parameters import Naming
from stretto.machines.statements import Builder, Section
from stretto.machines.terms import Term


def header(stage: Stage) -> str | None:
    """The header beside PRELUDE's that the text of a stage needs."""
    if isinstance(stage.template, CpuTemplate):
        return stage.template.header
    return None if transposed_operands(stage.operator) is None else "transpose.h"


def shared(stage: Stage) -> tuple[Shared, ...]:
    """What the text of a stage calls that is compiled by itself."""
    return stage.template.shared(stage) if isinstance(stage.template, CpuTemplate) else ()


def definitions(stage: Stage) -> tuple[str, ...]:
    """Source that the text of a stage needs before it."""
    return stage.template.definitions(stage) if isinstance(stage.template, CpuTemplate) else ()


def kernel_strip(kernel: Kernel) -> Strip | None:
    """The strips in which all stages of a task are computed: those that its only stage with a
    template wants, where plain loops follow."""
    first, *rest = kernel.stages
    if not rest or not isinstance(first.template, CpuTemplate):
        return None
    strip = first.template.strip(first)
    if strip is None or not all(isinstance(stage.template, Loops) for stage in rest):
        return None
    tile = kernel.grid[strip.grid]
    return strip if tile.parts is not None or strip.size < tile.tile else None


def streamed(stage: Stage, grid: Sequence[TileDim]) -> int:
    """Bytes of constants that a task of a stage reads once, in any order; else 0."""
    template = stage.template
    return template.streamed(stage, grid) if isinstance(template, CpuTemplate) else 0


def print_stage(
    out: Builder,
    names: Naming,
    stage: Stage,
    grid: tuple[tuple[Term, Term], ...],
    back: Term | None = None,
) -> None:
    """A section; `grid` are the bounds (first, last) of the task's grid dims, `back` as in
    NestPrinter."""
    printer = LoopPrinter(out, names, stage, grid, back)
    with out.within(Section()):
        if isinstance(stage.template, CpuTemplate):
            stage.template.write(printer)
        else:
            printer.loops()
