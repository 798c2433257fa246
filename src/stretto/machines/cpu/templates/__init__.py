"""How a core computes a stage: a file per family of templates, which is found by itself.

A file has dataclasses (what was chosen and found out, and how that is printed), and a function that
says when one of them applies, what it asks of the tiles, and what it costs.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules

from stretto.device.operator import Template
from stretto.machines.cpu.template import Candidate, Family, Request

_FOUND: list[Family] = [
    import_module(item.name).FAMILY for item in iter_modules(__path__, f"{__name__}.")
]
FAMILIES = sorted(_FOUND, key=lambda family: family.rank)
TEMPLATES: dict[str, type[Template]] = {
    template.name: template for family in FAMILIES for template in family.templates
}


def candidate(request: Request) -> Candidate:
    """The template of the first family that applies; plain loops always do."""
    found = (family.candidate(request) for family in FAMILIES)
    one = next(one for one in found if one is not None)
    factor = request.costs.factor(one.template.name)
    return one if factor == 1.0 else replace(one, seconds=one.seconds * factor)
