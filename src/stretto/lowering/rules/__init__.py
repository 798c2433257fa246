"""Lowering rules, one file per family of operators.

A rule turns one operator into lazy tensors and operators over buffers; `table.rule` registers it
under the operator's name, in `RULES`. All files of this folder are imported here, so a new file
need not be listed anywhere.
"""

from importlib import import_module
from pkgutil import iter_modules

from stretto.lowering.rules.table import RULES, Rule

FAMILIES = tuple(import_module(f"{__name__}.{item.name}") for item in iter_modules(__path__))
"""The modules that register rules, and their helper modules."""

__all__ = ["FAMILIES", "RULES", "Rule"]
