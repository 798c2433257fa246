"""Whole programs printed in every style that a GPU may get, interpreted and compared with eager."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.machines.cuda.device import emulated_cuda_executable
from stretto.machines.cuda.printer.source import ENTRY
from stretto.machines.cuda.printer.triton_module import Style, library_text, print_plan
from stretto.machines.cuda.styles import SHARED_KEPT, STYLES
from stretto.options import Debug, Options

torch.manual_seed(0)
CELL = nn.GRUCell(40, 40).requires_grad_(False)
LINEAR = nn.Linear(40, 40).requires_grad_(False)
X = torch.randn(6, 40)


def loops(xs: Tensor) -> Tensor:
    h = torch.zeros(1, 40)
    for x in xs:
        h = CELL(x.unsqueeze(0), h)
    while h.sum() < 8:
        h = torch.tanh(LINEAR(h)) + 0.5
    return h


def branches(xs: Tensor) -> Tensor:
    h = xs
    for _ in range(3):
        if h.sum() > 0:
            h = torch.softmax(LINEAR(h), -1) - 0.1
            h = h - 0.5 * h.mean(0, keepdim=True)
        else:
            h = torch.sigmoid(LINEAR(h)).cumsum(0) * 0.3
    return h


def descend(x: Tensor, n: Tensor) -> Tensor:
    if n.sum() <= 0:
        return x
    half = descend(torch.tanh(x), n - 2)
    for _ in range(2):
        half = half + LINEAR(descend(x * 0.5, n - 3))
    return half + n


def recursion(xs: Tensor) -> Tensor:
    return descend(xs, torch.tensor(5))


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "loops": loops,
    "branches": branches,
    "recursion": recursion,
}


SCARCE = (
    Style(registers=20),
    Style(registers=20, warps=8),
    Style(registers=20, warps=8, shared=9000),
    Style(registers=20, shared=SHARED_KEPT),
)
"""Ways in which registers hold a part of what loops read."""
LACKING = (*SCARCE[:3], *(style for style in STYLES if 0 < style.registers < 64))
"""Ways in which neither has room for the rest."""
SHARED = tuple(style for style in STYLES if style.shared and not style.registers)
"""Ways in which shared memory holds all of it."""


@pytest.mark.whole
@pytest.mark.parametrize("style", (*STYLES, *SCARCE), ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_style_computes_the_same(name: str, style: Style) -> None:
    function, options = PROGRAMS[name], Options(units=7, debug=Debug(unroll=0))
    compiled: Any = stretto.compile(function, (X,), backend="cuda-emulated", options=options)
    entry = compiled.signatures[0]
    plan = entry.stages.product.plan
    sources = print_plan(plan, style)
    executable = emulated_cuda_executable(plan, sources, entry.stages.lowered.interface, options)
    entry.executable = executable
    for x in (X, -X):
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-5)
    assert executable.launches >= 2
    (source,) = sources
    assert source.warps == style.warps
    kernels = re.findall(r"@triton.jit(\(noinline=True\))?\ndef k_", source.text)
    assert kernels
    if style.inline:
        assert not any(kernels)
    if name == "loops":
        assert bool(source.kept) == bool(style.registers)
        again = "= stretto_again(" in source.text
        # Nothing lacks where registers hold a part only and shared memory the rest.
        assert again == (style in LACKING + SHARED or style == SCARCE[3])
        assert bool(source.shared_bytes) == (again and bool(style.shared))
        assert bool(source.lacking) == (style in LACKING or not style.registers + style.shared)


def test_the_text_needs_nothing_but_triton() -> None:
    compiled = stretto.compile(
        loops, (X,), backend="cuda-emulated", options=Options(units=2, debug=Debug(unroll=0))
    )
    (source,) = compiled.signatures[0].stages.product.sources
    imports = re.findall(r"^(?:import|from) .*", source.text, re.MULTILINE)
    assert imports == ["import triton", "import triton.language as tl"]
    assert library_text() in source.text
    assert source.text.count(f"def {ENTRY}(") == 1
    names = source.text[source.text.index(f"def {ENTRY}(") :].split(")")[0].split("(")[1]
    assert [name.strip() for name in names.split(",")] == [p.name for p in source.parameters]


def test_one_text_whatever_the_number_of_units() -> None:
    """132 lists of items are not 132 branches."""
    sizes: list[int] = []
    for units in (4, 132):
        options = Options(units=units, debug=Debug(unroll=0))
        compiled = stretto.compile(branches, (X,), backend="cuda-emulated", options=options)
        (source,) = compiled.signatures[0].stages.product.sources
        sizes.append(len(source.text) - len(library_text()))
    assert sizes[1] < 2 * sizes[0]
