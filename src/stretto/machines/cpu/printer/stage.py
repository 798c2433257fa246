"""Makes the statements of one stage of a task, by the template that selection chose."""

from __future__ import annotations

from stretto.device.operator import Stage
from stretto.machines.cpu.printer.loops import LoopPrinter
from stretto.machines.cpu.template import CpuTemplate, Shared
from stretto.machines.parameters import Naming
from stretto.machines.statements import Builder, Section
from stretto.machines.terms import Term


def header(stage: Stage) -> str | None:
    """The header beside PRELUDE's that the text of a stage needs."""
    return stage.template.header if isinstance(stage.template, CpuTemplate) else None


def shared(stage: Stage) -> tuple[Shared, ...]:
    """What the text of a stage calls that is compiled by itself."""
    return stage.template.shared(stage) if isinstance(stage.template, CpuTemplate) else ()


def print_stage(
    out: Builder, names: Naming, stage: Stage, grid: tuple[tuple[Term, Term], ...]
) -> None:
    """A section; `grid` are the bounds (first, last) of the task's grid dims."""
    printer = LoopPrinter(out, names, stage, grid)
    with out.within(Section()):
        if isinstance(stage.template, CpuTemplate):
            stage.template.write(printer)
        else:
            printer.loops()
