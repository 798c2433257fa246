"""Makes the statements of one stage of a task, by the template that kernel selection chose."""

from __future__ import annotations

from stretto.device.operator import Stage
from stretto.machines.cpu.printer.contract import ContractPrinter
from stretto.machines.cpu.printer.loops import LoopPrinter
from stretto.machines.cpu.printer.sort import SortPrinter
from stretto.machines.cpu.templates import Conv, Depthwise, Dots, Packed, Rows, Sort
from stretto.machines.parameters import Naming
from stretto.machines.statements import Builder, Section
from stretto.machines.terms import Term


def header(stage: Stage) -> str | None:
    """The header beside PRELUDE's that the text of a stage needs."""
    match stage.template:
        case Packed() | Rows() | Dots():
            return "contract.h"
        case Conv() | Depthwise():
            return "conv.h"
        case Sort():
            return "sort.h"
        case _:
            return None


def print_stage(
    out: Builder, names: Naming, stage: Stage, grid: tuple[tuple[Term, Term], ...]
) -> None:
    """A section; `grid` are the bounds (first, last) of the task's grid dims."""
    parts = (out, names, stage, grid)
    with out.within(Section()):
        match stage.template:
            case Packed() | Rows() | Dots() as template:
                ContractPrinter(*parts).contraction(template)
            case Conv() | Depthwise() as template:
                ContractPrinter(*parts).convolution(template)
            case Sort():
                SortPrinter(*parts).sort()
            case _:
                LoopPrinter(*parts).loops()
