"""The texts in `docs/explanation/walkthrough.md` are what the compiler prints today.

A comment `<!-- show: NAME -->` stands before each block of text that is checked;
`--update-golden` writes them anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from stretto.call.compiler import begin, run_stages
from stretto.frontends.python import capture
from stretto.machines.cpu.costs import CPU_COSTS
from stretto.machines.cpu.machine import CpuMachine
from stretto.machines.machine import HOST
from stretto.machines.registry import find_machine
from stretto.machines.stages import CAPTURED
from stretto.options import Options
from tests.golden import walkthrough_program
from tests.golden.walkthrough_program import settle

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "walkthrough.md"
BLOCK = re.compile(r"(<!-- show: (\S+) -->\n```\w*\n)(.*?)(```\n)", re.DOTALL)
OPTIONS = Options(threads=2, units=2)
END = "no line begins so"

EXCERPTS: Mapping[str, tuple[str, str, str, str]] = {
    "captured": ("cpu", "captured", "", END),
    "optimised": ("cpu", "optimised", "", END),
    "operators": ("cpu", "operators", "", END),
    "kernels": ("cpu", "kernels", "    while", "    leaf"),
    "scheduled": ("cpu", "scheduled", "frame main", END),
    "cpp-kernel": ("cpu", "text", "// for settle:8.mm", "static bool"),
    "cpp-loop": ("cpu", "text", "  for (;;)", "  switch"),
    "plan": ("cuda-emulated", "plan", "host words", "      seq {"),
    "triton-kernel": ("cuda-emulated", "text", "def k_mm", "@triton.jit"),
    "triton-loop": ("cuda-emulated", "text", "    going = ok", "    tl.debug_barrier()"),
}
"""For each block the machine, the form, how the first line begins, and how the line after it."""


@cache
def texts(machine: str) -> Mapping[str, str]:
    """All forms of the program on a machine, by name."""
    tensors = torch.zeros(8, 256), torch.zeros(256, 256)
    program = capture(settle, tensors, {}, OPTIONS).program
    chosen = find_machine(machine)
    if isinstance(chosen, CpuMachine):  # the same text on every host: with the figures of AVX-512
        chosen = replace(chosen, costs=CPU_COSTS)
    stages = begin(program, chosen, OPTIONS, HOST)
    found = {CAPTURED.name: CAPTURED.texts(stages)}
    steps = [step for step in chosen.stages if step.name not in ("compile", "load")]
    run_stages(stages, steps)
    found |= {step.form.name: step.form.texts(stages) for step in steps if step.form is not None}
    folder = str(Path(walkthrough_program.__file__).parent) + "/"
    return {name: "".join(parts).replace(folder, "") for name, parts in found.items()}


def excerpt(name: str) -> str:
    if name == "python":
        source = Path(walkthrough_program.__file__).read_text()
        return source[source.index("def settle") :]
    machine, form, first, after = EXCERPTS[name]
    lines = texts(machine)[form].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(first))
    rest = enumerate(lines[start + 1 :], start + 1)
    end = next((number for number, line in rest if line.startswith(after)), len(lines))
    return "\n".join(lines[start:end]).rstrip() + "\n"


def test_the_texts_are_what_is_printed_today(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text()
    fresh = BLOCK.sub(lambda block: block[1] + excerpt(block[2]) + block[4], page)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(fresh)
    assert {block[2] for block in BLOCK.finditer(page)} == {"python", *EXCERPTS}
    assert fresh == page or request.config.getoption("--update-golden"), (
        "docs/explanation/walkthrough.md is stale: see what `make golden` changes in it"
    )
