"""Templates of stages for a core: a file per family, found by import of the whole package.

A file has dataclasses (the choices made, and how they are printed), and a function that tells when
one of them applies, what it requires of the tiles, and what it costs.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules

from stretto.device.operator import Template
from stretto.machines.cpu.template import CpuTemplateFamily, TemplateCandidate, TemplateRequest

_FOUND: list[CpuTemplateFamily] = [
    import_module(item.name).FAMILY for item in iter_modules(__path__, f"{__name__}.")
]
FAMILIES = sorted(_FOUND, key=lambda family: family.rank)
TEMPLATES: dict[str, type[Template]] = {
    template.name: template for family in FAMILIES for template in family.templates
}


def candidate(request: TemplateRequest) -> TemplateCandidate:
    """Return the template of the first family that applies; plain loops always do."""
    found = (family.candidate(request) for family in FAMILIES)
    one = next(one for one in found if one is not None)
    factor = request.costs.factor(one.template.name)
    return one if factor == 1.0 else replace(one, seconds=one.seconds * factor)
