"""Templates: how a thread block computes a stage. One file per template; they are found
automatically."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from stretto.device.operator import PLAIN_TEMPLATES, Template
from stretto.machines.cuda.printer.stage_nest import TritonNestPrinter
from stretto.machines.cuda.template import (
    CudaTemplate,
    CudaTemplateFamily,
    Parts,
    Stencil,
    TemplateChoice,
)
from stretto.machines.cuda.templates.pointwise import Map
from stretto.machines.cuda.templates.reduction import Reduce

_FOUND: list[CudaTemplateFamily] = [
    import_module(item.name).FAMILY for item in iter_modules(__path__, f"{__name__}.")
]
FAMILIES = sorted(_FOUND, key=lambda family: family.rank)
TEMPLATES: dict[str, type[Template]] = PLAIN_TEMPLATES | {
    family.template.name: family.template for family in FAMILIES
}


def choose(stencil: Stencil, sizes: tuple[int, ...]) -> TemplateChoice:
    """Choose the template for a box of these sizes; a reduction or a map always applies."""
    found = (family.choice(stencil, sizes) for family in FAMILIES)
    return next(choice for choice in found if choice is not None)


def stage_printer(parts: Parts) -> TritonNestPrinter:
    """Return the printer of a stage; a plain one if no template was chosen."""
    stage = parts[2]
    if isinstance(stage.template, CudaTemplate):
        return stage.template.printer(parts)
    plain = Reduce(4, 256) if stage.operator.combine else Map(1024)
    return plain.printer(parts)
