"""Prints one stage of a task as C++, by the template that kernel selection chose."""

from __future__ import annotations

from stretto.device.operator import Stage
from stretto.machines.cpu.printer.contract import ContractPrinter
from stretto.machines.cpu.printer.expr import Names
from stretto.machines.cpu.printer.loops import LoopPrinter
from stretto.machines.cpu.printer.sort import SortPrinter
from stretto.machines.cpu.templates import Conv, Depthwise, Dots, Packed, Rows, Sort
from stretto.text import Writer


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


def print_stage(out: Writer, names: Names, stage: Stage, grid: tuple[tuple[str, str], ...]) -> None:
    """A block in braces; `grid` names the bounds of the task's grid dims as pairs (first, last)."""
    parts = (out, names, stage, grid)
    with out.block():
        match stage.template:
            case Packed() | Rows() | Dots() as template:
                ContractPrinter(*parts).contraction(template)
            case Conv() | Depthwise() as template:
                ContractPrinter(*parts).convolution(template)
            case Sort():
                SortPrinter(*parts).sort()
            case _:
                LoopPrinter(*parts).loops()
