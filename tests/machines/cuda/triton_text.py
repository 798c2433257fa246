"""Small programs in Triton's language: the text of the prelude with a kernel after it."""

from pathlib import Path
from textwrap import dedent

import torch
from torch import Tensor

import stretto
from stretto.machines.cuda.printer.source import ENTRY, PROGRESS, KernelParameter, TritonSource

PRELUDE = (Path(stretto.__file__).parent / "machines/cuda/printer/library/prelude.py").read_text()
CONTROL = KernelParameter("control", "*i64", "control")
POLLS = KernelParameter("polls", "i64", "polls")


def pointer(name: str, element: str = "fp32") -> KernelParameter:
    return KernelParameter(name, f"*{element}", "buffer")


def number(name: str) -> KernelParameter:
    return KernelParameter(name, "i64", "limit")


def program(
    body: str, *parameters: KernelParameter, units: int = 1, functions: str = "", warps: int = 4
) -> TritonSource:
    """`body` has `control`, `polls`, `unit`, `base` (this unit's progress) and `ok`."""
    everything = (CONTROL, *parameters, POLLS)
    names = ", ".join(parameter.name for parameter in everything)
    head = f"""
        @triton.jit
        def {ENTRY}({names}):
            unit = tl.program_id(0)
            base = tl.load(control + {PROGRESS} + unit)
            ok = stopped(control) == 0
    """
    lines = "".join(f"    {line}\n" for line in dedent(body).strip().splitlines())
    text = f"{PRELUDE}\n\n{dedent(functions)}\n{dedent(head)}{lines}"
    return TritonSource(text, everything, (), units, warps)


def control_block(units: int) -> Tensor:
    return torch.zeros(PROGRESS + units, dtype=torch.int64)


def progress(control: Tensor) -> list[int]:
    return control[PROGRESS:].tolist()
