"""How a core computes a stage: a file per kind of template.

A file has the dataclasses of its templates, and a function that says when one applies, what it asks
of the tiles, and what it costs. `CANDIDATES` are asked one after the other; the first one that
applies is taken, and the last one always does.
"""

from __future__ import annotations

from stretto.device.operator import Loops, Template
from stretto.machines.cpu.templates.candidate import Candidate, Request
from stretto.machines.cpu.templates.contraction import Dots, Packed, Rows, contraction_candidate
from stretto.machines.cpu.templates.convolution import Conv, Depthwise, convolution_candidate
from stretto.machines.cpu.templates.loops import Sort, loop_candidate, sort_candidate

CpuTemplate = Packed | Rows | Dots | Conv | Depthwise | Sort | Loops
TEMPLATES: dict[str, type[Template]] = {
    template.name: template for template in (Packed, Rows, Dots, Conv, Depthwise, Sort, Loops)
}
CANDIDATES = (convolution_candidate, contraction_candidate, sort_candidate, loop_candidate)


def candidate(request: Request) -> Candidate:
    """The first template that applies."""
    return next(found for ask in CANDIDATES if (found := ask(request)) is not None)
