"""Prints one stage of a task as C++, by the template that kernel selection chose."""

from __future__ import annotations

from stretto.device.operator import SORTS, Stage
from stretto.kernels.contraction import analyse, analyse_convolution
from stretto.machines.cpu.printer.contract import ContractPrinter
from stretto.machines.cpu.printer.expr import Names
from stretto.machines.cpu.printer.loops import LoopPrinter
from stretto.machines.cpu.printer.sort import SortPrinter
from stretto.text import Writer


def header(stage: Stage) -> str | None:
    """The header beside PRELUDE's that the text of a stage needs."""
    match stage.method.template:
        case "packed" | "rows" | "dots":
            return "contract.h"
        case "conv" | "depthwise":
            return "conv.h"
        case _ if stage.operator.combine in SORTS:
            return "sort.h"
        case _:
            return None


def print_stage(out: Writer, names: Names, stage: Stage, grid: tuple[tuple[str, str], ...]) -> None:
    """A block in braces; `grid` names the bounds of the task's grid dims as pairs (first, last)."""
    with out.block():
        match stage.method.template:
            case "packed" | "rows" | "dots":
                found = analyse(stage.operator)
                assert found is not None
                ContractPrinter(out, names, stage, grid).contraction(found)
            case "conv" | "depthwise":
                image = analyse_convolution(stage.operator)
                assert image is not None
                ContractPrinter(out, names, stage, grid).convolution(image)
            case _ if stage.operator.combine in SORTS:
                SortPrinter(out, names, stage, grid).sort()
            case _:
                LoopPrinter(out, names, stage, grid).loops()
